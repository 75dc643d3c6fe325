"""What the model has besides jobs: artifacts, outbox messages, steps, and workers."""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import datetime
from uuid import UUID

import msgspec

from simulation.model.log_cursors import CursorRow, ModelLogCursors
from simulation.model.outbox import ModelOutbox, PendingRow, topic_matches
from tenure.errors import InvalidInput, JobNotFound, LeaseLost, NotAuthorised
from tenure.lifecycle.budgets import BudgetLine, Reservation
from tenure.lifecycle.content import StoredContent, is_of_step
from tenure.lifecycle.decide import effective_at
from tenure.lifecycle.json_text import check_integer, encode
from tenure.lifecycle.records import Actor, Job
from tenure.lifecycle.steps import STATE_NAME, StepKind, StepRecord, StepsDigest, stored_step
from tenure.stores.commit_block import require_no_open_block
from tenure.stores.contract import (
    Artifact,
    ArtifactRecord,
    BudgetRecord,
    Charge,
    Failure,
    OutboxMessage,
    ReservationRecord,
    Reserve,
    Reserved,
    ReserveOutcome,
    SaveStep,
    SignalRecord,
    StepOutcome,
    StepSaved,
    WorkerRecord,
    budget_lines,
    decide_reserve,
    decide_save,
    digest_artifacts,
    digest_messages,
    message_context,
    without_token,
)
from tenure.stores.contract.budgets import validate_reserve
from tenure.stores.contract.log_cursors import OperatorEvent
from tenure.stores.contract.outbox import DeliveryRecord, EndpointRecord, StoredMessage
from tenure.stores.contract.steps import STEPS_PER_READ
from tenure.stores.validation import NUMBER_MAX, invalid_steps, validate_page, validate_worker
from tenure.testing.clock import ManualClock


