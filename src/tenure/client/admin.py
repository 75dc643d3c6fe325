"""What operators do to jobs: cancel them, run them again, set dead letters aside, and ask how one came to its end.

One job or many by filter. Many are taken in pages, each in one batch, up to a limit; whatever could not be done is
counted and said why, and the rest goes on. Nothing here decides about a job: it only asks, and asks again where
the answer was overtaken.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Protocol, TypeVar
from uuid import UUID

import msgspec

from tenure.errors import IllegalTransition, InvalidInput, JobNotFound, RequestIdReused, RevisionConflict, StoreError
from tenure.lifecycle.json_text import check_integer
from tenure.lifecycle.operations import Cancel, Operation, RequestCancel
from tenure.lifecycle.provenance import Provenance, owners, provenance
from tenure.lifecycle.records import Actor, DeadLetter, Job, Origin
from tenure.lifecycle.statuses import CANCELLED, DEAD_LETTERED, FAILED, HALTED, LIVE, Status
from tenure.lifecycle.transitions import allowed_from
from tenure.seams import SYSTEM, Seams
from tenure.stores.contract import (
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
    Request,
    RetentionStore,
)

__all__ = [
    "CancelReport",
    "DeadLetterFilter",
    "DiscardReport",
    "JobFilter",
    "Left",
    "Operator",
    "RedriveReport",
]

MANY = 10_000
"""How many jobs one call takes at most, unless it is told otherwise."""
MANY_MAX = 1_000_000
PAGE = 500
ROUNDS_MAX = 10
REDRIVABLE = frozenset({DEAD_LETTERED, FAILED, HALTED})

Record = TypeVar("Record", Job, DeadLetter)


class Operates(EnqueueStore, ApplyStore, ReadStore, RetentionStore, Protocol):
    """The operator's part of a store."""


