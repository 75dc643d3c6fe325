"""Thousands of runs of the real roles on virtual time. Each can be repeated from its seed."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice

import msgspec
import pytest

from simulation.cluster import Result
from simulation.faults import Fault, Options
from simulation.model.schedules import ModelSchedules
from simulation.runs import simulate_all
from simulation.shrink import arguments, shrunk
from simulation.tally import Tally
from tenure.lifecycle import decide as deciding
from tenure.lifecycle.schedules import Firing
from tenure.stores.contract import EnqueueRequest, EnqueueResult

SEEDS = 2000
"""Of these, one in ten over SQLite in memory, the others over the model."""
SPAN = 100
SPANS = [pytest.param(first, marks=[pytest.mark.deep] if first else []) for first in range(0, SEEDS, SPAN)]
"""`make test` runs the first hundred seeds."""


def runs(first: int, last: int) -> list[Result]:
    on_sqlite = range(first, first + (last - first) // 10)
    on_model = range(on_sqlite.stop, last)
    return [*simulate_all(on_sqlite, Options(store="sqlite")), *simulate_all(on_model, Options())]


@pytest.mark.timeout(600)
@pytest.mark.requirement(
    "SM-02", "SM-03", "SM-04", "WC-05", "WC-10", "WC-11", "EL-03", "EL-05", "EL-06", "EL-08", "LC-05", "LC-07"
)
@pytest.mark.parametrize("first", SPANS)
def test_every_invariant_holds_under_faults(first: int) -> None:
    tally = Tally()
    for result in runs(first, first + SPAN):
        tally.add(result)
        assert result.options.nodes >= 3
        assert result.jobs >= 20
        assert result.operations >= 200
        assert sum(result.faults.values()) >= 5
    assert tally.failed == [], [f"{arguments(result)}: {result.problem}" for result in tally.failed]
    # A hundred runs in which a kind of fault never had an effect would prove nothing about it.
    assert tally.missing() == []


@pytest.mark.parametrize("store", ["model", "sqlite"])
def test_a_seed_makes_the_same_run_in_another_process_with_other_hashes(store: str) -> None:
    [here] = simulate_all([7], Options(store=store, without=(Fault.CRASH, Fault.REPLY_LOST)))
    command = [sys.executable, *arguments(here).split()[1:]]
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    there = subprocess.run(command, capture_output=True, env=environment, timeout=100, check=True).stdout
    again = msgspec.json.decode(there, type=Result)
    assert again == here


@pytest.mark.deep
def test_runs_leave_nothing_behind() -> None:
    """Otherwise a hundred thousand runs become slower and slower."""

    def objects_after(first: int) -> int:
        assert all(result.problem is None for result in simulate_all(range(first, first + 10), Options()))
        gc.collect()
        return len(gc.get_objects())

    objects_after(0)
    before = objects_after(10)
    assert objects_after(20) - before < 100, "what the dead had scheduled was kept: over a hundred things a run"


def test_nothing_of_an_earlier_run_is_closed_within_a_run() -> None:
    """A coroutine of a killed process would schedule callbacks in the run that is made when it is collected."""
    within: list[bool] = []

    def note(phase: str, _info: object) -> None:
        within.append(asyncio._get_running_loop() is not None)

    gc.callbacks.append(note)
    try:
        results = list(simulate_all(range(3), Options()))
    finally:
        gc.callbacks.remove(note)
    assert within
    assert not any(within)
    assert gc.isenabled()
    assert [result.problem for result in results] == [None] * 3


def test_two_seeds_make_two_runs() -> None:
    one, other = simulate_all([1, 2], Options())
    assert one.trace != other.trace


def test_leaving_a_fault_out_leaves_it_out() -> None:
    for result in simulate_all(range(5), Options(without=(Fault.CRASH, Fault.REPLY_LOST))):
        assert Fault.CRASH not in result.faults
        assert Fault.REPLY_LOST not in result.faults
        assert result.problem is None


def test_without_any_fault_nothing_is_lost_and_nothing_is_repeated() -> None:
    for result in simulate_all(range(3), Options(without=tuple(Fault))):
        assert result.problem is None
        assert result.faults == {}
        assert "stalled" not in result.seen
        assert "enqueue repeated" not in result.seen


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_a_broken_guard_is_found_and_the_run_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "_require_lease", lambda *_: None)
    monkeypatch.setattr(deciding, "decide_at", _decide_without_lease)
    from tenure.stores.contract import results

    monkeypatch.setattr(results, "decide_at", _decide_without_lease)
    failing = next(islice((r for r in simulate_all(range(200), Options()) if r.problem is not None), 1), None)
    assert failing is not None, "200 runs without fencing, and nothing was noticed"
    small = shrunk(failing)
    assert small.problem is not None
    assert small.options.jobs <= failing.options.jobs
    assert len(small.options.without) > 0
    [again] = simulate_all([small.seed], small.options)
    assert again == small


async def _fire_without_guard(
    schedules: ModelSchedules, firing: Firing, requests: Sequence[EnqueueRequest]
) -> list[EnqueueResult] | None:
    """Enqueues the jobs at any revision of the schedule."""
    anew = [
        msgspec.structs.replace(one, origin=msgspec.structs.replace(one.origin, request_id=None)) for one in requests
    ]
    added = await schedules._add(anew)
    there = schedules._rows[firing.name]
    if there.rev == firing.rev:
        moved = {"rev": there.rev + 1, "last_at": firing.until, "next_at": firing.next_at}
        schedules._rows[firing.name] = msgspec.structs.replace(there, **moved)
    return added


def test_a_due_time_that_is_fired_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelSchedules, "fire", _fire_without_guard)
    # All runs are made to their end: runs that are left midway would log from their dead processes later.
    failing = [run for run in simulate_all(range(40), Options()) if run.problem is not None]
    assert failing, "40 runs in which a second scheduler fired too, and no invariant failed"
    assert "fired twice ['2030-" in str(failing[0].problem)


def _decide_without_lease(job: object, operations: object, actor: object, *, request_id: str, **_: object) -> object:
    return deciding.decide_chain(job, operations, actor, request_id=request_id)  # type: ignore[arg-type]
