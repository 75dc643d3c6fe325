"""A single job is inserted by a statement of its own, which writes the same as the one for batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenure.lifecycle.timeouts import Timeouts
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.driver import Driver

NOW, ONE, BATCH = "jobs/enqueue_one_now", "jobs/enqueue_one", "jobs/enqueue_homogeneous"
ROW = """
select to_jsonb(job) - array['id', 'created_at', 'updated_at', 'due_at', 'timeout_at'] as facts,
    job.updated_at - job.created_at as updated, job.due_at - job.created_at as due,
    job.timeout_at - job.created_at as timeout,
    to_jsonb(event) - array['job_id', 'tx', 'at', 'until_at'] as event_facts,
    event.at - job.created_at as event_at, event.until_at - job.created_at as event_until
from tenure.jobs job
join tenure.events event on event.job_id = job.id
where job.id = $1
"""


@pytest.fixture
def sent(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the enqueues that were sent."""
    names: list[str] = []
    fetch = store._connections.fetch

    async def watched(name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
        if name.startswith("jobs/enqueue"):
            names.append(name)
        return await fetch(name, values)

    monkeypatch.setattr(store._connections, "fetch", watched)
    return names


@pytest.mark.parametrize(
    ("facts", "statement"),
    [
        ({}, NOW),
        ({"queue": "slow", "priority": 7, "payload": '{"to":"ada"}'}, NOW),
        ({"correlation_id": "c", "trace": "t", "submitted_by": "ada", "partition_key": "p"}, NOW),
        ({"delay_ms": 60_000}, ONE),
        ({"policy": {"timeouts": Timeouts(queued_seconds=60.0)}}, ONE),
        ({"policy": {"deadline_seconds": 60.0}}, ONE),
        ({"tags": {"customer": "ada"}}, ONE),
        ({"redrive_of": UUID(int=1)}, ONE),
        ({"parent_id": UUID(int=1), "awaited": True}, ONE),
    ],
)
async def test_a_job_enqueued_alone_has_the_row_and_event_of_one_in_a_batch(
    drive: Driver, sent: list[str], dsn: str, facts: dict[str, Any], statement: str
) -> None:
    alone = await drive.add(**facts)
    batch = await drive.store.enqueue([drive.enqueue(**facts) for _ in range(2)])
    connection = await asyncpg.connect(dsn)
    try:
        rows = [(await connection.fetch(ROW, job.id))[0] for job in (alone, *(result.job for result in batch))]
    finally:
        await connection.close()
    assert rows[0] == rows[1] == rows[2]
    assert sent == [statement, BATCH]


async def test_the_record_of_a_job_enqueued_alone_is_the_stored_one(drive: Driver) -> None:
    job = await drive.add(correlation_id="c")
    assert await drive.store.read([job.id]) == {job.id: job}
