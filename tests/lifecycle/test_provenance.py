"""The provenance of an ended job, from its record and log, whichever actor ended it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from simulation.model.store import ModelStore
from tenure.errors import InvalidInput, NotYet
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.executions import ExecutionStatus
from tenure.lifecycle.json_text import digest
from tenure.lifecycle.operations import (
    Cancel,
    Commit,
    Complete,
    DeadLetter,
    Fail,
    GiveUp,
    Halt,
    Reconcile,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    Stall,
    TimeOut,
)
from tenure.lifecycle.provenance import Provenance, provenance
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import (
    CANCELLED,
    DEAD_LETTERED,
    FAILED,
    HALTED,
    SUCCEEDED,
    TERMINAL,
)
from tenure.lifecycle.timeouts import Timeouts
from tenure.testing.clock import ManualClock
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, RECOVERY, Driver
from tests.support.situations import SITUATIONS, Setup, Situation

OTHER_ERROR = '{"type":"KeyError","message":"gone"}'


class World:
    """A model store with a manual clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ModelStore(self.clock)
        self.drive = Driver(self.store)

    async def provenance_of(self, job: Job) -> Provenance:
        row, events = await self.drive.seen(job.id)
        assert row is not None
        return provenance(row, events)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.requirement("WC-13")
async def test_it_has_inputs_attempts_versions_and_outcome(world: World) -> None:
    drive, clock = world.drive, world.clock
    facts = {"payload": '{"to":"ada"}', "submitted_by": "grace", "correlation_id": "order-7", "trace": "00-a-b-01"}
    added = await drive.add(
        tags={"tenant": "x"}, policy={"max_attempts": 3, "on_exhausted": "fail", "lease_seconds": 10.0}, **facts
    )
    clock.advance(5)
    [job] = await drive.claim(code_version="1.4.0")
    clock.advance(2)
    await drive.apply(job, Retry(ERROR, delay_seconds=0))
    [job] = await drive.claim(worker="worker-2", code_version="1.5.0")
    clock.advance(10)
    await drive.apply(job.id, Stall(), Requeue(), actor=RECOVERY)
    [job] = await drive.claim(worker="worker-3")
    clock.advance(3)
    await drive.apply(job, Complete('"sent"'))

    found = await world.provenance_of(added)

    assert found.job_id == added.id
    inputs = found.inputs
    assert (inputs.kind, inputs.payload, inputs.digest) == ("mail", '{"to":"ada"}', added.origin.digest())
    assert (inputs.submitted_by, inputs.correlation_id, inputs.trace) == ("grace", "order-7", "00-a-b-01")
    assert (inputs.policy, inputs.tags, inputs.enqueued_by) == (added.policy, {"tenant": "x"}, "client:ada")
    assert [(one.number, one.owner, one.code_version, one.cause) for one in found.attempts] == [
        (1, "worker-1", "1.4.0", "ValueError"),
        (2, "worker-2", "1.5.0", "lease_expired"),
        (3, "worker-3", None, None),
    ]
    assert [one.status for one in found.attempts] == [
        ExecutionStatus.ABORTED,
        ExecutionStatus.ABORTED,
        ExecutionStatus.DONE,
    ]
    assert [one.ran_seconds for one in found.attempts] == [2.0, 10.0, 3.0]
    assert [(one.error, one.error_digest) for one in found.attempts] == [
        (ERROR, digest(ERROR)),
        (None, None),
        (None, None),
    ]
    assert found.code_versions == ("1.4.0", "1.5.0")
    outcome = found.outcome
    assert (outcome.status, outcome.by, outcome.result) == (SUCCEEDED, "runner:worker-1", '"sent"')
    assert (outcome.error, outcome.digest) == (None, digest('"sent"'))
    times = found.durations
    assert (times.until_claimed_seconds, times.running_seconds, times.total_seconds) == (5.0, 15.0, 20.0)


async def failed(world: World) -> Job:
    return await world.drive.apply(await world.drive.running(), Fail(ERROR))


async def given_up(world: World) -> Job:
    job = await world.drive.running(policy={"on_lost": "fail", "lease_seconds": 10.0})
    world.clock.advance(10)
    return await world.drive.apply(job.id, Stall(), GiveUp(ERROR), actor=RECOVERY)


async def timed_out_in_the_queue(world: World) -> Job:
    job = await world.drive.add(policy={"timeouts": Timeouts(queued_seconds=1.0)})
    world.clock.advance(2)
    return await world.drive.apply(job.id, TimeOut(ERROR), actor=RECOVERY)


async def timed_out_running(world: World) -> Job:
    policy = {"timeouts": Timeouts(running_seconds=1.0), "on_timeout": "fail"}
    job = await world.drive.running(policy=policy)
    world.clock.advance(2)
    return await world.drive.apply(job.id, TimeOut(ERROR), actor=RECOVERY)


async def dead_lettered(world: World) -> Job:
    return await world.drive.apply(
        await world.drive.running(), DeadLetter(ReasonCode.VALIDATION_FAILED, Stage.INPUT, ERROR)
    )


async def halted(world: World) -> Job:
    return await world.drive.apply(await world.drive.running(), Halt("too dear", "[1]"))


async def cancelled_hard(world: World) -> Job:
    return await world.drive.apply((await world.drive.running()).id, Cancel("no need"), actor=OPERATOR)


async def cancelled_waiting(world: World) -> Job:
    return await world.drive.apply((await world.drive.add()).id, RequestCancel("a"), Cancel("a"), actor=CLIENT)


async def reconciled(world: World) -> Job:
    job = await world.drive.running(policy={"lease_seconds": 10.0})
    await world.drive.apply(job, Commit("7"))
    world.clock.advance(10)
    return await world.drive.apply(job.id, Stall(), Reconcile(), actor=RECOVERY)


