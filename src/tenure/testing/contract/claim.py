"""Which jobs a claim returns, in which order, and which events it writes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import product
from uuid import UUID

import pytest

from tenure.errors import RequestIdReused
from tenure.lifecycle.claim_order import claim_order
from tenure.lifecycle.operations import Complete, Release, Retry, Stall, Suspend
from tenure.lifecycle.records import Job, Role
from tenure.lifecycle.statuses import CLAIMED, RUNNING
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import ERROR, RECOVERY, Driver


class ClaimContract:
    """`claim`."""

    @pytest.mark.requirement("LC-08", "SM-13")
    async def test_a_claim_counts_the_attempt_and_sets_the_lease(self, drive: Driver) -> None:
        added = await drive.add(policy={"lease_seconds": 30, "heartbeat_seconds": 10})
        request = drive.claim_request(start=False)
        now = await drive.store.now()
        [job] = await drive.store.claim(request)
        assert (job.id, job.status, job.attempt, job.rev) == (added.id, CLAIMED, 1, 2)
        assert (job.owner, job.token) == ("worker-1", request.token)
        assert job.lease_expires_at == now + timedelta(seconds=30)
        assert job.heartbeat_deadline_at == now + timedelta(seconds=20)
        event = (await drive.events_of(job.id))[-1]
        assert (event.type, event.from_status, event.to_status) == ("claimed", "queued", "claimed")
        assert (event.rev, event.attempt, event.at) == (2, 1, now)
        assert (event.actor, event.owner, event.request_id) == ("pool:worker-1", "worker-1", request.request_id)
        assert event.until_at == job.lease_expires_at

    @pytest.mark.requirement("LC-09", "LC-10")
    async def test_a_claim_that_also_starts_is_two_events_and_two_revisions(self, drive: Driver) -> None:
        now = await drive.store.now()
        job = await drive.running()
        assert (job.status, job.rev, job.attempt, job.started_at) == (RUNNING, 3, 1, now)
        assert await drive.types_of(job.id) == ["enqueued", "claimed", "started"]
        claimed, started = (await drive.events_of(job.id))[1:]
        assert claimed.request_id == started.request_id
        assert (started.from_status, started.to_status, started.actor) == ("claimed", "running", "pool:worker-1")

    async def test_a_gateway_claims_too(self, drive: Driver) -> None:
        await drive.add()
        [job] = await drive.claim(role=Role.GATEWAY, worker="engine-1")
        assert (await drive.events_of(job.id))[1].actor == "gateway:engine-1"

    @pytest.mark.requirement("WC-02")
    async def test_jobs_are_claimed_by_priority_then_by_time_since_due_then_by_age(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        late = await drive.add(delay_ms=5000)
        first, second = [answer.job for answer in await drive.store.enqueue([drive.enqueue(), drive.enqueue()])]
        clock.advance(1)
        third = await drive.add()
        urgent = await drive.add(priority=5, delay_ms=1000)
        low = await drive.add(priority=-1)
        clock.advance(10)
        claimed = await drive.claim(limit=10)
        expected = [urgent, *sorted((first, second), key=lambda job: job.id.bytes), third, late, low]
        assert ids(claimed) == ids(expected)

    @pytest.mark.parametrize("stride", [7, 11, 13])
    async def test_generated_jobs_are_claimed_in_claim_order(
        self, drive: Driver, clock: DatabaseClock, stride: int
    ) -> None:
        queues = ("a", "b", "c")
        facts = list(product(queues, range(-2, 3), (0, 1000, 2000, 600_000)))
        jobs: list[Job] = []
        for start in range(0, len(facts), 10):
            # A stride without a common divisor visits every combination once, in a mixed order.
            some = [facts[place * stride % len(facts)] for place in range(start, start + 10)]
            requests = [
                drive.enqueue(queue=queue, priority=priority, delay_ms=delay_ms) for queue, priority, delay_ms in some
            ]
            jobs += [result.job for result in await drive.store.enqueue(requests)]
            clock.advance(1)
        clock.advance(10)
        now = await drive.store.now()
        expected = sorted((job for job in jobs if job.due_at is not None and job.due_at <= now), key=claim_order)
        claimed: list[Job] = []
        while batch := await drive.claim(queues=queues, limit=stride):
            claimed += batch
        assert len(expected) == 45
        assert ids(claimed) == ids(expected)

    async def test_a_claim_returns_at_most_its_limit(self, drive: Driver) -> None:
        added = [await drive.add() for _ in range(5)]
        assert ids(await drive.claim(limit=2)) == ids(added[:2])
        assert ids(await drive.claim(limit=10)) == ids(added[2:])
        assert await drive.claim(limit=10) == []

    async def test_only_the_requested_kinds_and_queues_are_claimed(self, drive: Driver) -> None:
        wanted = await drive.add("mail", queue="a")
        also = await drive.add("report", queue="b")
        for kind, queue in (("other", "a"), ("mail", "c")):
            await drive.add(kind, queue=queue, priority=9)
        claimed = await drive.claim(kinds=("mail", "report"), queues=("a", "b"), limit=10)
        assert set(ids(claimed)) == {wanted.id, also.id}

    async def test_the_order_holds_over_several_queues(self, drive: Driver) -> None:
        jobs = [await drive.add(queue=queue, priority=priority) for priority in (3, 2, 1) for queue in ("a", "b")]
        claimed = await drive.claim(queues=("b", "a"), limit=5)
        assert ids(claimed) == ids(jobs[:5])

    @pytest.mark.requirement("WC-02")
    async def test_jobs_of_a_hundred_queues_are_all_claimed_within_a_bounded_number_of_claims(
        self, drive: Driver
    ) -> None:
        queues = tuple(f"queue-{number:03d}" for number in range(100))
        await drive.store.enqueue([drive.enqueue(queue=queue) for queue in queues for _ in range(2)])
        await drive.store.enqueue([drive.enqueue(queue=queues[0], priority=9) for _ in range(100)])
        last = await drive.add(queue=queues[-1], priority=-1)
        groups = 4
        claimed = [await drive.claim(queues=queues, limit=100) for _ in range(3 * groups)]
        assert sum(len(jobs) for jobs in claimed) == 301
        assert last.id in {job.id for jobs in claimed for job in jobs}
        for jobs in claimed:
            assert jobs == sorted(jobs, key=lambda job: (-job.origin.priority, job.due_at, job.id.bytes))
        assert await drive.claim(queues=queues, limit=100) == []

    async def test_a_claim_of_a_hundred_queues_finds_the_only_due_job_at_once(self, drive: Driver) -> None:
        queues = tuple(f"queue-{number:03d}" for number in range(100))
        for number in (0, 99, 50, 31, 32, 99):
            job = await drive.add(queue=queues[number])
            assert ids(await drive.claim(queues=queues)) == [job.id]
            assert await drive.claim(queues=queues) == []

    async def test_a_repeated_claim_of_a_hundred_queues_returns_its_jobs(self, drive: Driver) -> None:
        queues = tuple(f"queue-{number:03d}" for number in range(100))
        await drive.store.enqueue([drive.enqueue(queue=queue) for queue in queues])
        request = drive.claim_request(queues=queues, limit=3)
        won = await drive.store.claim(request)
        assert len(won) == 3
        for _ in range(5):
            assert ids(await drive.store.claim(request)) == ids(won)

    async def test_a_claim_without_queues_or_kinds_returns_nothing(self, drive: Driver) -> None:
        await drive.add()
        assert await drive.claim(queues=()) == []
        assert await drive.claim(kinds=()) == []

    @pytest.mark.requirement("WC-03")
    @pytest.mark.parametrize("before", [0, 1])
    async def test_a_job_is_claimed_from_its_due_time_on(
        self, drive: Driver, clock: DatabaseClock, before: int
    ) -> None:
        """Also after claims of similar jobs, which a store may remember."""
        for _ in range(before):
            await drive.add()
            await drive.claim()
        job = await drive.add(delay_ms=1000)
        clock.advance(0.999)
        assert await drive.claim() == []
        clock.advance(0.001)
        assert ids(await drive.claim()) == [job.id]

    @pytest.mark.requirement("WC-03")
    async def test_retry_waiting_and_stalled_jobs_are_claimed_when_due(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        retried, slept, snoozed = [await drive.running() for _ in range(3)]
        await drive.apply(retried, Retry(ERROR, delay_seconds=5))
        await drive.apply(slept, Suspend(delay_seconds=10))
        await drive.apply(snoozed, Release("snooze", delay_seconds=15))
        handed_back = await drive.claimed()
        await drive.apply(handed_back, Release())
        assert ids(await drive.claim(limit=9)) == [handed_back.id]
        for expected in (retried, slept, snoozed):
            assert await drive.claim(limit=9) == []
            clock.advance(5)
            [job] = await drive.claim(limit=9)
            assert (job.id, job.attempt) == (expected.id, 2)

    async def test_a_suspended_job_without_a_delay_is_not_due(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running()
        waiting = await drive.apply(job, Suspend())
        assert waiting.due_at is None
        clock.advance(10_000)
        assert await drive.claim() == []

    async def test_neither_leased_nor_ended_jobs_are_claimed(self, drive: Driver) -> None:
        await drive.claimed()
        await drive.running()
        await drive.apply(await drive.running(), Complete("1"))
        assert await drive.claim(limit=9) == []

    @pytest.mark.requirement("WC-02")
    @pytest.mark.parametrize("priority", [-5, 5])
    async def test_a_priority_that_earlier_claims_did_not_see_is_claimed_in_order(
        self, drive: Driver, priority: int
    ) -> None:
        usual = [await drive.add() for _ in range(3)]
        assert ids(await drive.claim(limit=1)) == ids(usual[:1])
        other = await drive.add(priority=priority)
        expected = [*usual[1:], other] if priority < 0 else [other, *usual[1:]]
        assert ids(await drive.claim(limit=9)) == ids(expected)

    async def test_a_job_that_was_lost_while_it_ran_is_claimed_alone(self, drive: Driver, clock: DatabaseClock) -> None:
        killer = await drive.running(policy={"lease_seconds": 10})
        clock.advance(10)
        await drive.apply(killer.id, Stall(), actor=RECOVERY)
        others = [await drive.add(priority=priority) for priority in (32_000, 0, -1)]
        assert ids(await drive.claim(limit=9)) == [others[0].id]
        assert ids(await drive.claim(limit=9)) == [killer.id]
        assert ids(await drive.claim(limit=9)) == ids(others[1:])

    @pytest.mark.requirement("SM-13", "LC-07")
    async def test_a_repeated_claim_returns_its_jobs_and_claims_no_more(self, drive: Driver) -> None:
        for _ in range(3):
            await drive.add()
        request = drive.claim_request(limit=2)
        won = await drive.store.claim(request)
        assert await drive.store.claim(request) == won
        assert [await drive.types_of(job.id) for job in won] == [["enqueued", "claimed", "started"]] * 2

    @pytest.mark.requirement("SM-13", "LC-07")
    async def test_a_repeated_claim_returns_current_records_and_only_its_own_tokens(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        added = [await drive.add(policy={"lease_seconds": 10}) for _ in range(3)]
        request = drive.claim_request(limit=3)
        ended, lost, kept = await drive.store.claim(request)
        await drive.apply(ended, Complete("1"))
        clock.advance(10)
        await drive.apply(lost.id, Stall(), actor=RECOVERY)
        [taken] = await drive.claim(worker="worker-2")
        again = await drive.store.claim(request)
        assert ids(again) == ids(added)
        assert [job.status for job in again] == ["succeeded", "running", "running"]
        assert [job.token for job in again] == [None, None, request.token]
        assert (taken.id, again[1].owner, again[2]) == (lost.id, "worker-2", kept)

    @pytest.mark.requirement("LC-07")
    @pytest.mark.parametrize(
        "change", [{"limit": 2}, {"queues": ("x",)}, {"kinds": ("x",)}, {"worker": "w2"}, {"start": False}]
    )
    async def test_a_claim_under_a_used_request_id_with_another_body_is_refused(
        self, drive: Driver, change: dict[str, object]
    ) -> None:
        await drive.add()
        await drive.add()
        request = drive.claim_request()
        await drive.store.claim(request)
        with pytest.raises(RequestIdReused):
            await drive.claim(request_id=request.request_id, **change)

    async def test_a_claim_without_jobs_can_be_repeated(self, drive: Driver) -> None:
        request = drive.claim_request()
        assert await drive.store.claim(request) == []
        job = await drive.add()
        assert ids(await drive.store.claim(request)) == [job.id]

    @pytest.mark.requirement("SM-02", "SM-14")
    async def test_concurrent_claims_never_share_a_job(self, drive: Driver) -> None:
        added = [answer.job for answer in await drive.store.enqueue([drive.enqueue() for _ in range(60)])]
        async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
            claims = [group.create_task(drive.claim(limit=7)) for _ in range(12)]
        claimed = [job.id for claim in claims for job in claim.result()]
        claimed += ids(await drive.claim(limit=60))
        assert sorted(claimed) == sorted(ids(added))

    @pytest.mark.requirement("SM-13")
    @pytest.mark.parametrize("due", [3, 10])
    async def test_concurrent_repetitions_of_one_claim_return_the_same_jobs(self, drive: Driver, due: int) -> None:
        for _ in range(due):
            await drive.add()
        request = drive.claim_request(limit=3)
        async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
            claims = [group.create_task(drive.store.claim(request)) for _ in range(6)]
        assert [len(claim.result()) for claim in claims] == [3] * 6
        assert len({tuple(ids(claim.result())) for claim in claims}) == 1
        assert len(await drive.claim(limit=10)) == due - 3

    async def test_a_lost_or_spurious_wakeup_changes_no_claim(self, drive: Driver) -> None:
        async with drive.store.wakeups(["default"]) as wakeups:
            assert await wakeups.wait(0.01) in (True, False)
            await drive.add()
            assert await wakeups.wait(0.5) in (True, False)
        assert len(await drive.claim()) == 1


def ids(jobs: list[Job]) -> list[UUID]:
    return [job.id for job in jobs]
