"""Bars as plain SVG, without a library: each panel has its own scale, which begins at zero.

Nothing has a background and all text is of a middle grey, so that a page may be light or dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, LABEL_WIDTH, VALUE_WIDTH = 760, 250, 110
ROW_HEIGHT, BAR_HEIGHT, TITLE_HEIGHT, GAP = 24, 14, 40, 18
TICKS = 4
COLOURS = {"postgres": "#3b82c4", "sqlite": "#c58a1f", "redis": "#b5544d", "raw": "#8a8f98"}
NAMES = {"postgres": "PostgreSQL", "sqlite": "SQLite", "redis": "Redis", "raw": "hand-written SQL on PostgreSQL"}
STYLE = (
    "text{font:13px system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#7d8590}"
    ".title{font-weight:600;font-size:15px}"
    ".tick{font-size:11px}"
    ".grid{stroke:#7d8590;stroke-opacity:.25}"
    ".spread{stroke:#7d8590;stroke-width:2}"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One value, the kind of store that it is of, and the least and most that its rounds gave."""

    label: str
    kind: str
    value: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars that share a unit and so a scale."""

    title: str
    bars: Sequence[Bar]
    digits: int = 0


def drawn(panels: Sequence[Panel]) -> str:
    """The panels below each other, with a legend, as one SVG document."""
    shown = [panel for panel in panels if panel.bars]
    kinds = dict.fromkeys(bar.kind for panel in shown for bar in panel.bars)
    parts, top = [_legend(list(kinds))], 30
    for panel in shown:
        parts.append(_panel(panel, top))
        top += _height(panel)
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{STYLE}</style>{"".join(parts)}</svg>\n'


def _height(panel: Panel) -> int:
    return TITLE_HEIGHT + ROW_HEIGHT * len(panel.bars) + GAP + ROW_HEIGHT


def _legend(kinds: Sequence[str]) -> str:
    parts, left = [], 0
    for kind in kinds:
        parts.append(f'<rect x="{left}" y="6" width="12" height="12" rx="2" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{left + 18}" y="16">{escape(NAMES[kind])}</text>')
        left += 40 + 7 * len(NAMES[kind])
    return "".join(parts)


def _panel(panel: Panel, top: int) -> str:
    end = scale_end(max(bar.most for bar in panel.bars))
    room = WIDTH - LABEL_WIDTH - VALUE_WIDTH
    first, bottom = top + TITLE_HEIGHT, top + TITLE_HEIGHT + ROW_HEIGHT * len(panel.bars)
    parts = [f'<text class="title" x="0" y="{top + 24}">{escape(panel.title)}</text>']
    for number in range(TICKS + 1):
        x = LABEL_WIDTH + room * number / TICKS
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{first - 4}" x2="{x:.1f}" y2="{bottom}"/>')
        tick = f"{end * number / TICKS:,.6g}"
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{tick}</text>')
    for number, bar in enumerate(panel.bars):
        parts.append(_bar(bar, first + ROW_HEIGHT * number, room / end, panel.digits))
    return "".join(parts)


def _bar(bar: Bar, top: float, unit: float, digits: int) -> str:
    middle = top + ROW_HEIGHT / 2
    width = bar.value * unit
    least, most = LABEL_WIDTH + bar.least * unit, LABEL_WIDTH + bar.most * unit
    value_text = f"{bar.value:,.{digits}f}"
    spread = f"{bar.least:,.{digits}f} to {bar.most:,.{digits}f}"
    return (
        f"<g><title>{escape(f'{NAMES[bar.kind]}, {bar.label}: {value_text} (rounds: {spread})')}</title>"
        f'<text x="{LABEL_WIDTH - 10}" y="{middle + 4:.1f}" text-anchor="end">{escape(bar.label)}</text>'
        f'<rect x="{LABEL_WIDTH}" y="{middle - BAR_HEIGHT / 2:.1f}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="2" '
        f'fill="{COLOURS[bar.kind]}"/>'
        f'<line class="spread" x1="{least:.1f}" y1="{middle:.1f}" x2="{most:.1f}" y2="{middle:.1f}"/>'
        f'<text x="{max(LABEL_WIDTH + width, most) + 8:.1f}" y="{middle + 4:.1f}">{value_text}</text></g>'
    )


def scale_end(most: float) -> float:
    """The first number at which the scale can end so that its quarters are round.

    >>> [scale_end(most) for most in (0.7, 9.5, 12_345.0)]
    [0.8, 10.0, 16000.0]
    """
    step = 1.0
    while step > most:
        step /= 10
    while step * 10 <= most:
        step *= 10
    return next(step * times for times in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if step * times >= most)
