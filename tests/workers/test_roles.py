"""The workers' roles one by one, on a real store with a manual clock, with answers that get lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import LeaseLost, StoreError, StoreUnavailable
from tenure.lifecycle.operations import Cancel, Commit, Complete, Heartbeat, Operation, Progress, RequestCancel
from tenure.lifecycle.records import EventType, Job
from tenure.lifecycle.statuses import CANCELLED, QUEUED, RUNNING, SUCCEEDED
from tenure.lifecycle.timeouts import Timeouts
from tenure.seams import Seams
from tenure.stores.contract import JobFilter
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.driver import CLIENT, Driver
from tenure.workers.completer import Completer
from tenure.workers.leases import Interruption, Lease, LeaseRegistry
from tenure.workers.maintenance.lease_renewer import LeaseRenewer
from tenure.workers.maintenance.recovery import PAUSE_SECONDS_MAX, RecoveryWorker, pause_seconds
from tenure.workers.pool import Slots, WorkerPool
from tests.support.faults import Fault, FaultyStore

LEASE_SECONDS = 60.0


class Place:
    """One store, its clock, and what a worker process would have of it."""

    def __init__(self, store: SqliteStore, clock: ManualClock, seams: Seams) -> None:
        self.store, self.clock, self.seams = FaultyStore(store), clock, seams
        self.drive = Driver(store)
        self.leases = LeaseRegistry()
        self.interruptions: list[Interruption] = []

    async def lease(self, **facts: object) -> Lease:
        job = await self.drive.running(**facts)
        assert job.token is not None
        assert job.owner is not None
        lease = Lease(
            job,
            worker=job.owner,
            token=job.token,
            sent_at_seconds=self.clock.monotonic_seconds(),
            on_interrupt=lambda _, reason: self.interruptions.append(reason),
        )
        self.leases.add(lease)
        return lease

    def renewer(self) -> LeaseRenewer:
        return LeaseRenewer(self.store, self.leases, self.seams, worker="worker-1")

    async def types(self, job: Job) -> list[str]:
        return [event.type for event in (await self.drive.store.history([job.id]))[job.id]]


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    clock = ManualClock()
    seams = Seams(clock=clock)
    store = SqliteStore(":memory:", seams=seams, database_clock=clock.now, inline=True)
    await store.migrate()
    await store.open()
    yield Place(store, clock, seams)
    await store.close()


def completes(job: Job) -> Operation:
    return Complete("1")


def progresses(percent: int) -> Callable[[Job], Operation]:
    return lambda _: Progress(percent)


@pytest.mark.requirement("LC-07", "WC-06")
@pytest.mark.parametrize("fault", list(Fault))
async def test_an_outcome_whose_answer_was_lost_is_recorded_once(place: Place, fault: Fault) -> None:
    lease = await place.lease()
    place.store.faults.extend([fault, fault])
    job = await Completer(place.store, place.seams).write(lease, "complete", completes)
    assert job.status is SUCCEEDED
    assert (await place.types(job)).count("succeeded") == 1
    assert place.store.calls == ["apply"] * 3


async def test_outcomes_that_are_ready_together_are_written_together(place: Place) -> None:
    several = [await place.lease() for _ in range(20)]
    completer = Completer(place.store, place.seams)
    jobs = await asyncio.gather(*(completer.write(lease, "complete", completes) for lease in several))
    assert {job.status for job in jobs} == {SUCCEEDED}
    assert place.store.calls == ["apply"]


@pytest.mark.requirement("LC-04")
async def test_an_outcome_is_decided_again_when_the_job_was_changed_meanwhile(place: Place) -> None:
    lease = await place.lease()
    seen: list[bool] = []

    def decide(job: Job) -> Operation:
        seen.append(job.cancel_requested)
        return Cancel() if job.cancel_requested else Complete("1")

    await place.drive.apply(lease.job.id, RequestCancel(), actor=CLIENT)
    job = await Completer(place.store, place.seams).write(lease, "end", decide)
    assert seen == [False, True]
    assert job.status is CANCELLED


@pytest.mark.requirement("LC-05")
async def test_an_outcome_under_a_lost_lease_is_refused_and_the_owner_is_notified(place: Place) -> None:
    lease = await place.lease()
    place.clock.advance(LEASE_SECONDS)
    with pytest.raises(LeaseLost):
        await Completer(place.store, place.seams).write(lease, "complete", completes)
    assert lease.lost
    assert place.interruptions == [Interruption.LOST]


async def test_an_error_of_the_store_fails_waiting_requests_and_not_later_ones(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await place.lease()
    completer = Completer(place.store, place.seams)
    with monkeypatch.context() as patch:

        async def broken(_requests: object) -> None:
            raise ZeroDivisionError

        patch.setattr(place.store, "apply", broken)
        with pytest.raises(ZeroDivisionError):
            await completer.write(lease, "complete", completes)
    assert (await completer.write(lease, "complete", completes)).status is SUCCEEDED


@pytest.mark.requirement("SM-05")
async def test_a_heartbeat_goes_out_at_each_interval_and_renews_when_half_of_the_lease_is_gone(place: Place) -> None:
    lease = await place.lease(policy={"lease_seconds": 60.0, "heartbeat_seconds": 20.0})
    renewer = place.renewer()
    renewed: list[bool] = []
    for _ in range(6):
        assert await renewer.renew() <= 5.0
        before = lease.local_deadline_seconds
        place.clock.advance(20)
        await renewer.renew()
        renewed.append(lease.local_deadline_seconds > before)
    # At 20 s two thirds are left, at 40 s one third: so every second beat renews.
    assert renewed == [False, True, False, True, False, True]
    assert not lease.lost
    assert (await place.types(lease.job)).count("heartbeat") == 6


async def test_trust_is_counted_from_when_the_heartbeat_was_sent(place: Place) -> None:
    lease = await place.lease()
    place.clock.advance(40)
    sent = place.clock.monotonic_seconds()
    answer = place.store.apply

    async def slow(requests: list[object]) -> object:
        outcomes = await answer(requests)  # type: ignore[arg-type]
        place.clock.advance(15)
        return outcomes

    place.store.apply = slow  # type: ignore[method-assign, assignment]
    await place.renewer().renew()
    assert lease.local_deadline_seconds == sent + LEASE_SECONDS


async def test_an_owner_without_a_renewal_for_a_whole_lease_stops(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    lease = await place.lease()
    renewer = place.renewer()
    place.store.faults.extend([Fault.REQUEST_LOST] * 100)
    for _ in range(59):
        place.clock.advance(1)
        await renewer.renew()
        renewer.expire_locally()
        assert not lease.lost
    place.clock.advance(1)
    with caplog.at_level(logging.WARNING):
        renewer.expire_locally()
    assert lease.lost
    assert place.interruptions == [Interruption.LOST]
    assert "no heartbeat succeeded for a whole lease" in caplog.text


@pytest.mark.requirement("LC-05", "SM-10")
async def test_a_revoked_lease_is_noticed_at_the_next_heartbeat_or_by_a_check(place: Place) -> None:
    by_beat, by_look = await place.lease(), await place.lease()
    for lease in (by_beat, by_look):
        await place.drive.apply(lease.job.id, Cancel(), actor=CLIENT)
    by_look.next_renewal_at_seconds = float("inf")
    place.clock.advance(20)
    renewer = place.renewer()
    await renewer.renew()
    assert (by_beat.lost, by_look.lost) == (True, False)
    await renewer.refresh()
    assert by_look.lost


@pytest.mark.requirement("SM-10")
async def test_a_cancel_request_is_noticed_by_a_check_and_the_next_heartbeat(place: Place) -> None:
    lease = await place.lease()
    await place.drive.apply(lease.job.id, RequestCancel(), actor=CLIENT)
    renewer = place.renewer()
    await renewer.refresh()
    await renewer.renew()
    assert lease.job.cancel_requested
    assert place.interruptions == [Interruption.CANCEL_REQUESTED]
    assert not lease.lost


async def test_the_end_that_we_wrote_ourselves_is_not_a_lost_lease(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    lease = await place.lease()
    lease.completing = True
    await place.drive.apply(lease.job, Complete("1"))
    place.clock.advance(20)
    with caplog.at_level(logging.WARNING):
        renewer = place.renewer()
        await renewer.refresh()
        await renewer.renew()
    assert "lost its lease" not in caplog.text


async def test_heartbeats_and_the_outcome_of_one_job_do_not_conflict(place: Place) -> None:
    lease = await place.lease()
    completer, renewer = Completer(place.store, place.seams), place.renewer()
    for percent in range(10):
        place.clock.advance(20)
        await asyncio.gather(renewer.renew(), completer.write(lease, "progress", progresses(percent)))
    assert (await completer.write(lease, "complete", completes)).status is SUCCEEDED
    types = await place.types(lease.job)
    assert (types.count("progress"), types.count("succeeded")) == (10, 1)


@pytest.mark.requirement("EH-03")
@pytest.mark.parametrize("commits", [True, False])
async def test_a_job_that_hangs_is_ended_by_its_owner_at_its_timeout(place: Place, commits: bool) -> None:
    lease = await place.lease(policy={"timeouts": Timeouts(running_seconds=90)})
    if commits:
        lease.adopt(await place.drive.apply(lease.job, Commit("1")))
    renewer = place.renewer()
    for _ in range(4):
        place.clock.advance(20)
        await renewer.renew()
        renewer.expire_locally()
    assert place.interruptions == []
    place.clock.advance(20)
    await renewer.renew()
    renewer.expire_locally()
    assert place.interruptions == [Interruption.OVERDUE]


class Began:
    """What a pool started, and what it released instead."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.released: list[Job] = []

    def __call__(self, job: Job, token: UUID, began_at_seconds: float) -> None:
        self.jobs.append(job)

    def release(self, job: Job, token: UUID, began_at_seconds: float) -> None:
        self.released.append(job)


