"""Writes beside other sessions: rows that one has locked, a claim that waited for it longer than it may, and a
connection that the database refuses because there are too many."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest
from psycopg import sql

from tenure.errors import StoreUnavailable, TooManyConnections
from tenure.lifecycle.operations import Complete, Operation, Requeue, Stall
from tenure.lifecycle.records import Actor, Job
from tenure.stores import store_for
from tenure.stores.contract import EnqueueResult, Outcome, Request
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


def limited_url(session: psycopg.Connection, url: str) -> str:
    """The address of the database for a role that may be refused a connection, as a superuser never is."""
    role = f"limited_{session.info.dbname}"
    if session.execute("select from pg_roles where rolname = %s", [role]).rowcount == 0:
        create = "create role {} login in role {}"
        session.execute(sql.SQL(create).format(sql.Identifier(role), sql.Identifier(session.info.user)))
    return url.replace(f"//{session.info.user}@", f"//{role}@", 1)


def limit_connections(session: psycopg.Connection, limit: int) -> None:
    """Of that role; -1 is no limit."""
    role = sql.Identifier(f"limited_{session.info.dbname}")
    session.execute(sql.SQL("alter role {} connection limit {}").format(role, sql.Literal(limit)))


async def enqueue_after_a_refused_connection(context: Context) -> Sequence[EnqueueResult]:
    """The store has no connection, then it opens and writes."""
    with psycopg.connect(context.url, autocommit=True) as session:
        store = store_for(limited_url(session, context.url))
        limit_connections(session, 0)
        try:
            with pytest.raises(TooManyConnections):
                await store.open()
            limit_connections(session, -1)
            await store.open()
            return await store.enqueue([context.drive.enqueue(id=job_id(10), policy=LONG)])
        finally:
            await store.close()


CONTENTION_SCENARIOS: tuple[Scenario, ...] = (
    Scenario("complete beside a locked row", complete_beside_a_locked_row, three_running, only="postgres"),
    Scenario("recover beside a locked row", recover_beside_a_locked_row, three_orphans, only="postgres"),
    Scenario("claim beside a locked row", claim_beside_a_locked_row, four_queued, only="postgres"),
    Scenario("claim after a late one", claim_after_a_late_one, four_queued),
    Scenario(
        "enqueue after a refused connection", enqueue_after_a_refused_connection, new_policies=True, only="postgres"
    ),
)
