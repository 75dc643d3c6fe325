"""Enqueues under a dedupe key: which job one returns, and how it is repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.errors import DedupeKeyConflict, RequestIdReused
from tenure.lifecycle.operations import Cancel, Complete
from tenure.testing.contract.enqueue import at_once, created, of_bob
from tenure.testing.driver import CLIENT, Driver
from tenure.testing.store_check import all_jobs


class DeduplicationContract:
    """`enqueue` with a dedupe key."""

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

    @pytest.mark.requirement("LC-11")
    async def test_a_dedupe_key_is_shared_by_the_clients_of_one_batch(self, drive: Driver) -> None:
        requests = [of_bob(drive.enqueue(dedupe_key="x")), drive.enqueue(dedupe_key="x"), drive.enqueue()]
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
        assert created(await drive.store.enqueue([request])) == [(first.id, False)]
        assert created(await drive.store.enqueue([request])) == [(first.id, False)]
        await drive.apply(first.id, Cancel(), actor=CLIENT)
        assert created(await drive.store.enqueue([request])) == [(first.id, False)]
        later = await drive.add(dedupe_key="ada")
        assert later.id != first.id
        assert created(await drive.store.enqueue([request, request])) == [(first.id, False)] * 2
        assert {job.id for job in await all_jobs(drive.store)} == {first.id, later.id}

    @pytest.mark.requirement("LC-07", "LC-11")
    async def test_a_deduplicated_enqueue_is_found_by_its_request_id_whatever_the_new_job_id(
        self, drive: Driver
    ) -> None:
        first = await drive.add(dedupe_key="ada")
        await drive.add(dedupe_key="ada", request_id="order-1")
        await drive.apply(first.id, Cancel(), actor=CLIENT)
        again = await drive.store.enqueue([drive.enqueue(dedupe_key="ada", request_id="order-1")])
        assert created(again) == [(first.id, False)]

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
        assert created(await drive.store.enqueue([made, answered, answered])) == expected
        await drive.apply(made.origin.id, Cancel(), actor=CLIENT)
        assert created(await drive.store.enqueue([answered, made])) == [(made.origin.id, False)] * 2

    @pytest.mark.requirement("LC-07", "LC-11")
    async def test_concurrent_repetitions_of_a_deduplicated_enqueue_return_one_job(self, drive: Driver) -> None:
        first = await drive.add(dedupe_key="ada")
        request = drive.enqueue(dedupe_key="ada", request_id="order-1")
        answers = await at_once(drive, [[request] for _ in range(8)])
        assert [created(answer) for answer in answers] == [[(first.id, False)]] * 8
        await drive.apply(first.id, Cancel(), actor=CLIENT)
        assert created(await drive.store.enqueue([request])) == [(first.id, False)]

    @pytest.mark.requirement("LC-07", "LC-11")
    async def test_the_loser_of_a_race_for_a_dedupe_key_gets_the_same_job_when_repeated(self, drive: Driver) -> None:
        requests = [drive.enqueue(dedupe_key="ada", request_id=f"order-{number}") for number in range(8)]
        [winner] = {answer.job.id for [answer] in await at_once(drive, [[request] for request in requests])}
        await drive.apply(winner, Cancel(), actor=CLIENT)
        answers = await at_once(drive, [[request] for request in requests])
        assert [created(answer) for answer in answers] == [[(winner, False)]] * 8

    async def test_a_refused_batch_records_no_deduplication(self, drive: Driver) -> None:
        first = await drive.add(dedupe_key="ada")
        await drive.add(request_id="order-1")
        answered = drive.enqueue(dedupe_key="ada", request_id="order-2")
        with pytest.raises(RequestIdReused):
            await drive.store.enqueue([answered, drive.enqueue(request_id="order-1", payload="[1]")])
        await drive.apply(first.id, Cancel(), actor=CLIENT)
        assert created(await drive.store.enqueue([answered])) == [(answered.origin.id, True)]

    @pytest.mark.requirement("LC-07", "LC-11")
    async def test_an_enqueue_and_another_under_its_id_in_one_batch_are_refused_also_when_its_key_was_live(
        self, drive: Driver
    ) -> None:
        first = await drive.add(dedupe_key="ada")
        requests = [drive.enqueue(dedupe_key="ada", request_id="r", payload=payload) for payload in ("[1]", "[2]")]
        with pytest.raises(RequestIdReused):
            await drive.store.enqueue(requests)
        assert created(await drive.store.enqueue(requests[1:])) == [(first.id, False)]

    @pytest.mark.requirement("LC-11")
    async def test_concurrent_enqueues_of_one_dedupe_key_make_one_job(self, drive: Driver) -> None:
        answers = await at_once(drive, [[drive.enqueue(dedupe_key="ada")] for _ in range(16)])
        assert len({answer.job.id for [answer] in answers}) == 1
        assert sum(answer.created for [answer] in answers) == 1
        assert len(await all_jobs(drive.store)) == 1
