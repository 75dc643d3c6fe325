"""A signal to a suspended run: one round trip, and the row, the event and the signal that the lifecycle decides."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tenure.errors import RequestIdReused
from tenure.lifecycle.operations import Signal, Suspend
from tenure.lifecycle.records import Job
from tenure.lifecycle.timeouts import Timeouts
from tenure.seams import Seams
from tenure.stores.contract import Applied, Failure, Repeated
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.postgres.wakeups import INLINE_AFTER_SECONDS
from tenure.testing.clock import ManualClock
from tenure.testing.driver import CLIENT, Driver
from tests.stores.postgres.test_interleavings import beside
from tests.support.relay import relay_to

ROUNDS = 20
QUEUES = ("first", "second", "measured")


async def suspended(drive: Driver, delay_seconds: float | None = None, **facts: Any) -> Job:
    return await drive.apply(await drive.running(**facts), Suspend(delay_seconds))


@pytest.mark.requirement("WC-06")
async def test_a_signal_to_a_suspended_run_is_one_round_trip(dsn: str, drive: Driver) -> None:
    assert isinstance(drive.store, PostgresStore)
    async with relay_to(dsn) as (relay, through):
        clock, trips = ManualClock(), 0
        store = PostgresStore.from_url(through, seams=Seams(clock=clock))
        await store.open()
        async with drive.store.wakeups(QUEUES) as worker:
            assert await worker.wait(30), "a new listener looks once"
            for queue in QUEUES:  # the first two prepare the statement, and read the policy
                job = await suspended(drive, queue=queue)
                await drive.store.quiet()
                await worker.wait(0)
                clock.advance(2 * INLINE_AFTER_SECONDS)
                trips = relay.round_trips
                [outcome] = await store.apply([drive.request(job.id, Signal("go", "[1]"), actor=CLIENT)])
                assert isinstance(outcome, Applied)
                assert await worker.wait(30), "the signal has not notified the worker"
                await store.quiet()
            assert relay.round_trips - trips == 1
        await store.close()


@pytest.mark.requirement("WC-06", "SM-17")
@pytest.mark.parametrize("delay_seconds", [None, 0, 1000])
@pytest.mark.parametrize("queued_seconds", [None, 5])
async def test_what_is_written_is_what_the_lifecycle_decides(
    drive: Driver, delay_seconds: float | None, queued_seconds: int | None
) -> None:
    job = await suspended(drive, delay_seconds, policy={"timeouts": Timeouts(queued_seconds=queued_seconds)})
    [outcome] = await drive.store.apply([drive.request(job.id, Signal("go", "[1]"), actor=CLIENT)])
    assert isinstance(outcome, Applied)
    assert outcome.job == await drive.job(job.id)
    assert outcome.job.signal_rev == outcome.job.rev == job.rev + 1
    [expected] = outcome.change.events(outcome.at)
    written = (await drive.events_of(job.id))[-1]
    assert msgspec.structs.replace(written, position=None) == expected
    [signal] = await drive.store.signals(job.id)
    assert (signal.rev, signal.name, signal.payload, signal.at) == (expected.rev, "go", "[1]", outcome.at)
    assert [claimed.id for claimed in await drive.claim()] == [job.id]


@pytest.mark.requirement("WC-06")
async def test_a_signal_makes_a_run_due(dsn: str, drive: Driver) -> None:
    job = await suspended(drive, 1000)
    async with beside(dsn) as other:
        assert await other.claim() == []
        await drive.apply(job.id, Signal("go"), actor=CLIENT)
        assert [claimed.id for claimed in await other.claim()] == [job.id], "the run is not due"


@pytest.mark.requirement("LC-10")
async def test_two_requests_with_one_id_at_the_same_time_send_one_signal(dsn: str, drive: Driver) -> None:
    async with beside(dsn) as other:
        for number in range(ROUNDS):
            job = await suspended(drive, queue=f"round-{number}")
            request = drive.request(job.id, Signal("go", "[1]"), actor=CLIENT)
            outcomes = await asyncio.gather(*(one.try_apply(request) for one in (drive, other, drive)))
            assert sorted(type(one).__name__ for one in outcomes) == ["Applied", "Repeated", "Repeated"]
            assert len(await drive.store.signals(job.id)) == 1


@pytest.mark.requirement("LC-10")
async def test_a_request_id_of_the_log_is_not_used_again(dsn: str, drive: Driver) -> None:
    job = await suspended(drive)
    request = drive.request(job.id, Signal("go", "[1]"), actor=CLIENT)
    await drive.store.apply([request])
    async with beside(dsn) as other:
        assert isinstance(await other.try_apply(request), Repeated), "the signal was sent twice"
    for request_id in (request.request_id, str(job.id), (await drive.events_of(job.id))[1].request_id):
        [refused] = await drive.store.apply(
            [drive.request(job.id, Signal("go", "[2]"), actor=CLIENT, request_id=request_id)]
        )
        assert isinstance(refused, Failure)
        assert isinstance(refused.error, RequestIdReused)
    assert len(await drive.store.signals(job.id)) == 1


@pytest.mark.requirement("WF-11")
async def test_the_limit_of_a_suspended_run_holds_for_senders_at_the_same_time(dsn: str, drive: Driver) -> None:
    async with beside(dsn) as other:
        for number in range(ROUNDS):
            job = await suspended(drive, queue=f"limit-{number}", policy={"signals_max": 2})
            requests = [drive.request(job.id, Signal("go", str(one)), actor=CLIENT) for one in range(4)]
            sends = (by.try_apply(one) for by, one in zip((drive, other) * 2, requests, strict=True))
            outcomes = await asyncio.gather(*sends)
            assert sum(isinstance(one, Applied) for one in outcomes) == 2, "the limit did not hold"
            assert len(await drive.store.signals(job.id)) == 2
