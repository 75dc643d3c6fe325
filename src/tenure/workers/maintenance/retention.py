"""Removes what the app's retention no longer keeps: finished jobs, verbose details, and rows that nothing needs.

Every worker does it, without a leader: batches are small, skip rows that other transactions have locked, and are
followed by pauses, so that claims do not wait for them. A removal that fails half-way leaves whole jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from tenure.errors import TenureError
from tenure.lifecycle.records import Actor
from tenure.lifecycle.retention import Retention
from tenure.observe.log_format import counted
from tenure.seams import Seams
from tenure.stores.contract import (
    DeliveredMessages,
    ExpiredRateUsage,
    FinishedJobs,
    FinishedKind,
    Prunable,
    PruneStore,
    StoppedWorkers,
    VerboseEvents,
)
from tenure.workers.reconnect import DatabaseAvailability, ReconnectBackoff

BATCH = 200
TIME_SHARE = 0.1
"""The share of its time that retention uses the database, at most."""
PAUSE_SECONDS_MIN = 0.1

log = logging.getLogger("tenure.workers")


class RetentionWorkerStore(PruneStore, Protocol):
    """The part of a store that retention uses."""

    async def now(self) -> datetime: ...


class PruneReport(msgspec.Struct, frozen=True, kw_only=True):
    """How much was removed; in a dry run, how much would be. `jobs` is by status."""

    jobs: dict[str, int] = {}
    details: int = 0
    workers: int = 0
    messages: int = 0
    rate_usage: int = 0
    dry_run: bool = False

    @property
    def total(self) -> int:
        return sum(self.jobs.values()) + self.details + self.workers + self.messages + self.rate_usage

    def plus(self, prunable: Prunable, count: int) -> PruneReport:
        """The report with more of it."""
        match prunable:
            case FinishedJobs(status=status):
                jobs = {**self.jobs, status.value: self.jobs.get(status, 0) + count}
                return msgspec.structs.replace(self, jobs=jobs) if count else self
            case VerboseEvents():
                return msgspec.structs.replace(self, details=self.details + count)
            case StoppedWorkers():
                return msgspec.structs.replace(self, workers=self.workers + count)
            case DeliveredMessages():
                return msgspec.structs.replace(self, messages=self.messages + count)
            case ExpiredRateUsage():
                return msgspec.structs.replace(self, rate_usage=self.rate_usage + count)


def prunables(retention: Retention, finished: Sequence[FinishedKind], now: datetime) -> list[Prunable]:
    """What may be removed now. Finished jobs come first, since workers' rows stay while their jobs are kept."""
    found: list[Prunable] = []
    for one in finished:
        seconds = retention.job_seconds(one.status, one.kind)
        if seconds is not None and (now - one.oldest_at).total_seconds() >= seconds:
            found.append(FinishedJobs(status=one.status, kind=one.kind, older_than_seconds=seconds))
    if (seconds := retention.verbose_seconds) is not None:
        found.append(VerboseEvents(older_than_seconds=seconds))
    if (seconds := retention.delivered_seconds) is not None:
        found.append(DeliveredMessages(older_than_seconds=seconds))
    if (seconds := retention.workers_seconds) is not None:
        found.append(StoppedWorkers(older_than_seconds=seconds))
    return [*found, ExpiredRateUsage()]


class Pruner:
    """One pass over a database: removes or counts what a retention no longer keeps. Of `kinds`, jobs of these alone."""

    def __init__(self, store: RetentionWorkerStore, retention: Retention, *, kinds: Sequence[str] = ()) -> None:
        self._store, self._retention, self._kinds = store, retention, frozenset(kinds)

    async def count(self) -> PruneReport:
        """What `prune` would remove now."""
        report = PruneReport(dry_run=True)
        for prunable in await self._prunables():
            report = report.plus(prunable, await self._store.count_prunable(prunable))
        return report

    async def prune(
        self,
        *,
        actor: Actor | None = None,
        limit: int = BATCH,
        after_batch: Callable[[PruneReport], Awaitable[None]] | None = None,
    ) -> PruneReport:
        """Remove it in batches of `limit`, and call `after_batch` after each."""
        report = PruneReport()
        for first in await self._prunables():
            prunable: Prunable | None = first
            while prunable is not None:
                batch = await self._store.prune(prunable, limit=limit, actor=actor)
                report = report.plus(prunable, batch.removed)
                prunable = batch.next
                if after_batch is not None:
                    await after_batch(report)
        return report

    async def _prunables(self) -> list[Prunable]:
        finished = await self._store.finished_kinds() if self._retention.prunes_jobs else []
        wanted = [one for one in finished if not self._kinds or one.kind in self._kinds]
        return prunables(self._retention, wanted, await self._store.now())


class RetentionWorker:
    """Prunes periodically, until cancelled."""

    def __init__(
        self,
        store: RetentionWorkerStore,
        seams: Seams,
        *,
        retention: Retention,
        availability: DatabaseAvailability | None = None,
    ) -> None:
        self._seams, self._availability = seams, availability
        self._pruner = Pruner(store, retention)
        self._batch_began_seconds = 0.0

    async def run(self, *, pass_seconds: float) -> None:
        """Prune about every `pass_seconds`. Pauses have jitter, so that workers do not prune at the same time."""
        backoff = ReconnectBackoff(self._seams, self._availability)
        pause = pass_seconds * self._seams.random.fraction()
        while True:
            await self._seams.clock.sleep(pause)
            try:
                await self.prune()
                backoff.reset()
                pause = pass_seconds * (0.75 + self._seams.random.fraction() / 2)
            except TenureError as error:
                pause = backoff.failed("retention", error)

    async def prune(self) -> PruneReport:
        """Prune once."""
        self._batch_began_seconds = self._seams.clock.monotonic_seconds()
        report = await self._pruner.prune(after_batch=self._pause)
        if report.total:
            jobs = sum(report.jobs.values())
            others = counted(report.total - jobs, "other row")
            log.info("retention removed %s and %s", counted(jobs, "finished job"), others)
        return report

    async def _pause(self, _: PruneReport) -> None:
        took_seconds = self._seams.clock.monotonic_seconds() - self._batch_began_seconds
        await self._seams.clock.sleep(max(PAUSE_SECONDS_MIN, took_seconds * (1 / TIME_SHARE - 1)))
        self._batch_began_seconds = self._seams.clock.monotonic_seconds()
