"""The results of the suite: tables, figures as JSON, and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.measuring.records import DESCRIPTIONS, SHARED_BY_WORKERS, Measured, Workload
from benchmarks.measuring.rounds import Result, Summary, summarised
from benchmarks.plots import Bar, Panel, drawn

MEBIBYTE = 2**20
NAMES = {"postgres": "PostgreSQL", "sqlite": "SQLite", "raw": "hand-written SQL"}


class Variant(NamedTuple):
    """What is measured: on which store, or by SQL alone, which workload, with how many worker processes."""

    store: str
    workload: Workload
    processes: int

    @property
    def label(self) -> str:
        if self.workload not in SHARED_BY_WORKERS:
            return str(self.workload)
        return f"{self.workload}, {self.processes} process{'es' if self.processes > 1 else ''}"


Found = Mapping[Variant, Sequence[Result]]


def summary_of(results: Sequence[Result]) -> Summary:
    [summary] = summarised(results)
    return summary


def figures_of(found: Found) -> list[dict[str, Any]]:
    """All figures, for a program."""
    return [{"store": variant.store, "summary": summary_of(results)} for variant, results in found.items()]


def markdown(found: Found, *, facts: Sequence[str]) -> str:
    """The tables, after the facts about the run."""
    summaries = {variant: summary_of(results) for variant, results in found.items()}
    lines = [*facts, "", *_speed(summaries), "", *_costs(summaries), "", *_shares(summaries)]
    used = dict.fromkeys(variant.workload for variant in summaries)
    lines += ["", *(f"- **{workload}**: {DESCRIPTIONS[workload]}" for workload in used)]
    return "\n".join(lines) + "\n"


def _speed(summaries: Mapping[Variant, Summary]) -> Iterator[str]:
    yield "| work | store | jobs a round | median | rounds |"
    yield "|---|---|---:|---:|---:|"
    for variant, summary in summaries.items():
        if summary.problem is not None:
            problem_text = f"not reported: {summary.problem.splitlines()[0]}"
            yield f"| {variant.label} | {NAMES[variant.store]} | | {problem_text} | |"
            continue
        median, spread = _said(variant.workload, summary)
        yield f"| {variant.label} | {NAMES[variant.store]} | {summary.jobs:,} | {median} | {spread} |"


def _said(workload: Workload, summary: Summary) -> tuple[str, str]:
    figures = summary.figures
    if workload is Workload.LATENCY:
        median = " / ".join(f"{figures[f'p{share}_ms']:,.1f}" for share in (50, 95, 99))
        return f"{median} ms (p50 / p95 / p99)", _spread(summary, "p50_ms", digits=1)
    if workload is Workload.HEARTBEATS:
        beats, due = figures["heartbeats_per_second"], figures["due_per_second"]
        memory = f"{figures['rss_bytes'] / MEBIBYTE:,.0f} MiB"
        return f"{beats:,.0f} of {due:,.0f} /s; {memory}", _spread(summary, "heartbeats_per_second")
    return f"{figures['jobs_per_second']:,.0f} /s", _spread(summary, "jobs_per_second")


def _spread(summary: Summary, name: str, *, digits: int = 0) -> str:
    values = [figures[name] for figures in summary.rounds]
    return f"{min(values):,.{digits}f} to {max(values):,.{digits}f}"


def _costs(summaries: Mapping[Variant, Summary]) -> Iterator[str]:
    yield "What PostgreSQL wrote for each job:"
    yield ""
    yield "| work | by | WAL bytes | rows inserted | rows updated | of these HOT | dead tuples left |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for variant, summary in summaries.items():
        if gauged := summary.gauged:
            yield (
                f"| {variant.label} | {'tenure' if variant.store == 'postgres' else NAMES[variant.store]} "
                f"| {gauged['wal_bytes']:,.0f} | {gauged['rows_inserted']:.2f} | {gauged['rows_updated']:.2f} "
                f"| {gauged['rows_updated_hot']:.2f} | {gauged['dead_tuples']:.2f} |"
            )


def _shares(summaries: Mapping[Variant, Summary]) -> Iterator[str]:
    yield "Share of what a hand-written SQL loop reaches that writes the same rows:"
    yield ""
    yield "| drain | tenure | hand-written SQL | share |"
    yield "|---|---:|---:|---:|"
    for variant, raw in summaries.items():
        ours = summaries.get(Variant("postgres", variant.workload, variant.processes))
        if variant.store == "raw" and ours is not None and raw.figures and ours.figures:
            rates = ours.figures["jobs_per_second"], raw.figures["jobs_per_second"]
            processes = variant.label.partition(", ")[2]
            yield f"| {processes} | {rates[0]:,.0f} /s | {rates[1]:,.0f} /s | {rates[0] / rates[1]:.0%} |"


def plot(found: Found) -> str:
    """The rates, the latency and the log's bytes as one SVG document."""
    summaries = {variant: summary_of(results) for variant, results in found.items()}
    latencies = [
        bar
        for variant, summary in summaries.items()
        if variant.workload is Workload.LATENCY
        for name in ("p50_ms", "p95_ms", "p99_ms")
        for bar in _bars(variant, summary, name, label=name.removesuffix("_ms"))
    ]
    written = [
        Bar(variant.label, variant.store, bytes_, min(rounds), max(rounds))
        for variant, results in found.items()
        if (rounds := [one.gauged["wal_bytes"] for one in results if isinstance(one, Measured) and one.gauged])
        for bytes_ in [statistics.median(rounds)]
    ]
    return drawn(
        [
            Panel("Jobs per second", [*_rates(summaries)]),
            Panel("Latency at idle, from enqueue to the job's first line, in ms", latencies, digits=1),
            Panel("Bytes of PostgreSQL's log for each job", written),
        ]
    )


def _rates(summaries: Mapping[Variant, Summary]) -> Iterator[Bar]:
    order = list(Workload)
    for variant in sorted(summaries, key=lambda one: (order.index(one.workload), one.processes)):
        yield from _bars(variant, summaries[variant], "jobs_per_second", label=variant.label)


def _bars(variant: Variant, summary: Summary, name: str, *, label: str) -> Iterator[Bar]:
    if name in summary.figures:
        values = [figures[name] for figures in summary.rounds]
        yield Bar(label, variant.store, summary.figures[name], min(values), max(values))
