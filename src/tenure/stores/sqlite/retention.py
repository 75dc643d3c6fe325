"""What an operator may remove: whole jobs that ended, verbose event details, the content of one job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from tenure.errors import IllegalTransition
from tenure.lifecycle.records import Actor, Job
from tenure.lifecycle.transitions import allowed_from
from tenure.stores.contract import Resolution, without_token
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.rows import json_list, micros
from tenure.stores.sqlite.session import Session

CONTENT = ("artifacts/delete", "steps/delete")
"""What a job produced. Erasure deletes it too."""
OF_JOBS = ("events/delete", "deduplicated_requests/delete", "signals/delete", "dead_letters/delete", *CONTENT)


class SqliteRetention:
    """Retention and erasure in one file."""

    def __init__(self, connections: SqliteConnections) -> None:
        self._write = connections.write

    async def prune(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        return await self._write(_prune, timedelta(seconds=older_than_seconds), limit=limit, actor=actor)

    async def blank(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        return await self._write(_blank, timedelta(seconds=older_than_seconds), limit=limit, actor=actor)

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        return await self._write(_erase, str(job_id), reason=reason, actor=actor)

    async def resolve_dead_letters(self, job_ids: Sequence[UUID], *, how: Resolution, actor: Actor) -> int:
        return await self._write(_resolve_dead_letters, job_ids, how=how, actor=actor)


def _prune(session: Session, age: timedelta, *, limit: int, actor: Actor) -> int:
    """Delete jobs that ended so long ago, with everything that belongs to them. Returns how many."""
    before = session.now - age
    found = session.execute("jobs/select_finished", {"before": micros(before), "limit": limit}).fetchall()
    if not found:
        return 0
    ids = {"ids": json_list(row[0] for row in found)}
    with session.writing_as("retention"):
        claims = session.execute("events/select_claim_requests", ids).fetchall()
        for name in (*OF_JOBS, "jobs/delete"):
            session.execute(name, ids)
        for (request_id,) in claims:
            session.execute("claims/delete", {"request_id": request_id})
    session.log_operator("prune", actor, {"jobs": len(found), "before": before})
    return len(found)


def _blank(session: Session, age: timedelta, *, limit: int, actor: Actor) -> int:
    """Empty the detail of verbose events so old that `fold` does not need. Returns how many."""
    before = session.now - age
    found = session.execute("events/select_blankable", {"before": micros(before), "limit": limit}).fetchall()
    if not found:
        return 0
    with session.writing_as("retention"):
        session.execute("events/blank", {"positions": json_list(row[0] for row in found)})
    session.log_operator("blank", actor, {"events": len(found), "before": before})
    return len(found)


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
        for name in ("events/erase", "signals/erase", "dead_letters/erase"):
            session.execute(name, {"job_id": job_id})
        for name in CONTENT:
            session.execute(name, {"ids": json_list([job_id])})
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
