"""A claim that a lock keeps waiting for too long takes nothing; one that waited a little has the whole of its lease."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tenure.errors import StoreUnavailable
from tenure.lifecycle.statuses import Status
from tenure.seams import SYSTEM
from tenure.testing.driver import Driver
from tests.support.databases import Database

WAIT_SECONDS = 0.2
PLENTY_SECONDS = 30.0


@asynccontextmanager
async def locked(database: Database) -> AsyncIterator[None]:
    """Another session keeps every claim waiting."""
    if database.is_sqlite:
        file = sqlite3.connect(database.path, isolation_level=None)
        file.execute("begin immediate")
        yield
        file.rollback()
        file.close()
    else:
        with psycopg.connect(database.url) as connection:
            connection.execute("lock table tenure.jobs in access exclusive mode")
            yield


async def waiting(claim: asyncio.Task[Any]) -> None:
    """Until the claim has waited longer than it may."""
    await asyncio.wait({claim}, timeout=3 * WAIT_SECONDS)


@pytest.mark.requirement("LC-05", "SM-02")
async def test_a_claim_that_waited_too_long_takes_nothing(database: Database) -> None:
    async with database.opened() as store:
        drive = Driver(store)
        job = await drive.add()
        request = drive.claim_request(wait_seconds_max=WAIT_SECONDS)
        async with locked(database):
            claim = asyncio.create_task(store.claim(request))
            await waiting(claim)
        with pytest.raises(StoreUnavailable, match=r"claim"):
            async with asyncio.timeout(PLENTY_SECONDS):
                await claim
        record = (await store.read([job.id]))[job.id]
        assert (record.status, record.attempt, record.failures) == (Status.QUEUED, 0, 0)
        assert [one.id for one in await drive.claim()] == [job.id]


async def test_the_lease_of_a_claim_that_waited_begins_when_it_is_executed(database: Database) -> None:
    async with database.opened() as store:
        drive = Driver(store)
        await drive.add(policy={"lease_seconds": 60})
        async with locked(database):
            claim = asyncio.create_task(store.claim(drive.claim_request(wait_seconds_max=PLENTY_SECONDS)))
            await waiting(claim)
            released_at = SYSTEM.clock.now()
        async with asyncio.timeout(PLENTY_SECONDS):
            [job] = await claim
        assert job.lease_expires_at is not None
        assert job.lease_expires_at - timedelta(seconds=60) >= released_at
