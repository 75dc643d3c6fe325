"""The results of the growth benchmark: a verdict for each series, Markdown tables, and figures as JSON. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

NAMES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
COST_FIGURES = ("claim_p99_ms", "job_us", "pages_per_job")
DESCRIPTIONS = {
    "claim_p99_ms": "claim p99",
    "job_us": "time per job",
    "pages_per_job": "pages per job",
}


class Series(StrEnum):
    """What grows."""

    FINISHED = "finished"
    QUEUED = "queued"
    WORKERS = "workers"
    PAYLOAD = "payload"
    QUEUES = "queues"
    SERVED = "served"


TITLES = {
    Series.FINISHED: "finished jobs in the database",
    Series.QUEUED: "queued jobs in front of the drained ones",
    Series.WORKERS: "claimers at once",
    Series.PAYLOAD: "bytes of payload",
    Series.QUEUES: "queues that have jobs, one of them drained",
    Series.SERVED: "queues that one claimer serves at once",
}


@dataclass(frozen=True)
class Cell:
    """One place in one series on one store, and the figures of its rounds."""

    store: str
    series: Series
    at: int
    jobs: int
    how: str
    rounds: list[dict[str, float]] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, float]:
        """The medians."""
        return {name: statistics.median(one[name] for one in self.rounds) for name in self.rounds[0]}


@dataclass(frozen=True, slots=True)
class Growth:
    """By how much one cost grew from the smallest cell to the largest, and what its kind of growth allows."""

    store: str
    series: Series
    cost: str
    smallest: int
    largest: int
    factor: float
    allowed: float
    rule: str

    @property
    def within(self) -> bool:
        return self.factor <= self.allowed


def allowance(series: Series, smallest: Cell, largest: Cell) -> tuple[float, str]:
    """By what factor a cost may grow, and why.

    The drained jobs count as contents of the database, so that an empty one has a logarithm too. Costs may grow in
    proportion to bytes, and to the number of claimers that wait for the same cores.
    """
    if series is Series.PAYLOAD:
        return largest.at / smallest.at, "bytes are carried one by one"
    more = smallest.jobs if series in (Series.FINISHED, Series.QUEUED) else 1
    logarithmic = math.log2(largest.at + more) / math.log2(smallest.at + more)
    return logarithmic, f"log {largest.at + more:,} / log {smallest.at + more:,}"


def growths(cells: Sequence[Cell]) -> Iterator[Growth]:
    """The verdicts on one series of one store, for each cost that was measured.

    Times differ from round to round, so that their last cell is compared with the first. Pages are counted: their last
    cell is compared with the one before it, where what grows with every row shows even beside a large constant.
    """
    ordered = sorted(cells, key=lambda cell: cell.at)
    for cost in COST_FIGURES:
        if len(ordered) < 2 or not ordered[0].figures.get(cost):
            continue
        smallest, largest = ordered[-2 if cost == "pages_per_job" else 0], ordered[-1]
        allowed, rule = allowance(smallest.series, smallest, largest)
        factor, why = largest.figures[cost] / smallest.figures[cost], rule
        if smallest.series is Series.WORKERS and cost == "claim_p99_ms":
            # The claimers share the cores: each one waits for all others, however cheap a claim is.
            factor, why = factor / (largest.at / smallest.at), f"{rule}, for each claimer"
        yield Growth(
            smallest.store, smallest.series, cost, smallest.at, largest.at, round(factor, 3), round(allowed, 3), why
        )


def by_series(cells: Sequence[Cell]) -> Mapping[tuple[str, Series], list[Cell]]:
    """The cells of each series of each store, in the order of what grows."""
    found: dict[tuple[str, Series], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: (list(Series).index(cell.series), cell.store, cell.at)):
        found.setdefault((cell.store, cell.series), []).append(cell)
    return found


def figures(cells: Sequence[Cell], facts: Sequence[str]) -> dict[str, Any]:
    """All of it, for a program."""
    return {
        "facts": list(facts),
        "cells": [{**asdict(cell), "figures": cell.figures} for cell in cells],
        "verdicts": [
            {**asdict(growth), "within": growth.within}
            for mine in by_series(cells).values()
            for growth in growths(mine)
        ],
    }


def markdown(cells: Sequence[Cell], facts: Sequence[str]) -> str:
    """The tables, below what is to be known about the run."""
    lines = [*facts, ""]
    for series in dict.fromkeys(series for _, series in by_series(cells)):
        lines += [f"### {TITLES[series].capitalize()}", "", *_table(cells, series), "", *_verdicts(cells, series), ""]
    return "\n".join(lines)


def _table(cells: Sequence[Cell], series: Series) -> Iterator[str]:
    yield f"| store | {TITLES[series]} | claim p50 ms | claim p99 ms (rounds) | jobs/s (rounds) | pages a job | how |"
    yield "|---|---:|---:|---:|---:|---:|---|"
    for (store, of), mine in by_series(cells).items():
        for cell in mine if of is series else ():
            figures = cell.figures
            pages = f"{figures['pages_per_job']:.1f}" if "pages_per_job" in figures else ""
            yield (
                f"| {NAMES[store]} | {cell.at:,} | {figures['claim_p50_ms']:.2f} | {_spread(cell, 'claim_p99_ms', 2)} "
                f"| {_spread(cell, 'jobs_per_second', 0)} | {pages} | {cell.how} |"
            )


def _spread(cell: Cell, name: str, digits: int) -> str:
    values = [one[name] for one in cell.rounds]
    return f"{cell.figures[name]:,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def _verdicts(cells: Sequence[Cell], series: Series) -> Iterator[str]:
    for (store, of), mine in by_series(cells).items():
        for growth in growths(mine) if of is series else ():
            verdict = "within" if growth.within else "**beyond**"
            yield (
                f"- {NAMES[store]}, {DESCRIPTIONS[growth.cost]}: {growth.factor:.2f} times from {growth.smallest:,} to "
                f"{growth.largest:,}; allowed: {growth.allowed:.2f} times ({growth.rule}): {verdict}"
            )
