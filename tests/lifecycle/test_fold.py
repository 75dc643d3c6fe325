"""Replaying a log, and refusing one that is not a chain of legal steps; and what each status demands of a record."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from simulation.model.store import ModelStore
from tenure.lifecycle.executions import ExecutionStatus
from tenure.lifecycle.fold import BrokenLog, contents_of, differences, executions, fold
from tenure.lifecycle.invariants import violations
from tenure.lifecycle.operations import Commit, Complete, Heartbeat, Progress, Requeue, Retry, Stall
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import FAILED, HALTED, QUEUED, RUNNING, STALLED, SUCCEEDED, Status
from tenure.testing.clock import ManualClock
from tenure.testing.driver import ERROR, RECOVERY, Driver
from tests.support.situations import SITUATIONS, Setup, Situation


async def lived() -> tuple[Job, list[Event]]:
    """A job with three attempts behind it: one retried, one lost, one committed and completed."""
    clock = ManualClock()
    drive = Driver(ModelStore(clock))
    job = await drive.running(policy={"lease_seconds": 10})
    await drive.apply(job, Retry(ERROR, delay_seconds=0))
    [job] = await drive.claim()
    clock.advance(10)
    await drive.apply(job.id, Stall(), Requeue(), actor=RECOVERY)
    [job] = await drive.claim()
    job = await drive.apply(job, Heartbeat())
    job = await drive.apply(job, Progress(50), Commit("[1]"))
    await drive.apply(job, Complete("[1]"))
    row, events = await drive.seen(job.id)
    assert row is not None
    return row, events


@pytest.mark.requirement("EL-02", "EH-09")
async def test_every_prefix_of_a_log_folds_to_the_job_at_that_time() -> None:
    row, events = await lived()
    for count in range(1, len(events) + 1):
        folded = fold(row.origin, events[:count], contents_of(row))
        assert folded is not None
        assert (folded.rev, folded.status, folded.updated_at) == (
            count,
            events[count - 1].to_status,
            events[count - 1].at,
        )
        assert violations(folded) == []
    assert differences(row, fold(row.origin, events, contents_of(row))) == {}
    assert fold(row.origin, []) is None


@pytest.mark.requirement("EL-01")
async def test_executions_are_read_off_the_log() -> None:
    _, events = await lived()
    assert [run.status for run in executions(events)] == [
        ExecutionStatus.ABORTED,
        ExecutionStatus.ABORTED,
        ExecutionStatus.DONE,
    ]


async def test_a_difference_is_named_with_both_values() -> None:
    row, events = await lived()
    changed = msgspec.structs.replace(row, attempt=9, result="[2]")
    found = differences(changed, fold(row.origin, events, contents_of(row)))
    assert found == {"attempt": (9, 3), "result": ("[2]", "[1]")}
    assert "events" in differences(row, None)


BREAKS: dict[str, tuple[int, dict[str, Any]]] = {
    "a gap in the revisions": (4, {"rev": 9}),
    "a transition that is not in the table": (2, {"to_status": SUCCEEDED}),
    "a step that starts elsewhere": (5, {"from_status": QUEUED}),
    "time that goes back": (7, {"at": "earlier"}),
    "an attempt that was not claimed": (3, {"attempt": 2}),
    "a second commit": (-1, {"commits": True}),
    "a first event that is not the enqueue": (0, {"type": EventType.CLAIMED}),
}


@pytest.mark.requirement("LC-03")
@pytest.mark.parametrize("name", BREAKS)
async def test_a_broken_log_is_refused_at_the_place_where_it_breaks(name: str) -> None:
    row, events = await lived()
    index, changes = BREAKS[name]
    if changes.get("at"):
        changes = {"at": events[0].at - timedelta(seconds=1)}
    events[index] = msgspec.structs.replace(events[index], **changes)
    with pytest.raises(BrokenLog) as broken:
        fold(row.origin, events, contents_of(row))
    assert broken.value.event is events[index]


@pytest.mark.requirement("LC-02")
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
async def test_every_job_that_can_come_about_keeps_the_invariants(situation: Situation) -> None:
    clock = ManualClock()
    store = ModelStore(clock)
    tokens = await situation.recipe(Setup(Driver(store), clock))
    assert violations(store._rows[tokens.id]) == []


@pytest.mark.requirement("LC-02")
@pytest.mark.parametrize(
    ("status", "changes"),
    [
        (SUCCEEDED, {"result": None}),
        (SUCCEEDED, {"error": ERROR}),
        (SUCCEEDED, {"committed_at": None}),
        (FAILED, {"error": None}),
        (FAILED, {"result": "1"}),
        (HALTED, {"reason": None}),
        (HALTED, {"partial_result": None}),
        (Status.CANCELLED, {"reason": None}),
        (Status.DEAD_LETTERED, {"reason": None}),
        (RUNNING, {"owner": None}),
        (RUNNING, {"lease_expires_at": None}),
        (RUNNING, {"result": "1"}),
        (RUNNING, {"attempt": 0}),
        (STALLED, {"owner": "worker-1"}),
        (STALLED, {"error": ERROR}),
        (QUEUED, {"result": "1"}),
        (QUEUED, {"finished_at": "now"}),
        (FAILED, {"finished_at": None}),
        (FAILED, {"failures": 99}),
        (FAILED, {"rev": 0}),
    ],
)
async def test_a_record_that_breaks_an_invariant_is_found_out(status: Status, changes: dict[str, Any]) -> None:
    clock = ManualClock()
    store = ModelStore(clock)
    situation = next(s for s in SITUATIONS if s.facts.status == status.value)
    tokens = await situation.recipe(Setup(Driver(store), clock))
    row = store._rows[tokens.id]
    columns = {name: row.updated_at if value == "now" else value for name, value in changes.items()}
    assert violations(msgspec.structs.replace(row, **columns)) != []
