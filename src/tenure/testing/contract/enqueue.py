"""Enqueue: what is stored, and when an enqueue returns an existing job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta, timezone
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tenure.errors import DedupeKeyConflict, RequestIdReused
from tenure.lifecycle.operations import Cancel, Complete
from tenure.lifecycle.records import Actor, EventType, Role, Timeouts
from tenure.lifecycle.statuses import QUEUED
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

    @pytest.mark.requirement("LC-11")
    async def test_a_live_dedupe_key_returns_the_job_that_has_it(self, drive: Driver) -> None:
        first = await drive.add(dedupe_key="ada")
        [again] = await drive.store.enqueue([drive.enqueue(dedupe_key="ada", payload='{"other":1}')])
        assert (again.job.id, again.created) == (first.id, False)
        assert len(await drive.events_of(first.id)) == 1

    @pytest.mark.requirement("LC-11")
    @pytest.mark.parametrize("others", [0, 2])
    async def test_a_dedupe_key_of_another_kinds_live_job_is_a_conflict_that_names_it(
        self, drive: Driver, others: int
    ) -> None:
        first = await drive.running(dedupe_key="ada")
        requests = [drive.enqueue() for _ in range(others)]
        requests.append(drive.enqueue("report", dedupe_key="ada", request_id="order-1"))
        with pytest.raises(DedupeKeyConflict, match=f"live job {first.id} of kind 'mail'") as conflict:
            await drive.store.enqueue(requests)
        named = conflict.value
        assert (named.dedupe_key, named.job_id, named.kind) == ("ada", first.id, "mail")
        assert [job.id for job in await all_jobs(drive.store)] == [first.id], "nothing of the batch is written"
        await drive.apply(first, Complete("1"))
        again = await drive.store.enqueue(requests)
        assert (again[-1].job.kind, again[-1].created) == ("report", True), "the conflict is not remembered"

    @pytest.mark.requirement("LC-11")
    async def test_two_kinds_under_one_dedupe_key_in_one_batch_are_a_conflict(self, drive: Driver) -> None:
        first = drive.enqueue(dedupe_key="ada")
        with pytest.raises(DedupeKeyConflict) as conflict:
            await drive.store.enqueue([first, drive.enqueue("report", dedupe_key="ada")])
        assert (conflict.value.job_id, conflict.value.kind) == (first.origin.id, "mail")
        assert await all_jobs(drive.store) == []

    @pytest.mark.requirement("LC-07", "LC-11")
    async def test_a_repeated_enqueue_is_found_although_another_kind_has_its_key_now(self, drive: Driver) -> None:
        request = drive.enqueue(dedupe_key="ada", request_id="order-1")
        [made] = await drive.store.enqueue([request])
        await drive.apply(made.job.id, Cancel(), actor=CLIENT)
        await drive.add("report", dedupe_key="ada")
        [again] = await drive.store.enqueue([request])
        assert (again.job.id, again.created) == (made.job.id, False)

    @pytest.mark.requirement("LC-11")
    async def test_of_concurrent_enqueues_of_two_kinds_under_one_dedupe_key_one_kind_wins(self, drive: Driver) -> None:
        async def add(kind: str) -> str:
            try:
                return (await drive.add(kind, dedupe_key="ada")).kind
            except DedupeKeyConflict as conflict:
                return conflict.kind

        async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
            tasks = [group.create_task(add(kind)) for kind in ("mail", "report") * 8]
        [job] = await all_jobs(drive.store)
        assert {task.result() for task in tasks} == {job.kind}

    @pytest.mark.requirement("LC-11", "WC-12")
    async def test_a_dedupe_key_is_free_again_once_its_job_has_ended(self, drive: Driver) -> None:
        first = await drive.running(dedupe_key="ada")
        held = await drive.add(dedupe_key="ada")
        assert held.id == first.id
        await drive.apply(first, Complete("1"))
        assert (await drive.add(dedupe_key="ada")).id != first.id

    async def test_a_deduplicated_enqueue_returns_no_token(self, drive: Driver) -> None:
        await drive.running(dedupe_key="ada")
        request = drive.enqueue(dedupe_key="ada")
        for _ in range(2):
            [answer] = await drive.store.enqueue([request])
            assert answer.job.token is None

    @pytest.mark.requirement("LC-11")
    async def test_two_requests_with_one_dedupe_key_in_one_batch_make_one_job(self, drive: Driver) -> None:
        first, second, other = await drive.store.enqueue(
            [drive.enqueue(dedupe_key="ada"), drive.enqueue(dedupe_key="ada"), drive.enqueue(dedupe_key="bob")]
        )
        assert first.created
        assert other.created
        assert (second.job.id, second.created) == (first.job.id, False)

    @pytest.mark.requirement("LC-11")
    async def test_of_two_requests_with_one_dedupe_key_in_one_batch_the_first_is_made(self, drive: Driver) -> None:
        for ids in (("z", "a"), ("b", "y"), (None, "c")):
            requests = [drive.enqueue(dedupe_key=f"ada-{ids[1]}", request_id=request_id) for request_id in ids]
            first, second = await drive.store.enqueue(requests)
            assert (first.created, second.created) == (True, False)
            assert first.job.id == second.job.id == requests[0].origin.id

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
        requests = [drive.enqueue(), _of_bob(drive.enqueue()), drive.enqueue(), _of_bob(drive.enqueue())]
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

    @pytest.mark.requirement("LC-11")
    async def test_a_dedupe_key_is_shared_by_the_clients_of_one_batch(self, drive: Driver) -> None:
        requests = [_of_bob(drive.enqueue(dedupe_key="x")), drive.enqueue(dedupe_key="x"), drive.enqueue()]
        first, second, _ = await drive.store.enqueue(requests)
        assert (first.created, second.created) == (True, False)
        assert first.job.id == second.job.id == requests[0].origin.id

    @pytest.mark.requirement("LC-07", "LC-11")
    @pytest.mark.parametrize("facts", [{"request_id": "order-1"}, {}, {"delay_ms": 7}])
    async def test_a_deduplicated_enqueue_returns_the_same_job_when_repeated(
        self, drive: Driver, facts: dict[str, Any]
    ) -> None:
        first = await drive.add(dedupe_key="ada")
        request = drive.enqueue(dedupe_key="ada", **facts)
        assert _created(await drive.store.enqueue([request])) == [(first.id, False)]
        assert _created(await drive.store.enqueue([request])) == [(first.id, False)]
        await drive.apply(first.id, Cancel(), actor=CLIENT)
        assert _created(await drive.store.enqueue([request])) == [(first.id, False)]
        later = await drive.add(dedupe_key="ada")
        assert later.id != first.id
        assert _created(await drive.store.enqueue([request, request])) == [(first.id, False)] * 2
        assert {job.id for job in await all_jobs(drive.store)} == {first.id, later.id}

    @pytest.mark.requirement("LC-07", "LC-11")
    async def test_a_deduplicated_enqueue_is_found_by_its_request_id_whatever_the_new_job_id(
        self, drive: Driver
    ) -> None:
        first = await drive.add(dedupe_key="ada")
        await drive.add(dedupe_key="ada", request_id="order-1")
        await drive.apply(first.id, Cancel(), actor=CLIENT)
        again = await drive.store.enqueue([drive.enqueue(dedupe_key="ada", request_id="order-1")])
        assert _created(again) == [(first.id, False)]

    @pytest.mark.requirement("LC-07", "LC-11")
    @pytest.mark.parametrize(
        "change", [{"payload": "[]"}, {"dedupe_key": "bob"}, {"dedupe_key": None}, {"delay_ms": 5}]
    )
    async def test_the_request_id_of_a_deduplicated_enqueue_cannot_be_used_for_another(
        self, drive: Driver, change: dict[str, Any]
    ) -> None:
        first = await drive.add(dedupe_key="ada")
        for facts in ({"request_id": "order-1"}, {"id": drive.random.job_id()}):
            answered: dict[str, Any] = {"dedupe_key": "ada", **facts}
            [answer] = await drive.store.enqueue([drive.enqueue(**answered)])
            assert not answer.created
            with pytest.raises(RequestIdReused) as refusal:
                await drive.store.enqueue([drive.enqueue(), drive.enqueue(**{**answered, **change})])
            assert refusal.value.request_id == str(next(iter(facts.values())))
        assert [job.id for job in await all_jobs(drive.store)] == [first.id]

    @pytest.mark.requirement("LC-07", "LC-11")
    async def test_a_deduplication_within_one_batch_is_recorded_too(self, drive: Driver) -> None:
        made, answered = drive.enqueue(dedupe_key="ada"), drive.enqueue(dedupe_key="ada", request_id="order-1")
        expected = [(made.origin.id, True), (made.origin.id, False), (made.origin.id, False)]
        assert _created(await drive.store.enqueue([made, answered, answered])) == expected
        await drive.apply(made.origin.id, Cancel(), actor=CLIENT)
        assert _created(await drive.store.enqueue([answered, made])) == [(made.origin.id, False)] * 2

    @pytest.mark.requirement("LC-07", "LC-11")
    async def test_concurrent_repetitions_of_a_deduplicated_enqueue_return_one_job(self, drive: Driver) -> None:
        first = await drive.add(dedupe_key="ada")
        request = drive.enqueue(dedupe_key="ada", request_id="order-1")
        answers = await _at_once(drive, [[request] for _ in range(8)])
        assert [_created(answer) for answer in answers] == [[(first.id, False)]] * 8
        await drive.apply(first.id, Cancel(), actor=CLIENT)
        assert _created(await drive.store.enqueue([request])) == [(first.id, False)]

    @pytest.mark.requirement("LC-07", "LC-11")
    async def test_the_loser_of_a_race_for_a_dedupe_key_gets_the_same_job_when_repeated(self, drive: Driver) -> None:
        requests = [drive.enqueue(dedupe_key="ada", request_id=f"order-{number}") for number in range(8)]
        [winner] = {answer.job.id for [answer] in await _at_once(drive, [[request] for request in requests])}
        await drive.apply(winner, Cancel(), actor=CLIENT)
        answers = await _at_once(drive, [[request] for request in requests])
        assert [_created(answer) for answer in answers] == [[(winner, False)]] * 8

    async def test_a_refused_batch_records_no_deduplication(self, drive: Driver) -> None:
        first = await drive.add(dedupe_key="ada")
        await drive.add(request_id="order-1")
        answered = drive.enqueue(dedupe_key="ada", request_id="order-2")
        with pytest.raises(RequestIdReused):
            await drive.store.enqueue([answered, drive.enqueue(request_id="order-1", payload="[1]")])
        await drive.apply(first.id, Cancel(), actor=CLIENT)
        assert _created(await drive.store.enqueue([answered])) == [(answered.origin.id, True)]

    @pytest.mark.requirement("LC-07", "LC-11")
    async def test_an_enqueue_and_another_under_its_id_in_one_batch_are_refused_also_when_its_key_was_live(
        self, drive: Driver
    ) -> None:
        first = await drive.add(dedupe_key="ada")
        requests = [drive.enqueue(dedupe_key="ada", request_id="r", payload=payload) for payload in ("[1]", "[2]")]
        with pytest.raises(RequestIdReused):
            await drive.store.enqueue(requests)
        assert _created(await drive.store.enqueue(requests[1:])) == [(first.id, False)]

    @pytest.mark.requirement("LC-11")
    async def test_concurrent_enqueues_of_one_dedupe_key_make_one_job(self, drive: Driver) -> None:
        answers = await _at_once(drive, [[drive.enqueue(dedupe_key="ada")] for _ in range(16)])
        assert len({answer.job.id for [answer] in answers}) == 1
        assert sum(answer.created for [answer] in answers) == 1
        assert len(await all_jobs(drive.store)) == 1

    @pytest.mark.requirement("LC-07")
    async def test_concurrent_repetitions_of_one_enqueue_make_one_job(self, drive: Driver) -> None:
        request = drive.enqueue(request_id="order-1")
        copies = [msgspec.structs.replace(request.origin, id=drive.random.job_id()) for _ in range(8)]
        batches = [[request], *([EnqueueRequest(copy, CLIENT)] for copy in copies)]
        answers = await _at_once(drive, batches)
        assert len({answer.job.id for [answer] in answers}) == 1
        assert sum(answer.created for [answer] in answers) == 1

    @pytest.mark.requirement("LC-10")
    async def test_concurrent_single_enqueues_each_return_their_own_job(self, drive: Driver) -> None:
        requests = [
            drive.enqueue(kind=f"kind-{number % 3}", payload=f"[{number}]", priority=number % 2, delay_ms=number % 5)
            for number in range(40)
        ]
        answers = await _at_once(drive, [[request] for request in requests])
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
            tasks = [group.create_task(_refusal_or_job(drive, request)) for request in requests]
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
            assert _created(task.result()) == [(job_id, True)]
        assert {job.id for job in await all_jobs(drive.store)} >= stayed.keys()
        # Nothing is left waiting: the next one is written at once.
        assert (await drive.add()).rev == 1

    @pytest.mark.requirement("LC-11")
    async def test_concurrent_batches_with_keys_in_opposite_orders_neither_deadlock_nor_double(
        self, drive: Driver
    ) -> None:
        keys = [f"key-{number}" for number in range(20)]
        batches = [[drive.enqueue(dedupe_key=key) for key in keys[:: 1 if even else -1]] for even in [0, 1] * 4]
        answers = await _at_once(drive, batches)
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


def _of_bob(request: EnqueueRequest) -> EnqueueRequest:
    return msgspec.structs.replace(request, actor=BOB)


def _created(answers: Sequence[EnqueueResult]) -> list[tuple[UUID, bool]]:
    return [(answer.job.id, answer.created) for answer in answers]


async def _refusal_or_job(drive: Driver, request: EnqueueRequest) -> type[Exception] | tuple[UUID, bool]:
    try:
        [result] = await drive.store.enqueue([request])
    except RequestIdReused:
        return RequestIdReused
    return result.job.id, result.created


async def _at_once(drive: Driver, batches: list[list[EnqueueRequest]]) -> list[Sequence[EnqueueResult]]:
    async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
        tasks = [group.create_task(drive.store.enqueue(batch)) for batch in batches]
    return [task.result() for task in tasks]
