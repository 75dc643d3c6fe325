"""Administration of jobs, one or many by filter: cancel, redrive, discard, provenance.

Many are processed in pages, each in one batch, up to a limit. Refused jobs are reported, and the rest continues. The
store decides each request; a request that a concurrent change has overtaken is sent again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Protocol

from tenure.client.bulk_reports import CancelReport, DiscardReport, RedriveReport, SkippedJob
from tenure.client.cancel import Canceller
from tenure.client.forks import continued_by
from tenure.client.job_id import JobId, job_id_of
from tenure.client.matching_records import LimitedPages, MatchingRecords, require_statuses
from tenure.client.redrive import Redriver, refused
from tenure.errors import IllegalTransition, JobNotFound
from tenure.lifecycle.continuations import continued_as
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.operations import Signal, Wake
from tenure.lifecycle.provenance import Provenance, provenance
from tenure.lifecycle.records import Actor, Job
from tenure.lifecycle.retention import Retention
from tenure.lifecycle.statuses import CANCELLED, LIVE
from tenure.seams import SYSTEM, Seams
from tenure.stores.contract import (
    ApplyStore,
    DeadLetterFilter,
    EnqueueResult,
    EnqueueStore,
    Failure,
    JobFilter,
    ReadStore,
    Request,
    RetentionStore,
)
from tenure.stores.contract.steps import all_steps
from tenure.workers.maintenance.retention import Pruner, PruneReport

__all__ = [
    "CancelReport",
    "DeadLetterFilter",
    "DiscardReport",
    "JobAdmin",
    "JobFilter",
    "PruneReport",
    "RedriveReport",
    "SkippedJob",
]

MANY = 10_000
"""The default limit of jobs for one call."""


class AdminStore(EnqueueStore, ApplyStore, ReadStore, RetentionStore, Protocol):
    """The roles of a store that administration needs."""


class JobAdmin:
    """Operations on the jobs of one store, recorded under the name of one client."""

    def __init__(self, store: AdminStore, *, actor: Actor, seams: Seams = SYSTEM) -> None:
        self._store, self._actor, self._seams = store, actor, seams
        self._matching = MatchingRecords(store)
        self._canceller = Canceller(store, actor=actor, seams=seams)
        self._redriver = Redriver(store, actor=actor, seams=seams)

    async def job(self, job_id: JobId) -> Job:
        """Read the current record of a job, or raise JobNotFound."""
        wanted = job_id_of(job_id)
        job = (await self._store.read([wanted])).get(wanted)
        if job is None:
            raise JobNotFound(wanted)
        return job

    # Retention.

    async def prune(
        self,
        retention: Retention,
        *,
        kinds: Sequence[str] = (),
        dry_run: bool = False,
        after_batch: Callable[[PruneReport], Awaitable[None]] | None = None,
    ) -> PruneReport:
        """Remove what the retention no longer keeps, in batches; in a dry run, count it. Jobs only of the `kinds`."""
        pruner = Pruner(self._store, retention, kinds=kinds)
        return await (pruner.count() if dry_run else pruner.prune(actor=self._actor, after_batch=after_batch))

    # Cancel.

    async def cancel(self, job_id: JobId, *, hard: bool = False, reason: str = "requested") -> Job:
        """Cancel a job: at once if it is not leased, otherwise by a request to its worker. `hard` revokes the lease.

        A run that has steps to undo, or children, is always requested to cancel: a worker undoes its steps and cancels
        its children first. A hard cancel undoes nothing, and requests its children to cancel.

        A job that is claimed or released meanwhile is decided again. A job that has ended or is committed is refused.
        """
        job = await self.job(job_id)
        _require_last(job, "cancel")
        [outcome] = await self._canceller.cancel([job], hard=hard, reason=reason)
        if isinstance(outcome, Failure):
            raise outcome.error
        return outcome.job

    async def signal(self, job_id: JobId, name: str, value: object, *, request_id: str | None = None) -> Job:
        """Send a live job a signal. Of several calls with one request id, one is sent."""
        operation = Signal(name, encode(value, where=f"signal {name}"))
        request = Request(
            job=job_id_of(job_id),
            operations=(operation,),
            actor=self._actor,
            request_id=request_id or str(self._seams.random.job_id()),
        )
        [outcome] = await self._store.apply([request])
        if isinstance(outcome, Failure):
            if isinstance(outcome.error, IllegalTransition):
                _require_last(await self.job(request.job_id), "signal")
            raise outcome.error
        return outcome.job

    async def unpin(self, job_id: JobId) -> Job:
        """Let workers with any version of the code claim this run. It is due at once if it is parked."""
        job = await self.job(job_id)
        if job.pinned_version is None and job.waiting_for != "code":
            raise refused(job, "unpin", "it is not pinned to a version of the code and does not wait for code")
        request = Request(
            job=job.id,
            operations=(Wake(unpins=True),),
            actor=self._actor,
            request_id=str(self._seams.random.job_id()),
        )
        [outcome] = await self._store.apply([request])
        if isinstance(outcome, Failure):
            raise outcome.error
        return outcome.job

    async def cancel_many(
        self, wanted: JobFilter, *, hard: bool = False, reason: str = "requested", limit: int = MANY
    ) -> CancelReport:
        """Cancel every live job that matches and existed at the time of the call, each as `cancel` does."""
        statuses = require_statuses(wanted, LIVE, "jobs have ended and cannot be cancelled; use live statuses")
        cancelled = requested = 0
        skipped: list[SkippedJob] = []
        pages = LimitedPages(limit)
        async for jobs in pages.of(self._matching.jobs(wanted, statuses)):
            outcomes = await self._canceller.cancel(jobs, hard=hard, reason=reason)
            for job, outcome in zip(jobs, outcomes, strict=True):
                if isinstance(outcome, Failure):
                    skipped.append(SkippedJob(job.id, str(outcome.error)))
                elif outcome.job.status is CANCELLED:
                    cancelled += 1
                else:
                    requested += 1
        return CancelReport(cancelled=cancelled, requested=requested, skipped=tuple(skipped), more=pages.more)

    # Redrive.

    async def redrive(self, job_id: JobId) -> EnqueueResult:
        """Enqueue the work of an ended job as a new job. A second redrive of the job returns the same new job.

        The old record stays as it is; a dead letter is resolved as redriven. Live, succeeded, cancelled and erased jobs
        are refused. So is a job whose dedupe key belongs to a live job, which replaces it permanently.
        """
        job = await self.job(job_id)
        [result] = await self._redriver.redrive([job])
        if isinstance(result, EnqueueResult):
            return result
        raise result

    async def redrive_many(self, wanted: DeadLetterFilter | JobFilter, *, limit: int = MANY) -> RedriveReport:
        """Redrive every open dead letter that matches; with a JobFilter, every failed or halted job that matches."""
        return await self._redrive_pages(self._matching.redrivable(wanted), limit)

    async def retry_many(self, wanted: JobFilter, *, limit: int = MANY) -> RedriveReport:
        """Redrive every failed, dead-lettered or halted job that matches, except discarded dead letters."""
        return await self._redrive_pages(self._matching.retryable(wanted), limit)

    async def _redrive_pages(self, found: AsyncGenerator[list[Job], None], limit: int) -> RedriveReport:
        redriven = already_redriven = 0
        skipped: list[SkippedJob] = []
        pages = LimitedPages(limit)
        async for jobs in pages.of(found):
            for job, result in zip(jobs, await self._redriver.redrive(jobs), strict=True):
                if not isinstance(result, EnqueueResult):
                    skipped.append(SkippedJob(job.id, str(result)))
                elif result.created:
                    redriven += 1
                else:
                    already_redriven += 1
        return RedriveReport(
            redriven=redriven, already_redriven=already_redriven, skipped=tuple(skipped), more=pages.more
        )

    # Discard.

    async def discard(self, job_id: JobId) -> DeadLetterRecord:
        """Resolve a dead letter as discarded. Nothing is removed. A dead letter that was redriven is refused."""
        job = await self.job(job_id)
        letter = await self._store.dead_letter(job.id)
        if letter is None:
            raise refused(job, "discard", "it is not a dead letter")
        if letter.handled_as == "redriven":
            raise refused(job, "discard", "it was redriven already")
        await self._store.resolve_dead_letters([job.id], how="discarded", actor=self._actor)
        return await self._store.dead_letter(job.id) or letter

    async def discard_many(self, wanted: DeadLetterFilter, *, limit: int = MANY) -> DiscardReport:
        """Discard every open dead letter that matches and existed at the time of the call."""
        discarded = 0
        skipped: list[SkippedJob] = []
        pages = LimitedPages(limit)
        async for letters in pages.of(self._matching.letters(wanted)):
            ids = [letter.job_id for letter in letters if letter.handled_at is None]
            skipped += [SkippedJob(one.job_id, f"it was {one.handled_as} already") for one in letters if one.handled_at]
            discarded += await self._store.resolve_dead_letters(ids, how="discarded", actor=self._actor) if ids else 0
        return DiscardReport(discarded=discarded, skipped=tuple(skipped), more=pages.more)

    # Reads.

    async def provenance(self, job_id: JobId) -> Provenance:
        """Return inputs, attempts, code versions, steps and outcome of an ended job. NotYet: the job is live."""
        job = await self.job(job_id)
        events = (await self._store.history([job.id]))[job.id]
        steps, later = await all_steps(self._store, job.id), [one.id async for one in continued_by(self._store, job)]
        return provenance(job, events, steps, continued_by=later)


def _require_last(job: Job, operation: str) -> None:
    """Raise IllegalTransition, with the id of the next run, for a run that continued as another one."""
    successor_id = continued_as(job)
    if successor_id is not None:
        raise refused(job, operation, f"it continued as run {successor_id}; use that one")
