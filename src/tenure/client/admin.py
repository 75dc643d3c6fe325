"""Administration of jobs, one or many by filter: cancel, redrive, discard, provenance.

Many are processed in pages, each in one batch, up to a limit. Refused jobs are reported, and the rest continues. The
store decides each request; a request that a concurrent change has overtaken is sent again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Protocol, TypeVar
from uuid import UUID

import msgspec

from tenure.client.forks import continued_by
from tenure.client.job_id import JobId, job_id_of
from tenure.errors import (
    DedupeKeyConflict,
    IllegalTransition,
    InvalidInput,
    JobNotFound,
    RequestIdReused,
    RevisionConflict,
    StoreError,
)
from tenure.lifecycle.continuations import continued_as
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.json_text import check_integer, encode
from tenure.lifecycle.operations import Cancel, Operation, RequestCancel, Signal, Wake
from tenure.lifecycle.provenance import Provenance, provenance
from tenure.lifecycle.records import Actor, Job, Origin
from tenure.lifecycle.retention import Retention
from tenure.lifecycle.statuses import CANCELLED, DEAD_LETTERED, FAILED, HALTED, LIVE, Status
from tenure.lifecycle.transitions import allowed_from
from tenure.seams import SYSTEM, Seams
from tenure.stores.contract import (
    Applied,
    ApplyStore,
    Busy,
    DeadLetterFilter,
    EnqueueRequest,
    EnqueueResult,
    EnqueueStore,
    Failure,
    JobFilter,
    Outcome,
    ReadStore,
    Repeated,
    Request,
    RetentionStore,
)
from tenure.stores.contract.steps import all_steps, ends_on_a_worker
from tenure.workers.maintenance.children import cancel_children
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
MANY_MAX = 1_000_000
PAGE = 500
ROUNDS_MAX = 10
REDRIVABLE = frozenset({DEAD_LETTERED, FAILED, HALTED})

Record = TypeVar("Record", Job, DeadLetterRecord)
RedriveResult = EnqueueResult | IllegalTransition | RequestIdReused | DedupeKeyConflict


class AdminStore(EnqueueStore, ApplyStore, ReadStore, RetentionStore, Protocol):
    """The roles of a store that administration needs."""


class SkippedJob(msgspec.Struct, frozen=True):
    """A job that was not changed, and the error or reason."""

    job_id: UUID
    reason: str


class BulkReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an operation on many jobs. `more`: the limit was reached, and the filter matches further jobs."""

    skipped: tuple[SkippedJob, ...] = ()
    more: bool = False


class CancelReport(BulkReport, frozen=True, kw_only=True):
    """`cancelled` jobs have ended; `requested` ones are leased, and their workers are asked to end them."""

    cancelled: int = 0
    requested: int = 0


class RedriveReport(BulkReport, frozen=True, kw_only=True):
    """`redriven` jobs have a new job each; `already_redriven` ones have it from an earlier redrive."""

    redriven: int = 0
    already_redriven: int = 0


class DiscardReport(BulkReport, frozen=True, kw_only=True):
    """How many dead letters were discarded."""

    discarded: int = 0


