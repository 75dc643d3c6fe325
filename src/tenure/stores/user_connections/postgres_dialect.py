"""The caller's transaction on PostgreSQL: two functions of the database, which take and give JSON as text.

Errors of the caller's driver stay the caller's, unless they speak of tenure: then they are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from tenure.errors import (
    GuardViolated,
    InvalidInput,
    JobNotFound,
    Refused,
    RequestIdReused,
    RevisionConflict,
    RowPoisoned,
    SchemaMismatch,
    StoreError,
    TenureError,
)
from tenure.lifecycle.decide import Change, decide_chain
from tenure.lifecycle.records import CONTRACT_VERSION, Event, Job, Policy
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
    settle,
    shown,
    without_secret,
)
from tenure.stores.postgres.connections import GUARD_STATE, REUSED_STATE
from tenure.stores.postgres.enqueue import enqueue_parameters, new_job
from tenure.stores.user_connections.protocol import Driver, Question

NO_SCHEMA = frozenset({"3F000", "42883", "42P01"})
"""SQLSTATEs of a schema, a function or a table that is not there."""
NOT_SERIALISABLE = "40001"

_encode = msgspec.json.Encoder(order="sorted").encode


class _Given(msgspec.Struct, frozen=True):
    """What one request led to."""

    job_id: UUID
    created: bool
    created_at: datetime


class _Enqueued(msgspec.Struct, frozen=True):
    """The answer to `enqueue`: a request id that was used before, or what each request led to."""

    reused: str | None = None
    given: list[_Given] = []
    met: dict[UUID, dict[str, Any]] = {}


class _Marked(msgspec.Struct, frozen=True):
    """The answer to `commit`: when it was written, or what stood in its way."""

    at: datetime | None = None
    taken: str | None = None
    known: str | None = None
    now: datetime | None = None
    job: dict[str, Any] | None = None
    logged: list[Event] = []


async def enqueue(borrowed: Driver, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
    """The jobs that the requests led to, in their order."""
    if not requests:
        return []
    answer = msgspec.json.decode(await _ask(borrowed, "enqueue", _enqueue_body(requests)), type=_Enqueued)
    if answer.reused is not None:
        raise RequestIdReused(answer.reused)
    return [
        EnqueueResult(new_job(request, given.created_at), created=True)
        if given.created
        else EnqueueResult(_met(answer, given.job_id), created=False)
        for request, given in zip(requests, answer.given, strict=True)
    ]


async def apply(
    borrowed: Driver, request: Request, *, messages: Sequence[OutboxMessage], artifacts: Sequence[Artifact]
) -> Outcome:
    """The outcome of one commit. Whoever lost a race is judged anew on the row as it is then."""
    belongings = {"messages": messages or None, "artifacts": artifacts or None}
    change = _foreseen(request)
    for _ in range(CONFLICTS_MAX):
        answer = await _marked(borrowed, request, change, belongings)
        if change is not None and answer.at is not None:
            return Applied(shown(change), answer.at)
        assert answer.now is not None, "what was not written is answered with the row as it stands"
        try:
            current = None if answer.job is None else _job(answer.job)
        except RowPoisoned as problem:
            return Failure(problem)
        verdict = settle(current, request, logged=answer.logged, now=answer.now)
        if isinstance(verdict, Failure) and _is_behind(verdict, request):
            raise _behind(request)
        if not isinstance(verdict, Change):
            return verdict
        change = verdict
    return Failure(conflicts_exhausted(request.job_id))


async def _marked(borrowed: Driver, request: Request, change: Change | None, belongings: dict[str, Any]) -> _Marked:
    try:
        text = await _ask(borrowed, "commit", _commit_body(request, change, belongings))
    except Exception as problem:
        if any(_state(error) == NOT_SERIALISABLE for error in _chain(problem)):
            raise _behind(request) from problem
        raise
    answer = msgspec.json.decode(text, type=_Marked)
    if answer.taken is not None:
        says = f"job {request.job_id} has one named {answer.taken!r} already; take another name"
        raise InvalidInput("artifact", says)
    if answer.known is not None:
        raise InvalidInput("id", f"there is a message {answer.known} already; make a new id for a new message")
    return answer


def _is_behind(verdict: Failure, request: Request) -> bool:
    """Whether the transaction sees a row that is older than the one that its owner has seen."""
    conflict = verdict.error
    if not isinstance(conflict, RevisionConflict) or conflict.current is None or request.rev is None:
        return False
    return conflict.current.rev < request.rev


def _behind(request: Request) -> StoreError:
    return StoreError(
        f"job {request.job_id} could not be marked as committed: its row has changed since the transaction began, by a "
        f"heartbeat for instance, and the isolation level of the transaction does not allow for that; use READ "
        f"COMMITTED for the transaction of a commit"
    )


def _foreseen(request: Request) -> Change | None:
    """The change that the caller's own record allows, where the log need not be asked first."""
    if not (request.fresh and isinstance(request.job, Job)):
        return None
    try:
        return decide_chain(request.job, request.operations, request.actor, request_id=request.request_id)
    except Refused:
        return None


