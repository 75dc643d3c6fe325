"""What the log records of steps: their number and digest, at the end of each attempt."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest

from tenure.errors import (
    InvalidInput,
)
from tenure.lifecycle.content import StoredContent
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Cancel,
    Commit,
    Complete,
    DeadLetter,
    Fail,
    Halt,
    Heartbeat,
    Operation,
    Release,
    Requeue,
    Retry,
    Stall,
    Suspend,
    TimeOut,
)
from tenure.lifecycle.records import Actor
from tenure.lifecycle.steps import StepsDigest
from tenure.lifecycle.timeouts import Timeouts
from tenure.lifecycle.verify import ProblemType, content_problems
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.steps import digest_of, recorded, save, save_request
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, RECOVERY, Driver, prune_finished

DEAD_LETTERING = DeadLetter(ReasonCode.POLICY_VIOLATION, Stage.EXEC, ERROR)
BY_OTHERS: dict[str, tuple[Operation, Actor, float]] = {
    "a hard cancel": (Cancel(), CLIENT, 0),
    "a dead letter by a client": (DEAD_LETTERING, CLIENT, 0),
    "a dead letter by recovery": (DEAD_LETTERING, RECOVERY, 0),
    "a stall": (Stall(), RECOVERY, 61),
    "a timeout": (TimeOut(ERROR), RECOVERY, 31),
}
"""What ends a running attempt against its owner: operation, actor, and after how many seconds."""
BY_OWNER: tuple[Operation, ...] = (
    *(
        Complete("1"),
        Retry(ERROR),
        Fail(ERROR),
        Halt("budget", "[]"),
        Suspend(60.0),
        Release(),
        DEAD_LETTERING,
        Commit("1"),
    ),
)


class StepDigestContract:
    """`Event.steps`."""

    @pytest.mark.requirement("SM-20", "WC-13")
    @pytest.mark.parametrize("how", BY_OTHERS)
    async def test_the_store_counts_the_steps_when_another_actor_ends_the_attempt(
        self, drive: Driver, clock: DatabaseClock, how: str
    ) -> None:
        operation, actor, seconds = BY_OTHERS[how]
        timeouts = Timeouts(running_seconds=30)
        policy = {"lease_seconds": 60.0, "on_timeout": "fail", "timeouts": timeouts}
        job, bare = await drive.running(policy=policy), await drive.running(policy=policy)
        steps = await save(drive.store, *(save_request(job, f"main/{number}") for number in range(3)))
        clock.advance(seconds)
        wrong = "1:7"
        for one in (job, bare):
            await drive.apply(one.id, operation, actor=actor, steps=wrong)
        last = (await drive.events_of(job.id))[-1]
        assert last.steps == str(StepsDigest.of(step.digest for step in steps))
        assert StepsDigest.parse(last.steps).count == 3
        assert (await drive.events_of(bare.id))[-1].steps is None

    @pytest.mark.requirement("SM-20", "WC-13")
    @pytest.mark.parametrize("operation", BY_OWNER, ids=lambda operation: operation.type.value)
    async def test_the_owner_brings_the_digest_of_the_steps_and_a_repetition_need_not(
        self, drive: Driver, operation: Operation
    ) -> None:
        job = await drive.running()
        await save(drive.store, save_request(job, "a"), save_request(job, "b"))
        digest = await recorded(drive.store, job)
        request = drive.request(job, operation, steps=digest, fresh=True)
        await drive.try_apply(request)
        assert (await drive.events_of(job.id))[-1].steps == digest
        await drive.repeat(msgspec.structs.replace(request, steps=None))

    @pytest.mark.requirement("SM-20")
    @pytest.mark.parametrize("operation", BY_OWNER, ids=lambda operation: operation.type.value)
    async def test_the_steps_are_counted_for_an_owner_that_has_not_read_them(
        self, drive: Driver, operation: Operation, clock: DatabaseClock
    ) -> None:
        """A job that calls no step in its second attempt, or whose database was unavailable before it could read."""
        job = await drive.running(policy={"lease_seconds": 60.0})
        await save(drive.store, save_request(job, "a"), save_request(job, "b"))
        digest = await recorded(drive.store, job)
        clock.advance(61)
        await drive.apply(job.id, Stall(), Requeue(), actor=RECOVERY)
        [again] = await drive.claim()
        await drive.try_apply(drive.request(again, operation, fresh=True))
        events = await drive.events_of(job.id)
        assert events[-1].steps == digest
        stored = await drive.store.read([job.id]), await drive.store.content([job.id])
        assert content_problems(stored[0][job.id], events, stored[1][job.id]) == []

    @pytest.mark.requirement("SM-20")
    async def test_only_the_end_of_an_attempt_carries_the_digest(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running(policy={"lease_seconds": 60.0})
        await save(drive.store, save_request(job))
        digest = await recorded(drive.store, job)
        job = await drive.apply(job, Heartbeat(), steps=digest)
        clock.advance(61)
        await drive.apply(job.id, Stall(), Requeue(), actor=RECOVERY)
        [again] = await drive.claim()
        await save(drive.store, save_request(again, "main/2"))
        both = await recorded(drive.store, again)
        await drive.apply(again, Commit("1"), Complete("1"), steps=both)
        carried = [(event.type.value, event.steps) for event in await drive.events_of(job.id) if event.steps]
        assert carried == [("stalled", digest), ("committed", both), ("succeeded", both)]

    @pytest.mark.requirement("SM-18")
    @pytest.mark.parametrize("steps", ["", "1", "1:", "0:0", "-1:5", "1:x", f"1:{2**256}", "1:5 ", "١:5"])  # noqa: RUF001
    async def test_a_request_with_another_digest_of_steps_is_invalid(self, drive: Driver, steps: str) -> None:
        job = await drive.running()
        with pytest.raises(InvalidInput, match="steps"):
            await drive.store.apply([drive.request(job, Complete("1"), steps=steps)])

    @pytest.mark.requirement("SM-20")
    async def test_a_digest_that_ends_in_zeros_is_read_as_it_was_computed(self, drive: Driver) -> None:
        job = await drive.running()
        requests = (save_request(job, f"key {number}") for number in count())
        request = next(one for one in requests if digest_of(one).endswith("0000"))
        await save(drive.store, request)
        [step] = await drive.store.steps(job.id)
        assert step.digest == digest_of(request)
        await drive.apply(job, Complete("1"), steps=await recorded(drive.store, job))
        stored = (await drive.store.content([job.id]))[job.id]
        assert content_problems(await drive.job(job.id), await drive.events_of(job.id), stored) == []

    async def test_verify_finds_what_the_end_of_an_attempt_has_not_recorded(self, drive: Driver) -> None:
        job = await drive.running()
        await save(drive.store, save_request(job, "a"), save_request(job, "b"))
        await drive.apply(job, Complete("1"), steps=await recorded(drive.store, job))
        current, events = await drive.job(job.id), await drive.events_of(job.id)
        stored = (await drive.store.content([job.id]))[job.id]
        assert len(stored.steps) == 2
        assert content_problems(current, events, stored) == []
        one, two = stored.steps
        other = msgspec.structs.replace(two, digest=two.digest + 1)
        late = msgspec.structs.replace(two, key="c", attempt=2)
        for rows in ((), (one,), (one, two, one), (one, other), (one, two, late)):
            problems = content_problems(current, events, StoredContent(steps=rows))
            assert [problem.type for problem in problems] == [ProblemType.STEP], rows
        silent = [msgspec.structs.replace(event, steps=None) for event in events]
        [problem] = content_problems(current, silent, stored)
        assert (problem.type, problem.rev) == (ProblemType.STEP, 4)

    @pytest.mark.requirement("SM-20")
    async def test_erasure_empties_steps_and_keeps_their_digests(self, drive: Driver) -> None:
        job = await drive.running()
        await save(drive.store, save_request(job, "a", undo='"secret"'), save_request(job, "b", status="failed"))
        before = await drive.store.steps(job.id)
        await drive.apply(job, Complete("1"), steps=await recorded(drive.store, job))
        await drive.store.erase(job.id, reason="asked", actor=OPERATOR)
        blank: dict[str, None] = {"result": None, "error": None, "undo": None}
        assert await drive.store.steps(job.id) == [msgspec.structs.replace(step, **blank) for step in before]

    async def test_retention_removes_steps_with_their_job(self, drive: Driver) -> None:
        job, other = await drive.running(), await drive.running()
        await save(drive.store, save_request(job), save_request(other))
        await drive.apply(job, Complete("1"), steps=await recorded(drive.store, job))
        assert await prune_finished(drive.store) == 1
        assert await drive.store.steps(job.id) == []
        assert len(await drive.store.steps(other.id)) == 1
