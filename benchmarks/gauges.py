"""The counters of PostgreSQL (bytes of its log, written rows, dead row versions), and those of Linux for its cores."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import asyncpg

from tests.support.postgres import OTHERS

LIMIT_SECONDS = 30.0
LOOK_SECONDS = 0.02

COUNTERS = """
select pg_current_wal_insert_lsn() - '0/0'::pg_lsn as wal_bytes,
    coalesce(sum(n_tup_ins), 0) as rows_inserted,
    coalesce(sum(n_tup_upd), 0) as rows_updated,
    coalesce(sum(n_tup_hot_upd), 0) as rows_updated_hot,
    coalesce(sum(n_tup_del), 0) as rows_deleted,
    coalesce(sum(n_dead_tup), 0) as dead_tuples,
    coalesce(sum(autovacuum_count), 0) as autovacuums
from pg_stat_user_tables
where schemaname = 'tenure'
"""


class PostgresGauge:
    """Reads the counters of one database of a server that does nothing else: the log is that of the whole server."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __call__(self) -> dict[str, float]:
        """The counters, once every other connection has ended: a connection reports its last counts at its end."""
        connection = await asyncpg.connect(self._url)
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                while await connection.fetchval(OTHERS):  # noqa: ASYNC110 - the server has no event for us
                    await asyncio.sleep(LOOK_SECONDS)
            await connection.execute("select pg_stat_force_next_flush()")
            row = await connection.fetchrow(COUNTERS)
        finally:
            await connection.close()
        assert row is not None, "an aggregate has one row"
        return {name: float(value) for name, value in row.items()}


@dataclass(frozen=True, slots=True)
class Cores:
    """The time of all cores since the machine started, in ticks."""

    total: int
    idle: int

    @classmethod
    def now(cls) -> Self:
        return cls.of(Path("/proc/stat").read_text(encoding="ascii"))

    @classmethod
    def of(cls, text: str) -> Self:
        """From the first line of /proc/stat. Waiting for a disk is idling; a guest's time is in the user's already.

        >>> Cores.of("cpu  50 0 10 900 40 0 0 0 7 0")
        Cores(total=1000, idle=940)
        """
        user, nice, system, idle, waiting, *rest = map(int, text.split("\n", 1)[0].split()[1:9])
        return cls(user + nice + system + idle + waiting + sum(rest), idle + waiting)

    def busy_since(self, before: Cores) -> float:
        """The share of the time since then in which they were not idle.

        >>> Cores(2000, 1240).busy_since(Cores(1000, 940))
        0.7
        """
        return 1 - (self.idle - before.idle) / max(1, self.total - before.total)
