"""From cells to medians, ratios, targets and tables. Pure: nothing here runs, reads or writes anything."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.plots import Bar, Panel, drawn


@dataclass(frozen=True)
class Cell:
    """The result of one peer for one workload in one round, or why there is none."""

    peer: str
    workload: str
    round: int
    figures: Mapping[str, float | None] = field(default_factory=dict)
    reason: str | None = None
    unsupported: bool = False
    """The peer has no such thing, which is no failure."""
    configuration: str = ""


@dataclass(frozen=True)
class Measure:
    """One figure of one workload."""

    key: str
    title: str
    workload: str
    figure: str
    better: Literal["more", "less"] = "more"
    digits: int = 0


MEASURES = (
    Measure("default1", "1 ms jobs, defaults, 1 process /s", "default1", "per_second"),
    Measure("default2", "1 ms jobs, defaults, 2 processes /s", "default2", "per_second"),
    Measure("long1", "100 ms jobs, defaults, 1 process /s", "long1", "per_second"),
    Measure("long2", "100 ms jobs, defaults, 2 processes /s", "long2", "per_second"),
    Measure("cpu_default1", "CPU µs per 1 ms job", "default1", "cpu_us", "less"),
    Measure("wal_default1", "WAL bytes per 1 ms job", "default1", "wal_bytes", "less"),
    Measure("one", "enqueue one by one /s", "one", "per_second"),
    Measure("bulk", "enqueue many /s", "bulk", "per_second"),
    Measure("drain1", "drain, 1 process /s", "drain1", "per_second"),
    Measure("drain2", "drain, 2 processes /s", "drain2", "per_second"),
    Measure("p50", "latency p50 ms", "latency", "p50_ms", "less", 1),
    Measure("p95", "latency p95 ms", "latency", "p95_ms", "less", 1),
    Measure("p99", "latency p99 ms", "latency", "p99_ms", "less", 1),
    Measure("wal_one", "WAL bytes, enqueued singly", "one", "wal_bytes", "less"),
    Measure("wal_bulk", "WAL bytes, enqueued many", "bulk", "wal_bytes", "less"),
    Measure("wal_run", "WAL bytes, run", "drain1", "wal_bytes", "less"),
    Measure("many", "many runs, steps /s", "many", "per_second"),
    Measure("long", "one long run, steps /s", "long", "per_second"),
    Measure("signal_p50", "signal to resumed code p50 ms", "signal", "p50_ms", "less", 1),
    Measure("signal_p95", "p95 ms", "signal", "p95_ms", "less", 1),
    Measure("children", "parent with 500 children s", "children", "seconds", "less", 2),
    Measure("wal_many", "WAL bytes per step, many runs", "many", "wal_bytes", "less"),
    Measure("wal_long", "WAL bytes per step, long run", "long", "wal_bytes", "less"),
)


@dataclass(frozen=True)
class Spread:
    """The median of all rounds, and how far they lie apart."""

    median: float
    least: float
    most: float


NONE = "none"

Summary = Mapping[tuple[str, str], Spread]
"""By peer and measure."""


def summarise(cells: Iterable[Cell]) -> dict[tuple[str, str], Spread]:
    """Only what was measured is in it: a peer that failed in some rounds has the median of the others."""
    values: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        for measure in MEASURES:
            value = cell.figures.get(measure.figure) if cell.workload == measure.workload else None
            if value is not None:
                values.setdefault((cell.peer, measure.key), []).append(value)
    return {key: Spread(statistics.median(found), min(found), max(found)) for key, found in values.items()}


def ratio(summary: Summary, base: str, peer: str, measure: str) -> float | None:
    """The base's median over the peer's; None where one of them is missing or nothing."""
    ours, theirs = summary.get((base, measure)), summary.get((peer, measure))
    if ours is None or theirs is None or theirs.median == 0:
        return None
    return ours.median / theirs.median


def best(summary: Summary, peers: Iterable[str], measure: Measure) -> str | None:
    """The peer with the best median of a measure, of those that have one."""
    having = [peer for peer in peers if (peer, measure.key) in summary]
    choose = max if measure.better == "more" else min
    return choose(having, key=lambda peer: summary[peer, measure.key].median, default=None)


def measured(summary: Summary) -> list[Measure]:
    keys = {key for _, key in summary}
    return [measure for measure in MEASURES if measure.key in keys]


def figures_table(summary: Summary, titles: Mapping[str, str]) -> str:
    """Medians, with the least and the most of all rounds where they differ."""
    measures = measured(summary)
    rows = [[title, *(_spread(summary.get((name, m.key)), m) for m in measures)] for name, title in titles.items()]
    return table(["", *(m.title for m in measures)], rows)


def ratios_table(summary: Summary, base: str, titles: Mapping[str, str]) -> str:
    """The base's medians over each peer's: above 1 is faster for rates, below 1 is better for times and bytes."""
    measures = [m for m in measured(summary) if (base, m.key) in summary]
    rows = [
        [f"÷ {title}", *(_ratio(ratio(summary, base, name, m.key)) for m in measures)]
        for name, title in titles.items()
        if name != base
    ]
    return table([titles.get(base, base), *(m.title for m in measures)], rows)


def plot(summary: Summary, titles: Mapping[str, str], kinds: Mapping[str, str]) -> str:
    """A panel for each measure, the best peer first, as one SVG document. `kinds`: where each keeps its jobs."""
    return drawn([Panel(m.title, _bars(summary, m, titles, kinds), digits=m.digits) for m in measured(summary)])


def _bars(summary: Summary, measure: Measure, titles: Mapping[str, str], kinds: Mapping[str, str]) -> list[Bar]:
    bars = [
        Bar(title, kinds[name], spread.median, spread.least, spread.most)
        for name, title in titles.items()
        if (spread := summary.get((name, measure.key))) is not None
    ]
    return sorted(bars, key=lambda bar: bar.value, reverse=measure.better == "more")


def reasons(cells: Iterable[Cell], titles: Mapping[str, str]) -> list[str]:
    """One line for each peer, workload and reason, with the rounds in which it came up."""
    rounds: dict[tuple[str, str, str], list[int]] = {}
    for cell in cells:
        if cell.reason is not None:
            rounds.setdefault((cell.peer, cell.workload, cell.reason), []).append(cell.round)
    return [
        f"{titles.get(peer, peer)}, {workload}, round {', '.join(map(str, numbers))}: {reason}"
        for (peer, workload, reason), numbers in rounds.items()
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _spread(spread: Spread | None, measure: Measure) -> str:
    if spread is None:
        return NONE
    least, median, most = (f"{value:,.{measure.digits}f}" for value in (spread.least, spread.median, spread.most))
    return median if least == most else f"{median} ({least} to {most})"


def _ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"
