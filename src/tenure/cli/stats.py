"""`tenure stats`: job counts, live workers and unserved kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from tenure.cli.database import common_options, opened, run, without_password
from tenure.cli.output import Exit, counted, print_json, print_line, print_table, rich_table
from tenure.seams import SYSTEM
from tenure.views.stats import oldest_due_seconds, stats_view
from tenure.views.workers import live_workers, unserved_kinds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from tenure.stores.contract import Stats, Store, Tally, WorkerRecord

JOB_HEADINGS = ("queue", "kind", "status", "jobs", "due", "oldest due")
WORKER_HEADINGS = ("worker", "host", "pid", "version", "slots", "queues", "kinds", "last seen")
UNSERVED_HEADINGS = ("queue", "kind", "jobs")

Section = tuple[str, Sequence[str], Sequence[Sequence[object]]]
"""A title, headings and rows."""


@click.command()
@common_options
@click.option("--watch", type=click.FloatRange(0.1, 86_400), metavar="SECONDS", help="Repeat at this interval.")
def stats(*, database: str, as_json: bool, watch: float | None) -> int:
    """Count jobs; list live workers and kinds that none of them serves.

    Jobs are counted per queue, kind and status. --watch redraws on a terminal and prints again elsewhere, until
    interrupted.
    """
    if watch is not None and as_json:
        raise click.UsageError("--json and --watch cannot be combined")
    if watch is not None:
        run(_watch(database, watch))
    current = run(_read(database))
    if as_json:
        print_json({"database": without_password(database), **stats_view(current)})
    else:
        _print(current)
    return Exit.OK


async def _read(database: str) -> Stats:
    async with opened(database) as store:
        return await store.stats()


async def _watch(database: str, seconds: float) -> NoReturn:
    from rich.console import Console

    console = Console(highlight=False)
    async with opened(database) as store:
        await (_redraw(store, seconds, console) if console.is_terminal else _repeat(store, seconds))


async def _repeat(store: Store, seconds: float) -> NoReturn:
    while True:
        _print(await store.stats())
        print_line("")
        await SYSTEM.clock.sleep(seconds)


async def _redraw(store: Store, seconds: float, console: Console) -> NoReturn:
    from rich.live import Live

    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            live.update(_drawn(await store.stats()), refresh=True)
            await SYSTEM.clock.sleep(seconds)


def _drawn(current: Stats) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for title, headings, rows in _sections(current):
        parts += [Text(title), *([rich_table(headings, rows)] if rows else []), Text()]
    return Group(*parts, Text(_open_dead_letters(current)))


def _print(current: Stats) -> None:
    for title, headings, rows in _sections(current):
        print_line(title)
        if rows:
            print_table(headings, rows)
            print_line("")
    print_line(_open_dead_letters(current))


def _sections(current: Stats) -> Iterator[Section]:
    total = sum(tally.jobs for tally in current.tallies)
    yield counted(total, "job"), JOB_HEADINGS, [_tally_row(current, tally) for tally in current.tallies]
    workers = live_workers(current)
    yield counted(len(workers), "live worker"), WORKER_HEADINGS, [_worker_row(current, one) for one in workers]
    if unserved := unserved_kinds(current):
        rows = [(one.queue, one.kind, one.jobs) for one in unserved]
        yield "kinds with jobs that no live worker serves", UNSERVED_HEADINGS, rows


def _tally_row(current: Stats, tally: Tally) -> tuple[object, ...]:
    seconds = oldest_due_seconds(current, tally)
    oldest = None if seconds is None else f"{seconds:,.0f} s ago"
    return tally.queue, tally.kind, tally.status, tally.jobs, tally.due or None, oldest


def _worker_row(current: Stats, worker: WorkerRecord) -> tuple[object, ...]:
    seconds = max(0.0, (current.at - worker.seen_at).total_seconds())
    names = (", ".join(worker.queues), ", ".join(worker.kinds))
    return worker.id, worker.host, worker.pid, worker.version, worker.concurrency, *names, f"{seconds:,.0f} s ago"


def _open_dead_letters(current: Stats) -> str:
    return counted(current.dead_letters, "open dead letter")
