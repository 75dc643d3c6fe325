"""Retention: what may be removed, and what must not change."""

from __future__ import annotations

import msgspec
import pytest

from tenure.errors import IllegalTransition, InvalidInput, JobNotFound, RequestIdReused
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
from tenure.lifecycle.statuses import FAILED, LIVE, Status
from tenure.stores.contract import (
    DeliveredMessages,
    EventFilter,
    ExpiredRateUsage,
    FinishedJobs,
    FinishedKind,
    Prunable,
    PrunedBatch,
    StoppedWorkers,
    VerboseEvents,
)
from tenure.testing.clock import START
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.endings import ended_jobs
from tenure.testing.contract.workers import worker
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, RECOVERY, Driver, blank_verbose, prune_finished
from tenure.testing.store_check import all_jobs

NEEDLE = "hay-and-needle"
SECRET = f'{{"message":"{NEEDLE}"}}'


class RetentionContract:
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

    async def test_pruning_removes_at_most_its_limit(self, drive: Driver) -> None:
        for _ in range(5):
            await drive.apply(await drive.running(), Complete("1"))
        assert [await prune(drive, older_than_seconds=0, limit=2) for _ in range(4)] == [2, 2, 1, 0]

    @pytest.mark.requirement("SM-12")
    async def test_pruning_removes_only_jobs_of_its_status_and_kind(self, drive: Driver) -> None:
        wanted, other_status = [await drive.apply(await drive.running(), end) for end in (Fail(ERROR), Complete("1"))]
        other_kind = await drive.apply(await drive.running(kind="post"), Fail(ERROR))
        jobs = FinishedJobs(status=FAILED, kind="mail", older_than_seconds=0)
        assert await drive.store.count_prunable(jobs) == 1
        assert await drive.store.prune(jobs) == PrunedBatch(1, None)
        assert await drive.store.count_prunable(jobs) == 0
        kept = {job.id for job in await all_jobs(drive.store)}
        assert kept == {other_status.id, other_kind.id}
        assert wanted.id not in kept

    @pytest.mark.requirement("SM-12")
    async def test_finished_kinds_have_the_time_of_their_first_end(self, drive: Driver, clock: DatabaseClock) -> None:
        assert await drive.store.finished_kinds() == []
        await drive.add()
        first = await drive.apply(await drive.running(kind="post"), Complete("1"))
        clock.advance(5)
        await drive.apply(await drive.running(kind="post"), Complete("1"))
        second = await drive.apply(await drive.running(kind="fax"), Complete("1"))
        third = await drive.apply(await drive.running(kind="post"), Fail(ERROR))
        assert await drive.store.finished_kinds() == [
            FinishedKind(job.status, job.kind, job.finished_at or START) for job in (third, second, first)
        ]

    @pytest.mark.parametrize("status", sorted(LIVE))
    async def test_pruning_of_live_jobs_is_refused(self, drive: Driver, status: Status) -> None:
        jobs = FinishedJobs(status=status, kind="mail", older_than_seconds=0)
        with pytest.raises(InvalidInput):
            await drive.store.prune(jobs)
        with pytest.raises(InvalidInput):
            await drive.store.count_prunable(jobs)

    @pytest.mark.requirement("SM-12", "LC-07")
    async def test_a_claim_can_be_repeated_as_long_as_one_of_its_jobs_is_kept(self, drive: Driver) -> None:
        for _ in range(2):
            await drive.add()
        request = drive.claim_request(limit=2)
        first, second = await drive.store.claim(request)
        await drive.apply(first, Complete("1"))
        assert await prune(drive, older_than_seconds=0) == 1
        assert [job.id for job in await drive.store.claim(request)] == [second.id]
        await drive.apply(second, Complete("1"))
        assert await prune(drive, older_than_seconds=0) == 1
        assert await drive.store.claim(request) == []

    @pytest.mark.requirement("SM-12", "WC-13")
    async def test_a_workers_row_stays_while_a_job_is_kept_that_it_may_have_run(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        await drive.store.register(worker("gone"))
        await drive.store.register(worker("stopped"))
        await drive.store.unregister("stopped")
        await drive.apply(await drive.running(), Complete("1"))
        clock.advance(10 * 86_400)
        await drive.store.register(worker("alive"))
        unseen = StoppedWorkers(older_than_seconds=7 * 86_400)
        assert await drive.store.count_prunable(unseen) == 0
        assert await drive.store.prune(unseen) == PrunedBatch(0, None)
        assert await prune(drive, older_than_seconds=0) == 1
        assert await drive.store.count_prunable(StoppedWorkers(older_than_seconds=11 * 86_400)) == 0
        assert await drive.store.count_prunable(unseen) == 2
        assert await drive.store.prune(unseen, limit=1) == PrunedBatch(1, unseen)
        assert await drive.store.prune(unseen) == PrunedBatch(1, None)
        found = await drive.store.workers(["alive", "gone", "stopped"])
        assert [row.id for row in found] == ["alive"]

    async def test_pruning_without_jobs_removes_nothing(self, drive: Driver) -> None:
        await drive.add()
        for prunable in (DeliveredMessages(older_than_seconds=0), ExpiredRateUsage()):
            assert await drive.store.count_prunable(prunable) == 0
            assert await drive.store.prune(prunable) == PrunedBatch(0, None)

    async def test_signals_are_removed_with_their_job(self, drive: Driver) -> None:
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

    async def test_a_recorded_deduplication_is_removed_with_its_job(self, drive: Driver) -> None:
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

    @pytest.mark.requirement("SM-12")
    async def test_blanking_in_batches_skips_details_that_the_record_shows(self, drive: Driver) -> None:
        for _ in range(3):
            job = await drive.running()
            for percent in (1, 2, 3):
                job = await drive.apply(job, Progress(percent, f"step {percent}"))
        assert await drive.store.count_prunable(VerboseEvents(older_than_seconds=0)) == 6
        target: Prunable | None = VerboseEvents(older_than_seconds=0)
        removed = batches = 0
        while target is not None and batches < 20:
            batch = await drive.store.prune(target, limit=2)
            removed, target, batches = removed + batch.removed, batch.next, batches + 1
        assert (removed, target) == (6, None)
        assert await drive.store.count_prunable(VerboseEvents(older_than_seconds=0)) == 0

    @pytest.mark.requirement("SM-12", "LC-07")
    async def test_a_blanked_request_can_still_be_repeated(self, drive: Driver) -> None:
        job = await drive.running()
        request = drive.request(job, Progress(1, "one"))
        await drive.try_apply(request)
        await drive.apply(await owned(drive, job), Progress(2))
        assert await blank(drive, older_than_seconds=0) == 1
        await drive.repeat(request)

    @pytest.mark.requirement("SM-12", "LC-07")
    async def test_another_body_under_a_blanked_request_id_is_still_refused(
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
    async def test_another_body_under_a_request_id_of_an_erased_job_is_still_refused(self, drive: Driver) -> None:
        job = await drive.running()
        reported = drive.request(job, Progress(1, "one"))
        await drive.try_apply(reported)
        failed = drive.request(await owned(drive, job), Fail(SECRET))
        await drive.try_apply(failed)
        await drive.store.erase(job.id, reason="asked to", actor=OPERATOR)
        for request, other in ((reported, Progress(2, "one")), (failed, Fail(ERROR))):
            await drive.repeat(request)
            refusal = await drive.refuse(job, other, request_id=request.request_id)
            assert isinstance(refusal, RequestIdReused), other

    @pytest.mark.requirement("SM-12")
    async def test_blanking_touches_no_transition(self, drive: Driver) -> None:
        jobs = await ended_jobs(drive)
        before = [await drive.seen(job.id) for job in jobs]
        assert await blank(drive, older_than_seconds=0) == 0
        assert [await drive.seen(job.id) for job in jobs] == before

    async def test_erasing_removes_content_and_keeps_the_transitions(self, drive: Driver, clock: DatabaseClock) -> None:
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

    async def test_erasing_changes_no_other_job(self, drive: Driver) -> None:
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
    return await prune_finished(drive.store, older_than_seconds=older_than_seconds, limit=limit)


async def blank(drive: Driver, *, older_than_seconds: float) -> int:
    return await blank_verbose(drive.store, older_than_seconds=older_than_seconds)


async def owned(drive: Driver, job: Job) -> Job:
    """The current record, with its owner's token."""
    return msgspec.structs.replace(await drive.job(job.id), token=job.token)


async def everything(drive: Driver, job: Job) -> str:
    """Everything that can be read of a job, as one text."""
    store = drive.store
    shown = [
        await drive.seen(job.id),
        await store.dead_letter(job.id),
        await store.signals(job.id),
        (await store.events(EventFilter(job_id=job.id))).events,
    ]
    return msgspec.json.encode(shown).decode()


async def secretive_jobs(drive: Driver, clock: DatabaseClock) -> list[Job]:
    """Ended jobs with a secret in each place that has text."""
    burial = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, SECRET)
    jobs = [
        await drive.apply(await drive.running(payload=SECRET), operation)
        for operation in (Complete(SECRET), Fail(SECRET), Halt("limit", SECRET), burial)
    ]
    reported = await drive.apply(await drive.running(), Progress(1, NEEDLE))
    jobs.append(await drive.apply(reported, Complete("1")))
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
