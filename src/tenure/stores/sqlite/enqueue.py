"""Adding jobs, inside the write transaction: all of a batch or none.

The constraints find what is there already. Only when they do is each request looked into, one by one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from tenure.errors import RequestIdReused
from tenure.lifecycle.records import Job, origin_digests
from tenure.stores.contract import EnqueueRequest, EnqueueResult, HomogeneousResults, without_secret
from tenure.stores.sqlite.apply import read_one
from tenure.stores.sqlite.policies import SqlitePolicies
from tenure.stores.sqlite.rows import event_row, micros, new_job_row, text
from tenure.stores.sqlite.statements import Row, by_name, sql, write_rows
from tenure.stores.sqlite.writer_thread import Work

if TYPE_CHECKING:
    from tenure.stores.sqlite.connections import SqliteConnections

ReadJob = Callable[[str], Job]


def prepare(
    connections: SqliteConnections, requests: Sequence[EnqueueRequest], *, homogeneous: bool
) -> Work[Sequence[EnqueueResult]]:
    """The work for the writer thread. What can be computed before it runs is computed here."""
    digests = alike_digests(requests) if homogeneous else None

    def work(connection: sqlite3.Connection) -> Sequence[EnqueueResult]:
        now, policies, policy_of = connections.clock(), connections.policies, connections.policies_on(connection)
        if digests is not None:
            new = enqueue_homogeneous(connection, requests, digests, now=now, policies=policies)
            if new is not None:
                return new
        return enqueue(
            connection,
            requests,
            now=now,
            policies=policies,
            read=lambda job_id: read_one(connection, job_id, policy_of),
        )

    return work


def enqueue(
    connection: sqlite3.Connection,
    requests: Sequence[EnqueueRequest],
    *,
    now: datetime,
    policies: SqlitePolicies,
    read: ReadJob,
) -> list[EnqueueResult]:
    """The jobs that the requests led to, in their order."""
    connection.execute("savepoint add_all")
    try:
        added = _add_all(connection, requests, now=now, policies=policies)
    except sqlite3.IntegrityError:
        connection.execute("rollback to add_all")
        policies.forget_ids()
        added = [_add_one(connection, request, now=now, policies=policies, read=read) for request in requests]
    connection.execute("release add_all")
    return added


def alike_digests(requests: Sequence[EnqueueRequest]) -> list[str] | None:
    """What names the jobs of requests that differ in nothing but id and payload; None where they have keys, under
    which another job may be there."""
    first = requests[0].origin
    if first.dedupe_key is not None or first.request_id is not None:
        return None
    return origin_digests([request.origin for request in requests])


def enqueue_homogeneous(
    connection: sqlite3.Connection,
    requests: Sequence[EnqueueRequest],
    digests: Sequence[str],
    *,
    now: datetime,
    policies: SqlitePolicies,
) -> HomogeneousResults | None:
    """The new jobs of requests that are alike; None, and nothing written, where one of them was asked before."""
    event, job = requests[0].decide(now)
    ids = [text(request.origin.id) for request in requests]
    payloads = [request.origin.payload for request in requests]
    # An event without a request of its own is named by its job.
    logged = by_name("insert_events", event_row(event, ids[0])) | {"request_id": None}
    connection.execute("savepoint enqueue_homogeneous")
    try:
        shared = by_name("insert_jobs", new_job_row(job, ids[0], policies.insert(connection, job.policy)))
        write_rows(connection, "insert_events_alike", list(zip(ids, digests, strict=True)), logged)
        write_rows(connection, "insert_jobs_alike", list(zip(ids, payloads, strict=True)), shared)
    except sqlite3.IntegrityError:
        connection.execute("rollback to enqueue_homogeneous")
        connection.execute("release enqueue_homogeneous")
        policies.forget_ids()
        return None
    connection.execute("release enqueue_homogeneous")
    return HomogeneousResults(job, requests)


def _add_all(
    connection: sqlite3.Connection, requests: Sequence[EnqueueRequest], *, now: datetime, policies: SqlitePolicies
) -> list[EnqueueResult]:
    events: list[Row] = []
    jobs: list[Row] = []
    added: list[EnqueueResult] = []
    for request in requests:
        job_id = text(request.origin.id)
        event, job = request.decide(now)
        events.append(event_row(event, job_id))
        jobs.append(new_job_row(job, job_id, policies.insert(connection, job.policy)))
        added.append(EnqueueResult(job, created=True))
    write_rows(connection, "insert_events", events)
    write_rows(connection, "insert_jobs", jobs)
    return added


def _add_one(
    connection: sqlite3.Connection, request: EnqueueRequest, *, now: datetime, policies: SqlitePolicies, read: ReadJob
) -> EnqueueResult:
    existing = _asked_before(connection, request, read)
    if existing is None and (existing := _duplicate(connection, request, read)) is not None:
        _remember(connection, request, existing, now=now)
    if existing is not None:
        return EnqueueResult(without_secret(existing), created=False)
    return _add_all(connection, [request], now=now, policies=policies)[0]


def _asked_before(connection: sqlite3.Connection, request: EnqueueRequest, read: ReadJob) -> Job | None:
    """The job that this request led to when it first came: another's, under its dedupe key, or its own."""
    origin = request.origin
    row = connection.execute(sql("answered"), {"request_id": request.request_id}).fetchone()
    if row is None:
        parameters = {"id": text(origin.id), "request_id": origin.request_id}
        row = connection.execute(sql("enqueued_as"), parameters).fetchone()
    if row is None:
        return None
    job_id, digest, detail = row
    existing = read(job_id)
    if digest != origin.digest() or detail != request.detail:
        raise RequestIdReused(request.request_id, current=without_secret(existing))
    return existing


def _duplicate(connection: sqlite3.Connection, request: EnqueueRequest, read: ReadJob) -> Job | None:
    origin = request.origin
    if origin.dedupe_key is None:
        return None
    row = connection.execute(sql("live_duplicate"), {"kind": origin.kind, "dedupe_key": origin.dedupe_key}).fetchone()
    return None if row is None else read(row[0])


def _remember(connection: sqlite3.Connection, request: EnqueueRequest, existing: Job, *, now: datetime) -> None:
    """The request made no job of its own, and must not make one when it comes again."""
    connection.execute(
        sql("insert_answer"),
        {
            "request_id": request.request_id,
            "digest": request.origin.digest(),
            "detail": request.detail,
            "job_id": text(existing.id),
            "at": micros(now),
        },
    )
