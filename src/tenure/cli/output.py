"""Output of all commands: lines and tables, JSON, progress, and the exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, Protocol

import click
import msgspec

from tenure.cli.tables import Heading, align_columns, format_value, table_lines
from tenure.errors import InvalidInput, StoreError, TenureError
from tenure.observe import log_format

counted = log_format.counted

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


def print_text(text: str, *, indent: int, level: str = "") -> None:
    """Print a sentence. On a terminal it is continued on further lines, which are indented."""
    lines = [text]
    if sys.stdout.isatty():
        lines = wrap(text, _width(), subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False)
    for line in lines:
        print_line(line, level=level)


def print_error(line: str) -> None:
    """Print an error to standard error, prefixed with the command's name."""
    click.echo(_colored(f"tenure: {line}", "error"), err=True, color=_use_color())


def print_json(document: Any) -> None:
    """Print the command's one JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_json_line(document: Any) -> None:
    """Print one of many JSON documents, on one line."""
    click.echo(msgspec.json.encode(document))


def print_table(headings: Sequence[Heading], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under headings: fitted to the width of a terminal, whole elsewhere."""
    if sys.stdout.isatty():
        lines = table_lines(headings, rows, width=_width(), color=_use_color() is not False)
    else:
        lines = align_columns([[one if isinstance(one, str) else one.heading for one in headings], *rows])
    for line in lines:
        click.echo(line, color=_use_color())


def print_stream_line(headings: Sequence[Heading], row: Sequence[object], *, with_headings: bool) -> None:
    """Print the next row of a table without an end, on a terminal fitted to its width."""
    if not sys.stdout.isatty():
        print_line("  ".join(map(format_value, row)).rstrip())
        return
    lines = table_lines(headings, [row], width=_width(), color=_use_color() is not False)
    for line in lines if with_headings else lines[1:]:
        click.echo(line, color=_use_color())


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print a line per field, with aligned values; None is omitted. On a terminal long values are continued below."""
    shown = [(f"{name}:", format_value(value)) for name, value in fields if value is not None]
    if not sys.stdout.isatty():
        for line in align_columns(shown):
            print_line(line)
        return
    indent = max((len(name) for name, _ in shown), default=0) + 2
    for name, text in shown:
        wrapped = wrap(text, max(20, _width() - indent), break_on_hyphens=False) or [""]
        for number, part in enumerate(wrapped):
            print_line(((name if number == 0 else "").ljust(indent) + part).rstrip())


def rich_table(headings: Sequence[Heading], rows: Sequence[Sequence[object]], *, width: int) -> Any:
    """The same table for a live display, which rich draws."""
    from rich.text import Text

    lines = table_lines(headings, rows, width=width, color=_use_color() is not False)
    return Text.from_ansi("\n".join(lines), no_wrap=True)


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


def _width() -> int:
    return get_terminal_size().columns


def _use_color() -> bool | None:
    """Never with NO_COLOR; otherwise click decides: only on a terminal."""
    return False if os.environ.get("NO_COLOR") else None