ENDS: list[tuple[Callable[[World], Awaitable[Job]], tuple[object, ...]]] = [
    (failed, (FAILED, "runner:worker-1", "permanent_error", ERROR, None, None)),
    (given_up, (FAILED, "recovery:mender", "lost", ERROR, None, None)),
    (timed_out_in_the_queue, (FAILED, "recovery:mender", "timeout", ERROR, None, None)),
    (timed_out_running, (FAILED, "recovery:mender", "timeout", ERROR, None, None)),
    (dead_lettered, (DEAD_LETTERED, "runner:worker-1", "validation_failed", ERROR, None, "validation_failed")),
    (halted, (HALTED, "runner:worker-1", "too dear", None, "[1]", "too dear")),
    (cancelled_hard, (CANCELLED, "client:operator", "no need", None, None, "no need")),
    (cancelled_waiting, (CANCELLED, "client:ada", "a", None, None, "a")),
]


@pytest.mark.requirement("WC-12", "WC-13")
@pytest.mark.parametrize(("end", "expected"), ENDS, ids=[end.__name__ for end, _ in ENDS])
async def test_it_names_the_actor_and_the_operation_of_the_end(
    world: World, end: Callable[[World], Awaitable[Job]], expected: tuple[object, ...]
) -> None:
    found = await world.provenance_of(await end(world))
    outcome = found.outcome
    seen = (outcome.status, outcome.by, outcome.cause, outcome.error, outcome.partial_result, outcome.reason)
    assert seen == expected


async def test_an_attempt_has_the_error_that_it_raised_and_not_that_of_giving_up(world: World) -> None:
    [lost] = (await world.provenance_of(await given_up(world))).attempts
    assert (lost.error, lost.cause) == (None, "lease_expired")
    [late] = (await world.provenance_of(await timed_out_running(world))).attempts
    assert (late.error, late.cause) == (ERROR, "timeout")
    assert (await world.provenance_of(await timed_out_in_the_queue(world))).attempts == ()


async def test_a_reconciled_job_is_the_doing_of_the_attempt_that_committed(world: World) -> None:
    found = await world.provenance_of(await reconciled(world))
    [attempt] = found.attempts
    assert (attempt.status, attempt.owner) == (ExecutionStatus.DONE, "worker-1")
    assert (found.outcome.by, found.outcome.cause, found.outcome.result) == ("recovery:mender", "reconciled", "7")
    assert found.committed_at is not None
    assert found.committed_at < found.outcome.at


async def test_every_request_to_cancel_is_in_it(world: World) -> None:
    job = await world.drive.running()
    await world.drive.apply(job.id, RequestCancel("first"), actor=CLIENT)
    world.clock.advance(1)
    await world.drive.apply(job.id, RequestCancel("second"), actor=OPERATOR)
    await world.drive.apply(job.id, Cancel("third"), actor=OPERATOR)
    found = await world.provenance_of(job)
    assert [(one.by, one.reason) for one in found.cancel_requests] == [
        ("client:ada", "first"),
        ("client:operator", "second"),
    ]
    assert found.outcome.reason == "third"


async def test_what_was_erased_is_named_by_its_digest(world: World) -> None:
    job = await world.drive.running(payload='{"to":"ada"}', policy={"max_attempts": 2, "on_exhausted": "fail"})
    origin = job.origin
    await world.drive.apply(job, Retry(ERROR, delay_seconds=0))
    [job] = await world.drive.claim()
    await world.drive.apply(job, Fail(OTHER_ERROR))
    await world.store.erase(job.id, reason="asked", actor=OPERATOR)
    found = await world.provenance_of(job)
    assert found.erased_at is not None
    assert (found.inputs.payload, found.inputs.digest) == (None, origin.digest())
    assert [(one.error, one.error_digest) for one in found.attempts] == [
        (None, digest(ERROR)),
        (None, digest(OTHER_ERROR)),
    ]
    assert (found.outcome.error, found.outcome.digest) == (None, digest(OTHER_ERROR))


async def test_the_provenance_of_a_released_job_has_a_released_attempt(world: World) -> None:
    job = await world.drive.running()
    await world.drive.apply(job, Release())
    await world.drive.apply(job.id, RequestCancel(), Cancel(), actor=CLIENT)
    [attempt] = (await world.provenance_of(job)).attempts
    assert (attempt.status, attempt.cause) == (ExecutionStatus.ABORTED, "shutdown")


@pytest.mark.requirement("WC-12")
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
async def test_a_job_has_a_provenance_once_it_has_ended_and_not_before(situation: Situation) -> None:
    clock = ManualClock()
    drive = Driver(ModelStore(clock))
    tokens = await situation.recipe(Setup(drive, clock))
    row, events = await drive.seen(tokens.id)
    assert row is not None
    if row.status in TERMINAL:
        found = provenance(row, events)
        assert found.outcome.status is row.status
        assert len(found.attempts) == row.attempt
        assert all(one.finished_at is not None for one in found.attempts)
        assert msgspec.json.decode(msgspec.json.encode(found), type=Provenance).outcome == found.outcome
    else:
        with pytest.raises(NotYet, match=f"it is {row.status}, and only a terminal job has a provenance"):
            provenance(row, events)


async def test_a_log_that_is_not_the_whole_of_this_jobs_is_refused(world: World) -> None:
    one, other = await failed(world), await failed(world)
    events = await world.drive.events_of(one.id)
    for wrong in ([], events[:-1], events[1:], [*reversed(events)], await world.drive.events_of(other.id)):
        with pytest.raises(InvalidInput, match="read its whole history"):
            provenance(one, wrong)
