"""`tenure stats`: job counts, live workers, unserved queues and kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from tenure.cli.database import common_options, in_store
from tenure.cli.output import Exit, counted, print_json, print_line, print_table, rich_table
from tenure.cli.tables import Column, Heading
from tenure.cli.version_skew import SkewedKind, skewed_kinds
from tenure.seams import SYSTEM
from tenure.stores.database_url import shown_url
from tenure.stores.findings import undelivered
from tenure.views.stats import oldest_due_seconds, stats_view
from tenure.views.workers import live_workers, silent_seconds, unserved_kinds, unserved_queues

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from tenure.stores.contract import Stats, Store, Tally, WorkerRecord
    from tenure.stores.contract.outbox import OutboxDepth

JOB_HEADINGS = (
    Column("queue", cut_to=12),
    Column("kind", cut_to=16),
    Column("status"),
    Column("jobs", is_number=True),
    Column("due", rank=1, is_number=True),
    Column("oldest due", rank=2, is_number=True),
)
WORKER_HEADINGS = (
    Column("worker", cut_to=30),
    Column("host", rank=7),
    Column("pid", rank=6, is_number=True),
    Column("version", rank=4),
    Column("slots", rank=1, is_number=True),
    Column("queues", rank=2, cut_to=12),
    Column("kinds", rank=3, cut_to=16),
    Column("last seen", is_number=True),
)
UNSERVED_HEADINGS = ("queue", "kind", "jobs")
UNSERVED_QUEUE_HEADINGS = ("queue", "due")

Section = tuple[str, Sequence[Heading], Sequence[Sequence[object]]]
"""A title, headings and rows."""


@click.command()
@common_options
@click.option("--watch", type=click.FloatRange(0.1, 86_400), metavar="SECONDS", help="Repeat at this interval.")
def stats(*, database: str, as_json: bool, watch: float | None) -> int:
    """Count jobs; list live workers, and unserved queues and kinds.

    Jobs are counted per queue, kind and status. --watch redraws on a terminal and prints again elsewhere, until
    interrupted.
    """
    if watch is not None and as_json:
        raise click.UsageError("--json and --watch cannot be combined")
    if watch is not None:
        in_store(database, lambda store: _watch(store, watch))
    found = in_store(database, _read)
    if as_json:
        view = {"unknown_arguments": found.skewed, "outbox": found.depth, "undelivered": found.undelivered}
        print_json({"database": shown_url(database), **stats_view(found.current), **view})
    else:
        _print(found)
    return Exit.OK


class Reading(NamedTuple):
    """What is shown. `undelivered` are messages of the outbox that nothing delivers, in words."""

    current: Stats
    skewed: Sequence[SkewedKind]
    depth: OutboxDepth
    undelivered: Sequence[str]


async def _read(store: Store) -> Reading:
    depth = await store.outbox.depth()
    problems = [finding.message for finding in undelivered(depth, await store.outbox.endpoints())]
    return Reading(await store.stats(), await skewed_kinds(store), depth, problems)


async def _watch(store: Store, seconds: float) -> NoReturn:
    from rich.console import Console

    console = Console(highlight=False)
    await (_redraw(store, seconds, console) if console.is_terminal else _repeat(store, seconds))


async def _repeat(store: Store, seconds: float) -> NoReturn:
    while True:
        _print(await _read(store))
        print_line("")
        await SYSTEM.clock.sleep(seconds)


async def _redraw(store: Store, seconds: float, console: Console) -> NoReturn:
    from rich.live import Live

    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            live.update(_drawn(console.width, await _read(store)), refresh=True)
            await SYSTEM.clock.sleep(seconds)


def _drawn(width: int, found: Reading) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for title, headings, rows in _sections(found.current, found.skewed):
        parts += [Text(title), *([rich_table(headings, rows, width=width)] if rows else []), Text()]
    return Group(*parts, *(Text(line) for line in _lines(found)))


def _print(found: Reading) -> None:
    for title, headings, rows in _sections(found.current, found.skewed):
        print_line(title)
        if rows:
            print_table(headings, rows)
            print_line("")
    for line in _lines(found):
        print_line(line)


def _sections(current: Stats, skewed: Sequence[SkewedKind]) -> Iterator[Section]:
    total = sum(tally.jobs for tally in current.tallies)
    yield counted(total, "job"), JOB_HEADINGS, [_tally_row(current, tally) for tally in current.tallies]
    workers = live_workers(current)
    yield _workers_title(current, workers), WORKER_HEADINGS, [_worker_row(current, one) for one in workers]
    if queues := unserved_queues(current):
        due = [(one.queue, one.due) for one in queues]
        yield "queues with due jobs that no live worker serves", UNSERVED_QUEUE_HEADINGS, due
    if unserved := unserved_kinds(current):
        rows = [(one.queue, one.kind, one.jobs) for one in unserved]
        yield "kinds with jobs that no live worker serves", UNSERVED_HEADINGS, rows
    if skewed:
        rows = [(one.queue, one.kind, one.jobs) for one in skewed]
        yield "kinds with jobs whose arguments are unknown to a worker's code", UNSERVED_HEADINGS, rows


def _tally_row(current: Stats, tally: Tally) -> tuple[object, ...]:
    seconds = oldest_due_seconds(current, tally)
    oldest = None if seconds is None else f"{seconds:,.0f} s ago"
    return tally.queue, tally.kind, tally.status, tally.jobs, tally.due or None, oldest


def _worker_row(current: Stats, worker: WorkerRecord) -> tuple[object, ...]:
    seconds = max(0.0, (current.at - worker.seen_at).total_seconds())
    names = (", ".join(worker.queues), ", ".join(worker.kinds))
    seen = f"{seconds:,.0f} s ago" if silent_seconds(current, worker) is None else f"silent for {seconds:,.0f} s"
    return worker.id, worker.host, worker.pid, worker.version, worker.concurrency, *names, seen


def _workers_title(current: Stats, workers: Sequence[WorkerRecord]) -> str:
    """A killed worker registers no stop, so it is counted as silent before it is no longer listed."""
    silent = sum(silent_seconds(current, worker) is not None for worker in workers)
    return counted(len(workers) - silent, "live worker") + (f", {silent} silent" if silent else "")


def _lines(found: Reading) -> list[str]:
    """The lines after the tables: open dead letters, and what the outbox does not deliver."""
    return [counted(found.current.dead_letters, "open dead letter"), *found.undelivered]
