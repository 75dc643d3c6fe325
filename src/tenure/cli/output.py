"""Output of all commands: lines and tables, JSON, progress, and the exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Protocol

import click
import msgspec

from tenure.errors import InvalidInput, StoreError, TenureError
from tenure.observe.log_format import printable

_COLORS = {"ok": "green", "warning": "yellow", "error": "red"}


class Exit(IntEnum):
    """The exit codes of every command."""

    OK = 0
    PROBLEMS = 1
    USAGE = 2
    DATABASE = 3
    BUG = 70
    INTERRUPTED = 130


def exit_code_for(error: TenureError) -> Exit:
    """Invalid input is a usage error; a store error means that the database cannot be used."""
    if isinstance(error, InvalidInput):
        return Exit.USAGE
    return Exit.DATABASE if isinstance(error, StoreError) else Exit.PROBLEMS


def print_line(line: str, *, level: str = "") -> None:
    """Print a line to standard output."""
    click.echo(_colored(line, level), color=_use_color())


def print_error(line: str) -> None:
    """Print an error to standard error, prefixed with the command's name."""
    click.echo(_colored(f"tenure: {line}", "error"), err=True, color=_use_color())


def print_json(document: Any) -> None:
    """Print the command's one JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_json_line(document: Any) -> None:
    """Print one of many JSON documents, on one line."""
    click.echo(msgspec.json.encode(document))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under headings: wrapped to the width of a terminal, one line each elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(rich_table(headings, rows))
        return
    for line in align_columns([headings, *rows]):
        click.echo(line)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print a line per field, with aligned values; None is omitted."""
    for line in align_columns([(f"{name}:", value) for name, value in fields if value is not None]):
        print_line(line)


def rich_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Any:
    """A table for a terminal, drawn by rich."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(format_value(cell)) for cell in row))
    return table


def align_columns(rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines with aligned columns.

    >>> align_columns([("id", "kind"), (1200, "mail")])
    ['id    kind', '1200  mail']
    """
    texts = [[format_value(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in texts]


def format_value(value: object) -> str:
    """A value on one line, with control characters escaped and times in UTC.

    >>> format_value("red: \\x1b[31m")
    'red: \\\\x1b[31m'
    """
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return printable(str(value))


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural where needed.

    >>> counted(1200, "job")
    '1,200 jobs'
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class ProgressDisplay(Protocol):
    """Shows the progress of a long command."""

    def show(self, label: str, fraction: float) -> None: ...


class NoProgress:
    """Shows nothing, for JSON output."""

    def show(self, label: str, fraction: float) -> None: ...


class ProgressLines:
    """Prints a line for each tenth of the work, where standard error is not a terminal."""

    def __init__(self) -> None:
        self._tenths = 0

    def show(self, label: str, fraction: float) -> None:
        tenths = int(fraction * 10)
        if tenths > self._tenths:
            click.echo(label, err=True)
        self._tenths = tenths


class ProgressBar:
    """A bar on a terminal."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=1.0)

    def show(self, label: str, fraction: float) -> None:
        self._bar.update(self._task, description=label, completed=fraction)


@contextmanager
def progress(*, as_json: bool) -> Iterator[ProgressDisplay]:
    """Progress on standard error: a bar on a terminal, lines elsewhere, nothing with JSON output."""
    if as_json:
        yield NoProgress()
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            yield ProgressBar(bar)
    else:
        yield ProgressLines()


def _colored(line: str, level: str) -> str:
    return click.style(line, fg=_COLORS[level]) if level in _COLORS else line


def _use_color() -> bool | None:
    """Never with NO_COLOR; otherwise click decides: only on a terminal."""
    return False if os.environ.get("NO_COLOR") else None
