"""The results of the pressure benchmark: rates relative to the clean one, as a table and as figures. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

LEAST_SHARE = 0.95
CLEAN = "clean"
STEADY = 1.1
"""If the clean runs around a scenario differ by more than this factor, its share means little: the machine had other
work."""
SLICES = 20
COLUMNS = (
    "in the way",
    "seconds",
    "completions/s",
    "clean before, after",
    "of clean",
    "cores busy",
    "first, last quarter",
    "waiting at the end",
    "dead rows of jobs, most",
    "stop",
    "verify",
)
COLOURS = {
    "clean": "#3b82c4",
    "idle transaction": "#c0504d",
    "overload": "#c58a1f",
    "readers": "#4f9d69",
    "burst": "#8064a2",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """The counts at one time."""

    seconds: float
    succeeded: int
    backlog: int
    dead_tuples: int
    dead_jobs: int
    ready_bytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario from its start to its stop."""

    scenario: str
    samples: list[Sample]
    cores_busy: float
    """The share of all cores that was in use, by any process."""
    enqueued: int
    offered_per_second: float | None
    """How many jobs were enqueued per second, if the workers could do more; None if there were always more jobs."""
    burst_per_second: float | None
    stop_seconds: float
    stop_problem: str | None
    verified: str

    @property
    def clean(self) -> bool:
        """Whether the workers stopped as they should, and verify, where it ran, saw all and found nothing."""
        return self.stop_problem is None and self.verified.startswith(("clean", "not run"))


def rate(outcome: Outcome, *, since: float = 0.0, until: float = 1.0) -> float:
    """Completions per second, over a part of the time."""
    last = len(outcome.samples) - 1
    first, end = outcome.samples[round(last * since)], outcome.samples[round(last * until)]
    return (end.succeeded - first.succeeded) / (end.seconds - first.seconds)


def slices(outcome: Outcome) -> list[tuple[float, float]]:
    """When, and how many completions per second there were around then."""
    last = len(outcome.samples) - 1
    count = min(SLICES, last)
    edges = [round(last * number / count) for number in range(count + 1)]
    pairs = [(outcome.samples[a], outcome.samples[b]) for a, b in pairwise(edges)]
    return [((a.seconds + b.seconds) / 2, (b.succeeded - a.succeeded) / (b.seconds - a.seconds)) for a, b in pairs]


def clean_beside(outcomes: Sequence[Outcome], place: int) -> list[float]:
    """The rates of the clean runs just before and just after, as far as there are any; a clean run's own."""
    if outcomes[place].scenario == CLEAN:
        return [rate(outcomes[place])]
    before = [rate(one) for one in outcomes[:place] if one.scenario == CLEAN][-1:]
    return before + [rate(one) for one in outcomes[place:] if one.scenario == CLEAN][:1]


def verdicts(outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    """For each scenario its share of the clean rate, and whether that and its stop are as they should be."""
    for place, outcome in enumerate(outcomes):
        clean = clean_beside(outcomes, place)
        expected = sum(clean) / len(clean)
        if outcome.offered_per_second is not None:
            expected = min(expected, outcome.offered_per_second)
        share, steady = rate(outcome) / expected, max(clean) <= STEADY * min(clean)
        enough = share >= LEAST_SHARE and steady
        yield {
            "scenario": outcome.scenario,
            "seconds": outcome.samples[-1].seconds,
            "per_second": rate(outcome),
            "clean_per_second": clean,
            "steady": steady,
            "share": share,
            "cores_busy": outcome.cores_busy,
            "first_quarter_per_second": rate(outcome, until=0.25),
            "last_quarter_per_second": rate(outcome, since=0.75),
            "dead_jobs_most": max(sample.dead_jobs for sample in outcome.samples),
            "dead_tuples_most": max(sample.dead_tuples for sample in outcome.samples),
            "ready_bytes_most": max(sample.ready_bytes for sample in outcome.samples),
            "backlog_at_end": outcome.samples[-1].backlog,
            "ok": enough and outcome.clean,
        }


def figures(outcomes: Sequence[Outcome], fact: str) -> dict[str, Any]:
    """All figures, for a program."""
    return {
        "facts": [fact],
        "verdicts": [*verdicts(outcomes)],
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }


def markdown(outcomes: Sequence[Outcome], fact: str) -> str:
    """The table, after the facts about the run."""
    lines = [
        fact,
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for outcome, verdict in zip(outcomes, verdicts(outcomes), strict=True):
        clean = "" if outcome.scenario == CLEAN else ", ".join(f"{one:,.0f}" for one in verdict["clean_per_second"])
        stop = outcome.stop_problem or f"clean, {outcome.stop_seconds:.1f} s"
        lines.append(
            f"| {outcome.scenario} | {verdict['seconds']:.0f} | {verdict['per_second']:,.0f} | {clean} "
            f"| {verdict['share']:.0%}{'' if verdict['steady'] else ' (unsteady)'} | {verdict['cores_busy']:.0%} "
            f"| {verdict['first_quarter_per_second']:,.0f}, {verdict['last_quarter_per_second']:,.0f} "
            f"| {verdict['backlog_at_end']:,} | {verdict['dead_jobs_most']:,} | {stop} | {outcome.verified} |"
        )
    for outcome in outcomes:
        if outcome.burst_per_second and outcome.offered_per_second:
            factor = outcome.burst_per_second / outcome.offered_per_second
            rate_text = f"{outcome.burst_per_second:,.0f} jobs/s, {factor:.1f} times the clean rate before"
            lines += ["", f"Bursts came in at {rate_text}; on the whole no more came in than at that rate."]
    lines += ["", f"Unsteady: the clean runs beside it differ by more than a factor of {STEADY}."]
    return "\n".join(lines) + "\n"
