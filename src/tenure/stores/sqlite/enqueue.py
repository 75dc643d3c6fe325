"""Enqueueing: all jobs of a batch or none.

The constraints find jobs that exist already. Only then is each request looked up, one by one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from msgspec.structs import asdict, astuple

from tenure.errors import DedupeKeyConflict, RequestIdReused
from tenure.lifecycle.records import Job, origin_digests
from tenure.stores.contract import EnqueueRequest, EnqueueResult, HomogeneousResults, without_token
from tenure.stores.sqlite.rows import encode_event, encode_job, encode_new_job
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import Row, micros, text


def homogeneous_digests(requests: Sequence[EnqueueRequest]) -> list[str] | None:
    """The digests of requests that differ only in id and payload; None if they have keys, under which another job may
    exist. Computed before the writer thread runs."""
    if requests[0].has_key:
        return None
    return origin_digests([request.origin for request in requests])


def enqueue_batch(
    session: Session, requests: Sequence[EnqueueRequest], digests: Sequence[str] | None
) -> Sequence[EnqueueResult]:
    """Enqueue a batch, which is homogeneous if it has digests."""
    if digests is not None:
        results = enqueue_homogeneous(session, requests, digests)
        if results is not None:
            return results
    return enqueue(session, requests)


def enqueue(session: Session, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
    """The jobs of the requests, in their order: new ones, or those that exist under the same id or key."""
    session.savepoint("enqueue_all")
    try:
        results = _insert(session, requests)
    except sqlite3.IntegrityError:
        session.release("enqueue_all", undo=True)
        return [_enqueue_one(session, request) for request in requests]
    session.release("enqueue_all")
    return results


def enqueue_homogeneous(
    session: Session, requests: Sequence[EnqueueRequest], digests: Sequence[str]
) -> HomogeneousResults | None:
    """The new jobs of a homogeneous batch; None, and nothing written, if one of the ids is in use."""
    event, job = requests[0].decide(session.now)
    ids = [text(request.origin.id) for request in requests]
    payloads = [request.origin.payload for request in requests]
    # Without a request id of its own, an enqueue has the job's id for it.
    shared_event = asdict(encode_event(event, ids[0])) | {"request_id": None}
    session.savepoint("enqueue_homogeneous")
    try:
        shared_job = asdict(encode_job(job, policy_id=session.policy_id(job.policy)))
        session.write_rows("events/insert_homogeneous", list(zip(ids, digests, strict=True)), shared_event)
        session.write_rows("jobs/insert_homogeneous", list(zip(ids, payloads, strict=True)), shared_job)
    except sqlite3.IntegrityError:
        session.release("enqueue_homogeneous", undo=True)
        return None
    session.release("enqueue_homogeneous")
    return HomogeneousResults(job, requests)


def _insert(session: Session, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
    events: list[Row] = []
    jobs: list[Row] = []
    results: list[EnqueueResult] = []
    for request in requests:
        event, job = request.decide(session.now)
        events.append(astuple(encode_event(event, text(job.id))))
        jobs.append(encode_new_job(job, session.policy_id(job.policy)))
        results.append(EnqueueResult(job, created=True))
    session.write_rows("events/insert", events)
    session.write_rows("jobs/insert", jobs)
    return results


def _enqueue_one(session: Session, request: EnqueueRequest) -> EnqueueResult:
    existing = _enqueued_before(session, request)
    if existing is None and (existing := _duplicate(session, request)) is not None:
        _record_deduplication(session, request, existing)
    if existing is not None:
        return EnqueueResult(without_token(existing), created=False)
    return _insert(session, [request])[0]


def _enqueued_before(session: Session, request: EnqueueRequest) -> Job | None:
    """The job that this request led to before: the one that had its dedupe key, or its own."""
    origin = request.origin
    row = session.execute("deduplicated_requests/select", {"request_id": request.request_id}).fetchone()
    if row is None:
        parameters = {"id": text(origin.id), "request_id": origin.request_id}
        row = session.execute("events/select_enqueued", parameters).fetchone()
    if row is None:
        return None
    job_id, digest, detail = row
    existing = session.job(job_id)
    if digest != origin.digest() or detail != request.detail:
        raise RequestIdReused(request.request_id, current=without_token(existing))
    return existing


def _duplicate(session: Session, request: EnqueueRequest) -> Job | None:
    """The live job that has the dedupe key of this request. DedupeKeyConflict: it is of another kind."""
    origin = request.origin
    if origin.dedupe_key is None:
        return None
    row = session.execute("jobs/select_duplicate", {"dedupe_key": origin.dedupe_key}).fetchone()
    if row is None:
        return None
    existing = session.job(row[0])
    if existing.kind != origin.kind:
        raise DedupeKeyConflict(origin.dedupe_key, job_id=existing.id, kind=existing.kind)
    return existing


def _record_deduplication(session: Session, request: EnqueueRequest, existing: Job) -> None:
    """The request made no job of its own, and must not make one when it is repeated."""
    session.execute(
        "deduplicated_requests/insert",
        {
            "request_id": request.request_id,
            "digest": request.origin.digest(),
            "detail": request.detail,
            "job_id": text(existing.id),
            "at": micros(session.now),
        },
    )
