"""The limit that the database sets: a hand-written loop that claims and completes jobs, and leaves the same rows.

Plain asyncpg and two statements; nothing of tenure's Python. It writes what a worker writes (the job's row twice, four
events less the first, one row for each claim) under the same guards, and `tenure verify` finds nothing wrong with it
afterwards. Unlike a worker it checks no lease, decides nothing, runs no function, renews nothing, and cannot stop
half-way.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from uuid import uuid4

import asyncpg

BATCH, LANES = 500, 3
LIMIT_SECONDS = 300
DIGEST = "dCNOmK_nSY-12vHzasLXig"
"""Of the result `null`."""

CLAIM = """
with clock as materialized (
    select clock_timestamp() as now
),
due as materialized (
    select job.id
    from tenure.jobs job, clock
    where job.queue = $1
      and job.priority = 0
      and job.status in ('queued', 'retry', 'waiting', 'stalled')
      and job.due_at is not null
      and job.due_at <= clock.now
    order by job.due_at, job.id
    limit $2
    for no key update skip locked
),
moved as (
    update tenure.jobs job
    set status = 'running',
        previous_status = job.status,
        rev = job.rev + 2,
        transition_count = 2,
        attempt = job.attempt + 1,
        updated_at = clock.now,
        owner = $3,
        token = $4,
        lease_expires_at = clock.now + interval '60 seconds',
        heartbeat_deadline_at = clock.now + interval '40 seconds',
        timeout_at = clock.now + interval '1 day',
        started_at = clock.now
    from due, clock
    where job.id = due.id
    returning job.id, job.rev, job.attempt, job.previous_status, job.payload, job.updated_at, job.lease_expires_at
),
logged as (
    insert into tenure.events (job_id, at, until_at, rev, attempt, version, commits, type, from_status, to_status,
        actor, request_id)
    select moved.id, moved.updated_at, moved.lease_expires_at, moved.rev, moved.attempt, 1, false, 'claimed',
        moved.previous_status, 'running', 'pool:' || $3, $5
    from moved
),
recorded as (
    insert into tenure.claims (request_id, body, at, job_ids)
    select $5, '[]', min(clock.now), array_agg(due.id)
    from due, clock
    having count(*) > 0
)
select moved.id, moved.payload
from moved
"""

COMPLETE = """
with clock as materialized (
    select clock_timestamp() as now
),
moved as (
    update tenure.jobs job
    set status = 'succeeded',
        previous_status = job.status,
        rev = job.rev + 1,
        transition_count = 1,
        updated_at = clock.now,
        finished_at = clock.now,
        committed_at = clock.now,
        result = 'null',
        owner = null,
        token = null,
        lease_expires_at = null,
        heartbeat_deadline_at = null,
        timeout_at = null
    from clock
    where job.id = any ($1::uuid[])
      and job.token = $2
    returning job.id, job.rev, job.attempt, job.updated_at
),
logged as (
    insert into tenure.events (job_id, at, rev, attempt, version, commits, type, from_status, to_status, actor,
        request_id, digest)
    select moved.id, moved.updated_at, moved.rev, moved.attempt, 1, true, 'succeeded', 'running', 'succeeded',
        'runner:' || $3, $4, $5
    from moved
)
select count(*)
from moved
"""


def drain(url: str, queue: str, *, processes: int) -> tuple[int, float]:
    """How many jobs were ended, and the seconds from the first claim to the last answer."""
    ready_at = time.time() + 2.0
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_process, url, queue, ready_at) for _ in range(processes)]
        ended = [future.result(timeout=LIMIT_SECONDS) for future in futures]
    return sum(one[0] for one in ended), max(one[2] for one in ended) - min(one[1] for one in ended)


def _process(url: str, queue: str, ready_at: float) -> tuple[int, float, float]:
    return asyncio.run(_lanes(url, queue, ready_at))


async def _lanes(url: str, queue: str, ready_at: float) -> tuple[int, float, float]:
    connections = [await asyncpg.connect(url) for _ in range(LANES)]
    for connection in connections:
        await connection.execute("set tenure.writer = 'store'")
    await asyncio.sleep(max(0.0, ready_at - time.time()))
    began = time.monotonic()
    async with asyncio.timeout(LIMIT_SECONDS):
        done = await asyncio.gather(*(_lane(connection, queue) for connection in connections))
    ended = time.monotonic()
    for connection in connections:
        await connection.close()
    return sum(done), began, ended


async def _lane(connection: asyncpg.Connection, queue: str) -> int:
    claim, complete = await connection.prepare(CLAIM), await connection.prepare(COMPLETE)
    worker, token, done = f"raw-{uuid4().hex[:10]}", uuid4(), 0
    while True:
        jobs = await claim.fetch(queue, BATCH, worker, token, f"{worker}.{done}")
        if not jobs:
            return done
        ids = [job["id"] for job in jobs]
        ended = await complete.fetchval(ids, token, worker, f"{worker}.{done}.end", DIGEST)
        if ended != len(ids):
            raise RuntimeError(f"{len(ids) - ended} of {len(ids)} jobs could not be ended")
        done += ended
