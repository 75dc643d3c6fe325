"""The findings of `doctor` about a PostgreSQL database."""

from __future__ import annotations

from tenure.stores.contract import Finding, PinnedJobs, UnreadableRow
from tenure.stores.findings import (
    KINDS_MAX,
    LOOKED_AT_MAX,
    SEEN_SECONDS,
    UnservedJobs,
    finished_jobs,
    paused,
    unserved_jobs,
    unserved_pins,
)
from tenure.stores.postgres.connections import Address, Connections, Session, fetch
from tenure.stores.postgres.log_positions import is_ahead
from tenure.stores.postgres.outbox import endpoints_from
from tenure.stores.postgres.queues import queue_from
from tenure.stores.postgres.rows import workers_from
from tenure.stores.quarantine import unreadable_rows

OLD_TRANSACTION_SECONDS = 300


async def database_findings(connections: Connections, address: Address) -> list[Finding]:
    """All findings about a database, good and bad."""
    async with connections.session() as connection:
        return [
            await _version(connection),
            _pooler(address),
            await _durability(connection),
            *await _blockers(connection),
            *await _foreign_log(connection),
            *await _unserved(connection),
            *await _paused(connection),
            *await _finished(connection),
        ]


async def _version(connection: Session) -> Finding:
    version = await connection.fetchval("show server_version")
    number = int(await connection.fetchval("show server_version_num"))
    if number < 140_000:
        return Finding("error", "version", f"PostgreSQL {version} is too old", "use PostgreSQL 14 or later")
    return Finding("ok", "version", f"PostgreSQL {version}")


def _pooler(address: Address) -> Finding:
    if address.listen_dsn is None:
        advice = "add listen=<direct URL> to the URL for wake-ups within milliseconds"
        return Finding("warning", "wake-up", "behind a pooler, workers find new jobs by polling only", advice)
    return Finding("ok", "wake-up", "workers are notified of new jobs by NOTIFY")


async def _durability(connection: Session) -> Finding:
    settings = {name: await connection.fetchval(f"show {name}") for name in ("fsync", "synchronous_commit")}
    weak = [f"{name} = {value}" for name, value in settings.items() if value == "off"]
    if weak:
        advice = "turn it on: an acknowledged job may otherwise be lost when the machine goes down"
        return Finding("warning", "durability", ", ".join(weak), advice)
    return Finding("ok", "durability", "an acknowledged commit is on disk")


async def _blockers(connection: Session) -> list[Finding]:
    rows = await fetch(connection, "activity/select_old_transactions", {"seconds": OLD_TRANSACTION_SECONDS})
    advice = "end it (select pg_terminate_backend(pid)): it holds back vacuum, and the log's tail waits for it"
    return [
        Finding(
            "warning",
            "long transaction",
            f"pid {row['pid']} ({row['application']}, {row['state']}) has been open for {row['seconds']} s",
            advice,
        )
        for row in rows
    ] or [Finding("ok", "long transactions", f"none older than {OLD_TRANSACTION_SECONDS} s")]


async def _foreign_log(connection: Session) -> list[Finding]:
    if await connection.fetchval("select to_regclass('tenure.events')") is None:
        return []
    if not await is_ahead(connection):
        return []
    problem = "the log has positions that this cluster has not reached: it was restored from a dump of another one"
    return [Finding("error", "log", problem, "run `tenure migrate rebase`: until then the tail returns none of it")]


async def _unserved(connection: Session) -> list[Finding]:
    """Due jobs that no worker serves, and rows of workers and endpoints that cannot be read."""
    if await connection.fetchval("select to_regclass('tenure.workers')") is None:
        return []
    values = {"looked_at": LOOKED_AT_MAX, "seen_seconds": SEEN_SECONDS, "kinds": KINDS_MAX}
    rows = await fetch(connection, "jobs/count_unserved", values)
    unreadable: list[UnreadableRow] = []
    workers = workers_from(await fetch(connection, "workers/select", {"ids": None}), unreadable)
    endpoints_from(await fetch(connection, "endpoints/select", {"name": None}), unreadable)
    pinned = [PinnedJobs(**row) for row in await fetch(connection, "jobs/count_pinned", {})]
    now = await connection.fetchval("select tenure.clock()")
    found = [*unserved_jobs(UnservedJobs(**row) for row in rows), *unserved_pins(pinned, workers, now)]
    return [*found, *unreadable_rows(unreadable)]


async def _paused(connection: Session) -> list[Finding]:
    """Queues from which nothing is claimed."""
    if await connection.fetchval("select to_regclass('tenure.queues')") is None:
        return []
    return paused(queue_from(row) for row in await fetch(connection, "queues/select", {"name": None}))


async def _finished(connection: Session) -> list[Finding]:
    """Finished jobs that no worker removes."""
    if await connection.fetchval("select to_regclass('tenure.jobs_leased')") is None:
        return []
    [row] = await fetch(connection, "jobs/estimate_finished", {"seen_seconds": SEEN_SECONDS})
    return finished_jobs(row["jobs"], pruned=row["pruned"])
