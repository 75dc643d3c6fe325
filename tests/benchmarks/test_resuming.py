"""The programs that measure how runs resume, and what workflows cost other jobs: small runs of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import resuming, without_steps
from benchmarks.resuming import Resumes
from tenure.stores import store_for


async def test_each_run_resumes_once_a_round(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    store = store_for(url)
    await store.migrate()
    await store.close()
    runs = await resuming.measure(url, (3, 30), 2)
    assert {size: (len(one.seconds), len(one.cpu_seconds)) for size, one in runs.items()} == {3: (2, 2), 30: (2, 2)}
    assert all(seconds > 0 for one in runs.values() for seconds in one.seconds)


@pytest.mark.parametrize(
    ("long_seconds", "verdict"),
    [(0.110, "10.0 times as long (at most 12: met)"), (0.143, "13.0 times as long (at most 12: missed)")],
)
def test_the_report_compares_medians_with_the_limit(long_seconds: float, verdict: str) -> None:
    short = Resumes(seconds=[0.010, 0.011, 9.0], cpu_seconds=[0.005])
    long = Resumes(seconds=[long_seconds], cpu_seconds=[0.05])
    assert verdict in resuming.report("sqlite", {10_000: long, 1_000: short})


async def test_jobs_are_drained_with_and_without_workflows(tmp_path: Path) -> None:
    for workflows in (False, True):
        url = f"sqlite:///{tmp_path}/{workflows}.db"
        assert await without_steps.cpu_per_job(url, workflows=workflows, jobs=20, runs=3) > 0
