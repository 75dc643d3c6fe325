"""`tenure stats`: the database at a glance. What waits, what runs, who works, and what nobody can run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from tenure.cli.database import common_options, opened, run, without_password
from tenure.cli.output import Exit, counted, say, say_json, say_table, table
from tenure.seams import SYSTEM
from tenure.views.unserved import live_workers, unserved_kinds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from tenure.stores.contract import Stats, Store, Tally, WorkerRecord

JOB_HEADINGS = ("queue", "kind", "status", "jobs", "due", "oldest due")
WORKER_HEADINGS = ("worker", "host", "pid", "version", "slots", "queues", "kinds", "seen")
UNSERVED_HEADINGS = ("queue", "kind", "jobs")

Block = tuple[str, Sequence[str], Sequence[Sequence[object]]]
"""A title, headings and rows."""


@click.command()
@common_options
@click.option("--watch", type=click.FloatRange(0.1, 86_400), metavar="SECONDS", help="Look again and again.")
def stats(*, database: str, as_json: bool, watch: float | None) -> int:
    """Count jobs per queue, kind and status; name the workers, and the kinds that no worker runs.

    --watch redraws on a terminal, and writes the lines anew elsewhere, until interrupted.
    """
    if watch is not None and as_json:
        raise click.UsageError("--json is one document; ask again instead of --watch")
    if watch is not None:
        run(_watch(database, watch))
    else:
        seen = run(_look(database))
        if as_json:
            say_json({"database": without_password(database), **_facts(seen)})
        else:
            _say(seen)
    return Exit.OK


async def _look(database: str) -> Stats:
    async with opened(database) as store:
        return await store.stats()


async def _watch(database: str, seconds: float) -> NoReturn:
    from rich.console import Console

    console = Console(highlight=False)
    async with opened(database) as store:
        await (_redraw(store, seconds, console) if console.is_terminal else _repeat(store, seconds))


async def _repeat(store: Store, seconds: float) -> NoReturn:
    while True:
        _say(await store.stats())
        say("")
        await SYSTEM.clock.sleep(seconds)


async def _redraw(store: Store, seconds: float, console: Console) -> NoReturn:
    from rich.live import Live

    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            live.update(_drawn(await store.stats()), refresh=True)
            await SYSTEM.clock.sleep(seconds)


def _drawn(seen: Stats) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for title, headings, rows in _blocks(seen):
        parts += [Text(title), *([table(headings, rows)] if rows else []), Text()]
    return Group(*parts, Text(_letters(seen)))


def _say(seen: Stats) -> None:
    for title, headings, rows in _blocks(seen):
        say(title)
        if rows:
            say_table(headings, rows)
            say("")
    say(_letters(seen))


def _blocks(seen: Stats) -> Iterator[Block]:
    total = sum(tally.jobs for tally in seen.tallies)
    yield counted(total, "job"), JOB_HEADINGS, [_tally_row(seen, tally) for tally in seen.tallies]
    workers = live_workers(seen)
    yield f"{counted(len(workers), 'worker')} alive", WORKER_HEADINGS, [_worker_row(seen, one) for one in workers]
    idle = unserved_kinds(seen)
    if idle:
        title = "kinds with jobs that no living worker runs"
        yield title, UNSERVED_HEADINGS, [(one.queue, one.kind, one.jobs) for one in idle]


def _tally_row(seen: Stats, tally: Tally) -> tuple[object, ...]:
    return tally.queue, tally.kind, tally.status, tally.jobs, tally.due or None, _oldest(seen, tally)


def _oldest(seen: Stats, tally: Tally) -> str | None:
    seconds = _age_seconds(seen, tally)
    return None if seconds is None else f"{seconds:,.0f} s ago"


def _age_seconds(seen: Stats, tally: Tally) -> float | None:
    """How long the longest-waiting has been due, by the clock that says when it is."""
    return None if tally.oldest_due_at is None else max(0.0, (seen.at - tally.oldest_due_at).total_seconds())


def _worker_row(seen: Stats, worker: WorkerRecord) -> tuple[object, ...]:
    ago = max(0.0, (seen.at - worker.seen_at).total_seconds())
    names = (", ".join(worker.queues), ", ".join(worker.kinds))
    return worker.id, worker.host, worker.pid, worker.version, worker.concurrency, *names, f"{ago:,.0f} s ago"


def _letters(seen: Stats) -> str:
    return f"{counted(seen.dead_letters, 'dead letter')} that nobody has dealt with"


def _facts(seen: Stats) -> dict[str, Any]:
    return {
        "at": seen.at,
        "jobs": [_tally_facts(seen, tally) for tally in seen.tallies],
        "workers": live_workers(seen),
        "unserved": unserved_kinds(seen),
        "dead_letters": seen.dead_letters,
    }


def _tally_facts(seen: Stats, tally: Tally) -> dict[str, Any]:
    return {
        "queue": tally.queue,
        "kind": tally.kind,
        "status": tally.status,
        "jobs": tally.jobs,
        "due": tally.due,
        "oldest_due_at": tally.oldest_due_at,
        "oldest_due_seconds": _age_seconds(seen, tally),
    }