def pool_of(
    place: Place, began: Began, *, slots: Slots | None = None, kinds: tuple[str, ...] = ("mail",)
) -> WorkerPool:
    return WorkerPool(
        place.store,
        place.seams,
        worker="w",
        queues=("default",),
        kinds=kinds,
        slots=slots or Slots(10),
        poll_seconds=1.0,
        start=began,
        release=began.release,
        lease_seconds_min=LEASE_SECONDS,
    )


@pytest.mark.requirement("WC-05")
async def test_a_pool_claims_only_what_it_can_start_now_and_only_kinds_that_it_has(place: Place) -> None:
    for _ in range(5):
        await place.drive.add("mail")
        await place.drive.add("other")
    began = Began()
    slots = Slots(3)
    pool = pool_of(place, began, slots=slots)
    assert await pool.claim() == 3
    assert [job.kind for job in began.jobs] == ["mail"] * 3
    left = await place.drive.store.find(JobFilter(statuses=(QUEUED,)))
    assert len(left.jobs) == 7
    slots.release()
    assert await pool.claim() == 1


@pytest.mark.requirement("SM-13")
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_claim_whose_answer_was_lost_is_asked_again_and_starts_each_job_once(
    place: Place, fault: Fault
) -> None:
    added = [await place.drive.add() for _ in range(3)]
    place.store.faults.append(fault)
    began = Began()
    assert await pool_of(place, began).claim() == 3
    assert {job.id for job in began.jobs} == {job.id for job in added}
    assert {job.attempt for job in began.jobs} == {1}


