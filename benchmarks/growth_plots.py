"""Lines as plain SVG over an axis that grows by factors, without a library.

Nothing has a background and all text is of a middle grey, so that a page may be light or dark, as in `plots`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.plots import COLOURS, NAMES, STYLE, scale_end

WIDTH, LEFT, RIGHT = 760, 70, 50
HEIGHT, TOP, BOTTOM = 230, 40, 46
TICKS = 4
LINES = ".line{fill:none;stroke-width:2}.dashed{stroke-dasharray:5 4;stroke-opacity:.6}"


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one colour. A dashed one is what is allowed rather than what was measured."""

    name: str
    kind: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines that share both axes. With `logarithmic`, the lower one grows by factors; zero stands at its left end."""

    title: str
    below: str
    lines: Sequence[Line]
    logarithmic: bool = True


def place(at: float, places: Sequence[float], *, logarithmic: bool) -> float:
    """Where along the lower axis, from 0 to 1. Zero has no logarithm: it is put one tenth below the next place.

    >>> [round(place(at, [0, 100, 10_000], logarithmic=True), 2) for at in (0, 100, 10_000)]
    [0.0, 0.33, 1.0]
    """
    if not logarithmic:
        return (at - min(places)) / ((max(places) - min(places)) or 1)
    least = min((one for one in places if one > 0), default=1.0)
    zero = least / 10 if 0 in places else least
    span = math.log(max(*places, zero)) - math.log(zero)
    return (math.log(max(at, zero)) - math.log(zero)) / (span or 1)


def number_of(value: float) -> str:
    """As it stands beside an axis.

    >>> [number_of(value) for value in (10_000_000.0, 22.5, 0.0)]
    ['10,000,000', '22.5', '0']
    """
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.4g}"


def drawn(charts: Sequence[Chart]) -> str:
    """The charts below each other as one SVG document."""
    shown = [chart for chart in charts if any(line.points for line in chart.lines)]
    height = HEIGHT * len(shown)
    body = "".join(_chart(chart, HEIGHT * number) for number, chart in enumerate(shown))
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    style = f"<style>{STYLE}{LINES}</style>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{style}{body}</svg>\n'


def _chart(chart: Chart, top: int) -> str:
    points = [point for line in chart.lines for point in line.points]
    places, end = sorted({x for x, _ in points}), scale_end(max(y for _, y in points) or 1.0)
    first, last = top + TOP, top + HEIGHT - BOTTOM
    room = WIDTH - LEFT - RIGHT

    def x_of(at: float) -> float:
        return LEFT + room * place(at, places, logarithmic=chart.logarithmic)

    def y_of(value: float) -> float:
        return last - (last - first) * value / end

    parts = [f'<text class="title" x="0" y="{top + 18}">{escape(chart.title)}</text>', _legend(chart, top)]
    for number in range(TICKS + 1):
        value = end * number / TICKS
        parts.append(
            f'<line class="grid" x1="{LEFT}" y1="{y_of(value):.1f}" x2="{WIDTH - RIGHT}" y2="{y_of(value):.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y_of(value) + 4:.1f}" text-anchor="end">{number_of(value)}</text>'
        )
    parts += [
        f'<text class="tick" x="{x_of(at):.1f}" y="{last + 15}" text-anchor="middle">{number_of(round(at))}</text>'
        for at in (places if chart.logarithmic else (places[0], places[-1]))
    ]
    parts.append(
        f'<text class="tick" x="{LEFT + room / 2}" y="{last + 32}" text-anchor="middle">{escape(chart.below)}</text>'
    )
    for line in chart.lines:
        shown = [(x_of(x), y_of(min(y, end))) for x, y in line.points]
        parts.append(_line(line, shown, dots=chart.logarithmic and not line.dashed))
    return "".join(parts)


def _line(line: Line, shown: Sequence[tuple[float, float]], *, dots: bool) -> str:
    colour, kind = COLOURS.get(line.kind, line.kind), "line dashed" if line.dashed else "line"
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in shown)
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}">'
        f"<title>{escape(line.name)}: {number_of(at)} → {number_of(value)}</title></circle>"
        for (x, y), (at, value) in zip(shown, line.points, strict=True)
    )
    return f'<polyline class="{kind}" stroke="{colour}" points="{path}"/>' + (marks if dots else "")


def _legend(chart: Chart, top: int) -> str:
    parts, left = list[str](), float(WIDTH - RIGHT)
    for line in reversed([line for line in chart.lines if not line.dashed]):
        name = NAMES.get(line.name, line.name)
        left -= 34 + 7.5 * len(name)
        colour = COLOURS.get(line.kind, line.kind)
        parts.append(f'<rect x="{left}" y="{top + 8}" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{left + 18}" y="{top + 18}">{escape(name)}</text>')
    return "".join(parts)
