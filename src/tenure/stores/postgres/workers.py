"""The registration of workers, and the statistics of the database."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.lifecycle.json_text import encode
from tenure.stores.contract import PinnedJobs, Stats, WorkerRecord
from tenure.stores.postgres import rows as row
from tenure.stores.postgres.connections import Connections


class PostgresWorkers:
    """The registration of workers in one database."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def register(self, worker: WorkerRecord) -> None:
        names = ("id", "host", "pid", "version", "concurrency", "prunes")
        lists = {"queues": encode(list(worker.queues)), "kinds": encode(list(worker.kinds))}
        await self._connections.fetch("workers/upsert", {**{name: getattr(worker, name) for name in names}, **lists})

    async def unregister(self, worker_id: str) -> None:
        await self._connections.fetch("workers/stop", {"id": worker_id})


async def list_workers(connections: Connections, ids: Sequence[str] | None) -> list[WorkerRecord]:
    """The workers of these ids; without ids, those that have not stopped."""
    answers = await connections.fetch("workers/select", {"ids": None if ids is None else list(ids)})
    return row.workers_from(answers)


async def read_stats(connections: Connections) -> Stats:
    [glance] = await connections.fetch("dead_letters/count_open", {})
    tallies = [row.tally_from(answer) for answer in await connections.fetch("jobs/count_by_status", {})]
    workers = await list_workers(connections, None)
    pinned = [PinnedJobs(**answer) for answer in await connections.fetch("jobs/count_pinned", {})]
    return Stats(at=glance["at"], tallies=tallies, workers=workers, dead_letters=glance["dead_letters"], pinned=pinned)