class Left(msgspec.Struct, frozen=True):
    """A job that stayed as it was, and why."""

    job_id: UUID
    why: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What became of many. `more` says that the limit was reached, and the filter matches further ones."""

    left: tuple[Left, ...] = ()
    more: bool = False


class CancelReport(Report, frozen=True, kw_only=True):
    """`cancelled` have ended; whoever holds one that was `asked` is told, and ends it."""

    cancelled: int = 0
    asked: int = 0


class RedriveReport(Report, frozen=True, kw_only=True):
    """`redriven` have a new job each; those of `before` had it already, from an earlier redrive."""

    redriven: int = 0
    before: int = 0


class DiscardReport(Report, frozen=True, kw_only=True):
    """How many dead letters nobody needs to look at any more."""

    discarded: int = 0


class Operator:
    """Acts on one store in the name of one client."""

    def __init__(self, store: Operates, *, actor: Actor, seams: Seams = SYSTEM) -> None:
        self._store, self._actor, self._seams = store, actor, seams

    async def job(self, job_id: UUID) -> Job:
        """The record as it stands; JobNotFound where there is none."""
        job = (await self._store.read([job_id])).get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    # Cancel.

    async def cancel(self, job_id: UUID, *, hard: bool = False, reason: str = "requested") -> Job:
        """End a job. Softly: one that nobody holds ends at once, a held one is told. Hard: now, whoever holds it.

        A job that changes hands meanwhile is decided upon anew. One that has ended or is committed is refused.
        """
        [outcome] = await self._cancel([await self.job(job_id)], hard=hard, reason=reason)
        if isinstance(outcome, Failure):
            raise outcome.error
        return outcome.job

    async def cancel_many(
        self, wanted: JobFilter, *, hard: bool = False, reason: str = "requested", limit: int = MANY
    ) -> CancelReport:
        """Cancel every live job that matches and was there when this was called, each as `cancel` does."""
        statuses = _statuses(wanted, LIVE, "has ended, so nothing of it can be cancelled")
        cancelled = asked = 0
        left: list[Left] = []
        pages = _Pages(limit)
        async for jobs in pages.of(self._jobs(wanted, statuses)):
            outcomes = await self._cancel(jobs, hard=hard, reason=reason)
            for job, outcome in zip(jobs, outcomes, strict=True):
                if isinstance(outcome, Failure):
                    left.append(Left(job.id, str(outcome.error)))
                elif outcome.job.status is CANCELLED:
                    cancelled += 1
                else:
                    asked += 1
        return CancelReport(cancelled=cancelled, asked=asked, left=tuple(left), more=pages.more)

    async def _cancel(self, jobs: Sequence[Job], *, hard: bool, reason: str) -> list[Outcome]:
        """The last word on each job, in their order."""
        outcomes: dict[UUID, Outcome] = {}
        open_ = {job.id: job for job in jobs}
        for _ in range(ROUNDS_MAX):
            requests = [self._cancel_request(job, hard=hard, reason=reason) for job in open_.values()]
            answers = await self._store.apply(requests)
            outcomes.update(zip(open_, answers, strict=True))
            open_ = {job_id: job for job_id in open_ if (job := _to_ask_again(outcomes[job_id])) is not None}
            if not open_:
                break
        for job_id in open_:
            problem = f"job {job_id} changed hands {ROUNDS_MAX} times while it was to be cancelled; try again"
            outcomes[job_id] = Failure(StoreError(problem))
        return [outcomes[job.id] for job in jobs]

    def _cancel_request(self, job: Job, *, hard: bool, reason: str) -> Request:
        operations: tuple[Operation, ...] = (RequestCancel(reason), Cancel(reason))
        if hard:
            operations = (Cancel(reason),)
        elif job.leased:
            operations = (RequestCancel(reason),)
        # Ending a job softly is right only while nobody holds it; the other two are right whatever happened since,
        # and a busy owner's heartbeats must not keep them from getting through.
        expected_rev = None if hard or job.leased else job.rev
        return Request(
            job=job.id,
            operations=operations,
            actor=self._actor,
            request_id=f"cancel-{self._seams.random.name()}",
            expected_rev=expected_rev,
        )

    # Redrive.

    async def redrive(self, job_id: UUID) -> EnqueueResult:
        """A new job that does again what an ended one was to do; asked twice, the same new job.

        The old record stays as it is; a dead letter is noted as redriven. Succeeded and cancelled jobs, live ones and
        erased ones are refused; so is one whose dedupe key a live job has, which then stands in for it for good.
        """
        job = await self.job(job_id)
        [answer] = await self._redrive([job])
        if isinstance(answer, EnqueueResult):
            return answer
        raise answer

    async def redrive_many(self, wanted: DeadLetterFilter | JobFilter, *, limit: int = MANY) -> RedriveReport:
        """Redrive every open dead letter that matches; with a JobFilter, every failed or halted job that matches."""
        redriven = before = 0
        left: list[Left] = []
        pages = _Pages(limit)
        async for jobs in pages.of(self._ended(wanted)):
            for job, answer in zip(jobs, await self._redrive(jobs), strict=True):
                if not isinstance(answer, EnqueueResult):
                    left.append(Left(job.id, str(answer)))
                elif answer.created:
                    redriven += 1
                else:
                    before += 1
        return RedriveReport(redriven=redriven, before=before, left=tuple(left), more=pages.more)

    async def _redrive(self, jobs: Sequence[Job]) -> list[EnqueueResult | IllegalTransition | RequestIdReused]:
        answers: dict[UUID, EnqueueResult | IllegalTransition | RequestIdReused] = {}
        for job in jobs:
            if (refusal := _redrive_refusal(job)) is not None:
                answers[job.id] = refusal
        accepted = [job for job in jobs if job.id not in answers]
        answers.update(zip((job.id for job in accepted), await self._add_again(accepted), strict=True))
        # The new job comes first: should this end in between, the letter stays open, and asking again finds the job.
        done = [job.id for job in jobs if job.status is DEAD_LETTERED and isinstance(answers[job.id], EnqueueResult)]
        if done:
            await self._store.resolve_dead_letters(done, how="redriven", actor=self._actor)
        return [answers[job.id] for job in jobs]

    async def _add_again(self, jobs: Sequence[Job]) -> list[EnqueueResult | IllegalTransition | RequestIdReused]:
        if not jobs:
            return []
        requests = [EnqueueRequest(origin_again(job, self._seams.random.job_id()), self._actor) for job in jobs]
        try:
            added = await self._store.enqueue(requests)
        except RequestIdReused as reused:
            if len(jobs) == 1:
                return [reused]
            return [answer for job in jobs for answer in await self._add_again([job])]
        return [_own(job, one) for job, one in zip(jobs, added, strict=True)]

    # Discard.

    async def discard(self, job_id: UUID) -> DeadLetter:
        """Note that a dead letter needs no more attention. Nothing is removed; one that was redriven is refused."""
        job, letter = await self.job(job_id), await self._store.dead_letter(job_id)
        if letter is None:
            raise _refused(job, "discard", "it is no dead letter")
        if letter.handled_as == "redriven":
            raise _refused(job, "discard", "it was redriven before")
        await self._store.resolve_dead_letters([job_id], how="discarded", actor=self._actor)
        return await self._store.dead_letter(job_id) or letter

    async def discard_many(self, wanted: DeadLetterFilter, *, limit: int = MANY) -> DiscardReport:
        """Discard every open dead letter that matches and was there when this was called."""
        discarded = 0
        left: list[Left] = []
        pages = _Pages(limit)
        async for letters in pages.of(self._letters(wanted)):
            ids = [letter.job_id for letter in letters if letter.handled_at is None]
            left += [Left(one.job_id, f"it was {one.handled_as} before") for one in letters if one.handled_at]
            discarded += await self._store.resolve_dead_letters(ids, how="discarded", actor=self._actor) if ids else 0
        return DiscardReport(discarded=discarded, left=tuple(left), more=pages.more)

    # What is there.

    async def provenance(self, job_id: UUID) -> Provenance:
        """How a job came to its end; NotYet while it lives."""
        job = await self.job(job_id)
        events = (await self._store.history([job_id]))[job_id]
        names = owners(events)
        workers = await self._store.workers(names) if names else []
        return provenance(job, events, {worker.id: worker.version for worker in workers})

    async def _jobs(self, wanted: JobFilter, statuses: tuple[Status, ...]) -> AsyncGenerator[list[Job], None]:
        until = wanted.created_until or await self._moment_after_now()
        wanted = msgspec.structs.replace(wanted, statuses=statuses, created_until=until)
        after: UUID | None = None
        while True:
            page = await self._store.find(wanted, after=after, limit=PAGE)
            yield page.jobs
            if (after := page.after) is None:
                return

    async def _letters(self, wanted: DeadLetterFilter) -> AsyncGenerator[list[DeadLetter], None]:
        until = wanted.dead_until or await self._moment_after_now()
        wanted = msgspec.structs.replace(wanted, dead_until=until)
        after: UUID | None = None
        while True:
            page = await self._store.dead_letters(wanted, after=after, limit=PAGE)
            yield page.letters
            if (after := page.after) is None:
                return

    async def _ended(self, wanted: DeadLetterFilter | JobFilter) -> AsyncGenerator[list[Job], None]:
        if isinstance(wanted, JobFilter):
            why = "is not what a JobFilter redrives; dead letters are chosen by a DeadLetterFilter"
            async with aclosing(self._jobs(wanted, _statuses(wanted, {FAILED, HALTED}, why))) as pages:
                async for jobs in pages:
                    yield jobs
            return
        async with aclosing(self._letters(wanted)) as letter_pages:
            async for letters in letter_pages:
                there = await self._store.read([letter.job_id for letter in letters])
                yield [there[letter.job_id] for letter in letters if letter.job_id in there]

    async def _moment_after_now(self) -> datetime:
        """What comes after this is not for this call: it must come to an end while others go on adding."""
        return await self._store.now() + timedelta(microseconds=1)


class _Pages:
    """Pages up to a limit, and whether there was more."""

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


def _statuses(wanted: JobFilter, allowed: Iterable[Status], why: str) -> tuple[Status, ...]:
    for status in wanted.statuses:
        if status not in allowed:
            raise InvalidInput("statuses", f"{status} {why}")
    return wanted.statuses or tuple(sorted(allowed))


def _to_ask_again(outcome: Outcome) -> Job | None:
    """The job to decide upon anew: it changed hands before it could be ended, or was let go of when it was asked."""
    if isinstance(outcome, Failure):
        return outcome.error.current if isinstance(outcome.error, RevisionConflict) else None
    assert not isinstance(outcome, Busy), "only a heartbeat is answered with Busy"
    return outcome.job if outcome.job.live and not outcome.job.leased else None


def origin_again(job: Job, new_id: UUID) -> Origin:
    """What a redrive enqueues: the same work under a new id, linked to the old one. Its request id follows from the
    old job alone, so that there is one redrive of a job, however often it is asked for."""
    return msgspec.structs.replace(
        job.origin, id=new_id, request_id=f"redrive.{job.id}", redrive_of=job.id, parent_id=None
    )


def _redrive_refusal(job: Job) -> IllegalTransition | None:
    if job.status is CANCELLED:
        return _refused(job, "redrive", "somebody wanted its end; enqueue it anew if it is wanted after all")
    if job.status not in REDRIVABLE:
        return _refused(job, "redrive", "only a dead-lettered, failed or halted job can be run again")
    if job.erased_at is not None:
        return _refused(job, "redrive", "its content was erased, so there is nothing to run again")
    return None


def _own(old: Job, added: EnqueueResult) -> EnqueueResult | IllegalTransition:
    """The redrive, unless a live job with the same dedupe key took its place."""
    if added.job.origin.redrive_of == old.id:
        return added
    return _refused(old, "redrive", f"job {added.job.id} has its dedupe key and stands in for it")


def _refused(job: Job, operation: str, why: str) -> IllegalTransition:
    return IllegalTransition(job, operation, allowed=allowed_from(job.status, committed=job.committed), why=why)