async def test_a_job_whose_claim_was_answered_late_in_its_lease_is_released(place: Place) -> None:
    await place.drive.add()
    began = Began()
    answer = place.store.claim

    async def late(request: object) -> object:
        jobs = await answer(request)  # type: ignore[arg-type]
        place.clock.advance(0.9 * LEASE_SECONDS)
        return jobs

    place.store.claim = late  # type: ignore[method-assign, assignment]
    assert await pool_of(place, began).claim() == 0
    assert (began.jobs, len(began.released)) == ([], 1)


async def test_a_job_whose_claim_waited_in_the_database_is_started(place: Place) -> None:
    """Its lease began when the claim was executed, not when it was sent."""
    await place.drive.add()
    began = Began()
    answer = place.store.claim

    async def waits(request: object) -> object:
        place.clock.advance(0.9 * LEASE_SECONDS)
        return await answer(request)  # type: ignore[arg-type]

    place.store.claim = waits  # type: ignore[method-assign, assignment]
    assert await pool_of(place, began).claim() == 1
    assert (len(began.jobs), began.released) == (1, [])


async def test_jobs_that_are_won_when_the_database_is_back_are_run(place: Place) -> None:
    """The claim that was lost took no lease: the one that is answered has all of it, however long the outage was."""
    await place.drive.add()
    place.store.faults.extend([Fault.REQUEST_LOST] * 60)
    began = Began()
    before = place.clock.monotonic_seconds()
    assert await pool_of(place, began).claim() == 1
    assert place.clock.monotonic_seconds() - before > LEASE_SECONDS


async def test_a_claim_that_was_answered_only_after_its_lease_is_not_started(place: Place) -> None:
    await place.drive.add()
    place.store.faults.extend([Fault.REPLY_LOST] + [Fault.REQUEST_LOST] * 60)
    began = Began()
    assert await pool_of(place, began).claim() == 0
    assert began.jobs == []


async def test_a_closed_completer_accepts_nothing_more(place: Place) -> None:
    completer = Completer(place.store, place.seams)
    await completer.close()
    with pytest.raises(StoreError, match="the worker has stopped"):
        await completer.write(await place.lease(), "complete", completes)


async def test_one_outcome_that_cannot_be_decided_does_not_keep_the_others(place: Place) -> None:
    def never(_job: Job) -> Operation:
        raise ZeroDivisionError

    completer = Completer(place.store, place.seams)
    bad, good = await asyncio.gather(
        completer.write(await place.lease(), "complete", never),
        completer.write(await place.lease(), "complete", completes),
        return_exceptions=True,
    )
    assert isinstance(bad, ZeroDivisionError)
    assert isinstance(good, Job)


