"""`tenure export`: a consistent snapshot of the whole database as JSON Lines."""

from __future__ import annotations

import gzip
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

import click

from tenure.archive.exporter import Exporter, RowsUnreadable
from tenure.archive.format import Footer
from tenure.cli.database import common_options, opened, run
from tenure.cli.output import Exit, ProgressDisplay, counted, print_error, print_json, print_line, progress
from tenure.cli.vocabulary import vocabularies_option
from tenure.errors import RowPoisoned
from tenure.stores.contract import UnreadableRow
from tenure.stores.database_url import shown_url
from tenure.vocabularies import Vocabulary
from tenure.vocabularies import vocabularies as vocabularies_named

STANDARD_OUTPUT = "-"
PROGRESS_LINES = 500


@click.command()
@common_options
@click.argument("file", default=STANDARD_OUTPUT, metavar="[FILE|-]")
@vocabularies_option
def export(*, database: str, as_json: bool, file: str, vocabularies: tuple[str, ...]) -> int:
    """Write a consistent snapshot of the whole database as JSON Lines.

    `tenure import` reads it into an empty database. FILE is compressed if its name ends in .gz, and appears only when
    it is complete. Rows that cannot be read are left out of FILE and named, with exit code 1. The export does not block
    writers. With --vocabulary, jobs and events are translated for another
    system; such a file cannot be imported.
    """
    chosen = vocabularies_named(vocabularies)
    left_out: Sequence[UnreadableRow] = ()
    with progress(as_json=as_json) as display:
        try:
            with _target(file) as target:
                footer, _ = run(_export(database, target, chosen=chosen, display=display))
        except (RowsUnreadable, RowPoisoned):
            if file == STANDARD_OUTPUT:
                raise
            # The file is begun again, without the rows that cannot be read.
            with _target(file) as target:
                footer, left_out = run(_export(database, target, chosen=chosen, display=display, leave_out=True))
    _report(database, file, footer, as_json=as_json)
    for row in left_out:
        print_error(f"left out: {row}")
    return Exit.PROBLEMS if left_out else Exit.OK


async def _export(
    database: str,
    target: IO[bytes],
    *,
    chosen: tuple[Vocabulary, ...],
    display: ProgressDisplay,
    leave_out: bool = False,
) -> tuple[Footer, Sequence[UnreadableRow]]:
    lines = 0

    def report(kind: str, fraction: float) -> None:
        nonlocal lines
        lines += 1
        if lines % PROGRESS_LINES == 0:
            display.show(f"{kind}: {counted(lines, 'line')}", fraction)

    async with opened(database) as store, store.archive.snapshot() as snapshot:
        exporter = Exporter(snapshot, chosen=chosen, report=report, leave_out=leave_out)
        async for line in exporter.lines():
            target.write(line)
    assert exporter.footer is not None, "all lines were written"
    return exporter.footer, tuple(snapshot.unreadable)


@contextmanager
def _target(file: str) -> Iterator[IO[bytes]]:
    """The output. A file gets its name when it is complete and synced to disk; a symbolic link is not followed."""
    if file == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(file)
    unfinished: Path | None = None
    try:
        descriptor, unfinished = _create_beside(path)
        with os.fdopen(descriptor, "wb") as plain:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=plain, mode="wb", mtime=0) as compressed:
                    yield cast("IO[bytes]", compressed)
            else:
                yield plain
            plain.flush()
            os.fsync(plain.fileno())
        unfinished.replace(path)
    except OSError as problem:
        raise click.ClickException(f"{file} cannot be written: {problem.strerror or problem}") from problem
    finally:
        if unfinished is not None:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)


def _create_beside(path: Path) -> tuple[int, Path]:
    """Create a new file beside the given one, with its mode, or else for the owner alone."""
    try:
        existing = path.lstat().st_mode
    except FileNotFoundError:
        existing = None
    if existing is not None and not stat.S_ISREG(existing):
        raise click.ClickException(f"{path} is a symbolic link or no regular file; name another file, or - for output")
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".unfinished", dir=path.parent)
    if existing is not None:
        os.fchmod(descriptor, stat.S_IMODE(existing))
    return descriptor, Path(name)


def _report(database: str, file: str, footer: Footer, *, as_json: bool) -> None:
    """Print the result to standard output, or to standard error if the export was written to standard output."""
    to_file = file != STANDARD_OUTPUT
    if as_json and to_file:
        print_json({"database": shown_url(database), "file": file, "counts": footer.counts, "sha256": footer.sha256})
        return
    jobs, events = footer.counts.get("job", 0), footer.counts.get("event", 0)
    line = f"exported {counted(jobs, 'job')} and {counted(events, 'event')}"
    if to_file:
        print_line(f"{line} to {file}", level="ok")
    else:
        click.echo(line, err=True)
