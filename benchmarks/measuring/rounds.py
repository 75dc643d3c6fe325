"""Several rounds of several workloads, one after the other, so that a busy minute affects all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from benchmarks.measuring.records import SHARED_BY_WORKERS, Measured, NotMeasured, Unmeasured, Workload
from benchmarks.measuring.workloads import Benchmark
from tenure.cli.bench_workloads import medians

Result = Measured | Unmeasured
OnProgress = Callable[[str, float], None]
"""Called with what is measured next, and the share of the whole that is done."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds of one workload: medians, or why there are none. After one failed round there are none."""

    workload: Workload
    processes: int
    jobs: int
    figures: dict[str, float]
    gauged: dict[str, float]
    rounds: list[dict[str, float]]
    problem: str | None = None


def variants(workloads: Sequence[Workload], processes: Sequence[int]) -> list[tuple[Workload, int]]:
    """The workloads to measure: those that workers can share with each number of workers, the others with one."""
    return [
        (workload, number)
        for workload in workloads
        for number in (processes if workload in SHARED_BY_WORKERS else (1,))
    ]


async def measure_rounds(
    benchmark: Benchmark, wanted: Sequence[tuple[Workload, int]], *, rounds: int, on_progress: OnProgress
) -> list[Result]:
    """Measure each variant once per round."""
    found: list[Result] = []
    for number in range(rounds):
        for workload, processes in wanted:
            label = f"round {number + 1} of {rounds}: {described(workload, processes)}"
            on_progress(label, len(found) / (rounds * len(wanted)))
            found.append(await measure_one(benchmark, workload, processes))
    return found


async def measure_one(benchmark: Benchmark, workload: Workload, processes: int) -> Result:
    """One round, or why it has no figure."""
    try:
        return await benchmark.measure(workload, processes=processes)
    except NotMeasured as problem:
        return Unmeasured(workload=workload, processes=processes, why=str(problem))


def described(workload: Workload, processes: int) -> str:
    """The variant in words.

    >>> described(Workload.DRAIN, 2)
    'drain, 2 worker processes'
    """
    shared = f", {processes} worker process{'es' if processes > 1 else ''}"
    return f"{workload}{shared if workload in SHARED_BY_WORKERS else ''}"


def summarised(results: Sequence[Result]) -> list[Summary]:
    """Each variant once, in the order in which they were first measured."""
    seen = dict.fromkeys((result.workload, result.processes) for result in results)
    return [_summary([one for one in results if (one.workload, one.processes) == variant]) for variant in seen]


def _summary(mine: Sequence[Result]) -> Summary:
    first = mine[0]
    problem = next((one.why for one in mine if isinstance(one, Unmeasured)), None)
    good = [] if problem is not None else [one for one in mine if isinstance(one, Measured)]
    return Summary(
        workload=first.workload,
        processes=first.processes,
        jobs=good[0].jobs if good else 0,
        figures=medians(one.figures for one in good),
        gauged=medians(one.gauged for one in good),
        rounds=[one.figures for one in good],
        problem=problem,
    )
