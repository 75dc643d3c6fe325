"""What may be forgotten, and what must not be touched by it."""

from __future__ import annotations

import msgspec
import pytest

from tenure.errors import IllegalTransition, JobNotFound, RequestIdReused
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Commit,
    Complete,
    DeadLetter,
    Fail,
    Halt,
    Heartbeat,
    Progress,
    Reconcile,
    Retry,
    Signal,
    Stall,
)
from tenure.lifecycle.records import Job
from tenure.stores.contract import EventFilter
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.endings import ended_jobs
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, RECOVERY, Driver
from tenure.testing.store_check import all_jobs

NEEDLE = "hay-and-needle"
SECRET = f'{{"message":"{NEEDLE}"}}'


class ForgettingContract:
    """`prune`, `blank`, `erase`."""

    async def test_pruning_removes_whole_jobs_that_ended_long_enough_ago(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        old = await ended_jobs(drive)
        clock.advance(100)
        young = await ended_jobs(drive)
        assert await prune(drive, older_than_seconds=100.001) == 0
        assert await prune(drive, older_than_seconds=100) == len(old)
        assert {job.id for job in await all_jobs(drive.store)} == {job.id for job in young}
        for job in old:
            assert await drive.seen(job.id) == (None, [])
            assert await drive.store.executions(job.id) == []
            assert await drive.store.dead_letter(job.id) is None
            assert (await drive.store.events(EventFilter(job_id=job.id))).events == []

    @pytest.mark.requirement("SM-12")
    async def test_pruning_never_touches_a_live_job(self, drive: Driver, clock: DatabaseClock) -> None:
        jobs = [await drive.add(), await drive.running(), await drive.apply(await drive.running(), Retry(ERROR))]
        before = [await drive.seen(job.id) for job in jobs]
        clock.advance(10_000_000)
        assert await prune(drive, older_than_seconds=0) == 0
        assert [await drive.seen(job.id) for job in jobs] == before

    async def test_pruning_takes_at_most_its_limit(self, drive: Driver) -> None:
        for _ in range(5):
            await drive.apply(await drive.running(), Complete("1"))
        assert [await prune(drive, older_than_seconds=0, limit=2) for _ in range(4)] == [2, 2, 1, 0]

    async def test_signals_go_with_their_job(self, drive: Driver) -> None:
        job = await drive.running()
        await drive.apply(job.id, Signal("go"), actor=CLIENT)
        await drive.apply(await owned(drive, job), Complete("1"))
        assert await prune(drive, older_than_seconds=0) == 1
        assert await drive.store.signals(job.id) == []

    async def test_a_pruned_jobs_ids_and_keys_are_free_again(self, drive: Driver) -> None:
        request = drive.enqueue(request_id="order-1", dedupe_key="ada")
        await drive.store.enqueue([request])
        claim = drive.claim_request()
        [job] = await drive.store.claim(claim)
        await drive.apply(job, Complete("1"))
        await prune(drive, older_than_seconds=0)
        assert await drive.store.claim(claim) == []
        [again] = await drive.store.enqueue([request])
        assert again.created

    async def test_an_answer_to_a_repeated_enqueue_goes_with_the_job_that_it_named(self, drive: Driver) -> None:
        job = await drive.running(dedupe_key="ada")
        answered = drive.enqueue(dedupe_key="ada", request_id="order-1")
        [answer] = await drive.store.enqueue([answered])
        assert (answer.job.id, answer.created) == (job.id, False)
        await drive.apply(job, Complete("1"))
        assert await prune(drive, older_than_seconds=0) == 1
        [made] = await drive.store.enqueue([answered])
        assert (made.job.id, made.created) == (answered.origin.id, True)

    @pytest.mark.requirement("SM-12")
    async def test_blanking_empties_old_progress_that_the_record_no_longer_shows(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 10_000})
        for percent in (1, 2, 3):
            job = await drive.apply(job, Progress(percent, f"step {percent}"))
            job = await drive.apply(job, Heartbeat())
        clock.advance(100)
        assert await blank(drive, older_than_seconds=101) == 0
        assert await blank(drive, older_than_seconds=100) == 2
        assert await blank(drive, older_than_seconds=100) == 0
        details = [event.detail for event in await drive.events_of(job.id) if event.type == "progress"]
        assert details[:2] == [None, None]
        assert details[2] is not None
        assert (await drive.job(job.id)).progress_message == "step 3"
        await drive.apply(job, Retry(ERROR, delay_seconds=0))
        await drive.claim()
        assert await blank(drive, older_than_seconds=100) == 1

    @pytest.mark.requirement("SM-12", "LC-07")
    async def test_a_blanked_request_can_still_be_repeated(self, drive: Driver) -> None:
        job = await drive.running()
        request = drive.request(job, Progress(1, "one"))
        await drive.try_apply(request)
        await drive.apply(await owned(drive, job), Progress(2))
        assert await blank(drive, older_than_seconds=0) == 1
        await drive.repeat(request)

    @pytest.mark.requirement("SM-12", "LC-07")
    async def test_a_blanked_request_is_still_told_from_another_under_its_id(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running()
        request = drive.request(job, Progress(1, "one"))
        await drive.try_apply(request)
        await drive.apply(await owned(drive, job), Progress(2))
        assert await blank(drive, older_than_seconds=0) == 1
        for other in (Progress(99), Progress(1), Progress(1, "two")):
            refusal = await drive.refuse(job, other, request_id=request.request_id)
            assert isinstance(refusal, RequestIdReused), other
        clock.advance(10_000)
        await drive.repeat(request)

    @pytest.mark.requirement("LC-07")
    async def test_the_requests_of_an_erased_job_are_still_told_from_others_under_their_ids(
        self, drive: Driver
    ) -> None:
        job = await drive.running()
        told = drive.request(job, Progress(1, "one"))
        await drive.try_apply(told)
        failed = drive.request(await owned(drive, job), Fail(SECRET))
        await drive.try_apply(failed)
        await drive.store.erase(job.id, reason="asked to", actor=OPERATOR)
        for request, other in ((told, Progress(2, "one")), (failed, Fail(ERROR))):
            await drive.repeat(request)
            refusal = await drive.refuse(job, other, request_id=request.request_id)
            assert isinstance(refusal, RequestIdReused), other

    @pytest.mark.requirement("SM-12")
    async def test_blanking_touches_no_transition(self, drive: Driver) -> None:
        jobs = await ended_jobs(drive)
        before = [await drive.seen(job.id) for job in jobs]
        assert await blank(drive, older_than_seconds=0) == 0
        assert [await drive.seen(job.id) for job in jobs] == before

    async def test_erasing_removes_what_a_job_said_and_keeps_what_happened(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        for job in await secretive_jobs(drive, clock):
            before = await drive.events_of(job.id)
            assert NEEDLE in await everything(drive, job)
            erased = await drive.store.erase(job.id, reason="asked to", actor=OPERATOR)
            assert erased == await drive.job(job.id)
            assert erased.erased_at == await drive.store.now()
            assert NEEDLE not in await everything(drive, job)
            assert (erased.status, erased.rev, erased.finished_at) == (job.status, job.rev, job.finished_at)
            after = await drive.events_of(job.id)
            assert [(e.rev, e.type, e.at, e.digest) for e in after] == [(e.rev, e.type, e.at, e.digest) for e in before]

    async def test_erasing_again_changes_nothing(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.apply(await drive.running(), Complete("1"))
        first = await drive.store.erase(job.id, reason="asked to", actor=OPERATOR)
        clock.advance(5)
        assert await drive.store.erase(job.id, reason="asked to", actor=OPERATOR) == first

    async def test_erasing_leaves_other_jobs_alone(self, drive: Driver) -> None:
        one, other = [await drive.apply(await drive.running(payload=SECRET), Complete(SECRET)) for _ in range(2)]
        before = await drive.seen(other.id)
        await drive.store.erase(one.id, reason="asked to", actor=OPERATOR)
        assert await drive.seen(other.id) == before

    async def test_a_live_job_is_not_erased(self, drive: Driver) -> None:
        for job in (await drive.add(), await drive.running()):
            before = await drive.seen(job.id)
            with pytest.raises(IllegalTransition):
                await drive.store.erase(job.id, reason="asked to", actor=OPERATOR)
            assert await drive.seen(job.id) == before
        with pytest.raises(JobNotFound):
            await drive.store.erase(drive.random.job_id(), reason="asked to", actor=OPERATOR)


async def prune(drive: Driver, *, older_than_seconds: float, limit: int = 1000) -> int:
    return await drive.store.prune(older_than_seconds=older_than_seconds, limit=limit, actor=OPERATOR)


async def blank(drive: Driver, *, older_than_seconds: float) -> int:
    return await drive.store.blank(older_than_seconds=older_than_seconds, actor=OPERATOR)


async def owned(drive: Driver, job: Job) -> Job:
    """The record as it now is, with its owner's token."""
    return msgspec.structs.replace(await drive.job(job.id), token=job.token)


async def everything(drive: Driver, job: Job) -> str:
    """All that can be read of a job, as one text."""
    store = drive.store
    shown = [
        await drive.seen(job.id),
        await store.dead_letter(job.id),
        await store.signals(job.id),
        (await store.events(EventFilter(job_id=job.id))).events,
    ]
    return msgspec.json.encode(shown).decode()


async def secretive_jobs(drive: Driver, clock: DatabaseClock) -> list[Job]:
    """Ended jobs with something to hide in each of the places where text is kept."""
    burial = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, SECRET)
    jobs = [
        await drive.apply(await drive.running(payload=SECRET), operation)
        for operation in (Complete(SECRET), Fail(SECRET), Halt("limit", SECRET), burial)
    ]
    told = await drive.apply(await drive.running(), Progress(1, NEEDLE))
    jobs.append(await drive.apply(told, Complete("1")))
    signalled = await drive.running()
    await drive.apply(signalled.id, Signal("go", SECRET), actor=CLIENT)
    jobs.append(await drive.apply(await owned(drive, signalled), Complete("1")))
    retried = await drive.running()
    await drive.apply(retried, Retry(SECRET, delay_seconds=0))
    [again] = await drive.claim()
    jobs.append(await drive.apply(again, Complete("1")))
    committed = await drive.apply(await drive.running(policy={"lease_seconds": 10}), Commit(SECRET))
    clock.advance(10)
    await drive.apply(committed.id, Stall(), actor=RECOVERY)
    jobs.append(await drive.apply(committed.id, Reconcile(), actor=RECOVERY))
    return jobs
