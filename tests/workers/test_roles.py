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
from tenure.lifecycle.records import EventType, Job, Timeouts
from tenure.lifecycle.statuses import CANCELLED, QUEUED, RUNNING, SUCCEEDED
from tenure.seams import Seams
from tenure.stores.contract import JobFilter
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.driver import CLIENT, Driver
from tenure.workers.completer import Completer
from tenure.workers.leases import Interruption, Lease, LeaseRegistry
from tenure.workers.maintenance.heartbeat import LeaseRenewer
from tenure.workers.maintenance.recovery import PAUSE_SECONDS_MAX, RecoveryWorker, pause_seconds
from tenure.workers.pool import WorkerPool
from tests.support.faults import Fault, FaultyStore

LEASE_SECONDS = 60.0


class Place:
    """One store, its clock, and what a worker process would have of it."""

    def __init__(self, store: SqliteStore, clock: ManualClock, seams: Seams) -> None:
        self.store, self.clock, self.seams = FaultyStore(store), clock, seams
        self.drive = Driver(store)
        self.held_jobs = LeaseRegistry()
        self.told: list[Interruption] = []

    async def held(self, **facts: object) -> Lease:
        job = await self.drive.running(**facts)
        assert job.token is not None
        assert job.owner is not None
        held = Lease(job, worker=job.owner, token=job.token, sent_at_seconds=self.clock.monotonic_seconds())
        held.when_interrupted(self.told.append)
        self.held_jobs.take(held)
        return held

    def heart(self) -> LeaseRenewer:
        return LeaseRenewer(self.store, self.held_jobs, self.seams, worker="worker-1")

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
    held = await place.held()
    place.store.faults.extend([fault, fault])
    job = await Completer(place.store, place.seams).settle(held, "complete", completes)
    assert job.status is SUCCEEDED
    assert (await place.types(job)).count("succeeded") == 1
    assert place.store.calls == ["apply"] * 3


async def test_outcomes_that_are_ready_together_are_written_together(place: Place) -> None:
    several = [await place.held() for _ in range(20)]
    settler = Completer(place.store, place.seams)
    jobs = await asyncio.gather(*(settler.settle(held, "complete", completes) for held in several))
    assert {job.status for job in jobs} == {SUCCEEDED}
    assert place.store.calls == ["apply"]


@pytest.mark.requirement("LC-04")
async def test_a_settlement_is_decided_anew_when_somebody_else_changed_the_job(place: Place) -> None:
    held = await place.held()
    seen: list[bool] = []

    def decide(job: Job) -> Operation:
        seen.append(job.cancel_requested)
        return Cancel() if job.cancel_requested else Complete("1")

    await place.drive.apply(held.job.id, RequestCancel(), actor=CLIENT)
    job = await Completer(place.store, place.seams).settle(held, "end", decide)
    assert seen == [False, True]
    assert job.status is CANCELLED


@pytest.mark.requirement("LC-05")
async def test_a_settlement_under_a_lost_lease_is_refused_and_the_holder_is_told(place: Place) -> None:
    held = await place.held()
    place.clock.advance(LEASE_SECONDS)
    with pytest.raises(LeaseLost):
        await Completer(place.store, place.seams).settle(held, "complete", completes)
    assert held.lost
    assert place.told == [Interruption.LOST]


async def test_a_bug_in_the_store_fails_those_who_wait_and_not_those_who_come_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await place.held()
    settler = Completer(place.store, place.seams)
    with monkeypatch.context() as patch:

        async def broken(_requests: object) -> None:
            raise ZeroDivisionError

        patch.setattr(place.store, "apply", broken)
        with pytest.raises(ZeroDivisionError):
            await settler.settle(held, "complete", completes)
    assert (await settler.settle(held, "complete", completes)).status is SUCCEEDED


@pytest.mark.requirement("SM-05")
async def test_a_heartbeat_goes_out_at_each_interval_and_renews_when_half_of_the_lease_is_gone(place: Place) -> None:
    held = await place.held(policy={"lease_seconds": 60.0, "heartbeat_seconds": 20.0})
    heart = place.heart()
    renewed: list[bool] = []
    for _ in range(6):
        assert await heart.beat() <= 5.0
        before = held.trusted_until_seconds
        place.clock.advance(20)
        await heart.beat()
        renewed.append(held.trusted_until_seconds > before)
    # At 20 s two thirds are left, at 40 s one third: so every second beat renews.
    assert renewed == [False, True, False, True, False, True]
    assert not held.lost
    assert (await place.types(held.job)).count("heartbeat") == 6


