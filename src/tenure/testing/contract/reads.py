"""Reads: rows, lists, the log and its tail, attempts, and recoverable jobs."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.executions import ExecutionStatus
from tenure.lifecycle.fold import executions
from tenure.lifecycle.operations import (
    Commit,
    Complete,
    DeadLetter,
    Heartbeat,
    Progress,
    Release,
    Retry,
    Signal,
    Stall,
    Suspend,
)
from tenure.lifecycle.records import Actor, Event, EventType, Job, Role
from tenure.lifecycle.statuses import QUEUED, RUNNING, SUCCEEDED
from tenure.lifecycle.timeouts import Timeouts
from tenure.seams import SYSTEM
from tenure.stores.contract import EventFilter, JobFilter
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver
from tenure.testing.store_check import all_jobs, whole_tail


class ReadingContract:
    """`read`, `find`, `history`, `events`, `tail`, `executions`, `recoverable`, `now`."""

    async def test_a_read_returns_existing_jobs_and_no_token(self, drive: Driver) -> None:
        job = await drive.running()
        found = await drive.store.read([job.id, drive.random.job_id()])
        assert found == {job.id: msgspec.structs.replace(job, token=None)}
        assert await drive.store.read([]) == {}
        assert [job.token for job in (await drive.store.find(JobFilter())).jobs] == [None]

    async def test_the_history_of_several_jobs_is_kept_apart(self, drive: Driver) -> None:
        first, second = await drive.running(), await drive.add()
        unknown = drive.random.job_id()
        found = await drive.store.history([first.id, second.id, unknown])
        assert {job_id: len(events) for job_id, events in found.items()} == {first.id: 3, second.id: 1, unknown: 0}
        assert await drive.store.history([]) == {}
        assert await drive.store.history([unknown]) == {unknown: []}

    async def test_now_is_the_databases_time(self, drive: Driver, clock: DatabaseClock) -> None:
        before = await drive.store.now()
        clock.advance(61)
        assert (await drive.store.now() - before).total_seconds() == 61
        assert before.utcoffset() is not None

    async def test_jobs_are_found_by_everything_that_they_can_be_filtered_by(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        facts = {"queue": "q", "correlation_id": "c", "dedupe_key": "d", "submitted_by": "s"}
        other = await drive.running(tags={"a": "2"})
        clock.advance(10)
        wanted = await drive.add("special", tags={"a": "1", "b": "2"}, **facts)
        clock.advance(10)
        later = await drive.add()
        filters = (
            JobFilter(queues=("q", "nobody")),
            JobFilter(kinds=("special",)),
            JobFilter(correlation_id="c"),
            JobFilter(dedupe_key="d"),
            JobFilter(submitted_by="s"),
            JobFilter(tags={"a": "1"}),
            JobFilter(tags={"b": "2", "a": "1"}),
            JobFilter(statuses=(QUEUED, SUCCEEDED), kinds=("special",), queues=("q",)),
            JobFilter(created_from=wanted.created_at, created_until=later.created_at),
        )
        for chosen in filters:
            assert await found(drive, chosen) == [wanted.id], chosen
        assert await found(drive, JobFilter(statuses=(RUNNING,))) == [other.id]
        assert await found(drive, JobFilter(created_from=wanted.created_at)) == [wanted.id, later.id]
        assert await found(drive, JobFilter(created_until=wanted.created_at)) == [other.id]
        assert await found(drive, JobFilter(tags={"a": "1", "b": "3"})) == []
        assert await found(drive, JobFilter(kinds=("special",), queues=("default",))) == []

    async def test_pages_of_jobs_have_neither_gaps_nor_repetitions(self, drive: Driver) -> None:
        added = [answer.job.id for answer in await drive.store.enqueue([drive.enqueue() for _ in range(23)])]
        assert [job.id for job in await all_jobs(drive.store, limit=5)] == sorted(added)
        page = await drive.store.find(JobFilter(), limit=5)
        assert len(page.jobs) == 5
        assert page.after == page.jobs[-1].id
        assert (await drive.store.find(JobFilter(), limit=100)).after is None

    async def test_pages_of_jobs_also_come_newest_first(self, drive: Driver) -> None:
        requests = [drive.enqueue(queue="q", correlation_id="c") for _ in range(7)]
        expected = sorted((answer.job.id for answer in await drive.store.enqueue(requests)), reverse=True)
        for wanted in (JobFilter(), JobFilter(correlation_id="c"), JobFilter(statuses=(QUEUED,))):
            listed: list[UUID] = []
            after = None
            for _ in range(4):
                page = await drive.store.find(wanted, after=after, limit=2, newest_first=True)
                listed += [job.id for job in page.jobs]
                after = page.after
            assert (listed, after) == (expected, None), wanted

    async def test_a_page_names_a_next_one_exactly_when_something_follows(self, drive: Driver) -> None:
        assert (await drive.store.find(JobFilter(), limit=1)).after is None
        wanted = [answer.job.id for answer in await drive.store.enqueue([drive.enqueue(queue="q") for _ in range(4)])]
        await drive.store.enqueue([drive.enqueue() for _ in range(4)])
        ordered = sorted(wanted)
        for limit in range(1, 6):
            page = await drive.store.find(JobFilter(queues=("q",)), limit=limit)
            assert [job.id for job in page.jobs] == ordered[:limit]
            assert page.after == (ordered[limit - 1] if limit < 4 else None)
        last = await drive.store.find(JobFilter(queues=("q",)), after=ordered[1], limit=2)
        assert ([job.id for job in last.jobs], last.after) == (ordered[2:], None)

    @pytest.mark.requirement("SM-12", "EH-09")
    async def test_events_are_found_by_job_type_correlation_and_time(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running(correlation_id="c")
        clock.advance(10)
        other = await drive.add(correlation_id="c")
        clock.advance(10)
        await drive.apply(job, Complete("1"))
        store = drive.store
        assert facts(await events(drive, EventFilter(job_id=job.id))) == facts(await drive.events_of(job.id))
        assert len(await events(drive, EventFilter(correlation_id="c"))) == 5
        enqueued = await events(drive, EventFilter(types=(EventType.ENQUEUED,)))
        assert [event.job_id for event in enqueued] == [job.id, other.id]
        assert len(await events(drive, EventFilter(types=(EventType.ENQUEUED, EventType.SUCCEEDED)))) == 3
        since = await events(drive, EventFilter(since=other.created_at))
        assert [event.type.value for event in since] == ["enqueued", "succeeded"]
        until = await events(drive, EventFilter(correlation_id="c", until=other.created_at))
        assert [event.type.value for event in until] == ["enqueued", "claimed", "started"]
        assert await events(drive, EventFilter(correlation_id="nobody")) == []
        first = await store.events(EventFilter(correlation_id="c"), limit=2)
        second = await store.events(EventFilter(correlation_id="c"), after=first.position, limit=100)
        assert (len(first.events), len(second.events)) == (2, 3)

    @pytest.mark.requirement("SM-12", "EH-09")
    async def test_pages_of_events_are_complete_under_any_filter(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running(correlation_id="c")
        for number in range(4):
            clock.advance(number % 2)
            await drive.add(correlation_id="c")
            await drive.apply(job.id, Signal("go"), actor=CLIENT)
        filters = (
            EventFilter(),
            EventFilter(job_id=job.id),
            EventFilter(job_id=job.id, types=(EventType.SIGNALLED, EventType.CLAIMED)),
            EventFilter(types=(EventType.ENQUEUED, EventType.SIGNALLED)),
            EventFilter(correlation_id="c"),
            EventFilter(correlation_id="c", since=job.created_at),
        )
        for wanted in filters:
            whole = facts(await events(drive, wanted))
            assert len(whole) == len(set(whole)) > 3
            assert await paged(drive, wanted, limit=2) == whole, wanted
        assert await events(drive, EventFilter(job_id=job.id, correlation_id="nobody")) == []
        assert await events(drive, EventFilter(job_id=job.id, until=job.created_at)) == []

    @pytest.mark.requirement("EH-09", "SM-04")
    async def test_the_tail_has_no_gap_over_pages_and_resumes_from_a_position(self, drive: Driver) -> None:
        for _ in range(7):
            await drive.apply(await drive.running(), Complete("1"))
        tail = await whole_tail(drive.store, limit=3, expected=28)
        assert len(tail) == len({event.id for event in tail}) == 28
        end = (await drive.store.tail(limit=1000)).position
        assert (await drive.store.tail(after=end)).events == []
        job = await drive.add()
        news = await wait_for_tail(drive, end)
        assert [event.id for event in news] == [f"{job.id}/1"]

    @pytest.mark.requirement("EH-09")
    @pytest.mark.parametrize("before", [0, 2])
    async def test_a_tail_from_the_end_of_the_log_has_later_events(self, drive: Driver, before: int) -> None:
        for _ in range(before):
            await drive.apply(await drive.running(), Complete("1"))
        await whole_tail(drive.store, expected=4 * before)
        end = await drive.store.end()
        assert (await drive.store.tail(after=end)).events == []
        job = await drive.running()
        news = await whole_tail(drive.store, after=end, expected=3)
        assert [event.id for event in news] == [f"{job.id}/{rev}" for rev in (1, 2, 3)]

    async def test_the_tail_of_an_empty_log_can_be_continued(self, drive: Driver) -> None:
        page = await drive.store.tail()
        assert page.events == []
        job = await drive.add()
        assert [event.job_id for event in await wait_for_tail(drive, page.position)] == [job.id]

    @pytest.mark.requirement("EL-01")
    async def test_each_attempt_is_an_execution_that_is_not_rewritten_after_it_ended(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 30, "heartbeat_seconds": 20})
        clock.advance(20)
        job = await drive.apply(job, Heartbeat())
        await drive.apply(job, Retry(ERROR, delay_seconds=0))
        first = await drive.store.executions(job.id)
        [again] = await drive.claim(worker="worker-2", start=False)
        clock.advance(30)
        await drive.apply(again.id, Stall("gone"), actor=RECOVERY)
        [third] = await drive.claim(worker="worker-3")
        committed = await drive.apply(third, Commit("1"))
        await drive.apply(committed, Complete("1"))
        seen = await drive.store.executions(job.id)
        assert seen == executions(await drive.events_of(job.id))
        assert seen[0] == first[0]
        assert [run.status for run in seen] == [
            ExecutionStatus.ABORTED,
            ExecutionStatus.ABORTED,
            ExecutionStatus.DONE,
        ]
        assert [run.lease_owner for run in seen] == ["worker-1", "worker-2", "worker-3"]
        assert [run.cause for run in seen] == ["ValueError", "gone", None]
        assert seen[0].lease_expires_at == job.lease_expires_at
        assert await drive.store.executions(drive.random.job_id()) == []

    @pytest.mark.requirement("EL-01")
    @pytest.mark.parametrize("worker", ["host:77:abc", ":", "a:", ":b", "pool:x"])
    async def test_a_workers_name_is_read_back_unchanged(self, drive: Driver, worker: str) -> None:
        await drive.add()
        [job] = await drive.claim(worker=worker)
        owner = Actor(Role.RUNNER, worker, job.token)
        assert (job.owner, (await drive.job(job.id)).owner) == (worker, worker)
        assert [run.lease_owner for run in await drive.store.executions(job.id)] == [worker]
        await drive.apply(job.id, Release(), actor=owner)
        burial = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR)
        await drive.apply(job.id, burial, actor=RECOVERY)
        letter = await drive.store.dead_letter(job.id)
        assert letter is not None
        assert (letter.last_owner, letter.last_lease_expires_at) == (worker, job.lease_expires_at)
        assert [event.owner for event in await drive.events_of(job.id) if event.type == "claimed"] == [worker]

    @pytest.mark.requirement("WC-10", "SM-06")
    async def test_recoverable_lists_exactly_the_jobs_that_need_recovery(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        short = {"lease_seconds": 10, "heartbeat_seconds": 100}
        silent = {"lease_seconds": 600, "heartbeat_seconds": 5}
        patient = {"lease_seconds": 600, "heartbeat_seconds": 300}
        needy = [
            await drive.running(policy=short),
            await drive.claimed(policy=silent),
            await drive.running(policy={**patient, "timeouts": Timeouts(running_seconds=10)}),
            await drive.claimed(policy={**patient, "timeouts": Timeouts(claimed_seconds=10)}),
            await drive.add(policy={"timeouts": Timeouts(queued_seconds=10)}),
        ]
        others = [
            await drive.running(policy=patient),
            await drive.apply(await drive.running(), Release(delay_seconds=5)),
            await drive.add(delay_ms=1000, policy={"timeouts": Timeouts(queued_seconds=10)}),
            await drive.add(),
            await drive.apply(await drive.running(), Suspend()),
            await drive.apply(await drive.running(), Complete("1")),
            await drive.apply(await drive.running(), Release()),
        ]
        assert await recoverable(drive) == []
        clock.advance(10)
        assert await recoverable(drive) == [job.id for job in sorted(needy, key=by_id)]
        assert all(job.token is None for job in await drive.store.recoverable(limit=100))
        assert len(others) == 7

    @pytest.mark.requirement("WC-10")
    async def test_lost_jobs_wait_for_a_decision_whatever_their_policy(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        jobs = [
            await drive.running(policy={"lease_seconds": 10}),
            await drive.running(policy={"lease_seconds": 10, "on_lost": "fail"}),
            await drive.running(policy={"lease_seconds": 10, "max_attempts": 1, "on_exhausted": "fail"}),
            await drive.apply(await drive.running(policy={"lease_seconds": 10}), Commit("1")),
        ]
        clock.advance(10)
        for job in jobs:
            await drive.apply(job.id, Stall(), actor=RECOVERY)
        assert await recoverable(drive) == [job.id for job in sorted(jobs, key=by_id)]

    @pytest.mark.requirement("WC-10")
    async def test_unattended_jobs_are_listed_in_pages_in_the_order_of_ids(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        jobs = [await drive.running(policy={"lease_seconds": 10}) for _ in range(7)]
        clock.advance(10)
        first = await drive.store.recoverable(limit=4)
        second = await drive.store.recoverable(limit=4, after=first[-1].id)
        assert [job.id for job in first + second] == [job.id for job in sorted(jobs, key=by_id)]

    async def test_a_job_without_signals_has_none(self, drive: Driver) -> None:
        job = await drive.add()
        other = await drive.add()
        await drive.apply(other.id, Signal("go"), actor=CLIENT)
        assert await drive.store.signals(job.id) == []

    async def test_progress_messages_are_read_back_unchanged(self, drive: Driver) -> None:
        job = await drive.apply(await drive.running(), Progress(3, "½ ✓ \"quoted\" 'too' \\ $1 :name"))
        assert (await drive.job(job.id)).progress_message == "½ ✓ \"quoted\" 'too' \\ $1 :name"


async def found(drive: Driver, wanted: JobFilter) -> list[object]:
    page = await drive.store.find(wanted)
    assert page.after is None
    return [job.id for job in page.jobs]


async def events(drive: Driver, wanted: EventFilter) -> list[Event]:
    return (await drive.store.events(wanted)).events


async def paged(drive: Driver, wanted: EventFilter, *, limit: int) -> list[str]:
    """The same events in small pages."""
    found: list[str] = []
    page = await drive.store.events(wanted, limit=limit)
    while page.events:
        found += facts(page.events)
        page = await drive.store.events(wanted, after=page.position, limit=limit)
    return found


async def recoverable(drive: Driver) -> list[object]:
    return [job.id for job in await drive.store.recoverable(limit=100)]


async def wait_for_tail(drive: Driver, after: str) -> list[Event]:
    """The events after a position. A tail may hold events back that an open transaction could still precede."""
    for _ in range(2000):
        page = await drive.store.tail(after=after)
        if page.events:
            return page.events
        await SYSTEM.clock.sleep(0.01)
    return []


def facts(events: list[Event]) -> list[str]:
    return [event.id for event in events]


def by_id(job: Job) -> bytes:
    return job.id.bytes
