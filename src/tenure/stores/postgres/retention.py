"""What an operator may remove: ended jobs, verbose details, one job's content; and the resolution of dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from tenure.errors import IllegalTransition, JobNotFound
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Actor, Job
from tenure.lifecycle.transitions import allowed_from
from tenure.stores.contract import Resolution
from tenure.stores.postgres.connections import Connections, Session, fetch
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.reads import jobs_by_id


class PostgresRetention:
    """Retention in one database. Each operation is one transaction."""

    def __init__(self, connections: Connections, policies: PostgresPolicies) -> None:
        self._connections, self._policies = connections, policies

    async def prune(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        async def work(connection: Session) -> int:
            # One at a time: a claim is deleted with the last of its jobs, and two transactions that delete the last
            # two jobs of a claim would each leave it to the other.
            await connection.execute("select pg_advisory_xact_lock(hashtextextended('tenure.prune', 0))")
            return await _remove(connection, "jobs/prune", "prune", older_than_seconds, limit, actor)

        return await self._connections.write("retention", work)

    async def blank(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        return await self._connections.write(
            "retention",
            lambda connection: _remove(connection, "events/blank", "blank", older_than_seconds, limit, actor),
        )

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


async def _remove(
    connection: Session, statement: str, action: str, older_than_seconds: float, limit: int, actor: Actor
) -> int:
    """Run the statement on what is older, and record in the operator log how much it removed."""
    before = await connection.fetchval("select tenure.clock()") - timedelta(seconds=older_than_seconds)
    count = await _count(connection, statement, {"before": before, "limit": limit})
    if count:
        sql = "insert into tenure.operator_log (actor, action, detail) values ($1, $2, $3)"
        await connection.execute(sql, str(actor), action, encode({"count": count}))
    return count


async def _count(connection: Session, statement: str, values: dict[str, Any]) -> int:
    answers = await fetch(connection, statement, values)
    return int(answers[0][0])