async def test_trust_is_counted_from_when_the_heartbeat_was_sent(place: Place) -> None:
    held = await place.held()
    place.clock.advance(40)
    sent = place.clock.monotonic_seconds()
    answer = place.store.apply

    async def slow(requests: list[object]) -> object:
        outcomes = await answer(requests)  # type: ignore[arg-type]
        place.clock.advance(15)
        return outcomes

    place.store.apply = slow  # type: ignore[method-assign, assignment]
    await place.heart().beat()
    assert held.trusted_until_seconds == sent + LEASE_SECONDS


async def test_a_holder_that_hears_nothing_for_a_whole_lease_stops(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    held = await place.held()
    heart = place.heart()
    place.store.faults.extend([Fault.REQUEST_LOST] * 100)
    for _ in range(59):
        place.clock.advance(1)
        await heart.beat()
        heart.doubt()
        assert not held.lost
    place.clock.advance(1)
    with caplog.at_level(logging.WARNING):
        heart.doubt()
    assert held.lost
    assert place.told == [Interruption.LOST]
    assert "no heartbeat got through for a whole lease" in caplog.text


@pytest.mark.requirement("LC-05", "SM-10")
async def test_a_revoked_lease_is_heard_of_at_the_next_heartbeat_or_by_a_look(place: Place) -> None:
    by_beat, by_look = await place.held(), await place.held()
    for held in (by_beat, by_look):
        await place.drive.apply(held.job.id, Cancel(), actor=CLIENT)
    by_look.next_beat_at_seconds = float("inf")
    place.clock.advance(20)
    heart = place.heart()
    await heart.beat()
    assert (by_beat.lost, by_look.lost) == (True, False)
    await heart.look()
    assert by_look.lost


@pytest.mark.requirement("SM-10")
async def test_a_request_to_cancel_is_heard_of_by_a_look_and_the_beat_that_follows(place: Place) -> None:
    held = await place.held()
    await place.drive.apply(held.job.id, RequestCancel(), actor=CLIENT)
    heart = place.heart()
    await heart.look()
    await heart.beat()
    assert held.job.cancel_requested
    assert place.told == [Interruption.CANCEL_REQUESTED]
    assert not held.lost


async def test_the_end_that_we_wrote_ourselves_is_not_a_lost_lease(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    held = await place.held()
    held.closing = True
    await place.drive.apply(held.job, Complete("1"))
    place.clock.advance(20)
    with caplog.at_level(logging.WARNING):
        heart = place.heart()
        await heart.look()
        await heart.beat()
    assert "lease lost" not in caplog.text


async def test_heartbeats_and_settlement_of_one_job_do_not_get_in_each_others_way(place: Place) -> None:
    held = await place.held()
    settler, heart = Completer(place.store, place.seams), place.heart()
    for percent in range(10):
        place.clock.advance(20)
        await asyncio.gather(heart.beat(), settler.settle(held, "progress", progresses(percent)))
    assert (await settler.settle(held, "complete", completes)).status is SUCCEEDED
    types = await place.types(held.job)
    assert (types.count("progress"), types.count("succeeded")) == (10, 1)


async def test_a_committed_job_that_hangs_is_ended_by_its_owner_at_its_threshold(place: Place) -> None:
    held = await place.held(policy={"timeouts": Timeouts(running_seconds=90)})
    held.adopt(await place.drive.apply(held.job, Commit("1")))
    heart = place.heart()
    for _ in range(4):
        place.clock.advance(20)
        await heart.beat()
        heart.doubt()
    assert place.told == []
    place.clock.advance(20)
    await heart.beat()
    heart.doubt()
    assert place.told == [Interruption.OVERDUE]


class Began:
    """What a pool started."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __call__(self, job: Job, token: UUID, sent_at_seconds: float) -> None:
        self.jobs.append(job)


def pool_of(place: Place, began: Began, *, concurrency: int = 10, kinds: tuple[str, ...] = ("mail",)) -> WorkerPool:
    return WorkerPool(
        place.store,
        place.seams,
        worker="w",
        queues=("default",),
        kinds=kinds,
        concurrency=concurrency,
        poll_seconds=1.0,
        begin=began,
    )


@pytest.mark.requirement("WC-05")
async def test_a_pool_claims_only_what_it_can_start_now_and_only_kinds_that_it_has(place: Place) -> None:
    for _ in range(5):
        await place.drive.add("mail")
        await place.drive.add("other")
    began = Began()
    pool = pool_of(place, began, concurrency=3)
    assert await pool.claim() == 3
    assert [job.kind for job in began.jobs] == ["mail"] * 3
    left = await place.drive.store.find(JobFilter(statuses=(QUEUED,)))
    assert len(left.jobs) == 7
    pool.freed()
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


async def test_what_was_claimed_too_long_ago_is_not_started(place: Place) -> None:
    await place.drive.add()
    began = Began()
    answer = place.store.claim

    async def late(request: object) -> object:
        jobs = await answer(request)  # type: ignore[arg-type]
        place.clock.advance(0.9 * LEASE_SECONDS)
        return jobs

    place.store.claim = late  # type: ignore[method-assign, assignment]
    assert await pool_of(place, began).claim() == 0
    assert began.jobs == []


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


async def test_a_settler_that_is_closed_takes_nothing_more(place: Place) -> None:
    settler = Completer(place.store, place.seams)
    await settler.close()
    with pytest.raises(StoreError, match="the worker has stopped"):
        await settler.settle(await place.held(), "complete", completes)


async def test_one_outcome_that_cannot_be_decided_does_not_keep_the_others(place: Place) -> None:
    def never(_job: Job) -> Operation:
        raise ZeroDivisionError

    settler = Completer(place.store, place.seams)
    bad, good = await asyncio.gather(
        settler.settle(await place.held(), "complete", never),
        settler.settle(await place.held(), "complete", completes),
        return_exceptions=True,
    )
    assert isinstance(bad, ZeroDivisionError)
    assert isinstance(good, Job)


async def test_a_pool_that_is_stopped_claims_no_more(place: Place) -> None:
    began = Began()
    pool = pool_of(place, began)
    working = asyncio.create_task(pool.work())
    pool.stop()
    await asyncio.wait_for(working, 5)
    await place.drive.add()
    assert began.jobs == []


@pytest.mark.requirement("WC-10")
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_scan_that_was_cut_off_is_made_again_by_whoever_comes_next(place: Place, fault: Fault) -> None:
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
    assert pause_seconds(5.0, looks) == pytest.approx(expected)
    assert pause_seconds(100.0, looks) == 100.0


async def test_the_pause_after_a_scan_follows_from_the_last_two_looks(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [0.5, 0.4, 0.3, 0.0]
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
    worker = asyncio.create_task(RecoveryWorker(place.store, place.seams, name="r").live(scan_seconds=1.0))
    await asyncio.wait_for(last.wait(), 10)
    worker.cancel()
    for pause, middle in zip(pauses, [1.0, 20.0, 15.0, 1.0], strict=True):
        assert 0.75 * middle <= pause <= 1.25 * middle


async def test_an_earlier_lease_of_this_process_on_the_same_job_is_given_up(place: Place) -> None:
    held = await place.held()
    place.clock.advance(LEASE_SECONDS)
    assert await RecoveryWorker(place.store, place.seams, name="r").scan() == 1
    [again] = await place.drive.claim()
    assert (again.id, again.status) == (held.job.id, RUNNING)
    assert again.token is not None
    newer = Lease(again, worker="worker-1", token=again.token, sent_at_seconds=place.clock.monotonic_seconds())
    place.held_jobs.take(newer)
    assert (held.lost, newer.lost) == (True, False)
    place.held_jobs.let_go(held)
    assert place.held_jobs.all() == [newer]


async def test_an_owners_request_ids_follow_from_its_token_and_are_never_the_same(place: Place) -> None:
    one, other = await place.held(), await place.held()
    ids = [one.request_id("heartbeat") for _ in range(3)] + [other.request_id("heartbeat") for _ in range(3)]
    assert len(set(ids)) == 6
    token = str(one.actor.token)
    assert not any(token in request_id for request_id in ids)
    await Completer(place.store, place.seams).settle(one, "heartbeat", lambda _: Heartbeat())
    [event] = [e for e in (await place.drive.store.history([one.job.id]))[one.job.id] if e.type is EventType.HEARTBEAT]
    assert event.request_id.startswith(ids[0].partition(".")[0])
