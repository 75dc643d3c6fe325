"""Batches: each request has its own outcome, in the order of the requests."""

from __future__ import annotations

import asyncio

import pytest

from tenure.errors import IllegalTransition, JobNotFound, LeaseLost, NotAuthorised, RequestIdReused, RevisionConflict
from tenure.lifecycle.operations import Cancel, Complete, Heartbeat, Progress, RequestCancel, Signal, Start
from tenure.lifecycle.records import Actor, Role
from tenure.stores.contract import Applied, Repeated
from tenure.testing.driver import CLIENT, Driver, errors_of, runner

BATCH = 500


class BatchContract:
    """`apply` with more than one request."""

    async def test_an_empty_batch_returns_an_empty_list(self, drive: Driver) -> None:
        assert await drive.store.apply([]) == []

    async def test_mixed_outcomes_come_in_the_order_of_the_requests(self, drive: Driver) -> None:
        good, stale, lost, wrong, foreign, repeated = [await drive.running() for _ in range(6)]
        await drive.apply(stale, Progress(1))
        used = drive.request(repeated, Progress(2))
        await drive.try_apply(used)
        requests = [
            drive.request(stale, Complete("1")),
            drive.request(good, Complete("1")),
            drive.request(drive.random.job_id(), Cancel(), actor=CLIENT),
            used,
            drive.request(lost, Complete("1"), actor=Actor(Role.RUNNER, "worker-1", drive.random.token())),
            drive.request(wrong, Start()),
            drive.request(foreign, Complete("1"), actor=CLIENT),
            drive.request(repeated.id, Progress(3), actor=runner(repeated), request_id=used.request_id),
        ]
        outcomes = await drive.store.apply(requests)
        assert errors_of(outcomes) == [
            RevisionConflict,
            None,
            JobNotFound,
            None,
            LeaseLost,
            IllegalTransition,
            NotAuthorised,
            RequestIdReused,
        ]
        assert isinstance(outcomes[1], Applied)
        assert isinstance(outcomes[3], Repeated)
        assert (await drive.job(good.id)).status == "succeeded"

    async def test_one_job_twice_in_a_batch_is_changed_in_the_order_of_the_batch(self, drive: Driver) -> None:
        job = await drive.add()
        requests = [drive.request(job.id, Signal("go", str(number)), actor=CLIENT) for number in range(5)]
        requests.append(drive.request(job.id, Cancel(), actor=CLIENT))
        requests.append(drive.request(job.id, Signal("late"), actor=CLIENT))
        outcomes = await drive.store.apply(requests)
        assert errors_of(outcomes) == [None] * 6 + [IllegalTransition]
        assert [signal.payload for signal in await drive.store.signals(job.id)] == ["0", "1", "2", "3", "4"]

    async def test_one_record_twice_in_a_batch_is_a_conflict_for_the_second(self, drive: Driver) -> None:
        job = await drive.running()
        requests = [drive.request(job, Progress(1)), drive.request(job, Progress(2))]
        outcomes = await drive.store.apply(requests)
        assert errors_of(outcomes) == [None, RevisionConflict]
        assert (await drive.job(job.id)).progress == 1

    async def test_one_request_twice_in_a_batch_is_applied_once(self, drive: Driver) -> None:
        job = await drive.running()
        request = drive.request(job, Progress(1))
        outcomes = await drive.store.apply([request, request])
        assert [type(outcome) for outcome in outcomes] == [Applied, Repeated]

    @pytest.mark.requirement("LC-09", "LC-10", "SM-04")
    async def test_a_batch_of_five_hundred_writes_exactly_its_events(self, drive: Driver) -> None:
        added = await drive.store.enqueue([drive.enqueue() for _ in range(BATCH)])
        jobs = await drive.claim(limit=BATCH)
        assert [job.id for job in jobs] == [answer.job.id for answer in added]
        beats = await drive.store.apply([drive.request(job, Heartbeat()) for job in jobs])
        beaten = [outcome.job for outcome in beats if isinstance(outcome, Applied)]
        assert len(beaten) == BATCH
        ended = await drive.store.apply([drive.request(job, Complete('{"ok":true}'), fresh=True) for job in beaten])
        assert errors_of(ended) == [None] * BATCH
        histories = await drive.store.history([job.id for job in jobs])
        expected = ["enqueued", "claimed", "started", "heartbeat", "succeeded"]
        assert all([event.type.value for event in events] == expected for events in histories.values())
        assert len(histories) == BATCH

    async def test_batches_over_the_same_jobs_in_opposite_orders_do_not_deadlock(self, drive: Driver) -> None:
        jobs = [answer.job for answer in await drive.store.enqueue([drive.enqueue() for _ in range(30)])]
        batches = [
            [drive.request(job.id, RequestCancel(str(turn)), actor=CLIENT) for job in jobs[:: 1 if turn % 2 else -1]]
            for turn in range(6)
        ]
        async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
            tasks = [group.create_task(drive.store.apply(batch)) for batch in batches]
        assert all(errors_of(task.result()) == [None] * 30 for task in tasks)
        assert {job.rev for job in (await drive.store.read([job.id for job in jobs])).values()} == {7}
