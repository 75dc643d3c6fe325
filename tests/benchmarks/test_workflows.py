"""The comparison of workflows: the driver of tenure does all that is measured, and targets are judged as written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.peers.environments import ROOT
from benchmarks.peers.figures import MEASURES, Cell, summarise
from benchmarks.workflows.__main__ import _schedule, _targets
from benchmarks.workflows.drivers import protocol
from benchmarks.workflows.drivers.protocol import TALLY, WORKLOADS, Tally
from benchmarks.workflows.drivers.tenure import Tenure
from benchmarks.workflows.roster import ENGINES, TARGETS
from tests.support.databases import Database

LIMIT_SECONDS = 60.0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    small = {"RUNS": 3, "STEPS_EACH": 2, "LONG_STEPS": 5, "CHILDREN": 3, "SIGNALS": 2, "SUSPENDED_AFTER_SECONDS": 0.1}
    for name, value in small.items():
        monkeypatch.setattr(protocol, name, value)
    yield
    vars(TALLY).update(vars(Tally()))


@pytest.mark.parametrize("workload", WORKLOADS)
async def test_each_workload_is_measured(small: None, database: Database, workload: str) -> None:
    driver = Tenure()
    await driver.prepare(database.url)
    async with driver.working(database.url) as runs:
        with driver.ledger(database.url) as ledger:
            figures = await WORKLOADS[workload](runs, ledger, LIMIT_SECONDS)
    measured = {measure.figure for measure in MEASURES if measure.workload == workload}
    missing = {name for name in measured if not figures.get(name)}
    assert missing <= ({"wal_bytes"} if database.url.startswith("sqlite:") else set())


def test_every_engine_has_a_driver_and_every_target_a_measure() -> None:
    for engine in ENGINES:
        assert (ROOT / "benchmarks" / "workflows" / "drivers" / f"{engine.environment}.py").exists()
    assert {key for key, *_ in TARGETS} <= {measure.key for measure in MEASURES}


def test_each_round_begins_with_another_engine() -> None:
    order = [(number, engine.name) for number, _, engine in _schedule(ENGINES[:3], ["many"], 2)]
    assert order == [(1, "tenure"), (1, "dbos"), (1, "absurd"), (2, "dbos"), (2, "absurd"), (2, "tenure")]


@pytest.mark.parametrize(("rate", "verdict"), [(20.0, "met"), (19.0, "missed")])
def test_a_target_is_judged_against_the_best_of_the_others(rate: float, verdict: str) -> None:
    rates = {"tenure": rate, "dbos": 5.0, "pgtask": 10.0}
    summary = summarise([Cell(name, "many", 1, figures={"per_second": value}) for name, value in rates.items()])
    titles = {name: name for name in rates}
    [*_, row] = _targets(summary, "tenure", ["dbos", "pgtask"], titles).splitlines()
    assert row == f"| many runs, steps /s | pgtask | ≥ 2.0 | {rate / 10:.2f} | {verdict} |"
