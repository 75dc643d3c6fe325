"""`tenure export`: the whole database as lines of JSON, as it is at one moment."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

import click

from tenure.archive.exporter import Export
from tenure.archive.format import Footer
from tenure.cli.database import common_options, opened, run, without_password
from tenure.cli.output import Exit, Progress, counted, progress, say, say_json
from tenure.cli.vocabulary import some_vocabularies
from tenure.vocabularies import Vocabulary
from tenure.vocabularies import vocabularies as vocabularies_named

STANDARD_OUTPUT = "-"
SHOWN_EVERY = 500
"""Lines from one word about progress to the next."""


@click.command()
@common_options
@click.argument("file", default=STANDARD_OUTPUT, metavar="[FILE|-]")
@some_vocabularies
def export(*, database: str, as_json: bool, file: str, vocabularies: tuple[str, ...]) -> int:
    """Write the whole database as JSON Lines, as it is at one moment, for `tenure import` into an empty one.

    To FILE, which is there only once all of it is, and compressed when its name ends in .gz; or to standard output.
    Writers are not held up. With --vocabulary, jobs and events are told in those words instead, to be read elsewhere;
    that cannot be imported.
    """
    chosen = vocabularies_named(vocabularies)
    with progress(as_json=as_json) as shown, _target(file) as target:
        footer = run(_export(database, target, chosen=chosen, shown=shown))
    _report(database, file, footer, as_json=as_json)
    return Exit.OK


async def _export(database: str, target: IO[bytes], *, chosen: tuple[Vocabulary, ...], shown: Progress) -> Footer:
    lines = 0

    def wrote(kind: str, fraction: float) -> None:
        nonlocal lines
        lines += 1
        if lines % SHOWN_EVERY == 0:
            shown.show(f"{kind}: {counted(lines, 'line')}", fraction)

    async with opened(database) as store, store.archive.reading() as snapshot:
        exported = Export(snapshot, chosen=chosen, wrote=wrote)
        async for line in exported.lines():
            target.write(line)
    assert exported.footer is not None, "the lines have come to their end"
    return exported.footer


@contextmanager
def _target(file: str) -> Iterator[IO[bytes]]:
    """Where the lines go. A file gets its name when it is whole and on the disk: half of one is never there."""
    if file == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path, unfinished = Path(file), Path(f"{file}.unfinished")
    try:
        with unfinished.open("wb") as plain:
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
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _report(database: str, file: str, footer: Footer, *, as_json: bool) -> None:
    """On standard output, unless that has the lines."""
    to_file = file != STANDARD_OUTPUT
    if as_json and to_file:
        facts = {"database": without_password(database), "file": file, "counts": footer.counts, "sha256": footer.sha256}
        say_json(facts)
        return
    jobs, events = footer.counts.get("job", 0), footer.counts.get("event", 0)
    line = f"exported {counted(jobs, 'job')} and {counted(events, 'event')}"
    if to_file:
        say(f"{line} to {file}", level="ok")
    else:
        click.echo(line, err=True)
