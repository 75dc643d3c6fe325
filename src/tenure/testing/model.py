"""The oracle: a store that is nothing but dictionaries and `decide`. It is for comparing, and not offered to users.

Everything happens at once and in order, so there are no locks, no races and no SQL that could be wrong. What a real
store answers, writes and shows must be what this one does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import UUID

import msgspec

from tenure.errors import IllegalTransition, InvalidInput, JobNotFound, RequestIdReused
from tenure.lifecycle.claiming import batch, claim_order
from tenure.lifecycle.decide import Change, decide_chain, renewal_due, unroll
from tenure.lifecycle.evolve import after_ms, born
from tenure.lifecycle.fold import executions
from tenure.lifecycle.operations import Claim, DeadLetter, Signal, Start
from tenure.lifecycle.records import BLANKABLE, Actor, Event, EventType, Execution, Job
from tenure.lifecycle.records import DeadLetter as DeadLetterRecord
from tenure.lifecycle.statuses import HELD, QUEUED, READY, STALLED
from tenure.lifecycle.table import allowed_from
from tenure.stores.checks import (
    check_after,
    check_age,
    check_claim,
    check_enqueue,
    check_event_filter,
    check_job_filter,
    check_page,
    check_request,
)
from tenure.stores.contract import (
    Added,
    Applied,
    ClaimRequest,
    Enqueue,
    EventFilter,
    EventPage,
    Finding,
    JobFilter,
    JobPage,
    MigrationRecord,
    Outcome,
    Request,
    SchemaState,
    SignalRecord,
    Wakeups,
    settle,
    shown,
    without_secret,
)
from tenure.testing.clock import ManualClock

ERASED = "null"
POSITION_DIGITS = 12

_Body = tuple[str, str | None]
"""What makes an enqueue the same request when it comes again."""


class _Answer(msgspec.Struct, frozen=True):
    """An enqueue that made no job of its own, because another had its dedupe key."""

    body: _Body
    job_id: UUID


class _WonClaim(msgspec.Struct, frozen=True):
    body: str
    job_ids: tuple[UUID, ...]


class _NoWakeups:
    async def wait(self, timeout_seconds: float) -> bool:
        return False


class ModelStore:
    """Rows by id, events by job and in the order of the log, and what hangs on them."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._rows: dict[UUID, Job] = {}
        self._bodies: dict[UUID, _Body] = {}
        self._answers: dict[str, _Answer] = {}
        self._histories: dict[UUID, list[Event]] = {}
        self._log: list[Event] = []
        self._claims: dict[str, _WonClaim] = {}
        self._dead_letters: dict[UUID, DeadLetterRecord] = {}
        self._signals: dict[UUID, list[SignalRecord]] = {}
        self._next_position = 1

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def migrate(self) -> list[MigrationRecord]:
        return []

    async def schema(self) -> SchemaState:
        return SchemaState(applied=[1], pending=[], unknown=[], changed=[], min_code_version=1, code_version=1)

    async def doctor(self) -> list[Finding]:
        return []

    async def now(self) -> datetime:
        return self._clock.now()

    # Adding

    async def add(self, requests: Sequence[Enqueue]) -> list[Added]:
        for request in requests:
            check_enqueue(request)
        rows, bodies, remembered = dict(self._rows), dict(self._bodies), dict(self._answers)
        written: list[Event] = []
        answers: list[Added] = []
        for request in requests:
            there = _same_answer(request, rows, remembered) or _same_enqueue(request, rows, bodies)
            if there is None and (there := _same_dedupe(request, rows.values())) is not None:
                remembered[request.request_id] = _Answer(_body(request), there.id)
            if there is not None:
                answers.append(Added(without_secret(there), created=False))
                continue
            event = _enqueued(request, self._clock.now())
            job = born(request.origin, event)
            rows[job.id], bodies[job.id] = job, _body(request)
            written.append(event)
            answers.append(Added(job, created=True))
        self._rows, self._bodies, self._answers = rows, bodies, remembered
        self._append(written)
        return answers

    # Claiming

    async def claim(self, request: ClaimRequest) -> list[Job]:
        check_claim(request)
        won = self._claims.get(request.request_id)
        if won is None:
            won = _WonClaim(request.body(), tuple(job.id for job in self._take(request)))
            if won.job_ids:
                self._claims[request.request_id] = won
        if won.body != request.body():
            raise RequestIdReused(request.request_id)
        return [without_secret(self._rows[job_id], request.actor) for job_id in won.job_ids if job_id in self._rows]

    def _take(self, request: ClaimRequest) -> list[Job]:
        now = self._clock.now()
        wanted = [job for job in self._rows.values() if _claimable(job, request, now)]
        taken = batch(sorted(wanted, key=claim_order), request.limit)
        operations = (Claim(request.token), Start()) if request.start else (Claim(request.token),)
        for job in taken:
            change = decide_chain(job, operations, request.actor, request_id=request.request_id)
            self._write(change, now)
        return taken

    @asynccontextmanager
    async def wakeups(self, queues: Sequence[str]) -> AsyncIterator[Wakeups]:
        yield _NoWakeups()

    # Performing

    async def perform(self, requests: Sequence[Request]) -> list[Outcome]:
        for request in requests:
            check_request(request)
        return [self._perform(request) for request in requests]

    def _perform(self, request: Request) -> Outcome:
        logged = [event for event in self._histories.get(request.job_id, ()) if event.request_id == request.request_id]
        verdict = settle(self._rows.get(request.job_id), request, logged=logged, now=self._clock.now())
        return self._write(verdict, self._clock.now()) if isinstance(verdict, Change) else verdict

    def _write(self, change: Change, now: datetime) -> Applied:
        at = max(now, change.before.updated_at)
        renewed = any(step.renews for step in change.steps) and renewal_due(change.before, now)
        events, after = unroll(change, at, renewed=renewed)
        self._rows[after.id] = after
        self._append(events)
        for operation, event in zip(change.operations, events, strict=True):
            if isinstance(operation, DeadLetter):
                self._dead_letters[after.id] = self._letter(operation, after, event)
            elif isinstance(operation, Signal):
                signal = SignalRecord(
                    job_id=after.id, rev=event.rev, name=operation.name, payload=operation.payload, at=at
                )
                self._signals.setdefault(after.id, []).append(signal)
        return Applied(shown(change), at, renewed)

    def _letter(self, operation: DeadLetter, job: Job, event: Event) -> DeadLetterRecord:
        leases = [past for past in self._histories[job.id] if past.type in (EventType.CLAIMED, EventType.HEARTBEAT)]
        owners = [past.owner for past in leases if past.type is EventType.CLAIMED]
        ends = [past.until_at for past in leases if past.until_at is not None]
        return DeadLetterRecord(
            job_id=job.id,
            reason_code=operation.reason_code,
            stage=operation.stage,
            last_error=operation.error,
            attempts=job.attempt,
            at=event.at,
            last_owner=owners[-1] if owners else None,
            last_lease_expires_at=ends[-1] if ends else None,
            correlation_id=job.origin.correlation_id,
        )

    def _append(self, events: Iterable[Event]) -> None:
        for event in events:
            placed = msgspec.structs.replace(event, position=f"{self._next_position:0{POSITION_DIGITS}d}")
            self._next_position += 1
            self._log.append(placed)
            self._histories.setdefault(event.job_id, []).append(placed)

    # Recovering

    async def unattended(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        check_page(limit)
        now = self._clock.now()
        found = [job for job in self._rows_after(after) if _needs_attention(job, now)]
        return [without_secret(job) for job in found[:limit]]

    # Reading

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return {job_id: without_secret(self._rows[job_id]) for job_id in job_ids if job_id in self._rows}

    async def find(self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100) -> JobPage:
        check_job_filter(wanted)
        check_page(limit)
        found = [without_secret(job) for job in self._rows_after(after) if _matches(job, wanted)]
        return JobPage(found[:limit], found[limit - 1].id if len(found) > limit else None)

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return {job_id: list(self._histories.get(job_id, ())) for job_id in job_ids}

    async def events(self, wanted: EventFilter, *, after: str | None = None, limit: int = 1000) -> EventPage:
        check_event_filter(wanted)
        return self._page((event for event in self._log if _event_matches(event, wanted)), after=after, limit=limit)

    async def tail(self, *, after: str | None = None, limit: int = 1000) -> EventPage:
        return self._page(self._log, after=after, limit=limit)

    def _page(self, events: Iterable[Event], *, after: str | None, limit: int) -> EventPage:
        check_page(limit)
        begin = _position(after)
        found = [event for event in events if (event.position or "") > begin][:limit]
        return EventPage(found, (found[-1].position or begin) if found else begin)

    async def executions(self, job_id: UUID) -> list[Execution]:
        return executions(self._histories.get(job_id, ()))

    async def dead_letter(self, job_id: UUID) -> DeadLetterRecord | None:
        return self._dead_letters.get(job_id)

    async def signals(self, job_id: UUID) -> list[SignalRecord]:
        return list(self._signals.get(job_id, ()))

    def _rows_after(self, after: UUID | None) -> list[Job]:
        check_after(after)
        ordered = sorted(self._rows.values(), key=lambda job: job.id.bytes)
        return [job for job in ordered if after is None or job.id.bytes > after.bytes]

    # Forgetting

    async def prune(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        limit_at = self._clock.now() - check_age(older_than_seconds, limit)
        ended = [job for job in self._rows_after(None) if job.finished_at is not None and job.finished_at <= limit_at]
        gone = {job.id for job in sorted(ended, key=lambda job: job.finished_at or limit_at)[:limit]}
        for job_id in gone:
            del self._rows[job_id], self._histories[job_id], self._bodies[job_id]
            self._dead_letters.pop(job_id, None)
            self._signals.pop(job_id, None)
        self._answers = {name: answer for name, answer in self._answers.items() if answer.job_id not in gone}
        self._log = [event for event in self._log if event.job_id not in gone]
        return len(gone)

    async def blank(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        limit_at = self._clock.now() - check_age(older_than_seconds, limit)
        old = [event for history in self._histories.values() for event in _superseded(history) if event.at <= limit_at]
        chosen = {event.id for event in sorted(old, key=lambda event: event.position or "")[:limit]}
        self._replace_events(msgspec.structs.replace(event, detail=None) for event in old if event.id in chosen)
        return len(chosen)

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        job = self._rows.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        if job.live:
            allowed = allowed_from(job.status, committed=job.committed)
            raise IllegalTransition(without_secret(job), "erase", allowed=allowed, why="only when it has ended")
        if job.erased_at is None:
            self._erase(job)
        return self._rows[job_id]

    def _erase(self, job: Job) -> None:
        self._rows[job.id] = msgspec.structs.replace(
            job,
            origin=msgspec.structs.replace(job.origin, payload=ERASED, tags=None),
            erased_at=max(self._clock.now(), job.updated_at),
            **dict.fromkeys(("result", "partial_result", "error", "last_error", "progress", "progress_message")),
        )
        telling = [event for event in self._histories[job.id] if event.type in BLANKABLE]
        self._replace_events(msgspec.structs.replace(event, detail=None) for event in telling)
        if (letter := self._dead_letters.get(job.id)) is not None:
            self._dead_letters[job.id] = msgspec.structs.replace(letter, last_error=ERASED)
        kept = self._signals.get(job.id, ())
        self._signals[job.id] = [msgspec.structs.replace(signal, payload=ERASED) for signal in kept]

    def _replace_events(self, changed: Iterable[Event]) -> None:
        by_id = {event.id: event for event in changed}
        self._log = [by_id.get(event.id, event) for event in self._log]
        for job_id in {event.job_id for event in by_id.values()}:
            self._histories[job_id] = [by_id.get(event.id, event) for event in self._histories[job_id]]


def _same_answer(request: Enqueue, rows: dict[UUID, Job], answers: dict[str, _Answer]) -> Job | None:
    """The job that had this request's dedupe key when it first came, also when it has ended since."""
    answer = answers.get(request.request_id)
    if answer is None:
        return None
    if answer.body != _body(request):
        raise RequestIdReused(request.request_id, current=without_secret(rows[answer.job_id]))
    return rows[answer.job_id]


def _same_enqueue(request: Enqueue, rows: dict[UUID, Job], bodies: dict[UUID, _Body]) -> Job | None:
    """The job that this request made before; another body under the same id is refused."""
    wanted = request.origin.request_id
    by_request_id = (job for job in rows.values() if wanted is not None and job.origin.request_id == wanted)
    job = next(by_request_id, None) or rows.get(request.origin.id)
    if job is not None and bodies[job.id] != _body(request):
        raise RequestIdReused(request.request_id, current=without_secret(job))
    return job


def _body(request: Enqueue) -> _Body:
    return request.origin.digest(), request.detail


def _same_dedupe(request: Enqueue, rows: Iterable[Job]) -> Job | None:
    key = (request.origin.kind, request.origin.dedupe_key)
    live = (job for job in rows if job.live and (job.kind, job.origin.dedupe_key) == key)
    return None if request.origin.dedupe_key is None else next(live, None)


def _enqueued(request: Enqueue, now: datetime) -> Event:
    return Event(
        job_id=request.origin.id,
        rev=1,
        type=EventType.ENQUEUED,
        from_status=None,
        to_status=QUEUED,
        at=now,
        attempt=0,
        actor=str(request.actor),
        request_id=request.request_id,
        detail=request.detail,
        digest=request.origin.digest(),
        until_at=after_ms(now, request.delay_ms or None),
        correlation_id=request.origin.correlation_id,
        trace=request.origin.trace,
    )


def _claimable(job: Job, request: ClaimRequest, now: datetime) -> bool:
    due = job.due_at is not None and job.due_at <= now
    wanted = job.queue in request.queues and job.kind in request.kinds
    return due and wanted and job.status in READY and not job.committed


def _needs_attention(job: Job, now: datetime) -> bool:
    passed = [moment for moment in (job.lease_expires_at, job.heartbeat_deadline_at, job.timeout_at) if moment]
    if job.status in HELD or job.status is QUEUED:
        return any(moment <= now for moment in passed)
    return job.status is STALLED and (job.lost or job.committed)


def _matches(job: Job, wanted: JobFilter) -> bool:
    tags = job.origin.tags or {}
    return (
        (not wanted.statuses or job.status in wanted.statuses)
        and (not wanted.queues or job.queue in wanted.queues)
        and (not wanted.kinds or job.kind in wanted.kinds)
        and wanted.correlation_id in (None, job.origin.correlation_id)
        and wanted.dedupe_key in (None, job.origin.dedupe_key)
        and wanted.submitted_by in (None, job.origin.submitted_by)
        and all(tags.get(name) == value for name, value in wanted.tags.items())
        and _within(job.created_at, wanted.created_from, wanted.created_until)
    )


def _event_matches(event: Event, wanted: EventFilter) -> bool:
    return (
        wanted.job_id in (None, event.job_id)
        and (not wanted.types or event.type in wanted.types)
        and wanted.correlation_id in (None, event.correlation_id)
        and _within(event.at, wanted.since, wanted.until)
    )


def _position(after: object) -> str:
    """A place in the log to go on from, as an earlier page named it; the beginning is named by nothing."""
    if after is None or after == "":
        return ""
    if not isinstance(after, str) or len(after) != POSITION_DIGITS or not (after.isascii() and after.isdigit()):
        raise InvalidInput("after", f"{after!r} is not a position of this log; take it from an earlier page")
    return after


def _within(moment: datetime, begin: datetime | None, end: datetime | None) -> bool:
    return (begin is None or begin <= moment) and (end is None or moment < end)


def _superseded(history: Sequence[Event]) -> list[Event]:
    """Progress that no longer shows in the record: more of it came, or a new attempt began."""
    found: list[Event] = []
    told: list[Event] = []
    for event in history:
        if event.type in (EventType.PROGRESS, EventType.CLAIMED):
            found += told
            told = [event] if event.type is EventType.PROGRESS and event.detail is not None else []
    return found