class ModelContent:
    """The part of the model that `decide` does not concern."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._rows: dict[UUID, Job] = {}
        self._artifacts: dict[tuple[UUID, str], tuple[ArtifactRecord, Artifact]] = {}
        self._outbox: dict[UUID, tuple[int, OutboxMessage]] = {}
        self._senders: dict[UUID, UUID] = {}
        self._message_context: dict[UUID, tuple[str, str | None]] = {}
        self._message_at: dict[UUID, datetime] = {}
        self._endpoint_counts: dict[UUID, int] = {}
        self._endpoints: dict[str, EndpointRecord] = {}
        self._pending: dict[tuple[str, str, int], PendingRow] = {}
        self._deliveries: list[DeliveryRecord] = []
        self._cursors: dict[str, CursorRow] = {}
        self._operator_events: list[OperatorEvent] = []
        self._published: set[int] = set()
        self._signals: dict[UUID, list[SignalRecord]] = {}
        self._steps: dict[UUID, list[StepRecord]] = {}
        self._budgets: dict[tuple[UUID, str], BudgetRecord] = {}
        self._reservations: dict[tuple[UUID, str, UUID, int, str], ReservationRecord] = {}
        self._workers: dict[str, WorkerRecord] = {}

    def _log_operator(self, action: str, actor: Actor, **detail: object) -> None:
        event = OperatorEvent(
            id=len(self._operator_events) + 1,
            at=self._clock.now(),
            actor=str(actor),
            action=action,
            detail=encode(detail),
        )
        self._operator_events.append(event)

    async def post(self, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None:
        """Store a transaction's messages under the next sequences, in the order of aggregates."""
        for message, job in messages:
            if message.id in self._outbox:
                raise InvalidInput("id", f"there is a message {message.id} already; make a new id for a new message")
            self.write_message(message, message_context(message, job))
            if job is not None:
                self._senders[message.id] = job.id

    def write_message(self, message: OutboxMessage, context: tuple[str, str | None]) -> None:
        """Store a message, whose id is new, with its correlation id and trace."""
        sequence = 1 + max((number for number, _ in self._outbox.values()), default=0)
        self._outbox[message.id] = (sequence, message)
        self._message_context[message.id] = context
        self._message_at[message.id] = self._clock.now()
        self._make_pending(sequence, message)

    def _make_pending(self, sequence: int, message: OutboxMessage) -> None:
        endpoints = [
            name
            for name, one in self._endpoints.items()
            if any(topic_matches(message.topic, subscription.topic) for subscription in one.subscriptions)
        ]
        self._endpoint_counts[message.id] = len(endpoints)
        for name in endpoints:
            row = PendingRow(
                endpoint=name,
                aggregate=message.aggregate or "",
                only_sequence=0 if message.aggregate else sequence,
                position=sequence - 1,
                last_sequence=sequence,
                due_at=self._clock.now(),
            )
            known = self._pending.get(row.key, row)
            self._pending[row.key] = msgspec.structs.replace(known, last_sequence=sequence)

    def _messages(self) -> list[StoredMessage]:
        """All messages in the order of sequences."""
        return [
            StoredMessage(
                sequence=sequence,
                job_id=self._senders.get(message.id),
                correlation_id=self._message_context[message.id][0],
                trace=self._message_context[message.id][1],
                at=self._message_at[message.id],
                endpoint_count=self._endpoint_counts.get(message.id, 0),
                **msgspec.structs.asdict(message),
            )
            for sequence, message in sorted(self._outbox.values(), key=lambda kept: kept[0])
        ]

    @property
    def log_cursors(self) -> ModelLogCursors:
        return ModelLogCursors(self)

    @property
    def outbox(self) -> ModelOutbox:
        return ModelOutbox(self)

    async def attach(self, job: Job, artifacts: Sequence[Artifact]) -> Job:
        """Store a transaction's artifacts. Returns the current job."""
        current = self._rows.get(job.id)
        if current is None:
            raise JobNotFound(job.id)
        if job.token is None or current.token != job.token:
            raise LeaseLost(without_token(current), "attach")
        for artifact in artifacts:
            if (job.id, artifact.name) in self._artifacts:
                problem = f"job {job.id} has one named {artifact.name!r} already; take another name"
                raise InvalidInput("artifact", problem)
            record = ArtifactRecord(
                job_id=job.id,
                name=artifact.name,
                attempt=job.attempt,
                media_type=artifact.media_type,
                bytes=len(artifact.body),
                at=self._clock.now(),
            )
            self._artifacts[job.id, artifact.name] = (record, artifact)
        return current

    async def artifacts(self, job_id: UUID) -> list[ArtifactRecord]:
        return [self._artifacts[key][0] for key in sorted(self._artifacts, key=str) if key[0] == job_id]

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None:
        kept = self._artifacts.get((job_id, name))
        return None if kept is None else kept[1]

    async def content(self, job_ids: Sequence[UUID]) -> dict[UUID, StoredContent]:
        return {job_id: self._content(job_id) for job_id in job_ids}

    def _content(self, job_id: UUID) -> StoredContent:
        artifacts = [kept for key, kept in self._artifacts.items() if key[0] == job_id]
        return StoredContent(
            artifacts=tuple(
                one for record, made in artifacts for one in digest_artifacts([made], attempt=record.attempt)
            ),
            messages=tuple(
                digest_messages(self._outbox[id_][1] for id_ in self._messages_of(job_id) if not is_of_step(id_))
            ),
            signals={signal.rev: (signal.name, signal.payload) for signal in self._signals.get(job_id, ())},
            steps=tuple(stored_step(step) for step in self._steps.get(job_id, ())),
        )

    async def save_steps(self, requests: Sequence[SaveStep]) -> list[StepOutcome]:
        invalid = invalid_steps(requests)
        require_no_open_block(self)
        return [invalid.get(index) or self._save_step(request) for index, request in enumerate(requests)]

    def _save_step(self, request: SaveStep) -> StepOutcome:
        job, now = self._rows.get(request.job.id), self._clock.now()
        kept = self._steps.get(request.job.id, [])
        existing = next((step for step in kept if step.key == request.step.key), None)
        outcome = decide_save(job, request, existing, now=now)
        if outcome is not None or job is None:
            return outcome or Failure(JobNotFound(request.job.id))
        step = request.record(number=self._next_step_number(), at=effective_at(job, now))
        self._steps.setdefault(job.id, []).append(step)
        if request.charge is not None:
            self._settle(job, request.charge)
        return StepSaved(step)

    async def write_copies(self, job_id: UUID, steps: Sequence[StepRecord]) -> int:
        """Copies of steps for a job at its first revision. Returns how many."""
        if self._rows[job_id].rev != 1:
            return 0
        kept = self._steps.setdefault(job_id, [])
        for step in steps:
            kept.append(msgspec.structs.replace(step, number=self._next_step_number()))
        return len(steps)

    def _settle(self, job: Job, charge: Charge) -> None:
        for unit, amount in charge.amounts.items():
            if (record := self._budgets.get((charge.root_id, unit))) is not None:
                spent = record.spent + amount
                self._budgets[charge.root_id, unit] = msgspec.structs.replace(record, spent=spent)
            self._reservations.pop((charge.root_id, unit, job.id, job.attempt, charge.key), None)
        ended = (job.id, job.attempt, charge.key)
        self._reservations = {key: kept for key, kept in self._reservations.items() if key[2:] != ended}

    async def reserve(self, request: Reserve) -> ReserveOutcome:
        try:
            validate_reserve(request)
        except (InvalidInput, NotAuthorised) as problem:
            return Failure(problem)
        require_no_open_block(self)
        for unit, limit in request.budget.limits.items():
            opened = BudgetRecord(
                root_id=request.root_id,
                unit=unit,
                limit_amount=limit,
                spent=0,
                on_lost_spend=request.budget.on_lost_spend,
            )
            self._budgets.setdefault((request.root_id, unit), opened)
        job, records = self._rows.get(request.job.id), self._budget_records(request.root_id)
        outcome = decide_reserve(job, request, records, self._reserved(request.root_id), now=self._clock.now())
        if isinstance(outcome, Reserved):
            for unit, amount in request.limited_amounts.items():
                record = ReservationRecord(
                    root_id=request.root_id,
                    unit=unit,
                    job_id=request.job.id,
                    attempt=request.job.attempt,
                    key=request.key,
                    amount=amount,
                )
                place = (request.root_id, unit, request.job.id, request.job.attempt, request.key)
                self._reservations.setdefault(place, record)
        return outcome

    async def budget(self, root_id: UUID) -> list[BudgetLine]:
        return budget_lines(self._budget_records(root_id), self._reserved(root_id))

    def _budget_records(self, root_id: UUID) -> list[BudgetRecord]:
        return [self._budgets[key] for key in sorted(self._budgets, key=str) if key[0] == root_id]

    def _reserved(self, root_id: UUID) -> list[Reservation]:
        return [
            Reservation(**msgspec.structs.asdict(record), is_live=self._is_leased(record))
            for record in self._reservations.values()
            if record.root_id == root_id
        ]

    def _is_leased(self, record: ReservationRecord) -> bool:
        job = self._rows.get(record.job_id)
        return job is not None and job.token is not None and job.attempt == record.attempt

    def _next_step_number(self) -> int:
        return 1 + max((step.number for steps in self._steps.values() for step in steps), default=0)

    async def run_state(self, job_id: UUID) -> str | None:
        states = [
            step for step in self._steps.get(job_id, ()) if step.kind is StepKind.DECISION and step.name == STATE_NAME
        ]
        return max(states, key=lambda step: step.number).result if states else None

    async def steps(self, job_id: UUID, *, after: int = 0, limit: int = STEPS_PER_READ) -> list[StepRecord]:
        validate_page(limit)
        check_integer(after, "after", least=0, most=NUMBER_MAX)
        return [step for step in self._steps.get(job_id, ()) if step.number > after][:limit]

    def _steps_digest(self, job_id: UUID) -> str | None:
        return StepsDigest.of(step.digest for step in self._steps.get(job_id, ())).recorded

    def _messages_of(self, job_id: UUID) -> list[UUID]:
        return [message_id for message_id, sender in self._senders.items() if sender == job_id]

    def _drop_artifacts(self, job_ids: Set[UUID]) -> None:
        self._artifacts = {key: kept for key, kept in self._artifacts.items() if key[0] not in job_ids}

    async def register(self, worker: WorkerRecord) -> None:
        validate_worker(worker)
        require_no_open_block(self)
        now = self._clock.now()
        before = self._workers.get(worker.id)
        first = now if before is None else before.started_at
        self._workers[worker.id] = msgspec.structs.replace(worker, started_at=first, seen_at=now, stopped_at=None)

    async def unregister(self, worker_id: str) -> None:
        require_no_open_block(self)
        worker = self._workers.get(worker_id)
        if worker is not None and worker.stopped_at is None:
            self._workers[worker_id] = msgspec.structs.replace(worker, stopped_at=self._clock.now())

    async def workers(self, ids: Sequence[str] | None = None) -> list[WorkerRecord]:
        ordered = [self._workers[id_] for id_ in sorted(self._workers)]
        return [worker for worker in ordered if (worker.stopped_at is None if ids is None else worker.id in ids)]
