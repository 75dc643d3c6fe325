"""The in-memory model: a store of dictionaries and `decide`. Other stores are compared with it; it is not for users.

Everything happens at once and in order, so there are no locks, no races and no SQL. A real store must return, write and
show what this one does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from itertools import islice
from uuid import UUID

import msgspec

from simulation.model.archive import ModelArchive
from simulation.model.commit_block import ModelCommitBlock
from simulation.model.queues import ModelQueue, ModelQueues, choose_within_limits, with_usage
from simulation.model.retention import ModelRetention
from simulation.model.rows import (
    POSITION_DIGITS,
    DeduplicatedEnqueue,
    WonClaim,
    body_of,
    claimable,
    deduplicated_job,
    event_matches,
    is_due,
    job_matches,
    letter_matches,
    needs_attention,
    pinned_jobs,
    position,
    same_dedupe,
    same_enqueue,
    tallies,
    waits_for_no_child,
)
from simulation.model.schedules import ModelSchedules
from tenure.errors import RequestIdReused
from tenure.lifecycle.claim_order import batch, claim_order
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.decide import Change, decide_chain, effective_at, expand, renewal_due
from tenure.lifecycle.executions import Execution
from tenure.lifecycle.fold import executions
from tenure.lifecycle.operations import Claim, DeadLetter, Signal, Start
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.schedules import ScheduleRecord
from tenure.stores.commit_block import require_no_open_block
from tenure.stores.contract import (
    Applied,
    ClaimRequest,
    DeadLetterFilter,
    DeadLetterPage,
    EnqueueRequest,
    EnqueueResult,
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
    Stats,
    StoreTransaction,
    Subscription,
    decide_request,
    redacted,
    without_token,
)
from tenure.stores.findings import SEEN_SECONDS, UnservedJobs, paused, unserved_jobs, unserved_pins
from tenure.stores.validation import (
    validate_claim,
    validate_dead_letter_filter,
    validate_enqueue,
    validate_event_filter,
    validate_job_filter,
    validate_page,
    validate_request,
)
from tenure.stores.wake_parents import wake_parents
from tenure.testing.clock import ManualClock


class _NoWakeups:
    async def wait(self, timeout_seconds: float) -> bool:
        return False


class ModelStore(ModelRetention):
    """Rows by id, events by job and in the order of the log, and their further records."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._claims: dict[str, WonClaim] = {}
        self._schedules: dict[str, ScheduleRecord] = {}
        self._queues: dict[str, ModelQueue] = {}
        self._next_position = 1

    @property
    def where(self) -> str:
        return "the model"

    @property
    def queues(self) -> ModelQueues:
        return ModelQueues(self, self._queues, self._rows, self._clock)

    def copy(self) -> ModelStore:
        """Another model in the same state."""
        twin = ModelStore(self._clock)
        for name, value in vars(self).items():
            if isinstance(value, dict):
                vars(twin)[name] = {key: list(item) if isinstance(item, list) else item for key, item in value.items()}
            else:
                vars(twin)[name] = list(value) if isinstance(value, list) else value
        return twin

    def is_like(self, other: ModelStore) -> bool:
        return vars(self) == vars(other)

    def become(self, other: ModelStore) -> None:
        vars(self).update(vars(other.copy()))

    @property
    def archive(self) -> ModelArchive:
        return ModelArchive(self)

    @property
    def schedules(self) -> ModelSchedules:
        return ModelSchedules(self, lambda: self._schedules, self._clock, self.enqueue)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def migrate(self) -> list[MigrationRecord]:
        return []

    async def schema(self) -> SchemaState:
        return SchemaState(applied=[1], pending=[], unknown=[], changed=[], min_code_version=1, code_version=1)

    async def doctor(self) -> list[Finding]:
        now = self._clock.now()
        seen = [worker for worker in self._workers.values() if now - worker.seen_at < timedelta(seconds=SEEN_SECONDS)]
        live = [worker for worker in seen if worker.stopped_at is None]
        queues = {queue for worker in live for queue in worker.queues}
        served = {(queue, kind) for worker in live for queue in worker.queues for kind in worker.kinds}
        due = Counter(
            (job.queue, job.kind) for job in self._rows.values() if is_due(job, now) and job.pinned_version is None
        )
        unserved = sorted((one for one in due.items() if one[0] not in served), key=lambda one: (-one[1], one[0]))
        found = [
            UnservedJobs(queue, kind, jobs, more=False, queue_served=queue in queues)
            for (queue, kind), jobs in unserved
        ]
        pins = unserved_pins(pinned_jobs(self._rows.values()), live, now)
        return [*unserved_jobs(found), *pins, *paused(await self.queues.known())]

    async def now(self) -> datetime:
        return self._clock.now()

    # Enqueue

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, after: Awaitable[object] | None = None
    ) -> list[EnqueueResult]:
        for request in requests:
            validate_enqueue(request)
        if after is not None:
            await after
        require_no_open_block(self)
        rows, bodies, deduplicated = dict(self._rows), dict(self._bodies), dict(self._deduplicated)
        written: list[Event] = []
        results: list[EnqueueResult] = []
        for request in requests:
            there = deduplicated_job(request, rows, deduplicated) or same_enqueue(request, rows, bodies)
            if there is None and (there := same_dedupe(request, rows.values())) is not None:
                deduplicated[request.request_id] = DeduplicatedEnqueue(body_of(request), there.id, self._clock.now())
            if there is not None:
                results.append(EnqueueResult(without_token(there), created=False))
                continue
            event, job = request.decide(self._clock.now())
            rows[job.id], bodies[job.id] = job, body_of(request)
            written.append(event)
            results.append(EnqueueResult(job, created=True))
        self._rows, self._bodies, self._deduplicated = rows, bodies, deduplicated
        self._append(written)
        return results

    # Claim

    async def prepare(self) -> None: ...

    async def claim(self, request: ClaimRequest) -> list[Job]:
        validate_claim(request)
        require_no_open_block(self)
        body, won = request.body(), self._claims.get(request.request_id)
        if won is None:
            won = WonClaim(body, tuple(job.id for job in self._take(request)))
            if won.job_ids:
                self._claims[request.request_id] = won
        if won.body != body:
            raise RequestIdReused(request.request_id)
        return [without_token(self._rows[job_id], request.actor) for job_id in won.job_ids if job_id in self._rows]

    def _take(self, request: ClaimRequest) -> list[Job]:
        now = self._clock.now()
        choice = choose_within_limits(request, self._queues, self._rows.values(), now)
        if choice is None:
            wanted = [job for job in self._rows.values() if claimable(job, request, now)]
            taken = batch(sorted(wanted, key=claim_order), request.limit)
        else:
            taken = [self._rows[one.id] for one in choice.chosen]
            at = max((now, *(job.updated_at for job in taken)))
            self._queues = with_usage(self._queues, choice.usage((job.id for job in taken), at))
        claim = Claim(request.token, request.code_version)
        operations = (claim, Start()) if request.start else (claim,)
        for job in taken:
            change = decide_chain(job, operations, request.actor, request_id=request.request_id)
            self._write(change, now)
        return taken

    def wake(self, names: Set[str]) -> None:
        """Waits for nothing: no worker runs on the model."""

    @asynccontextmanager
    async def wakeups(self, queues: Sequence[str]) -> AsyncIterator[Subscription]:
        yield _NoWakeups()

    # Apply

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        outcomes = await self.apply_only(requests)
        await self.wake_parents(requests, outcomes)
        return outcomes

    async def apply_only(self, requests: Sequence[Request]) -> list[Outcome]:
        for request in requests:
            validate_request(request)
        require_no_open_block(self)
        return [self._perform(request) for request in requests]

    async def wake_parents(self, requests: Sequence[Request], outcomes: Sequence[Outcome]) -> None:
        await wake_parents(requests, outcomes, wakeable=self.wakeable, apply=self.apply_only)

    async def wakeable(self, job_ids: Sequence[UUID]) -> list[Job]:
        rows = [self._rows[job_id] for job_id in sorted(job_ids) if job_id in self._rows]
        return [job for job in rows if waits_for_no_child(job, self._rows.values(), self._clock.now())]

    def transaction(self, *, deadline_seconds: float) -> AbstractAsyncContextManager[StoreTransaction]:
        return ModelCommitBlock(self, deadline_seconds=deadline_seconds)

    def _perform(self, request: Request) -> Outcome:
        logged = [event for event in self._histories.get(request.job_id, ()) if event.request_id == request.request_id]
        current, sent = self._rows.get(request.job_id), len(self._signals.get(request.job_id, ()))
        verdict = decide_request(current, request, logged=logged, now=self._clock.now(), signals=sent)
        return self._write(verdict, self._clock.now()) if isinstance(verdict, Change) else verdict

    def _write(self, change: Change, now: datetime) -> Applied:
        if change.counts_steps:
            change = change.with_steps(self._steps_digest(change.before.id))
        at = effective_at(change.before, now)
        renewed = any(step.renews for step in change.planned) and renewal_due(change.before, at)
        events, after = expand(change, at, renewed=renewed)
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
        return Applied(redacted(change), at, renewed)

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
            correlation_id=job.correlation_id,
        )

    def _append(self, events: Iterable[Event]) -> None:
        for event in events:
            placed = msgspec.structs.replace(event, position=f"{self._next_position:0{POSITION_DIGITS}d}")
            self._next_position += 1
            self._log.append(placed)
            self._histories.setdefault(event.job_id, []).append(placed)

    # Recovery

    async def recoverable(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        validate_page(limit)
        now = self._clock.now()
        rows = self._rows.values()
        found = [
            job for job in self._rows_after(after) if needs_attention(job, now) or waits_for_no_child(job, rows, now)
        ]
        return [without_token(job) for job in found[:limit]]

    # Reads

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return {job_id: without_token(self._rows[job_id]) for job_id in job_ids if job_id in self._rows}

    async def find(
        self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100, newest_first: bool = False
    ) -> JobPage:
        validate_job_filter(wanted)
        validate_page(limit)
        found = [
            without_token(job) for job in self._rows_after(after, newest_first=newest_first) if job_matches(job, wanted)
        ]
        return JobPage(found[:limit], found[limit - 1].id if len(found) > limit else None)

    async def children(
        self, parent_id: UUID, *, live_only: bool = False, after: UUID | None = None, limit: int = 100
    ) -> JobPage:
        validate_page(limit)
        children = [job for job in self._rows_after(after) if job.origin.parent_id == parent_id]
        found = [without_token(job) for job in children if job.live or not live_only]
        return JobPage(found[:limit], found[limit - 1].id if len(found) > limit else None)

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return {job_id: list(self._histories.get(job_id, ())) for job_id in job_ids}

    async def events(self, wanted: EventFilter, *, after: str | None = None, limit: int = 1000) -> EventPage:
        validate_event_filter(wanted)
        return self._page(lambda event: event_matches(event, wanted), after=after, limit=limit)

    async def tail(self, *, after: str | None = None, limit: int = 1000) -> EventPage:
        return self._page(lambda _: True, after=after, limit=limit)

    async def end(self) -> str:
        return position(self._log[-1].position if self._log else None)

    def _page(self, wanted: Callable[[Event], bool], *, after: str | None, limit: int) -> EventPage:
        validate_page(limit)
        begin = position(after)
        first = bisect_right(self._log, begin, key=lambda event: event.position or "")
        found = list(islice(filter(wanted, self._log[first:]), limit))
        return EventPage(found, (found[-1].position or begin) if found else begin)

    async def executions(self, job_id: UUID) -> list[Execution]:
        return executions(self._histories.get(job_id, ()))

    async def dead_letter(self, job_id: UUID) -> DeadLetterRecord | None:
        return self._dead_letters.get(job_id)

    async def dead_letters(
        self, wanted: DeadLetterFilter, *, after: UUID | None = None, limit: int = 100, newest_first: bool = False
    ) -> DeadLetterPage:
        validate_dead_letter_filter(wanted)
        validate_page(limit)
        rows = self._rows_after(after, newest_first=newest_first)
        buried = [(self._dead_letters[job.id], job) for job in rows if job.id in self._dead_letters]
        found = [letter for letter, job in buried if letter_matches(letter, job, wanted)]
        return DeadLetterPage(found[:limit], found[limit - 1].job_id if len(found) > limit else None)

    async def signals(self, job_id: UUID) -> list[SignalRecord]:
        return list(self._signals.get(job_id, ()))

    # Workers

    async def stats(self) -> Stats:
        return Stats(
            at=self._clock.now(),
            tallies=tallies(self._rows.values(), self._clock.now()),
            workers=await self.workers(),
            dead_letters=sum(letter.handled_at is None for letter in self._dead_letters.values()),
            pinned=pinned_jobs(self._rows.values()),
        )
