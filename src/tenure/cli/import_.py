"""`tenure import`: an export into an empty database, all of it or nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from tenure.archive.importer import Seen, import_seen, look_at
from tenure.cli.database import common_options, connected, run, without_password
from tenure.cli.output import Exit, Progress, counted, progress, say, say_json

SHOWN_EVERY = 500
_SQLITE = "sqlite:///"


@click.command(name="import")
@common_options
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_(*, database: str, as_json: bool, file: Path) -> int:
    """Write what `tenure export` wrote into an empty database: all of it, or nothing.

    The database must be migrated; a SQLite file that is not there yet is made. Every job is replayed before it is
    written, as `tenure verify` would. A line that is broken is named.
    """
    with progress(as_json=as_json) as shown:
        seen = run(_import(database, file, shown))
    _report(database, file, seen, as_json=as_json)
    return Exit.OK


async def _import(database: str, file: Path, shown: Progress) -> Seen:
    lines: Counter[str] = Counter()

    def told(doing: str, fraction: float) -> None:
        lines[doing] += 1
        if lines[doing] % SHOWN_EVERY == 0:
            # Reading comes first, and is the smaller part of it.
            share = fraction / 4 if doing == "reading" else 0.25 + 0.75 * fraction
            shown.show(f"{doing}: {counted(lines[doing], 'line')}", share)

    # First, so that a broken file makes no database.
    seen = look_at(file, told=told)
    async with connected(database) as store:
        if _is_new_file(database):
            await store.migrate()
        await store.open()
        await import_seen(store.archive, file, seen, told=told)
    return seen


def _is_new_file(database: str) -> bool:
    return database.startswith(_SQLITE) and not Path(database.removeprefix(_SQLITE)).exists()


def _report(database: str, file: Path, seen: Seen, *, as_json: bool) -> None:
    counts = seen.footer.counts
    if as_json:
        facts = {"database": without_password(database), "file": str(file), "counts": counts}
        say_json({**facts, "exported_at": seen.header.at, "from": seen.header.store})
        return
    jobs, events = counts.get("job", 0), counts.get("event", 0)
    say(f"imported {counted(jobs, 'job')} and {counted(events, 'event')}; `tenure verify` replays them", level="ok")
