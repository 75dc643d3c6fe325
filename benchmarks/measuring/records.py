"""The workloads, their sizes, and their results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum

import msgspec

from tenure.errors import TenureError


class Workload(StrEnum):
    """A workload."""

    ENQUEUE_ONE = "enqueue-one"
    ENQUEUE_MANY = "enqueue-many"
    DRAIN = "drain"
    CYCLE = "cycle"
    LATENCY = "latency"
    HEARTBEATS = "heartbeats"


DESCRIPTIONS = {
    Workload.ENQUEUE_ONE: "jobs are queued one by one, each call waiting for the one before",
    Workload.ENQUEUE_MANY: "jobs are queued by enqueue_many",
    Workload.DRAIN: "queued jobs that do nothing are run to their end",
    Workload.CYCLE: "jobs are queued while workers run them",
    Workload.LATENCY: "from the start of an enqueue call to the first line of the job, with an idle worker",
    Workload.HEARTBEATS: "heartbeats of many running jobs that one worker holds, and that worker's memory",
}

SHARED_BY_WORKERS = frozenset({Workload.DRAIN, Workload.CYCLE})
"""Workloads that several worker processes can share. The others have one."""


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much of each workload makes one round."""

    jobs: int = 10_000
    samples: int = 100
    """Jobs of the latency workload, one at a time."""
    running: int = 10_000
    """Jobs that run at once in the heartbeats workload."""
    concurrency: int = 1_000
    """Jobs at a time in each worker process; the heartbeats workload has as many as it needs."""

    @property
    def one_by_one(self) -> int:
        """A tenth of the jobs: queued alone, each waits for the disk."""
        return max(1, self.jobs // 10)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one workload. All of its jobs have succeeded.

    `gauged` is the increase of the database's own counters per job.
    """

    workload: Workload
    processes: int
    jobs: int
    seconds: float
    figures: dict[str, float]
    gauged: dict[str, float] = {}


class Unmeasured(msgspec.Struct, frozen=True, kw_only=True):
    """A round that has no figure, and why."""

    workload: Workload
    processes: int
    why: str


class NotMeasured(TenureError):
    """A round did not end in a way that can be counted."""


Gauge = Callable[[], Awaitable[Mapping[str, float]]]
"""Reads the database's own counters, after the benchmark has disconnected."""


async def no_gauge() -> Mapping[str, float]:
    """The gauge of a database without counters."""
    return {}


def moved(before: Mapping[str, float], after: Mapping[str, float], *, jobs: int) -> dict[str, float]:
    """The increase of each counter per job.

    >>> moved({"wal_bytes": 1000}, {"wal_bytes": 5000}, jobs=4)
    {'wal_bytes': 1000.0}
    """
    return {name: (after[name] - before[name]) / jobs for name in after}