class JobAdmin:
    """Operations on the jobs of one store, recorded under the name of one client."""

    def __init__(self, store: AdminStore, *, actor: Actor, seams: Seams = SYSTEM) -> None:
        self._store, self._actor, self._seams = store, actor, seams

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
        [outcome] = await self._cancel([job], hard=hard, reason=reason)
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
            raise _refused(job, "unpin", "it is not pinned to a version of the code and does not wait for code")
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
        statuses = _statuses(wanted, LIVE, "jobs have ended and cannot be cancelled; use live statuses")
        cancelled = requested = 0
        skipped: list[SkippedJob] = []
        pages = _Pages(limit)
        async for jobs in pages.of(self._jobs(wanted, statuses)):
            outcomes = await self._cancel(jobs, hard=hard, reason=reason)
            for job, outcome in zip(jobs, outcomes, strict=True):
                if isinstance(outcome, Failure):
                    skipped.append(SkippedJob(job.id, str(outcome.error)))
                elif outcome.job.status is CANCELLED:
                    cancelled += 1
                else:
                    requested += 1
        return CancelReport(cancelled=cancelled, requested=requested, skipped=tuple(skipped), more=pages.more)

    async def _cancel(self, jobs: Sequence[Job], *, hard: bool, reason: str) -> list[Outcome]:
        """Return the final outcome of each job, in the order of the jobs."""
        outcomes: dict[UUID, Outcome] = {}
        open_, recorded = {job.id: job for job in jobs}, set[UUID]()
        for parent in jobs if hard else ():
            if parent.live and not parent.committed:
                await cancel_children(self._store, parent, reason="its parent was cancelled")
        for _ in range(ROUNDS_MAX):
            to_worker = set() if hard else await self._ending_on_a_worker(open_.values())
            requests = [
                self._cancel_request(job, hard=hard, to_worker=job.id in to_worker, reason=reason)
                for job in open_.values()
            ]
            for job_id, outcome in zip(open_, await self._store.apply(requests), strict=True):
                outcomes[job_id] = _ended_since(outcome) if job_id in recorded else outcome
                if isinstance(outcome, Applied):
                    recorded.add(job_id)
            # Such a run is due now, and any worker claims it.
            left = [one for one in open_ if one not in to_worker or isinstance(outcomes[one], Failure)]
            open_ = {job_id: job for job_id in left if (job := _to_retry(outcomes[job_id])) is not None}
            if not open_:
                break
        for job_id in open_:
            problem = f"job {job_id} was claimed or released {ROUNDS_MAX} times during its cancel; try again"
            outcomes[job_id] = Failure(StoreError(problem))
        return [outcomes[job.id] for job in jobs]

    async def _ending_on_a_worker(self, jobs: Iterable[Job]) -> set[UUID]:
        """The jobs that are not leased, and that a worker must end."""
        return {job.id for job in jobs if not job.leased and await ends_on_a_worker(self._store, job)}

    def _cancel_request(self, job: Job, *, hard: bool, to_worker: bool, reason: str) -> Request:
        operations: tuple[Operation, ...] = (RequestCancel(reason), Cancel(reason))
        if hard:
            operations = (Cancel(reason),)
        elif job.leased or to_worker:
            operations = (RequestCancel(reason),)
        # A soft cancel may end the job only while it is not leased. The others hold for any revision, so that
        # heartbeats of a busy worker cannot keep them out.
        expected_rev = None if hard or job.leased else job.rev
        return Request(
            job=job.id,
            operations=operations,
            actor=self._actor,
            request_id=f"cancel-{self._seams.random.name()}",
            expected_rev=expected_rev,
        )

    # Redrive.

    async def redrive(self, job_id: JobId) -> EnqueueResult:
        """Enqueue the work of an ended job as a new job. A second redrive of the job returns the same new job.

        The old record stays as it is; a dead letter is resolved as redriven. Live, succeeded, cancelled and erased jobs
        are refused. So is a job whose dedupe key belongs to a live job, which replaces it permanently.
        """
        job = await self.job(job_id)
        [result] = await self._redrive([job])
        if isinstance(result, EnqueueResult):
            return result
        raise result

    async def redrive_many(self, wanted: DeadLetterFilter | JobFilter, *, limit: int = MANY) -> RedriveReport:
        """Redrive every open dead letter that matches; with a JobFilter, every failed or halted job that matches."""
        return await self._redrive_pages(self._ended(wanted), limit)

    async def retry_many(self, wanted: JobFilter, *, limit: int = MANY) -> RedriveReport:
        """Redrive every failed, dead-lettered or halted job that matches, except discarded dead letters."""
        return await self._redrive_pages(self._retryable(wanted), limit)

    async def _redrive_pages(self, found: AsyncGenerator[list[Job], None], limit: int) -> RedriveReport:
        redriven = already_redriven = 0
        skipped: list[SkippedJob] = []
        pages = _Pages(limit)
        async for jobs in pages.of(found):
            for job, result in zip(jobs, await self._redrive(jobs), strict=True):
                if not isinstance(result, EnqueueResult):
                    skipped.append(SkippedJob(job.id, str(result)))
                elif result.created:
                    redriven += 1
                else:
                    already_redriven += 1
        return RedriveReport(
            redriven=redriven, already_redriven=already_redriven, skipped=tuple(skipped), more=pages.more
        )

    async def _redrive(self, jobs: Sequence[Job]) -> list[RedriveResult]:
        results: dict[UUID, RedriveResult] = {}
        for job in jobs:
            if (refusal := _redrive_refusal(job)) is not None:
                results[job.id] = refusal
        accepted = [job for job in jobs if job.id not in results]
        results.update(zip((job.id for job in accepted), await self._enqueue_again(accepted), strict=True))
        # After the enqueue: if this process ends in between, the dead letter stays open, and a retry finds the job.
        done = [job.id for job in jobs if job.status is DEAD_LETTERED and isinstance(results[job.id], EnqueueResult)]
        if done:
            await self._store.resolve_dead_letters(done, how="redriven", actor=self._actor)
        return [results[job.id] for job in jobs]

    async def _enqueue_again(self, jobs: Sequence[Job]) -> list[RedriveResult]:
        if not jobs:
            return []
        requests = [EnqueueRequest(redrive_origin(job, self._seams.random.job_id()), self._actor) for job in jobs]
        try:
            enqueued = await self._store.enqueue(requests)
        except (RequestIdReused, DedupeKeyConflict) as refusal:
            if len(jobs) == 1:
                return [refusal]
            return [result for job in jobs for result in await self._enqueue_again([job])]
        return [_checked_redrive(job, one) for job, one in zip(jobs, enqueued, strict=True)]

    # Discard.

    async def discard(self, job_id: JobId) -> DeadLetterRecord:
        """Resolve a dead letter as discarded. Nothing is removed. A dead letter that was redriven is refused."""
        job = await self.job(job_id)
        letter = await self._store.dead_letter(job.id)
        if letter is None:
            raise _refused(job, "discard", "it is not a dead letter")
        if letter.handled_as == "redriven":
            raise _refused(job, "discard", "it was redriven already")
        await self._store.resolve_dead_letters([job.id], how="discarded", actor=self._actor)
        return await self._store.dead_letter(job.id) or letter

    async def discard_many(self, wanted: DeadLetterFilter, *, limit: int = MANY) -> DiscardReport:
        """Discard every open dead letter that matches and existed at the time of the call."""
        discarded = 0
        skipped: list[SkippedJob] = []
        pages = _Pages(limit)
        async for letters in pages.of(self._letters(wanted)):
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

    async def _jobs(self, wanted: JobFilter, statuses: tuple[Status, ...]) -> AsyncGenerator[list[Job], None]:
        until = wanted.created_until or await self._end_of_call()
        wanted = msgspec.structs.replace(wanted, statuses=statuses, created_until=until)
        after: UUID | None = None
        while True:
            page = await self._store.find(wanted, after=after, limit=PAGE)
            yield page.jobs
            if (after := page.after) is None:
                return

    async def _letters(self, wanted: DeadLetterFilter) -> AsyncGenerator[list[DeadLetterRecord], None]:
        until = wanted.dead_until or await self._end_of_call()
        wanted = msgspec.structs.replace(wanted, dead_until=until)
        after: UUID | None = None
        while True:
            page = await self._store.dead_letters(wanted, after=after, limit=PAGE)
            yield page.letters
            if (after := page.after) is None:
                return

    async def _ended(self, wanted: DeadLetterFilter | JobFilter) -> AsyncGenerator[list[Job], None]:
        if isinstance(wanted, JobFilter):
            problem = "jobs are not redriven by a JobFilter; select dead letters by a DeadLetterFilter"
            async with aclosing(self._jobs(wanted, _statuses(wanted, {FAILED, HALTED}, problem))) as pages:
                async for jobs in pages:
                    yield jobs
            return
        async with aclosing(self._letters(wanted)) as letter_pages:
            async for letters in letter_pages:
                jobs_by_id = await self._store.read([letter.job_id for letter in letters])
                yield [jobs_by_id[letter.job_id] for letter in letters if letter.job_id in jobs_by_id]

    async def _retryable(self, wanted: JobFilter) -> AsyncGenerator[list[Job], None]:
        problem = "jobs cannot be retried; use failed, dead_lettered or halted"
        async with aclosing(self._jobs(wanted, _statuses(wanted, REDRIVABLE, problem))) as pages:
            async for jobs in pages:
                yield [job for job in jobs if not await self._is_discarded(job)]

    async def _is_discarded(self, job: Job) -> bool:
        letter = await self._store.dead_letter(job.id) if job.status is DEAD_LETTERED else None
        return letter is not None and letter.handled_as == "discarded"

    async def _end_of_call(self) -> datetime:
        """Exclude later jobs, so that the call ends although clients continue to enqueue."""
        return await self._store.now() + timedelta(microseconds=1)


