"""The peers: their requirements, and their numbers of jobs. Slow peers have fewer jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Backend = Literal["postgres", "sqlite", "redis"]
LATENCY_SAMPLES = 300
LONG_JOBS = 400


@dataclass(frozen=True)
class Workload:
    """The work of a driver; with `defaults`, by workers with the settings of the peer's own command."""

    name: Literal["one", "bulk", "drain", "latency"]
    processes: int = 1
    defaults: bool = False
    job_ms: int = 0
    """How long the body of a job waits."""


WORKLOADS = {
    "one": Workload("one"),
    "bulk": Workload("bulk"),
    "drain1": Workload("drain"),
    "drain2": Workload("drain", processes=2),
    "latency": Workload("latency"),
    "default1": Workload("drain", defaults=True, job_ms=1),
    "default2": Workload("drain", processes=2, defaults=True, job_ms=1),
    "long1": Workload("drain", defaults=True, job_ms=100),
    "long2": Workload("drain", processes=2, defaults=True, job_ms=100),
}
"""By the name that the report uses."""


@dataclass(frozen=True)
class Peer:
    """One column of the comparison. Its driver is `benchmarks.peers.drivers.<driver>`."""

    name: str
    title: str
    backend: Backend
    requirements: tuple[str, ...]
    """The requirements for pip; the first one is the peer itself."""
    one_max: int = 2_000
    drain_max: int = 20_000
    python_least: tuple[int, int] = (3, 11)

    @property
    def driver(self) -> str:
        return self.name.replace("-", "_")

    @property
    def environment(self) -> str:
        """The folder of its environment, which the rows of one library share."""
        return self.name.partition("-")[0]

    def jobs(self, workload: str, wanted: int) -> int:
        """The number of jobs of a cell, of at most `wanted`."""
        match WORKLOADS[workload]:
            case Workload(name="latency"):
                return LATENCY_SAMPLES
            case Workload(name="one"):
                return min(wanted, self.one_max)
            case Workload(job_ms=job_ms):
                return min(wanted, self.drain_max, LONG_JOBS if job_ms >= 100 else self.drain_max)


# Our own connection, which only reads what the peer has recorded, comes with psycopg.
WATCHED = "psycopg[binary]"

TENURE = Peer("tenure", "tenure on PostgreSQL", "postgres", ("tenure[postgres]", "uvloop", WATCHED))
TENURE_SQLITE = Peer("tenure-sqlite", "tenure on SQLite", "sqlite", TENURE.requirements)

PEERS = (
    TENURE,
    Peer("pgqueuer", "PgQueuer", "postgres", ("pgqueuer", "asyncpg", "uvloop", WATCHED)),
    Peer("awa", "awa-pg", "postgres", ("awa-pg", WATCHED)),
    Peer("oban", "oban", "postgres", ("oban", "uvloop", WATCHED), drain_max=10_000, python_least=(3, 12)),
    Peer("procrastinate", "Procrastinate", "postgres", ("procrastinate", "uvloop", WATCHED), 1_000, 2_000),
    Peer("dbos", "DBOS", "postgres", ("dbos", WATCHED), 500, 1_000),
    TENURE_SQLITE,
    Peer("huey", "Huey on SQLite", "sqlite", ("huey",), drain_max=4_000),
    Peer("huey-unsynced", "Huey on SQLite without fsync", "sqlite", ("huey",), drain_max=4_000),
    Peer("celery", "Celery on Redis", "redis", ("celery[redis]",), drain_max=4_000),
    Peer("dramatiq", "Dramatiq on Redis", "redis", ("dramatiq[redis]",), drain_max=10_000),
)
