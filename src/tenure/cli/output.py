"""How every command speaks: lines for people, JSON for programs, progress on a terminal, and one set of exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Protocol

import click
import msgspec

from tenure.errors import InvalidInput, StoreError, TenureError
from tenure.observe.log_format import printable

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


class Exit(IntEnum):
    """What the process leaves behind for whoever called it."""

    OK = 0
    PROBLEMS = 1
    USAGE = 2
    DATABASE = 3
    BUG = 70
    INTERRUPTED = 130


def exit_code_for(error: TenureError) -> Exit:
    """Input that makes no sense is the caller's; a database that cannot be used is nobody's finding."""
    if isinstance(error, InvalidInput):
        return Exit.USAGE
    return Exit.DATABASE if isinstance(error, StoreError) else Exit.PROBLEMS


def say(line: str, *, level: str = "") -> None:
    """A line of the answer, on standard output."""
    click.echo(_coloured(line, level), color=_wants_colour())


def complain(line: str) -> None:
    """A line about what went wrong, on standard error."""
    click.echo(_coloured(line, "error"), err=True, color=_wants_colour())


def say_json(answer: Any) -> None:
    """The whole answer as one JSON document."""
    text = msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()
    click.echo(text)


def say_json_line(answer: Any) -> None:
    """One of many JSON documents, on a line of its own."""
    click.echo(msgspec.json.encode(answer))


def say_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under headings: fitted to the terminal, and elsewhere one plain line each."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(table(headings, rows))
        return
    for line in aligned([headings, *rows]):
        click.echo(line)


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Any:
    """The same as rich draws it."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        drawn.add_column(heading, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(shown(cell)) for cell in row))
    return drawn


def aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines whose cells stand under each other.

    >>> aligned([("id", "kind"), (1200, "mail")])
    ['id    kind', '1200  mail']
    """
    texts = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in texts]


def shown(value: object) -> str:
    """A value as a person reads it, on one line and without anything that a terminal would obey.

    >>> shown("red: \\x1b[31m")
    'red: \\\\x1b[31m'
    """
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return printable(str(value))


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1200, "job")
    '1,200 jobs'
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Progress(Protocol):
    """Shows how far a long walk has come."""

    def show(self, label: str, fraction: float) -> None: ...


class Silent:
    """Nothing is shown: the answer is for a program."""

    def show(self, label: str, fraction: float) -> None: ...


class Lines:
    """A plain line now and then, for logs: at each tenth of the way."""

    def __init__(self) -> None:
        self._tenths = 0

    def show(self, label: str, fraction: float) -> None:
        tenths = int(fraction * 10)
        if tenths > self._tenths:
            click.echo(label, err=True)
        self._tenths = tenths


class Bar:
    """A bar that is drawn over itself, on a terminal."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=1.0)

    def show(self, label: str, fraction: float) -> None:
        self._bar.update(self._task, description=label, completed=fraction)


@contextmanager
def progress(*, as_json: bool) -> Iterator[Progress]:
    """A bar on a terminal, plain lines elsewhere, both on standard error; nothing beside JSON."""
    if as_json:
        yield Silent()
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        console = Console(stderr=True)
        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with RichProgress(*columns, console=console, transient=True) as bar:
            yield Bar(bar)
    else:
        yield Lines()


def _coloured(line: str, level: str) -> str:
    return click.style(line, fg=_COLOURS[level]) if level in _COLOURS else line


def _wants_colour() -> bool | None:
    """Never with NO_COLOR; else click's own rule, which is: on a terminal."""
    return False if os.environ.get("NO_COLOR") else None
