"""Enqueue and commit mark on PostgreSQL: two functions of the schema, which take and return JSON as text.

An error of the user's driver is raised unchanged, unless its SQLSTATE is one of the schema's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from tenure import errors
from tenure.lifecycle.decide import Change, decide_chain
from tenure.lifecycle.records import CONTRACT_VERSION, Event, Job
from tenure.stores.base import CONFLICTS_MAX, conflicts_exhausted
from tenure.stores.contract import (
    Applied,
    Artifact,
    EnqueueRequest,
    EnqueueResult,
    Failure,
    OutboxMessage,
    Outcome,
    Request,
    decide_request,
    redacted,
    without_token,
)
from tenure.stores.postgres.connections import GUARD_STATE, REUSED_STATE
from tenure.stores.postgres.enqueue import TakenKey, enqueue_parameters, new_job
from tenure.stores.sql_files import numbered
from tenure.stores.user_connections.protocol import UserConnection

SCHEMA_STATES = frozenset({"3F000", "42883", "42P01"})  # The schema, a function or a table does not exist.
SERIALIZATION_STATE = "40001"
PRIVILEGE_STATE = "42501"
_NEEDS = {"enqueue": "enqueuer", "commit": "worker", "post": "enqueuer"}
_encode = msgspec.json.Encoder(order="sorted").encode


class _EnqueuedJob(msgspec.Struct, frozen=True):
    job_id: UUID
    created: bool
    created_at: datetime


class _EnqueueReply(msgspec.Struct, frozen=True):
    """A request id that was used before; or a dedupe key of another kind's live job; or the jobs of the requests, and
    the rows of those that existed."""

    reused: str | None = None
    conflict: TakenKey | None = None
    given: list[_EnqueuedJob] = []
    met: dict[UUID, dict[str, Any]] = {}


class _CommitReply(msgspec.Struct, frozen=True):
    """The time of the commit mark; or an artifact name or message id in use; or the job's row and logged events."""

    at: datetime | None = None
    taken: str | None = None
    known: str | None = None
    now: datetime | None = None
    job: dict[str, Any] | None = None
    logged: list[Event] = []


