"""What every store does in the same way. An operation is validated, refused inside an open commit block of the same
store, executed on the database, and followed by wake-ups and by the wakes of parents.

A subclass and the parts that it passes in execute operations on their database. They neither validate input nor wake
workers, except where the write itself carries the notification.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence, Set
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, NotAuthorised, StoreError, TenureError
from tenure.lifecycle.budgets import BudgetLine
from tenure.lifecycle.content import StoredContent
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.executions import Execution
from tenure.lifecycle.json_text import check_integer, check_text
from tenure.lifecycle.records import Actor, Event, Job
from tenure.lifecycle.steps import StepRecord
from tenure.seams import Seams
from tenure.stores.base_protocols import Notifier, StoreReads
from tenure.stores.commit_block import require_no_open_block
from tenure.stores.contract import (
    Artifact,
    ArtifactRecord,
    ClaimRequest,
    DeadLetterFilter,
    DeadLetterPage,
    EnqueueRequest,
    EnqueueResult,
    EventFilter,
    EventPage,
    Failure,
    Finding,
    FinishedKind,
    HomogeneousResults,
    JobFilter,
    JobPage,
    MigrationRecord,
    Outcome,
    Prunable,
    PrunedBatch,
    RegistrationStore,
    Request,
    Reserve,
    ReserveOutcome,
    Resolution,
    RetentionStore,
    SaveStep,
    SchemaState,
    SignalRecord,
    Stats,
    StepOutcome,
    StoreTransaction,
    Subscription,
    WorkerRecord,
    due_later,
    have_notified,
    is_homogeneous,
    released_queues,
    wakeups_of,
)
from tenure.stores.contract.budgets import validate_reserve
from tenure.stores.contract.outbox import OutboxPart
from tenure.stores.contract.retention import PRUNE_BATCH
from tenure.stores.contract.steps import STEPS_PER_READ
from tenure.stores.findings import undelivered
from tenure.stores.group_commit import GroupCommit
from tenure.stores.later_wakeups import LaterWakeups
from tenure.stores.locked_rows import client_waits, wait_for_locked_rows
from tenure.stores.quarantine import Quarantine
from tenure.stores.schema import require_fit
from tenure.stores.validation import (
    NUMBER_MAX,
    REASON_LENGTH_MAX,
    invalid_steps,
    validate_after,
    validate_claim,
    validate_dead_letter_filter,
    validate_enqueues,
    validate_event_filter,
    validate_job_filter,
    validate_page,
    validate_prunable,
    validate_request,
    validate_resolution,
    validate_worker,
)
from tenure.stores.wake_parents import wake_parents

CONFLICTS_MAX = 20
"""How often an operation is decided again on a row that other transactions keep changing."""


def conflicts_exhausted(job_id: UUID) -> StoreError:
    """The error after `CONFLICTS_MAX` conflicts."""
    return StoreError(f"job {job_id} changed {CONFLICTS_MAX} times while this was tried; try again later")


class ClaimResult(msgspec.Struct, frozen=True):
    """The jobs that a claim won, in claim order, and what it found out about limits.

    `limited_queues` are those of the request's queues that are paused or have limits. After `retry_after_seconds` a
    rate limit allows the next job.
    """

    jobs: list[Job]
    limited_queues: frozenset[str] = frozenset()
    retry_after_seconds: float | None = None


class BaseStore(ABC):
    """The operations of `contract.Store` over the parts of one database."""

    outbox: OutboxPart

    def __init__(
        self,
        *,
        where: str,
        url: str,
        seams: Seams,
        reads: StoreReads,
        registration: RegistrationStore,
        retention: RetentionStore,
        notifier: Notifier,
    ) -> None:
        self._where, self._url = where, url
        self._reads, self._registration, self._retention = reads, registration, retention
        self._notifier = notifier
        self._clock = seams.clock
        self._quarantine = Quarantine(seams.clock)
        self._single_enqueues = GroupCommit(self._enqueue_all, seams, name="tenure-enqueues")
        self._single_signals = GroupCommit(self._apply, seams, name="tenure-signals")
        self._limited_queues: frozenset[str] = frozenset()
        self._later = LaterWakeups(notifier.send_here)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where!r})"

    @property
    def where(self) -> str:
        return self._where

    # What a store does on its own database.

    @abstractmethod
    async def _enqueue(
        self, requests: Sequence[EnqueueRequest], *, homogeneous: bool, after: Awaitable[object] | None
    ) -> tuple[Sequence[EnqueueResult], bool]:
        """The results, and whether the write itself has notified other processes."""
        ...

    @abstractmethod
    async def _claim(self, request: ClaimRequest) -> ClaimResult: ...

    @abstractmethod
    async def _apply(self, requests: Sequence[Request]) -> list[Outcome]: ...

    @abstractmethod
    async def _save_steps(self, requests: Sequence[SaveStep]) -> list[StepOutcome]: ...

    @abstractmethod
    async def _reserve(self, request: Reserve) -> ReserveOutcome: ...

    @abstractmethod
    async def _connect(self) -> None:
        """Called when the schema fits, before the first operation."""
        ...

    @abstractmethod
    async def _findings(self) -> list[Finding]: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def schema(self) -> SchemaState: ...

    @abstractmethod
    async def migrate(self) -> list[MigrationRecord]: ...

    @abstractmethod
    def transaction(self, *, deadline_seconds: float) -> AbstractAsyncContextManager[StoreTransaction]: ...

    async def open(self) -> None:
        """Connect, and refuse a database whose schema does not fit this code."""
        try:
            require_fit(await self.schema(), where=self._where, url=self._url)
        except TenureError:
            await self.close()
            raise
        await self._connect()

    async def prepare(self) -> None:
        """Nothing to prepare, unless a store overrides this."""
        return

    async def doctor(self) -> list[Finding]:
        return [*await self._findings(), *await self._undelivered(), *self._quarantine.findings()]

    async def _undelivered(self) -> list[Finding]:
        """Messages that are not delivered. None of a database whose schema does not fit: its store is not open."""
        schema = await self.schema()
        if not schema.current or schema.changed:
            return []
        return undelivered(await self.outbox.depth(), await self.outbox.endpoints())

    def wakeups(self, queues: Sequence[str]) -> AbstractAsyncContextManager[Subscription]:
        return self._notifier.subscribe(queues)

    def wake(self, names: Set[str]) -> None:
        """Wake the subscriptions to these queues and workers."""
        self._notifier.send(names)

    # Changes.

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, after: Awaitable[object] | None = None
    ) -> Sequence[EnqueueResult]:
        if not requests:
            return []
        homogeneous = is_homogeneous(requests)
        validate_enqueues(requests, homogeneous=homogeneous)
        require_no_open_block(self)
        if len(requests) == 1 and after is None and not requests[0].has_key:
            return [await self._single_enqueues.submit(requests[0])]
        return await self._enqueue_and_wake(requests, homogeneous=homogeneous, after=after)

    async def _enqueue_all(self, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult]:
        return await self._enqueue_and_wake(requests, homogeneous=is_homogeneous(requests), after=None)

    async def _enqueue_and_wake(
        self, requests: Sequence[EnqueueRequest], *, homogeneous: bool, after: Awaitable[object] | None
    ) -> Sequence[EnqueueResult]:
        results, notified = await self._enqueue(requests, homogeneous=homogeneous, after=after)
        if isinstance(results, HomogeneousResults):
            queues = {requests[0].origin.queue}
        else:
            queues = {result.job.queue for result in results if result.created}
        if queues:
            self._notifier.send(queues, notified=notified)
        return results

    async def claim(self, request: ClaimRequest) -> list[Job]:
        validate_claim(request)
        require_no_open_block(self)
        result = await self._claim(request)
        if self._limited_queues or result.limited_queues:
            self._limited_queues = self._limited_queues.difference(request.queues) | result.limited_queues
        if result.retry_after_seconds is not None:
            self._later.add(result.limited_queues, result.retry_after_seconds)
        return result.jobs

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        outcomes = await self.apply_only(requests)
        await self.wake_parents(requests, outcomes)
        return outcomes

    async def apply_only(self, requests: Sequence[Request]) -> list[Outcome]:
        """`apply` without waking parents: what remains to be done if a process dies right after its commit."""
        for request in requests:
            validate_request(request)
        require_no_open_block(self)
        if len(requests) == 1 and requests[0].is_signal:
            outcomes = [await self._single_signals.submit(requests[0])]
        else:
            outcomes = await self._apply(requests)
        if any(map(client_waits, requests, outcomes)):
            outcomes = await wait_for_locked_rows(requests, outcomes, apply=self._apply, clock=self._clock)
        names = wakeups_of(outcomes)
        for queue, seconds in due_later(outcomes):
            self._later.add({queue}, seconds)
        if self._limited_queues:
            names |= released_queues(outcomes) & self._limited_queues
        if names:
            self._notifier.send(names, notified=have_notified(outcomes))
        return outcomes

    async def wake_parents(self, requests: Sequence[Request], outcomes: Sequence[Outcome]) -> None:
        """Wake jobs that wait for children, if these outcomes suffice for them. Called after the commit."""
        woken = await wake_parents(requests, outcomes, wakeable=self.wakeable, apply=self._apply)
        if names := wakeups_of(woken):
            self.wake(names)

    async def wakeable(self, job_ids: Sequence[UUID]) -> list[Job]:
        """Those of these jobs that wait for children, are not due, and have at most `children_max` live awaited
        ones."""
        return self._quarantine.decoded(await self._reads.wakeable(job_ids))

    async def save_steps(self, requests: Sequence[SaveStep]) -> list[StepOutcome]:
        invalid = invalid_steps(requests)
        require_no_open_block(self)
        valid = [request for index, request in enumerate(requests) if index not in invalid]
        saved = iter(await self._save_steps(valid) if valid else ())
        return [invalid[index] if index in invalid else next(saved) for index in range(len(requests))]

    async def reserve(self, request: Reserve) -> ReserveOutcome:
        try:
            validate_reserve(request)
        except (InvalidInput, NotAuthorised) as problem:
            return Failure(problem)
        require_no_open_block(self)
        return await self._reserve(request)

    async def recoverable(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        validate_page(limit)
        validate_after(after)
        return self._quarantine.decoded(await self._reads.recoverable(limit=limit, after=after))

    # Reads.

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await self._reads.read(job_ids)

    async def find(
        self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100, newest_first: bool = False
    ) -> JobPage:
        validate_page(limit)
        validate_after(after)
        validate_job_filter(wanted)
        return await self._reads.find(wanted, after=after, limit=limit, newest_first=newest_first)

    async def children(
        self, parent_id: UUID, *, live_only: bool = False, after: UUID | None = None, limit: int = 100
    ) -> JobPage:
        validate_page(limit)
        validate_after(after)
        return await self._reads.children(parent_id, live_only=live_only, after=after, limit=limit)

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._reads.history(job_ids)

    async def events(self, wanted: EventFilter, *, after: str | None = None, limit: int = 1000) -> EventPage:
        validate_page(limit)
        validate_event_filter(wanted)
        return await self._reads.events(wanted, after=after, limit=limit)

    async def tail(self, *, after: str | None = None, limit: int = 1000) -> EventPage:
        validate_page(limit)
        return await self._reads.tail(after=after, limit=limit)

    async def end(self) -> str:
        return await self._reads.end()

    async def executions(self, job_id: UUID) -> list[Execution]:
        return await self._reads.executions(job_id)

    async def dead_letter(self, job_id: UUID) -> DeadLetterRecord | None:
        return await self._reads.dead_letter(job_id)

    async def dead_letters(
        self, wanted: DeadLetterFilter, *, after: UUID | None = None, limit: int = 100, newest_first: bool = False
    ) -> DeadLetterPage:
        validate_page(limit)
        validate_after(after)
        validate_dead_letter_filter(wanted)
        return await self._reads.dead_letters(wanted, after=after, limit=limit, newest_first=newest_first)

    async def artifacts(self, job_id: UUID) -> list[ArtifactRecord]:
        return await self._reads.artifacts(job_id)

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None:
        return await self._reads.artifact(job_id, name)

    async def signals(self, job_id: UUID) -> list[SignalRecord]:
        return await self._reads.signals(job_id)

    async def run_state(self, job_id: UUID) -> str | None:
        return await self._reads.run_state(job_id)

    async def budget(self, root_id: UUID) -> list[BudgetLine]:
        return await self._reads.budget(root_id)

    async def steps(self, job_id: UUID, *, after: int = 0, limit: int = STEPS_PER_READ) -> list[StepRecord]:
        validate_page(limit)
        check_integer(after, "after", least=0, most=NUMBER_MAX)
        return await self._reads.steps(job_id, after=after, limit=limit)

    async def content(self, job_ids: Sequence[UUID]) -> dict[UUID, StoredContent]:
        return await self._reads.content(job_ids)

    async def workers(self, ids: Sequence[str] | None = None) -> list[WorkerRecord]:
        return await self._reads.workers(ids)

    async def stats(self) -> Stats:
        return await self._reads.stats()

    async def now(self) -> datetime:
        return await self._reads.now()

    # Workers and retention.

    async def register(self, worker: WorkerRecord) -> None:
        validate_worker(worker)
        require_no_open_block(self)
        await self._registration.register(worker)

    async def unregister(self, worker_id: str) -> None:
        require_no_open_block(self)
        await self._registration.unregister(worker_id)

    async def finished_kinds(self) -> list[FinishedKind]:
        return await self._retention.finished_kinds()

    async def prune(self, prunable: Prunable, *, limit: int = PRUNE_BATCH, actor: Actor | None = None) -> PrunedBatch:
        validate_prunable(prunable, limit)
        require_no_open_block(self)
        return await self._retention.prune(prunable, limit=limit, actor=actor)

    async def count_prunable(self, prunable: Prunable) -> int:
        validate_prunable(prunable)
        return await self._retention.count_prunable(prunable)

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        check_text(reason, "reason", length_max=REASON_LENGTH_MAX)
        require_no_open_block(self)
        return await self._retention.erase(job_id, reason=reason, actor=actor)

    async def resolve_dead_letters(self, job_ids: Sequence[UUID], *, how: Resolution, actor: Actor) -> int:
        validate_resolution(job_ids, how)
        require_no_open_block(self)
        return await self._retention.resolve_dead_letters(job_ids, how=how, actor=actor)
