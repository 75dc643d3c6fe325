"""A claimer that has found all of its jobs in one lane asks that lane alone, and sees at once when there is more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import asyncpg
import pytest

from tenure.lifecycle.operations import Stall
from tenure.lifecycle.queue_limits import QueueLimits
from tenure.stores.postgres import watermarks
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.driver import OPERATOR, RECOVERY, Driver


@pytest.fixture
def sent(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the claims that were sent."""
    names: list[str] = []
    fetch = store._connections.fetch

    async def watched(name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
        if name.startswith("jobs/claim"):
            names.append(name)
        return await fetch(name, values)

    monkeypatch.setattr(store._connections, "fetch", watched)
    return names


async def test_the_next_claim_asks_the_lane_alone_and_gets_the_same(drive: Driver, sent: list[str]) -> None:
    jobs = [await drive.add() for _ in range(6)]
    assert [job.id for job in await drive.claim(limit=2)] == [job.id for job in jobs[:2]]
    won = await drive.claim(limit=3, start=False)
    assert [job.id for job in won] == [job.id for job in jobs[2:5]]
    read = await drive.store.read([job.id for job in won])
    assert [job.status for job in won] == ["claimed"] * 3
    for job in won:
        assert (read[job.id].lease_expires_at, read[job.id].timeout_at) == (job.lease_expires_at, job.timeout_at)
    assert [job.id for job in await drive.claim(limit=3)] == [jobs[5].id]
    assert await drive.claim(limit=3) == []
    assert sent == ["jobs/claim", "jobs/claim_lane", "jobs/claim_lane", "jobs/claim_lane"]


async def test_a_claim_that_is_sent_again_is_answered_from_what_it_won(drive: Driver, sent: list[str]) -> None:
    for _ in range(4):
        await drive.add()
    await drive.claim(limit=1)
    request = drive.claim_request(limit=2)
    won = await drive.store.claim(request)
    assert await drive.store.claim(request) == won
    assert sent == ["jobs/claim", "jobs/claim_lane", "jobs/claim_lane"]


@pytest.mark.parametrize("priority", [-1, 1])
async def test_a_job_of_another_priority_is_seen_by_the_very_next_claim(
    drive: Driver, sent: list[str], priority: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermarks, "LANE_RETRY_SECONDS", 3600.0)
    jobs = [await drive.add() for _ in range(3)]
    await drive.claim(limit=1)
    other = await drive.add(priority=priority)
    expected = sorted([*jobs[1:], other], key=lambda job: (-job.origin.priority, job.due_at))
    assert [job.id for job in await drive.claim(limit=5)] == [job.id for job in expected]
    assert sent == ["jobs/claim", "jobs/claim_lane", "jobs/claim"]
    await drive.add()
    assert len(await drive.claim(limit=5)) == 1
    assert sent[3:] == ["jobs/claim"], "it was tried without success just before"


async def test_the_lane_is_asked_alone_again_after_a_while(
    drive: Driver, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermarks, "LANE_RETRY_SECONDS", 0.0)
    for priority in (0, 0, 1, 0, 0):
        await drive.add(priority=priority)
        await drive.claim()
    assert sent == [
        "jobs/claim",
        "jobs/claim_lane",
        "jobs/claim_lane",
        "jobs/claim",
        "jobs/claim_lane",
        "jobs/claim",
        "jobs/claim_lane",
    ]


async def test_a_job_that_was_lost_while_it_ran_is_claimed_alone(
    drive: Driver, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermarks, "LANE_RETRY_SECONDS", 3600.0)
    killer = await drive.running(policy={"lease_seconds": 0.05})
    others = [await drive.add() for _ in range(3)]
    async with asyncio.timeout(10):
        while not await drive.store.recoverable(limit=1):  # noqa: ASYNC110  lease runs out
            await asyncio.sleep(0.02)
    await drive.apply(killer.id, Stall(), actor=RECOVERY)
    assert [job.id for job in await drive.claim(limit=9)] == [killer.id]
    assert [job.id for job in await drive.claim(limit=9)] == [job.id for job in others]
    assert sent == ["jobs/claim", "jobs/claim_lane", "jobs/claim", "jobs/claim"]


async def test_limits_that_a_queue_is_given_hold_for_the_next_claim(
    drive: Driver, store: PostgresStore, sent: list[str]
) -> None:
    for _ in range(4):
        await drive.add()
    await drive.claim(limit=1)
    await store.queues.put("default", QueueLimits(concurrency_max=2), actor=OPERATOR)
    assert len(await drive.claim(limit=3)) == 1
    assert await drive.claim(limit=3) == []
    assert sent[:2] == ["jobs/claim", "jobs/claim_lane"]
