"""Enqueue: what is stored, and when an enqueue returns an existing job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta, timezone
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tenure.errors import RequestIdReused
from tenure.lifecycle.operations import Cancel
from tenure.lifecycle.records import Actor, EventType, Role
from tenure.lifecycle.statuses import QUEUED
from tenure.lifecycle.timeouts import Timeouts
from tenure.seams import SYSTEM
from tenure.stores.contract import EnqueueRequest, EnqueueResult
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, Driver
from tenure.testing.store_check import all_jobs

BOB = Actor(Role.CLIENT, "bob")


class EnqueueContract:
    """`enqueue`."""

    @pytest.mark.requirement("LC-08")
    async def test_a_new_job_is_queued_at_revision_one_and_attempt_zero(self, drive: Driver) -> None:
        now = await drive.store.now()
        job = await drive.add()
        assert (job.status, job.rev, job.attempt, job.failures) == (QUEUED, 1, 0, 0)
        assert (job.created_at, job.updated_at, job.due_at) == (now, now, now)
        assert await drive.job(job.id) == job

    async def test_every_field_of_a_job_is_read_back_unchanged(self, drive: Driver) -> None:
        parent = await drive.add()
        request = drive.enqueue(
            "report",
            payload='{"ü":[1,2.5,null,true],"text":"\\u2028 ok"}',
            queue="slow",
            priority=-7,
            dedupe_key="a:b/ü",
            request_id="r-1",
            correlation_id="c-1",
            trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            submitted_by="ada",
            tags={"tenant": "x", "ü": "é"},
            partition_key="p",
            parent_id=parent.id,
            redrive_of=parent.id,
            policy={"max_attempts": 3, "lease_seconds": 12.5, "on_lost": "fail", "on_exhausted": "dead_letter"},
        )
        [added] = await drive.store.enqueue([request])
        assert added.created
        assert added.job.origin == request.origin
        assert (await drive.job(added.job.id)).origin == request.origin

    async def test_jobs_enqueued_after_an_awaitable_exist_only_once_it_is_done(self, drive: Driver) -> None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as group:  # noqa: TID251 - the kit's own tasks
            adding = group.create_task(
                drive.store.enqueue([drive.enqueue(), drive.enqueue(dedupe_key="ada")], after=gate)
            )
            keyed = group.create_task(drive.store.enqueue([drive.enqueue(dedupe_key="bob")], after=gate))
            for _ in range(5):
                await asyncio.sleep(0)  # noqa: TID251 - they get as far as they can
            assert await all_jobs(drive.store) == []
            gate.set_result(None)
        assert all(added.created for added in (*adding.result(), *keyed.result()))
        assert len(await all_jobs(drive.store)) == 3

    @pytest.mark.parametrize("dedupe_key", [None, "ada"])
    async def test_jobs_enqueued_after_an_awaitable_that_fails_are_not_enqueued(
        self, drive: Driver, dedupe_key: str | None
    ) -> None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gate.set_exception(LookupError("the ones before were refused"))
        with pytest.raises(LookupError, match="refused"):
            await drive.store.enqueue([drive.enqueue(dedupe_key=dedupe_key)], after=gate)
        assert await all_jobs(drive.store) == []

    async def test_prepare_changes_nothing(self, drive: Driver) -> None:
        job = await drive.add()
        await drive.store.prepare()
        await drive.store.prepare()
        assert await all_jobs(drive.store) == [job]
        assert [won.id for won in await drive.claim()] == [job.id]

    @pytest.mark.requirement("LC-10")
    async def test_an_enqueue_writes_one_event_that_names_its_origin(self, drive: Driver) -> None:
        job = await drive.add(correlation_id="c-9", trace="t-9")
        [event] = await drive.events_of(job.id)
        assert (event.type, event.from_status, event.to_status) == (EventType.ENQUEUED, None, QUEUED)
        assert (event.rev, event.attempt, event.at, event.actor) == (1, 0, job.created_at, str(CLIENT))
        assert (event.request_id, event.digest) == (str(job.id), job.origin.digest())
        assert (event.correlation_id, event.trace, event.version) == ("c-9", "t-9", 1)
        assert (event.until_at, event.detail, event.cause, event.commits) == (None, None, "requested", False)

    async def test_a_delayed_job_is_due_after_its_delay(self, drive: Driver) -> None:
        job = await drive.add(delay_ms=2500)
        [event] = await drive.events_of(job.id)
        assert job.due_at == job.created_at + timedelta(seconds=2.5) == event.until_at

    @pytest.mark.parametrize("key", [None, "order-1"])
    async def test_a_job_with_a_due_time_is_due_then_and_at_once_if_that_has_passed(
        self, drive: Driver, clock: DatabaseClock, key: str | None
    ) -> None:
        now = await drive.store.now()
        facts: dict[str, Any] = {"dedupe_key": key, "policy": {"timeouts": Timeouts(queued_seconds=60)}}
        due_at = now + timedelta(seconds=30, microseconds=1)
        job = await drive.add(due_at=due_at, **facts)
        [event] = await drive.events_of(job.id)
        assert job.due_at == due_at == event.until_at
        assert job.timeout_at == due_at + timedelta(seconds=60)
        assert await drive.store.read([job.id]) == {job.id: job}
        assert await drive.claim() == []
        clock.advance(31)
        [claimed] = await drive.claim()
        assert claimed.id == job.id
        late = await drive.add(due_at=now)
        [event] = await drive.events_of(late.id)
        assert (late.due_at, event.until_at) == (late.created_at, None)

    async def test_a_repeated_due_time_is_the_same_request_and_another_one_is_not(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        due_at = await drive.store.now() + timedelta(seconds=30)
        made = await drive.add(request_id="order-1", due_at=due_at)
        clock.advance(5)
        east = due_at.astimezone(timezone(timedelta(hours=2)))
        [again] = await drive.store.enqueue([drive.enqueue(request_id="order-1", due_at=east)])
        assert (again.job.id, again.created) == (made.id, False)
        for change in ({"due_at": due_at + timedelta(seconds=1)}, {"delay_ms": 25_000}, {}):
            with pytest.raises(RequestIdReused):
                await drive.store.enqueue([drive.enqueue(request_id="order-1", **change)])

    async def test_jobs_with_different_due_times_in_one_batch_keep_them(self, drive: Driver) -> None:
        now = await drive.store.now()
        times = [now + timedelta(seconds=seconds) for seconds in (10, 20, 20, 30)]
        added = await drive.store.enqueue([drive.enqueue(due_at=at) for at in times])
        assert [one.job.due_at for one in added] == times
        same = await drive.store.enqueue([drive.enqueue(due_at=times[0]) for _ in range(3)])
        stored = await drive.store.read([one.job.id for one in same])
        assert [job.due_at for job in stored.values()] == [times[0]] * 3

    async def test_results_of_a_batch_are_in_the_order_of_its_requests(self, drive: Driver) -> None:
        requests = [drive.enqueue(priority=number) for number in range(20)]
        requests.reverse()
        added = await drive.store.enqueue(requests)
        assert [answer.job.id for answer in added] == [request.origin.id for request in requests]
        assert all(answer.created for answer in added)

    async def test_an_empty_batch_enqueues_nothing(self, drive: Driver) -> None:
        assert await drive.store.enqueue([]) == []
        assert await all_jobs(drive.store) == []

    @pytest.mark.requirement("LC-07")
    async def test_a_repeated_enqueue_returns_the_job_it_made_also_after_that_has_ended(self, drive: Driver) -> None:
        for request in (drive.enqueue(request_id="order-1"), drive.enqueue(), drive.enqueue(delay_ms=10)):
            [made] = await drive.store.enqueue([request])
            await drive.apply(made.job.id, Cancel(), actor=CLIENT)
            [again] = await drive.store.enqueue([request])
            assert (again.job.id, again.created, again.job.rev) == (made.job.id, False, 2)

    @pytest.mark.requirement("LC-07")
    async def test_a_repeated_request_id_finds_its_job_whatever_the_new_job_id(self, drive: Driver) -> None:
        made = await drive.add(request_id="order-1")
        [again] = await drive.store.enqueue([drive.enqueue(request_id="order-1")])
        assert (again.job.id, again.created) == (made.id, False)

    @pytest.mark.requirement("LC-07")
    @pytest.mark.parametrize("change", [{"payload": "[]"}, {"priority": 1}, {"tags": {"a": "b"}}, {"delay_ms": 5}])
    async def test_a_request_id_with_another_body_is_refused_and_nothing_is_written(
        self, drive: Driver, change: dict[str, Any]
    ) -> None:
        made = await drive.add(request_id="order-1")
        bystander = drive.enqueue()
        with pytest.raises(RequestIdReused) as refusal:
            await drive.store.enqueue([bystander, drive.enqueue(request_id="order-1", **change)])
        assert refusal.value.request_id == "order-1"
        assert [job.id for job in await all_jobs(drive.store)] == [made.id]

    @pytest.mark.requirement("LC-07")
    async def test_a_job_id_with_another_body_is_refused(self, drive: Driver) -> None:
        made = await drive.add()
        with pytest.raises(RequestIdReused) as refusal:
            await drive.store.enqueue([drive.enqueue(id=made.id, payload="[1]")])
        assert refusal.value.request_id == str(made.id)

    @pytest.mark.requirement("LC-07")
    async def test_the_same_request_twice_in_one_batch_makes_one_job(self, drive: Driver) -> None:
        request = drive.enqueue(request_id="order-1")
        first, second = await drive.store.enqueue([request, request])
        assert (first.created, second.created) == (True, False)
        assert first.job.id == second.job.id

    async def test_a_request_id_twice_in_one_batch_with_different_bodies_is_refused(self, drive: Driver) -> None:
        with pytest.raises(RequestIdReused):
            await drive.store.enqueue([drive.enqueue(request_id="r"), drive.enqueue(request_id="r", payload="[1]")])
        assert await all_jobs(drive.store) == []

    async def test_a_batch_of_several_clients_is_written_as_one(self, drive: Driver) -> None:
        requests = [drive.enqueue(), of_bob(drive.enqueue()), drive.enqueue(), of_bob(drive.enqueue())]
        added = await drive.store.enqueue(requests)
        assert [answer.job.id for answer in added] == [request.origin.id for request in requests]
        actors = [(await drive.events_of(answer.job.id))[0].actor for answer in added]
        assert actors == [str(CLIENT), str(BOB)] * 2

    @pytest.mark.requirement("LC-07")
    async def test_a_refusal_of_one_clients_request_leaves_nothing_of_the_others(self, drive: Driver) -> None:
        made = await drive.add(request_id="order-1")
        for first, second in ((CLIENT, BOB), (BOB, CLIENT)):
            bystander = EnqueueRequest(drive.enqueue().origin, first)
            reused = EnqueueRequest(drive.enqueue(request_id="order-1", payload="[1]").origin, second)
            for batch in ([bystander, reused], [reused, bystander]):
                with pytest.raises(RequestIdReused):
                    await drive.store.enqueue(batch)
                assert [job.id for job in await all_jobs(drive.store)] == [made.id]

    @pytest.mark.requirement("LC-07")
    async def test_concurrent_repetitions_of_one_enqueue_make_one_job(self, drive: Driver) -> None:
        request = drive.enqueue(request_id="order-1")
        copies = [msgspec.structs.replace(request.origin, id=drive.random.job_id()) for _ in range(8)]
        batches = [[request], *([EnqueueRequest(copy, CLIENT)] for copy in copies)]
        answers = await at_once(drive, batches)
        assert len({answer.job.id for [answer] in answers}) == 1
        assert sum(answer.created for [answer] in answers) == 1

    @pytest.mark.requirement("LC-10")
    async def test_concurrent_single_enqueues_each_return_their_own_job(self, drive: Driver) -> None:
        requests = [
            drive.enqueue(kind=f"kind-{number % 3}", payload=f"[{number}]", priority=number % 2, delay_ms=number % 5)
            for number in range(40)
        ]
        answers = await at_once(drive, [[request] for request in requests])
        assert [answer.job.origin for [answer] in answers] == [request.origin for request in requests]
        assert all(answer.created for [answer] in answers)
        stored = await drive.store.read([request.origin.id for request in requests])
        assert [stored[answer.job.id] for [answer] in answers] == [answer.job for [answer] in answers]
        histories = await drive.store.history(list(stored))
        assert {len(history) for history in histories.values()} == {1}

    @pytest.mark.requirement("LC-03", "LC-07")
    async def test_a_refused_single_enqueue_fails_none_that_was_sent_with_it(self, drive: Driver) -> None:
        used = await drive.add(payload="[1]")
        refused = drive.enqueue(id=used.id, payload="[2]")
        repeated = drive.enqueue(id=used.id, payload="[1]")
        others = [drive.enqueue() for _ in range(10)]
        requests = [*others[:5], refused, repeated, *others[5:]]
        async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
            tasks = [group.create_task(refusal_or_job(drive, request)) for request in requests]
        found = [task.result() for task in tasks]
        assert found[5:7] == [RequestIdReused, (used.id, False)]
        assert found[:5] + found[7:] == [(one.origin.id, True) for one in others]
        assert {job.id for job in await all_jobs(drive.store)} == {used.id, *(one.origin.id for one in others)}

    async def test_an_abandoned_single_enqueue_harms_none_that_was_sent_with_it(self, drive: Driver) -> None:
        requests = [drive.enqueue() for _ in range(20)]
        tasks = [SYSTEM.spawn.task(drive.store.enqueue([request]), name="caller") for request in requests]
        await SYSTEM.clock.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        await asyncio.wait(tasks)
        stayed = {
            request.origin.id: task for n, (request, task) in enumerate(zip(requests, tasks, strict=True)) if n % 3
        }
        for job_id, task in stayed.items():
            assert created(task.result()) == [(job_id, True)]
        assert {job.id for job in await all_jobs(drive.store)} >= stayed.keys()
        # Nothing is left waiting: the next one is written at once.
        assert (await drive.add()).rev == 1

    @pytest.mark.requirement("LC-11")
    async def test_concurrent_batches_with_keys_in_opposite_orders_neither_deadlock_nor_double(
        self, drive: Driver
    ) -> None:
        keys = [f"key-{number}" for number in range(20)]
        batches = [[drive.enqueue(dedupe_key=key) for key in keys[:: 1 if even else -1]] for even in [0, 1] * 4]
        answers = await at_once(drive, batches)
        assert len({answer.job.id for batch in answers for answer in batch}) == 20
        assert sum(answer.created for batch in answers for answer in batch) == 20

    @pytest.mark.requirement("SM-17")
    async def test_jobs_enqueued_after_the_clock_was_set_back_are_dated_by_the_clock(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        first = await drive.add()
        clock.advance(-30)
        second = await drive.add()
        assert second.created_at == first.created_at - timedelta(seconds=30)


def of_bob(request: EnqueueRequest) -> EnqueueRequest:
    return msgspec.structs.replace(request, actor=BOB)


def created(answers: Sequence[EnqueueResult]) -> list[tuple[UUID, bool]]:
    return [(answer.job.id, answer.created) for answer in answers]


async def refusal_or_job(drive: Driver, request: EnqueueRequest) -> type[Exception] | tuple[UUID, bool]:
    try:
        [result] = await drive.store.enqueue([request])
    except RequestIdReused:
        return RequestIdReused
    return result.job.id, result.created


async def at_once(drive: Driver, batches: list[list[EnqueueRequest]]) -> list[Sequence[EnqueueResult]]:
    async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
        tasks = [group.create_task(drive.store.enqueue(batch)) for batch in batches]
    return [task.result() for task in tasks]
