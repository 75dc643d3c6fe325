"""What an operator may remove: whole jobs that ended, verbose event details, the content of one job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from tenure.errors import IllegalTransition
from tenure.lifecycle.records import Actor, Job
from tenure.lifecycle.statuses import Status
from tenure.lifecycle.transitions import allowed_from
from tenure.stores.contract import (
    DeliveredMessages,
    ExpiredRateUsage,
    FinishedJobs,
    FinishedKind,
    Prunable,
    PrunedBatch,
    Resolution,
    StoppedWorkers,
    VerboseEvents,
    without_token,
)
from tenure.stores.contract.retention import PRUNE_BATCH, WORKER_SLACK_SECONDS
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import json_list, micros, timestamp

MICROS_LEAST = -(2**63)

DELETE: dict[type[Prunable], str] = {
    StoppedWorkers: "workers/delete_stopped",
    ExpiredRateUsage: "rate_usage/delete_lapsed",
}
COUNT: dict[type[Prunable], str] = {
    FinishedJobs: "jobs/count_finished",
    VerboseEvents: "events/count_blankable",
    StoppedWorkers: "workers/count_stopped",
    DeliveredMessages: "outbox/count_delivered",
    ExpiredRateUsage: "rate_usage/count_lapsed",
}
OF_JOBS = (
    "events/delete",
    "deduplicated_requests/delete",
    "signals/delete",
    "dead_letters/delete",
    "artifacts/delete",
    "steps/delete",
    "reservations/delete",
    "budgets/delete",
)


class SqliteRetention:
    """Retention and erasure in one file."""

    def __init__(self, connections: SqliteConnections) -> None:
        self._read, self._write = connections.read, connections.write

    async def finished_kinds(self) -> list[FinishedKind]:
        return await self._read(_finished_kinds)

    async def prune(self, prunable: Prunable, *, limit: int = PRUNE_BATCH, actor: Actor | None = None) -> PrunedBatch:
        return await self._write(_prune, prunable, limit=limit, actor=actor)

    async def count_prunable(self, prunable: Prunable) -> int:
        return await self._read(_count, prunable)

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        return await self._write(_erase, str(job_id), reason=reason, actor=actor)

    async def resolve_dead_letters(self, job_ids: Sequence[UUID], *, how: Resolution, actor: Actor) -> int:
        return await self._write(_resolve_dead_letters, job_ids, how=how, actor=actor)


def _finished_kinds(session: Session) -> list[FinishedKind]:
    found: list[FinishedKind] = []
    last = {"status": "", "kind": ""}
    while (row := session.execute("jobs/select_finished_kind", last).fetchone()) is not None:
        last = {"status": row[0], "kind": row[1]}
        found.append(FinishedKind(Status(row[0]), row[1], timestamp(row[2])))
    return found


def _prune(session: Session, prunable: Prunable, *, limit: int, actor: Actor | None) -> PrunedBatch:
    """Remove a batch, and record in the operator log how much an operator removed."""
    match prunable:
        case FinishedJobs():
            batch, action = _prune_jobs(session, prunable, limit), "prune"
        case VerboseEvents():
            batch, action = _blank(session, prunable, limit), "blank"
        case DeliveredMessages():
            batch, action = _prune_messages(session, prunable, limit), "prune"
        case _:
            parameters = {**_bounds(session, prunable), "limit": limit}
            with session.writing_as("retention"):
                removed = session.execute(DELETE[type(prunable)], parameters).rowcount
            batch, action = PrunedBatch(removed, prunable if removed == limit else None), "prune"
    if batch.removed and actor is not None:
        detail = {"removed": batch.removed, "of": type(prunable).__name__, **msgspec.structs.asdict(prunable)}
        session.log_operator(action, actor, detail)
    return batch


def _prune_jobs(session: Session, prunable: FinishedJobs, limit: int) -> PrunedBatch:
    """Delete finished jobs with everything that belongs to them."""
    found = session.execute("jobs/select_finished", {**_bounds(session, prunable), "limit": limit}).fetchall()
    if found:
        ids = {"ids": json_list(row[0] for row in found)}
        with session.writing_as("retention"):
            claims = session.execute("events/select_claim_requests", ids).fetchall()
            for name in (*OF_JOBS, "jobs/delete"):
                session.execute(name, ids)
            for (request_id,) in claims:
                session.execute("claims/delete", {"request_id": request_id})
    return PrunedBatch(len(found), prunable if len(found) == limit else None)


def _prune_messages(session: Session, prunable: DeliveredMessages, limit: int) -> PrunedBatch:
    """Delete delivered messages with their deliveries, and streams that are left without messages."""
    found = session.execute("outbox/select_delivered", {**_bounds(session, prunable), "limit": limit}).fetchall()
    if found:
        messages = {"sequences": json_list(sequence for sequence, _ in found)}
        with session.writing_as("retention"):
            session.execute("deliveries/delete_of_messages", messages)
            session.execute("outbox/delete", messages)
        aggregates = {aggregate for _, aggregate in found if aggregate is not None}
        session.execute("streams/delete_idle", {"aggregates": json_list(sorted(aggregates))})
    return PrunedBatch(len(found), prunable if len(found) == limit else None)


def _blank(session: Session, prunable: VerboseEvents, limit: int) -> PrunedBatch:
    """Empty the detail of verbose events that `fold` does not need. Reads up to `limit` events."""
    after_at, after_position = (int(value) for value in prunable.after or (MICROS_LEAST, 0))
    after = {"after_at": after_at, "after_position": after_position, "limit": limit}
    examined = session.execute("events/select_blankable", {**_bounds(session, prunable), **after}).fetchall()
    positions = [position for _, position, superseded in examined if superseded]
    if positions:
        with session.writing_as("retention"):
            session.execute("events/blank", {"positions": json_list(positions)})
    if len(examined) < limit:
        return PrunedBatch(len(positions), None)
    at, position, _ = examined[-1]
    return PrunedBatch(len(positions), msgspec.structs.replace(prunable, after=(str(at), str(position))))


def _count(session: Session, prunable: Prunable) -> int:
    count: int = session.execute(COUNT[type(prunable)], _bounds(session, prunable)).fetchone()[0]
    return count


def _bounds(session: Session, prunable: Prunable) -> dict[str, object]:
    """The parameters that every statement about it has."""
    age_seconds = 0.0 if isinstance(prunable, ExpiredRateUsage) else prunable.older_than_seconds
    bounds: dict[str, object] = {"before": micros(session.now - timedelta(seconds=age_seconds))}
    if isinstance(prunable, FinishedJobs):
        bounds |= {"status": prunable.status.value, "kind": prunable.kind}
    if isinstance(prunable, StoppedWorkers):
        bounds["slack"] = round(WORKER_SLACK_SECONDS * 1_000_000)
    return bounds


def _erase(session: Session, job_id: str, *, reason: str, actor: Actor) -> Job:
    """Empty the content of a job that has ended; its history stays. A second erasure changes nothing."""
    job = session.job(job_id)
    if job.live:
        allowed = allowed_from(job.status, committed=job.committed)
        raise IllegalTransition(without_token(job), "erase", allowed=allowed, why="only when it has ended")
    if job.erased_at is not None:
        return job
    with session.writing_as("erasure"):
        session.execute("jobs/erase", {"job_id": job_id, "at": micros(max(session.now, job.updated_at))})
        for name in ("events/erase", "signals/erase", "dead_letters/erase", "outbox/erase", "steps/erase"):
            session.execute(name, {"job_id": job_id})
        session.execute("artifacts/delete", {"ids": json_list([job_id])})
    session.log_operator("erase", actor, {"reason": reason}, job_id)
    return session.job(job_id)


def _resolve_dead_letters(session: Session, job_ids: Sequence[UUID], *, how: Resolution, actor: Actor) -> int:
    """Mark open dead letters as handled, and record each in the operator log. Returns how many were open."""
    resolved = 0
    for job_id in sorted(map(str, job_ids)):
        if session.execute("dead_letters/resolve", {"job_id": job_id, "at": micros(session.now), "how": how}).rowcount:
            session.log_operator(how, actor, job_id=job_id)
            resolved += 1
    return resolved
