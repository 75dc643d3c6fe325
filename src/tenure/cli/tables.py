"""Tables of the command line. A line never wraps: columns are left out and long texts cut until it fits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click
import msgspec

from tenure.lifecycle.statuses import Status
from tenure.observe.log_format import printable

GAP = "  "
STATUS_COLORS = {
    Status.CLAIMED: "cyan",
    Status.RUNNING: "cyan",
    Status.WAITING: "blue",
    Status.RETRY: "yellow",
    Status.STALLED: "yellow",
    Status.SUCCEEDED: "green",
    Status.FAILED: "red",
    Status.DEAD_LETTERED: "red",
    Status.CANCELLED: "magenta",
    Status.HALTED: "magenta",
}


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    heading: str
    rank: int = 0
    """0: always shown. Of the others the one with the highest rank is left out first."""
    cut_to: int | None = None
    """Its texts may be cut to this many characters. None: they are always whole."""
    is_number: bool = False
    is_precise: bool = False
    """Times have milliseconds, also on a terminal."""
    width: int = 0
    """The least width, for lines that are printed one by one: their later texts are not known."""


Heading = Column | str


def table_lines(headings: Sequence[Heading], rows: Sequence[Sequence[object]], *, width: int, color: bool) -> list[str]:
    """The lines of a table on a terminal of this width."""
    columns = [one if isinstance(one, Column) else Column(one) for one in headings]
    texts = [[_cell_text(column, cell) for column, cell in zip(columns, row, strict=True)] for row in rows]
    natural = [
        max([len(column.heading), column.width, *(len(row[number]) for row in texts)])
        for number, column in enumerate(columns)
    ]
    is_empty = [
        bool(texts) and not column.width and all(row[number] in ("", "-") for row in texts)
        for number, column in enumerate(columns)
    ]
    shown = _shown(columns, natural, is_empty, width)
    widths = _fitted(columns, natural, shown, width)
    lines = [_line([(columns[n].heading, columns[n]) for n in shown], widths, color=color, is_heading=True)]
    lines += [_line([(row[n], columns[n]) for n in shown], widths, color=color) for row in texts]
    return lines


def _shown(columns: Sequence[Column], natural: Sequence[int], is_empty: Sequence[bool], width: int) -> list[int]:
    """The numbers of the columns to show: empty ones are left out first, then those of the highest rank."""
    shown = list(range(len(columns)))
    least = [min(size, column.cut_to or size) for column, size in zip(columns, natural, strict=True)]
    while _total([least[number] for number in shown]) > width:
        optional = [number for number in shown if columns[number].rank]
        if not optional:
            break
        shown.remove(max(optional, key=lambda number: (is_empty[number], columns[number].rank)))
    return shown


def _fitted(columns: Sequence[Column], natural: Sequence[int], shown: Sequence[int], width: int) -> list[int]:
    """The widths of the shown columns: the widest that may be cut is cut first."""
    widths = {number: natural[number] for number in shown}
    while _total(list(widths.values())) > width:
        cuttable = [number for number in shown if widths[number] > (columns[number].cut_to or widths[number])]
        if not cuttable:
            break
        widths[max(cuttable, key=lambda number: widths[number])] -= 1
    return [widths[number] for number in shown]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _line(cells: Sequence[tuple[str, Column]], widths: Sequence[int], *, color: bool, is_heading: bool = False) -> str:
    parts = []
    for (text, column), width in zip(cells, widths, strict=True):
        text = text if len(text) <= width else f"{text[: width - 1]}…"
        padded = text.rjust(width) if column.is_number else text.ljust(width)
        parts.append(_styled(padded, column, is_heading=is_heading) if color else padded)
    return GAP.join(parts).rstrip()


def _styled(padded: str, column: Column, *, is_heading: bool) -> str:
    if is_heading:
        return click.style(padded, bold=True)
    if column.heading != "status":
        return padded
    status = padded.strip().rpartition("→")[2]
    color = STATUS_COLORS.get(Status(status)) if status in set(Status) else None
    return padded if color is None else click.style(padded, fg=color)


def _cell_text(column: Column, value: object) -> str:
    if isinstance(value, datetime) and not column.is_precise:
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return format_value(value)


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


def align_columns(rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines with aligned columns, however long they are.

    >>> align_columns([("id", "kind"), (1200, "mail")])
    ['id    kind', '1200  mail']
    """
    texts = [[format_value(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [GAP.join(map(str.ljust, row, widths)).rstrip() for row in texts]
