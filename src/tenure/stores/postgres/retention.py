"""Retention: removes finished jobs, verbose details and the content of a job, and resolves dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from tenure.errors import IllegalTransition, JobNotFound
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Actor, Job
from tenure.lifecycle.transitions import allowed_from
from tenure.seams import Clock
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
)
from tenure.stores.contract.retention import PRUNE_BATCH, WORKER_SLACK_SECONDS
from tenure.stores.postgres.connections import Connections, Session, fetch
from tenure.stores.postgres.finished_ranges import FinishedRanges
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.reads import jobs_by_id

DELETE: dict[type[Prunable], str] = {
    StoppedWorkers: "workers/delete_stopped",
    DeliveredMessages: "outbox/delete_delivered",
    ExpiredRateUsage: "rate_usage/delete_lapsed",
}
COUNT: dict[type[Prunable], str] = {
    FinishedJobs: "jobs/count_finished",
    VerboseEvents: "events/count_blankable",
    StoppedWorkers: "workers/count_stopped",
    DeliveredMessages: "outbox/count_delivered",
    ExpiredRateUsage: "rate_usage/count_lapsed",
}
LEAST_AT = datetime(1, 1, 1, tzinfo=UTC)


class PostgresRetention:
    """Retention in one database. Each operation is one transaction."""

    def __init__(self, connections: Connections, policies: PostgresPolicies, clock: Clock) -> None:
        self._connections, self._policies = connections, policies
        self._ranges = FinishedRanges(connections, clock)

    async def finished_kinds(self) -> list[FinishedKind]:
        return await self._ranges.kinds()

    async def prune(self, prunable: Prunable, *, limit: int = PRUNE_BATCH, actor: Actor | None = None) -> PrunedBatch:
        if isinstance(prunable, FinishedJobs):
            return await self._prune_jobs(prunable, limit=limit, actor=actor)
        return await self._connections.write(
            "retention", lambda connection: _prune(connection, prunable, limit=limit, actor=actor)
        )

    async def _prune_jobs(self, prunable: FinishedJobs, *, limit: int, actor: Actor | None) -> PrunedBatch:
        """Remove jobs from one range of ids after another, until a range had enough of them.

        Where the summaries have none, jobs may have ended since: they are made anew.
        """
        async with self._connections.session() as connection:
            before = (await _bounds(connection, prunable))["before"]
        batch = await self._prune_ranges(prunable, before, limit=limit, actor=actor, anew=False)
        return (
            batch if batch.removed else await self._prune_ranges(prunable, before, limit=limit, actor=actor, anew=True)
        )

    async def _prune_ranges(
        self, prunable: FinishedJobs, before: datetime, *, limit: int, actor: Actor | None, anew: bool
    ) -> PrunedBatch:
        removed = 0
        for ids in await self._ranges.with_jobs(prunable.status, prunable.kind, before, anew=anew):
            values = {"before": before, "after": ids.after, "until": ids.until, "limit": limit - removed}
            removed += await self._connections.write(
                "retention", partial(_remove_jobs, prunable=prunable, values=values, actor=actor)
            )
            if removed == limit:
                return PrunedBatch(removed, prunable)
            ids.attempted(prunable.status, prunable.kind)
        return PrunedBatch(removed, None)

    async def count_prunable(self, prunable: Prunable) -> int:
        async with self._connections.session() as connection:
            return await _count(connection, COUNT[type(prunable)], await _bounds(connection, prunable))

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        values = {"job_id": job_id, "reason": reason, "actor": str(actor)}
        await self._connections.write("erasure", lambda connection: fetch(connection, "jobs/erase", values))
        job = (await jobs_by_id(self._connections, self._policies, [job_id])).get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        if job.erased_at is None:
            allowed = allowed_from(job.status, committed=job.committed)
            raise IllegalTransition(job, "erase", allowed=allowed, why="only when it has ended")
        return job

    async def resolve_dead_letters(self, job_ids: Sequence[UUID], *, how: Resolution, actor: Actor) -> int:
        values = {"ids": list(job_ids), "how": how, "actor": str(actor)}
        return await self._connections.write(
            "store", lambda connection: _count(connection, "dead_letters/resolve", values)
        )


async def _prune(connection: Session, prunable: Prunable, *, limit: int, actor: Actor | None) -> PrunedBatch:
    """Remove a batch of anything but jobs."""
    values = {**await _bounds(connection, prunable), "limit": limit}
    if isinstance(prunable, VerboseEvents):
        batch, action = await _blank(connection, prunable, values), "blank"
    else:
        removed = await _count(connection, DELETE[type(prunable)], values)
        batch, action = PrunedBatch(removed, prunable if removed == limit else None), "prune"
    await _record(connection, prunable, batch.removed, action=action, actor=actor)
    return batch


async def _remove_jobs(
    connection: Session, *, prunable: FinishedJobs, values: dict[str, Any], actor: Actor | None
) -> int:
    [row] = await fetch(connection, "jobs/prune", {**values, "status": prunable.status, "kind": prunable.kind})
    if row["claims"]:
        # Two statements: the second has a snapshot from after the locks, and sees what other transactions removed.
        await fetch(connection, "claims/lock", {"request_ids": row["claims"]})
        await fetch(connection, "claims/delete", {"request_ids": row["claims"]})
    removed: int = row["removed"]
    await _record(connection, prunable, removed, action="prune", actor=actor)
    return removed


async def _record(connection: Session, prunable: Prunable, removed: int, *, action: str, actor: Actor | None) -> None:
    """Record in the operator log how much an operator removed."""
    if removed and actor is not None:
        detail = {"removed": removed, "of": type(prunable).__name__, **msgspec.structs.asdict(prunable)}
        sql = "insert into tenure.operator_log (actor, action, detail) values ($1, $2, $3)"
        await connection.execute(sql, str(actor), action, encode(detail))


async def _blank(connection: Session, prunable: VerboseEvents, values: dict[str, Any]) -> PrunedBatch:
    at, job_id, rev = prunable.after or (LEAST_AT.isoformat(), str(UUID(int=0)), "0")
    after = {"after_at": datetime.fromisoformat(at), "after_job_id": UUID(job_id), "after_rev": int(rev)}
    [row] = await fetch(connection, "events/blank", {**values, **after})
    if row["examined"] < values["limit"]:
        return PrunedBatch(row["removed"], None)
    last = (row["at"].isoformat(), str(row["job_id"]), str(row["rev"]))
    return PrunedBatch(row["removed"], msgspec.structs.replace(prunable, after=last))


async def _bounds(connection: Session, prunable: Prunable) -> dict[str, Any]:
    """The parameters that every statement about it has."""
    age_seconds = 0.0 if isinstance(prunable, ExpiredRateUsage) else prunable.older_than_seconds
    now = await connection.fetchval("select tenure.clock()")
    bounds: dict[str, Any] = {"before": now - timedelta(seconds=age_seconds)}
    if isinstance(prunable, FinishedJobs):
        bounds |= {"status": prunable.status.value, "kind": prunable.kind}
    if isinstance(prunable, StoppedWorkers):
        bounds["slack"] = timedelta(seconds=WORKER_SLACK_SECONDS)
    return bounds


async def _count(connection: Session, statement: str, values: dict[str, Any]) -> int:
    answers = await fetch(connection, statement, values)
    return int(answers[0][0])
