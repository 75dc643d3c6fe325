"""`tenure import`: import an export into an empty database, all of it or nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from tenure.archive.importer import ArchiveSummary, check_file, import_file
from tenure.cli.database import common_options, connected, run
from tenure.cli.output import Exit, ProgressDisplay, counted, print_json, print_line, progress
from tenure.stores.database_url import shown_url

PROGRESS_LINES = 500
_SQLITE = "sqlite:///"


@click.command(name="import")
@common_options
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_(*, database: str, as_json: bool, file: Path) -> int:
    """Import an export into an empty database: all of it, or nothing.

    The database must be migrated; a SQLite file that does not exist is created. Every job is verified against its
    events before it is written. An invalid line is reported with its number.
    """
    with progress(as_json=as_json) as display:
        summary = run(_import(database, file, display))
    _report(database, file, summary, as_json=as_json)
    return Exit.OK


async def _import(database: str, file: Path, display: ProgressDisplay) -> ArchiveSummary:
    lines: Counter[str] = Counter()

    def report(step: str, fraction: float) -> None:
        lines[step] += 1
        if lines[step] % PROGRESS_LINES == 0:
            # Reading takes about a quarter of the time.
            done = fraction / 4 if step == "reading" else 0.25 + 0.75 * fraction
            display.show(f"{step}: {counted(lines[step], 'line')}", done)

    # Before the database is opened, so that a broken file does not create one.
    summary = check_file(file, report=report)
    async with connected(database) as store:
        if _is_new_file(database):
            await store.migrate()
        await store.open()
        await import_file(store.archive, file, summary, report=report)
    return summary


def _is_new_file(database: str) -> bool:
    return database.startswith(_SQLITE) and not Path(database.removeprefix(_SQLITE)).exists()


def _report(database: str, file: Path, summary: ArchiveSummary, *, as_json: bool) -> None:
    counts, header = summary.footer.counts, summary.header
    if as_json:
        source = {"file": str(file), "counts": counts, "exported_at": header.at, "from": header.store}
        print_json({"database": shown_url(database), **source})
        return
    jobs, events = counts.get("job", 0), counts.get("event", 0)
    print_line(f"imported {counted(jobs, 'job')} and {counted(events, 'event')}", level="ok")
