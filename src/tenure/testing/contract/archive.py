"""Export and restore of a whole store. The in-memory model is the other store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import pytest
import pytest_asyncio

from tenure.errors import LeaseLost
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import Commit, Complete, DeadLetter, Fail, Heartbeat, Progress, Retry, Signal, Suspend
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Event, Job, Policy
from tenure.lifecycle.schedules import Schedule
from tenure.lifecycle.statuses import Status
from tenure.lifecycle.steps import StepRecord
from tenure.stores.contract import Artifact, JobFilter, NotEmpty, NotRestored, OutboxMessage, Store
from tenure.stores.contract.archive import ARCHIVE_RECORDS, ArchivedJob, ArchiveRecord, Restore, Runs
from tenure.stores.contract.outbox import MessageFilter
from tenure.stores.sqlite.connect import MEMORY
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.outbox import LEASE_SECONDS, claim, endpoint, post, settlement
from tenure.testing.contract.steps import recorded, save, save_request
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, Driver
from tenure.testing.store_check import check_store, whole_tail

T = TypeVar("T")
replace = msgspec.structs.replace
DEAD_LETTERING = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR)
LONG_SECONDS = 3.0
LATE = datetime(2999, 1, 1, tzinfo=UTC)


class Read(msgspec.Struct):
    """Everything that an archive returned."""

    records: list[ArchiveRecord]
    log: list[Event]
    jobs: list[ArchivedJob]
    bodies: dict[tuple[UUID, str], Artifact | None]
    steps: list[StepRecord]


async def read_all(store: Store, *, limit: int = 3) -> Read:
    async with store.archive.snapshot() as snapshot:
        totals = await snapshot.totals()
        records = [one for kind in ARCHIVE_RECORDS for one in await joined(snapshot.records(kind, limit=limit))]
        log, jobs = await joined(snapshot.log(limit=limit)), await joined(snapshot.jobs(limit=limit))
        assert (totals.jobs, totals.events) == (len(jobs), len(log))
        made = [(kept.job.id, artifact.name) for kept in jobs for artifact in kept.artifacts]
        bodies = {(job_id, name): await snapshot.artifact(job_id, name) for job_id, name in made}
        assert await snapshot.history([kept.job.id for kept in jobs]) == by_job(log, await snapshot.history([]))
        pages = {kept.job.id: await joined(snapshot.steps(kept.job.id, limit=limit)) for kept in jobs}
        assert [len(pages[kept.job.id]) for kept in jobs] == [kept.step_count for kept in jobs]
        return Read(records, log, jobs, bodies, [step for steps in pages.values() for step in steps])


async def joined(pages: AsyncIterator[Sequence[T]]) -> list[T]:
    return [item async for page in pages for item in page]


def by_job(log: Sequence[Event], found: dict[UUID, list[Event]]) -> Any:
    for event in sorted(log, key=lambda event: event.rev):
        found.setdefault(event.job_id, []).append(event)
    return SameEvents(found)


class SameEvents:
    """Equal to the same histories, whatever their positions are."""

    def __init__(self, found: dict[UUID, list[Event]]) -> None:
        self._found = found

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, dict)
        return {job_id: bare(events) for job_id, events in other.items()} == {
            job_id: bare(events) for job_id, events in self._found.items()
        }

    __hash__ = None  # type: ignore[assignment]


def bare(events: Sequence[Event]) -> list[Event]:
    """Events without what is specific to their database."""
    return [msgspec.structs.replace(event, position=None, correlation_id=None, trace=None) for event in events]


@asynccontextmanager
async def restored(store: Store, read: Read) -> AsyncIterator[Restore]:
    """Everything is written inside, and takes effect at the end."""
    runs = Runs()
    for event in read.log:
        runs.place(event)
    async with store.archive.restore(runs=runs.count) as restoring:
        await restoring.write_records(read.records)
        for first in range(0, len(read.log), 7):
            await restoring.write_events(read.log[first : first + 7])
        await restoring.write_jobs(read.jobs)
        for kept in read.jobs:
            for record in kept.artifacts:
                made = read.bodies[kept.job.id, record.name]
                assert made is not None
                await restoring.write_artifact(record, made.body)
        for first in range(0, len(read.steps), 2):
            await restoring.write_steps(read.steps[first : first + 2])
        assert await restoring.missing_job() is None
        yield restoring


async def restore(store: Store, read: Read) -> None:
    async with restored(store, read):
        pass


async def lived(drive: Driver, clock: DatabaseClock) -> list[Job]:
    """Jobs of every kind whose events are mixed in the log, with every kind of record."""
    signalled, failing = await drive.add("signalled", correlation_id="c"), await drive.running(kind="failing")
    clock.advance(1)
    kept = await drive.running(kind="kept", payload='{"to":"\u00e5da"}', tags={"b": "2", "a": "1"}, trace="t")
    await drive.apply(signalled.id, Signal("go", "[7]"), actor=CLIENT)
    keys = ("b", "a", "d", "c", "e")
    await save(drive.store, *(save_request(kept, key, undo='"refund"', duration_ms=20) for key in keys))
    steps = await recorded(drive.store, kept)
    async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
        await tx.attach(kept, [Artifact(name="report", media_type="text/plain", body=b"\x00\xff")])
        message = OutboxMessage(id=drive.random.job_id(), topic="paid", body="{}", aggregate="ada")
        await tx.post([message], job=kept)
        await tx.apply(drive.request(kept, Commit('"done"'), fresh=True, steps=steps))
    await drive.apply(failing, Retry(ERROR, delay_seconds=5))
    dead = await drive.apply(await drive.running(kind="dead"), DEAD_LETTERING)
    await drive.store.resolve_dead_letters([dead.id], how="discarded", actor=OPERATOR)
    erased = await drive.running(kind="erased", dedupe_key="x")
    await drive.add("erased", dedupe_key="x")
    await save(drive.store, save_request(erased, status="failed", spend='{"cost":1}', child_id=signalled.id))
    steps = await recorded(drive.store, erased)
    erased = await drive.apply(await drive.apply(erased, Progress(5, "so far"), Progress(9)), Fail(ERROR), steps=steps)
    await drive.store.erase(erased.id, reason="asked", actor=OPERATOR)
    held = await drive.apply(await drive.running(kind="held"), Heartbeat())
    await drive.store.queues.put("default", QueueLimits(rate=Rate(100, 60.0), fair=True), actor=OPERATOR)
    await drive.store.queues.pause("slow", actor=OPERATOR)
    yearly = Schedule(
        name="yearly", cron="@yearly", kind="mail", payload="{}", policy=Policy(), tags={"b": "2", "a": "1"}
    )
    await drive.store.schedules.put(yearly, next_at=LATE, paused=False, expected_rev=0, actor=OPERATOR)
    waiting = await drive.apply(await drive.running(kind="waiting"), Suspend(delay_seconds=9))
    await deliver_some(drive)
    return [signalled, failing, kept, dead, erased, held, waiting]


async def deliver_some(drive: Driver) -> None:
    """Messages of two endpoints: delivered, failed, dead, under a lease, and pending for one that is disabled."""
    outbox = drive.store.outbox
    await endpoint(drive.store, "crm", "paid", "mail.*", block_seconds=60.0, filters='{"cents":[1,2]}')
    await endpoint(drive.store, "audit")
    await post(drive, ("paid", "ada"), ("paid", "bob"), ("mail.sent", None), ("paid", "cy"), ("paid", "cy"))
    streams = {one.aggregate or "single": one for one in await claim(drive.store, "crm", messages_max=1)}
    written = await outbox.settle(
        [
            settlement(streams["ada"]),
            settlement(streams["bob"], "failed", attempts=1, due_seconds=5.0),
            settlement(streams["single"], "dead"),
        ]
    )
    assert written == [True, True, True]
    await outbox.mark_failing("crm", failing=True)
    await outbox.disable("audit", because="asked", actor=OPERATOR)


async def outbox_of(store: Store) -> Any:
    """Endpoints, messages, what is pending of each, and its deliveries."""
    messages = await store.outbox.messages(MessageFilter(), limit=1000)
    return {
        "endpoints": [replace(one, failing_seconds=None) for one in await store.outbox.endpoints()],
        "messages": messages,
        "pending": [await store.outbox.pending(one.sequence) for one in messages],
        "deliveries": [
            [replace(made, number=0) for made in await store.outbox.deliveries(one.sequence)] for one in messages
        ],
    }


async def seen(store: Store) -> Any:
    """Everything that can be read of a store without its archive."""
    jobs = (await store.find(JobFilter(), limit=1000)).jobs
    ids = [job.id for job in jobs]
    log = await whole_tail(store, expected=sum(job.rev for job in jobs))
    return {
        "jobs": jobs,
        "log": [msgspec.structs.replace(event, position=None) for event in log],
        "letters": [await store.dead_letter(job_id) for job_id in ids],
        "signals": [await store.signals(job_id) for job_id in ids],
        "queues": await store.queues.known(),
        "schedules": await store.schedules.known(),
        "artifacts": [await store.artifacts(job_id) for job_id in ids],
        "outbox": await outbox_of(store),
        "steps": [[msgspec.structs.replace(step, number=0) for step in await store.steps(job_id)] for job_id in ids],
    }


class ArchiveContract:
    """`archive.reading`, `archive.restoring`."""

    @pytest.fixture
    def other_clock(self) -> ManualClock:
        return ManualClock()

    @pytest_asyncio.fixture
    async def other(self, other_clock: ManualClock) -> AsyncIterator[Store]:
        """A second, empty store."""
        store = SqliteStore(MEMORY, database_clock=other_clock.now)
        await store.migrate()
        await store.open()
        yield store
        await store.close()

    async def test_an_export_of_this_store_can_be_restored_in_another(
        self, drive: Driver, clock: DatabaseClock, other: Store
    ) -> None:
        await lived(drive, clock)
        await restore(other, await read_all(drive.store))
        assert await seen(other) == await seen(drive.store)
        await check_store(other)

    async def test_an_export_of_another_store_can_be_restored_in_this_one(
        self, drive: Driver, other: Store, other_clock: ManualClock
    ) -> None:
        jobs = await lived(Driver(other), other_clock)
        read = await read_all(other)
        await restore(drive.store, read)
        assert await seen(drive.store) == await seen(other)
        again = await read_all(drive.store, limit=1000)
        assert (again.jobs, bare(again.log), again.bodies) == (read.jobs, bare(read.log), read.bodies)
        assert await drive.store.artifact(jobs[2].id, "report") == read.bodies[jobs[2].id, "report"]

    async def test_a_restored_endpoint_receives_what_was_pending_in_order(
        self, drive: Driver, clock: DatabaseClock, other: Store
    ) -> None:
        there = Driver(other)
        await endpoint(other)
        await post(there, ("paid", "ada"), ("paid", "ada"), ("paid", "ada"))
        [first] = await claim(other, messages_max=1)
        await other.outbox.settle([settlement(first, due_seconds=0.0)])
        await claim(other)
        await restore(drive.store, await read_all(other))
        clock.advance(LEASE_SECONDS + 1)
        [stream] = await claim(drive.store)
        assert [one.sequence for one in stream.messages] == [one + first.last_sequence for one in (-1, 0)]
        assert (stream.position, stream.previous) == (first.messages[0].sequence, first.messages[0].sequence)
        await post(drive, ("paid", "ada"))
        [later] = await drive.store.outbox.messages(MessageFilter(), after=first.last_sequence)
        assert (later.endpoint_count, later.sequence > first.last_sequence) == (1, True)

    async def test_the_log_continues_after_the_restored_events(
        self, drive: Driver, other: Store, other_clock: ManualClock
    ) -> None:
        await lived(Driver(other), other_clock)
        await restore(drive.store, await read_all(other))
        written = sum(job.rev for job in (await drive.store.find(JobFilter(), limit=1000)).jobs)
        restored = await whole_tail(drive.store, expected=written)
        added = await drive.add()
        later = await whole_tail(drive.store, after=restored[-1].position, expected=1)
        assert [event.job_id for event in later] == [added.id]

    async def test_a_snapshot_does_not_see_what_is_written_while_it_is_read(self, drive: Driver) -> None:
        jobs = [await drive.add() for _ in range(4)]
        async with drive.store.archive.snapshot() as snapshot:
            pages = snapshot.jobs(limit=1)
            first = await anext(pages)
            [running] = await drive.claim()
            await drive.apply(running, Complete("1"))
            await drive.add("later")
            rest = await joined(pages)
            assert [kept.job for kept in (*first, *rest)] == jobs
            assert len(await joined(snapshot.log(limit=1))) == len(jobs)
        assert (await read_all(drive.store)).jobs != [*first, *rest]

    async def test_only_an_empty_store_is_restored(self, drive: Driver, clock: DatabaseClock) -> None:
        read = await read_all(drive.store)
        await drive.add()
        before = await seen(drive.store)
        with pytest.raises(NotEmpty, match="jobs"):
            await restore(drive.store, read)
        assert await seen(drive.store) == before

    async def test_a_restore_that_fails_leaves_nothing(
        self, drive: Driver, other: Store, other_clock: ManualClock
    ) -> None:
        await lived(Driver(other), other_clock)
        read, empty = await read_all(other), await seen(drive.store)
        with pytest.raises(ZeroDivisionError):
            async with restored(drive.store, read):
                raise ZeroDivisionError
        assert await seen(drive.store) == empty
        assert (await read_all(drive.store)).records == []
        await restore(drive.store, read)
        assert await seen(drive.store) == await seen(other)

    async def test_an_invalid_record_is_reported_with_its_position(
        self, drive: Driver, other: Store, other_clock: ManualClock
    ) -> None:
        await lived(Driver(other), other_clock)
        read, empty = await read_all(other), await seen(drive.store)
        with pytest.raises(NotRestored) as twice:
            await restore(drive.store, msgspec.structs.replace(read, log=[*read.log[:6], read.log[2], *read.log[6:]]))
        assert twice.value.place == 6
        last = next(event for event in reversed(read.log) if event.job_id == read.jobs[3].job.id)
        with pytest.raises(NotRestored) as without_its_end:
            await restore(drive.store, msgspec.structs.replace(read, log=[e for e in read.log if e is not last]))
        assert without_its_end.value.place == 3
        assert await seen(drive.store) == empty

    async def test_restored_jobs_have_no_lease(self, drive: Driver, clock: DatabaseClock, other: Store) -> None:
        """The record stays until its lease expires, but its token is unknown."""
        held = await Driver(other).running(policy={"lease_seconds": 60.0})
        await restore(drive.store, await read_all(other))
        job = await drive.job(held.id)
        assert (job.status, job.owner, job.token) == (Status.RUNNING, held.owner, None)
        assert isinstance(await drive.refuse(held, Complete("1")), LeaseLost)
        clock.advance(61)
        assert [one.id for one in await drive.store.recoverable(limit=10)] == [held.id]

    async def test_repeated_requests_return_the_restored_results(self, drive: Driver, other: Store) -> None:
        there = Driver(other)
        first, second = there.enqueue(dedupe_key="x"), there.enqueue(dedupe_key="x", request_id="again")
        await other.enqueue([first])
        await other.enqueue([second])
        claim = there.claim_request()
        [claimed] = await other.claim(claim)
        progress = there.request(claimed, Progress(3))
        await there.try_apply(progress)
        await restore(drive.store, await read_all(other))
        assert [added.created for added in await drive.store.enqueue([first, second])] == [False, False]
        assert [job.id for job in await drive.store.claim(claim)] == [claimed.id]
        assert (await drive.repeat(progress)).progress == 3