class _Pages:
    """Cuts pages off at a limit. `more`: there were further records."""

    def __init__(self, limit: int) -> None:
        self._left = check_integer(limit, "limit", least=1, most=MANY_MAX)
        self.more = False

    async def of(self, pages: AsyncGenerator[list[Record], None]) -> AsyncGenerator[list[Record], None]:
        async with aclosing(pages):
            async for page in pages:
                if len(page) > self._left:
                    page, self.more = page[: self._left], True
                if page:
                    self._left -= len(page)
                    yield page
                if self.more:
                    return


def _statuses(wanted: JobFilter, allowed: Collection[Status], problem: str) -> tuple[Status, ...]:
    statuses = tuple(map(Status, wanted.statuses))
    for status in statuses:
        if status not in allowed:
            raise InvalidInput("statuses", f"{status} {problem}")
    return statuses or tuple(sorted(allowed))


def _ended_since(outcome: Outcome) -> Outcome:
    """The outcome for a job whose cancel request was recorded before: that it has ended since is no failure."""
    if isinstance(outcome, Failure) and isinstance(outcome.error, IllegalTransition | RevisionConflict):
        current = outcome.error.current
        return Repeated(current) if isinstance(current, Job) and not current.live else outcome
    return outcome


def _to_retry(outcome: Outcome) -> Job | None:
    """Return the job if it must be decided again: it was claimed before it was ended, or released since."""
    if isinstance(outcome, Failure):
        return outcome.error.current if isinstance(outcome.error, RevisionConflict) else None
    assert not isinstance(outcome, Busy), "a client's request waits for a locked row"
    return outcome.job if outcome.job.live and not outcome.job.leased else None