async def test_a_pool_that_is_stopped_claims_no_more(place: Place) -> None:
    began = Began()
    pool = pool_of(place, began)
    working = asyncio.create_task(pool.run())
    pool.stop()
    await asyncio.wait_for(working, 5)
    await place.drive.add()
    assert began.jobs == []


@pytest.mark.requirement("WC-10")
@pytest.mark.parametrize("fault", list(Fault))
async def test_an_interrupted_scan_is_repeated_by_the_next_recovery(place: Place, fault: Fault) -> None:
    jobs = [await place.drive.running() for _ in range(3)]
    place.clock.advance(LEASE_SECONDS)
    place.store.faults.extend([None, fault])
    first, second = (RecoveryWorker(place.store, place.seams, name=name) for name in ("one", "two"))
    with pytest.raises(StoreUnavailable):
        await first.scan()
    await second.scan()
    for job in jobs:
        types = await place.types(job)
        assert (types.count("stalled"), types.count("requeued")) == (1, 1)
    assert all(job.status is QUEUED for job in (await place.drive.store.read([job.id for job in jobs])).values())


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([0.0, 0.01], 5.0),
        ([0.1, 0.1], 5.0),
        ([0.0, 30.0], 5.0),
        ([0.4, 0.2], 10.0),
        ([0.4, 0.6], 20.0),
        ([30.0, 30.0], PAUSE_SECONDS_MAX),
    ],
)
def test_recovery_looks_less_often_where_every_look_takes_long(looks: list[float], expected: float) -> None:
    assert pause_seconds(5.0, looks, previous_seconds=PAUSE_SECONDS_MAX) == pytest.approx(expected)
    assert pause_seconds(100.0, looks, previous_seconds=100.0) == 100.0


def test_reads_that_are_slow_for_a_second_delay_recovery_by_seconds() -> None:
    """A busy machine once made two reads slow, and a lost job waited for half a minute."""
    pauses = [0.1]
    for _ in range(12):
        pauses.append(pause_seconds(0.1, [0.7, 0.8], previous_seconds=pauses[-1]))
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert pauses[-1] == pytest.approx(35.0)
    assert pause_seconds(0.1, [0.7, 0.0], previous_seconds=35.0) == 0.1


async def test_the_pause_after_a_scan_follows_from_the_last_two_looks_and_at_most_doubles(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [0.5, 0.4, 0.3, 0.1, 0.0]
    recoverable, sleep = place.store.recoverable, place.clock.sleep
    pauses: list[float] = []
    last = asyncio.Event()

    async def slow(**facts: Any) -> list[Job]:
        place.clock.advance(looks.pop(0))
        return await recoverable(**facts)

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        if not looks:
            last.set()
            await asyncio.Event().wait()
        await sleep(0)

    monkeypatch.setattr(place.store, "recoverable", slow)
    monkeypatch.setattr(place.clock, "sleep", noted)
    worker = asyncio.create_task(RecoveryWorker(place.store, place.seams, name="r").run(scan_seconds=1.0))
    await asyncio.wait_for(last.wait(), 10)
    worker.cancel()
    for pause, middle in zip(pauses, [1.0, 2.0, 4.0, 5.0, 1.0], strict=True):
        assert 0.75 * middle <= pause <= 1.25 * middle


async def test_an_earlier_lease_of_this_process_on_the_same_job_is_given_up(place: Place) -> None:
    lease = await place.lease()
    place.clock.advance(LEASE_SECONDS)
    assert await RecoveryWorker(place.store, place.seams, name="r").scan() == 1
    [again] = await place.drive.claim()
    assert (again.id, again.status) == (lease.job.id, RUNNING)
    assert again.token is not None
    newer = Lease(again, worker="worker-1", token=again.token, sent_at_seconds=place.clock.monotonic_seconds())
    place.leases.add(newer)
    assert (lease.lost, newer.lost) == (True, False)
    place.leases.remove(lease)
    assert place.leases.all() == [newer]


async def test_an_owners_request_ids_follow_from_its_token_and_are_never_the_same(place: Place) -> None:
    one, other = await place.lease(), await place.lease()
    ids = [one.request_id("heartbeat") for _ in range(3)] + [other.request_id("heartbeat") for _ in range(3)]
    assert len(set(ids)) == 6
    token = str(one.actor.token)
    assert not any(token in request_id for request_id in ids)
    await Completer(place.store, place.seams).write(one, "heartbeat", lambda _: Heartbeat())
    [event] = [e for e in (await place.drive.store.history([one.job.id]))[one.job.id] if e.type is EventType.HEARTBEAT]
    assert event.request_id.startswith(ids[0].partition(".")[0])
