"""Writes beside another session: rows that it has locked, and a claim that waited for it longer than it may."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg

from tenure.errors import StoreUnavailable
from tenure.lifecycle.operations import Complete, Operation, Requeue, Stall
from tenure.lifecycle.records import Actor, Job
from tenure.stores.contract import Outcome, Request
from tenure.testing.driver import RECOVERY, Driver, runner
from tests.crash.scenario import LONG, TOKEN, Context, Scenario, job_id, orphan, running

WAIT_SECONDS_MAX = 0.05
"""How long the late claim may wait for its lock."""


@contextmanager
def row_locked(context: Context) -> Iterator[None]:
    """Another session has locked the row of the first job."""
    with psycopg.connect(context.url) as session:
        session.execute("select from tenure.jobs where id = %s for update", [context.job.id])
        yield
        session.rollback()


@contextmanager
def jobs_locked(context: Context) -> Iterator[None]:
    """Another session has locked all jobs."""
    if context.url.startswith("sqlite:"):
        with closing(sqlite3.connect(context.url.removeprefix("sqlite:///"), isolation_level=None)) as session:
            session.execute("begin immediate")
            yield
            session.execute("rollback")
    else:
        with psycopg.connect(context.url) as session:
            session.execute("lock table tenure.jobs in access exclusive mode")
            yield
            session.rollback()


async def four_queued(drive: Driver) -> list[Job]:
    return [await drive.add(id=job_id(number), policy=LONG, priority=number) for number in range(1, 5)]


async def three_running(drive: Driver) -> list[Job]:
    return [await running(drive, number=number) for number in (1, 2, 3)]


async def three_orphans(drive: Driver) -> list[Job]:
    return [await orphan(drive, number=number) for number in (1, 2, 3)]


async def apply_to_all(context: Context, *operations: Operation, by: Actor | None) -> list[Outcome]:
    """The job whose row is locked is skipped, and the others change."""
    requests = [
        Request(job=job, operations=operations, actor=by or runner(job), request_id=f"the-request-{job.id}", fresh=True)
        for job in context.jobs
    ]
    with row_locked(context):
        return await context.store.apply(requests)


async def complete_beside_a_locked_row(context: Context) -> list[Outcome]:
    return await apply_to_all(context, Complete('"done"'), by=None)


async def recover_beside_a_locked_row(context: Context) -> list[Outcome]:
    return await apply_to_all(context, Stall(), Requeue(), by=RECOVERY)


async def claim_beside_a_locked_row(context: Context) -> list[Job]:
    with row_locked(context):
        return await context.store.claim(context.drive.claim_request(limit=3, token=TOKEN, request_id="the-claim"))


async def claim_after_a_late_one(context: Context) -> list[Job]:
    """A claim that waited for too long takes nothing, and the same claim takes the jobs afterwards. A repetition may
    find the jobs that it won in spite of the wait."""
    facts = {"limit": 3, "token": TOKEN, "request_id": "the-claim"}
    with jobs_locked(context):
        late = asyncio.create_task(
            context.store.claim(context.drive.claim_request(wait_seconds_max=WAIT_SECONDS_MAX, **facts))
        )
        await asyncio.wait({late}, timeout=3 * WAIT_SECONDS_MAX)
    with suppress(StoreUnavailable):
        return await late
    return await context.store.claim(context.drive.claim_request(**facts))


CONTENTION_SCENARIOS: tuple[Scenario, ...] = (
    Scenario("complete beside a locked row", complete_beside_a_locked_row, three_running, only="postgres"),
    Scenario("recover beside a locked row", recover_beside_a_locked_row, three_orphans, only="postgres"),
    Scenario("claim beside a locked row", claim_beside_a_locked_row, four_queued, only="postgres"),
    Scenario("claim after a late one", claim_after_a_late_one, four_queued),
)