def redrive_origin(job: Job, new_id: UUID) -> Origin:
    """Return the origin of a redrive: the same work under a new id, linked to the old job. Its request id is derived
    from the old job alone, so that repeated redrives return one new job."""
    return msgspec.structs.replace(
        job.origin,
        id=new_id,
        request_id=f"redrive.{job.id}",
        redrive_of=job.id,
        parent_id=None,
        awaited=False,
        correlation_id=job.correlation_id,
    )


def _redrive_refusal(job: Job) -> IllegalTransition | None:
    if job.status is CANCELLED:
        return _refused(job, "redrive", "it was cancelled on request; enqueue it again if it is needed after all")
    if job.status not in REDRIVABLE:
        return _refused(job, "redrive", "only dead-lettered, failed and halted jobs can be redriven")
    if job.erased_at is not None:
        return _refused(job, "redrive", "its content was erased")
    return None


def _checked_redrive(old: Job, enqueued: EnqueueResult) -> EnqueueResult | IllegalTransition:
    """Return the redrive, or a refusal if the enqueue returned a live job with the same dedupe key."""
    if enqueued.job.origin.redrive_of == old.id:
        return enqueued
    return _refused(old, "redrive", f"live job {enqueued.job.id} has the same dedupe key")


def _require_last(job: Job, asked: str) -> None:
    """Raise IllegalTransition, with the id of the next run, for a run that went on as another one."""
    successor_id = continued_as(job)
    if successor_id is not None:
        raise _refused(job, asked, f"it went on as run {successor_id}; use that one")


def _refused(job: Job, operation: str, why: str) -> IllegalTransition:
    return IllegalTransition(job, operation, allowed=allowed_from(job.status, committed=job.committed), why=why)
