"""A signal to a suspended run: one round trip, and the row, the event and the signal that the lifecycle decides."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tenure.errors import RequestIdReused
from tenure.lifecycle.operations import Signal, Suspend
from tenure.lifecycle.records import Job, Timeouts
from tenure.stores.contract import Applied, Failure, Repeated
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.driver import CLIENT, Driver
from tests.support.relay import relay_to

ROUNDS = 20


async def suspended(drive: Driver, delay_seconds: float | None = None, **facts: Any) -> Job:
    return await drive.apply(await drive.running(**facts), Suspend(delay_seconds))


@pytest.mark.requirement("WC-06")
async def test_a_signal_to_a_suspended_run_is_one_round_trip(dsn: str, drive: Driver) -> None:
    async with relay_to(dsn) as (relay, through):
        store = PostgresStore.from_url(through)
        await store.open()
        for measured in (False, False, True):  # the first passes prepare the statement, and read the policy
            job = await suspended(drive, queue=f"measured-{measured}-{relay.round_trips}")
            trips = relay.round_trips
            [outcome] = await store.apply([drive.request(job.id, Signal("go", "[1]"), actor=CLIENT)])
            assert isinstance(outcome, Applied)
            # The notification of the worker is the second one.
            await store.quiet()
            if measured:
                assert relay.round_trips - trips <= 2
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


@pytest.mark.requirement("LC-10")
async def test_two_requests_with_one_id_at_the_same_time_send_one_signal(dsn: str, drive: Driver) -> None:
    other = PostgresStore.from_url(dsn)
    await other.open()
    for number in range(ROUNDS):
        job = await suspended(drive, queue=f"round-{number}")
        request = drive.request(job.id, Signal("go", "[1]"), actor=CLIENT)
        outcomes = await asyncio.gather(*(store.apply([request]) for store in (drive.store, other, drive.store)))
        assert sorted(type(one).__name__ for [one] in outcomes) == ["Applied", "Repeated", "Repeated"]
        assert len(await drive.store.signals(job.id)) == 1
    await other.close()


@pytest.mark.requirement("LC-10")
async def test_a_request_id_of_the_log_is_not_used_again(drive: Driver) -> None:
    job = await suspended(drive)
    request = drive.request(job.id, Signal("go", "[1]"), actor=CLIENT)
    await drive.store.apply([request])
    assert isinstance((await drive.store.apply([request]))[0], Repeated)
    for request_id in (request.request_id, str(job.id), (await drive.events_of(job.id))[1].request_id):
        [refused] = await drive.store.apply(
            [drive.request(job.id, Signal("go", "[2]"), actor=CLIENT, request_id=request_id)]
        )
        assert isinstance(refused, Failure)
        assert isinstance(refused.error, RequestIdReused)
    assert len(await drive.store.signals(job.id)) == 1