def _enqueue_body(requests: Sequence[EnqueueRequest]) -> str:
    """The arrays of `tenure.enqueue`, with the policies beside them: each job has the place of its own, from 1."""
    places: dict[Policy, int] = {}
    for request in requests:
        places.setdefault(request.origin.policy, len(places) + 1)
    jobs = enqueue_parameters(requests, [places[request.origin.policy] for request in requests])
    return _encode({"jobs": jobs, "policies": [_policy(policy) for policy in places]}).decode()


def _policy(policy: Policy) -> dict[str, Any]:
    return {
        "body": _encode(policy).decode(),
        "lease_ms": policy.lease_ms,
        "heartbeat_ms": policy.heartbeat_ms,
        "queued_ms": policy.queued_ms,
        "claimed_ms": policy.claimed_ms,
        "running_ms": policy.running_ms,
    }


def _commit_body(request: Request, change: Change | None, belongings: dict[str, Any]) -> str:
    """What `tenure.commit_within` takes. Without a change it has no revision, and only tells how the job stands."""
    body: dict[str, Any] = {"id": request.job_id, "request_id": request.request_id, "version": CONTRACT_VERSION}
    if change is not None:
        [step] = change.planned
        body |= {
            "rev": change.before.rev,
            "token": change.actor.token,
            "actor": str(change.actor),
            "result": step.content,
            "digest": step.digest,
            **belongings,
        }
    return _encode(body).decode()


def _met(answer: _Enqueued, job_id: UUID) -> Job:
    row = answer.met.get(job_id)
    if row is None:
        raise JobNotFound(job_id)
    return without_secret(_job(row))


def _job(row: dict[str, Any]) -> Job:
    """The record of a row that came as JSON, its policy's body with it."""
    try:
        tags, policy = row["tags"], msgspec.json.decode(row["policy"], type=Policy)
        origin = {
            **row,
            "payload": row["payload"] or "null",
            "tags": None if tags is None else msgspec.json.decode(tags),
            "policy": msgspec.to_builtins(policy),
        }
        return msgspec.convert({**row, "origin": origin}, type=Job)
    except (KeyError, TypeError, msgspec.MsgspecError, InvalidInput) as problem:
        raise RowPoisoned(row.get("id"), f"its row cannot be read: {problem!r}") from problem


async def _ask(borrowed: Driver, question: Question, body: str) -> str:
    try:
        return await borrowed.ask(question, body)
    except Exception as problem:
        ours = _as_ours(problem)
        if ours is None:
            raise
        raise ours from problem


def _as_ours(problem: BaseException) -> TenureError | None:
    """What a driver's error means to us, by its SQLSTATE; None where it is between the caller and the database."""
    for error in _chain(problem):
        state = _state(error)
        if state == REUSED_STATE:
            return RequestIdReused(_detail(error))
        if state == GUARD_STATE:
            return GuardViolated(str(error))
        if state in NO_SCHEMA:
            says = "the database of this connection has no tenure schema, or an older one"
            return SchemaMismatch(
                f"{says} ({error}); run `tenure migrate` on it, or pass a connection to the app's own database"
            )
    return None


def _state(error: BaseException) -> str | None:
    state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    """An error and what it wraps: SQLAlchemy and Django put their own around the driver's."""
    while problem is not None:
        yield problem
        problem = getattr(problem, "orig", None) or problem.__cause__


def _detail(error: BaseException) -> str:
    diagnosis = getattr(error, "diag", None)
    return str(getattr(error, "detail", None) or getattr(diagnosis, "message_detail", None) or error)