class PostgresDialect:
    """The schema of tenure in the database that a connection leads to."""

    async def enqueue(self, user: UserConnection, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        """Add jobs; the results are in the order of the requests."""
        if not requests:
            return []
        reply = msgspec.json.decode(await _call(user, "enqueue", _enqueue_body(requests)), type=_EnqueueReply)
        if reply.reused is not None:
            raise errors.RequestIdReused(reply.reused)
        if (taken := reply.conflict) is not None:
            raise errors.DedupeKeyConflict(taken.dedupe_key, job_id=taken.job_id, kind=taken.kind)
        results = []
        for request, one in zip(requests, reply.given, strict=True):
            if one.created:
                job = new_job(request, one.created_at)
            elif (row := reply.met.get(one.job_id)) is not None:
                job = without_token(_decode_job(row))
            else:
                raise errors.JobNotFound(one.job_id)
            results.append(EnqueueResult(job, created=one.created))
        return results

    async def apply(
        self, user: UserConnection, request: Request, messages: Sequence[OutboxMessage], artifacts: Sequence[Artifact]
    ) -> Outcome:
        """Write a commit mark. If the row has changed, the request is decided again on the row of the reply."""
        content = {"messages": messages or None, "artifacts": artifacts or None}
        change: Change | None = None
        if request.fresh and isinstance(request.job, Job):
            # Otherwise, or if this is refused, the first call only reads the row.
            with suppress(errors.Refused):
                change = decide_chain(request.job, request.operations, request.actor, request_id=request.request_id)
                change = change.with_owner_steps(request.steps)
        for _ in range(CONFLICTS_MAX):
            reply = await _commit(user, request, change, content)
            if change is not None and reply.at is not None:
                return Applied(redacted(change), reply.at)
            assert reply.now is not None, "a reply without a mark has the row and the clock"
            try:
                current = None if reply.job is None else _decode_job(reply.job)
            except errors.RowPoisoned as error:
                return Failure(error)
            if current is not None and request.rev is not None and current.rev < request.rev:
                raise _stale_snapshot(request)
            decision = decide_request(current, request, logged=reply.logged, now=reply.now)
            if not isinstance(decision, Change):
                return decision
            change = decision
        return Failure(conflicts_exhausted(request.job_id))

    async def post(self, user: UserConnection, messages: Sequence[OutboxMessage]) -> None:
        """Write messages of no job."""
        _decode_reply(await _call(user, "post", _encode({"messages": messages}).decode()))


async def _commit(user: UserConnection, request: Request, change: Change | None, content: Any) -> _CommitReply:
    try:
        text = await _call(user, "commit", _commit_body(request, change, content))
    except Exception as error:
        if any(state == SERIALIZATION_STATE for state, _ in _states(error)):
            raise _stale_snapshot(request) from error
        raise
    reply = _decode_reply(text)
    if reply.taken is not None:
        raise errors.InvalidInput("artifact", f"{reply.taken!r} already belongs to job {request.job_id}; rename it")
    return reply


def _decode_reply(text: str) -> _CommitReply:
    reply = msgspec.json.decode(text, type=_CommitReply)
    if reply.known is not None:
        raise errors.InvalidInput("id", f"message {reply.known} exists already; make a new id for each message")
    return reply


def _stale_snapshot(request: Request) -> errors.StoreError:
    return errors.StoreError(
        f"job {request.job_id} cannot be committed: its row has changed since the transaction began, for example by a "
        f"heartbeat, and the isolation level of the transaction does not allow it; use READ COMMITTED"
    )


def _enqueue_body(requests: Sequence[EnqueueRequest]) -> str:
    """The arrays of `tenure.enqueue_jobs`, whose `policies` are places, from 1, in the list of policies beside them."""
    policies = dict.fromkeys(request.origin.policy for request in requests)
    places = {policy: place for place, policy in enumerate(policies, start=1)}
    jobs = enqueue_parameters(requests, [places[request.origin.policy] for request in requests])
    columns = ("lease_ms", "heartbeat_ms", "queued_ms", "claimed_ms", "running_ms", "deadline_ms")
    rows = [{"body": _encode(one).decode(), **{name: getattr(one, name) for name in columns}} for one in policies]
    return _encode({"jobs": jobs, "policies": rows}).decode()


def _commit_body(request: Request, change: Change | None, content: dict[str, Any]) -> str:
    """The parameter of `tenure.commit_within`. Without a change it has no revision, and the row is only read."""
    body: dict[str, Any] = {"id": request.job_id, "request_id": request.request_id, "version": CONTRACT_VERSION}
    if change is not None:
        [planned] = change.planned
        body |= {"rev": change.before.rev, "token": change.actor.token, "actor": str(change.actor)}
        body |= {"result": planned.content, "digest": planned.digest, "detail": planned.fields.detail, **content}
        body["steps"] = planned.steps
    return _encode(body).decode()


def _decode_job(row: dict[str, Any]) -> Job:
    """Decode a row that the functions return as JSON, with the body of its policy."""
    try:
        origin = {
            **row,
            "payload": row["payload"] or "null",
            "tags": None if row["tags"] is None else msgspec.json.decode(row["tags"]),
            "policy": msgspec.json.decode(row["policy"]),
        }
        return msgspec.convert({**row, "origin": origin}, type=Job)
    except (KeyError, TypeError, msgspec.MsgspecError, errors.InvalidInput) as error:
        raise errors.RowPoisoned(row.get("id"), f"its row cannot be decoded: {error!r}") from error


async def _call(user: UserConnection, name: str, body: str) -> str:
    try:
        return await user.fetch_text(numbered("tenure.stores.user_connections", name).sql.strip(), body)
    except Exception as error:
        if (own := _own_error(error, needs=_NEEDS[name])) is None:
            raise
        raise own from error


def _own_error(error: Exception, *, needs: str) -> errors.TenureError | None:
    """Translate an error of the user's driver by its SQLSTATE. None: it is not one of the schema's."""
    for state, cause in _states(error):
        if state == REUSED_STATE:
            detail = getattr(cause, "detail", None) or getattr(getattr(cause, "diag", None), "message_detail", None)
            return errors.RequestIdReused(detail or str(cause))
        if state == GUARD_STATE:
            return errors.GuardViolated(str(cause))
        if state == PRIVILEGE_STATE:
            return errors.PrivilegeMissing(str(cause).partition("\n")[0], needs=needs)
        if state in SCHEMA_STATES:
            problem = f"the database of this connection has no tenure schema, or an older one ({cause})"
            return errors.SchemaMismatch(f"{problem}; run `tenure migrate` on it, or connect to the app's database")
    return None


def _states(error: BaseException | None) -> Iterator[tuple[str | None, BaseException]]:
    """Yield the SQLSTATEs of an error and of the errors that it wraps: SQLAlchemy and Django wrap the driver's."""
    while error is not None:
        yield getattr(error, "sqlstate", None) or getattr(error, "pgcode", None), error
        error = getattr(error, "orig", None) or error.__cause__
