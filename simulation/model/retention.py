"""Retention of the model: ended jobs, verbose details, a job's content, and the resolution of dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from simulation.model.content import ModelContent
from simulation.model.rows import Body, DeduplicatedEnqueue, superseded
from tenure.errors import IllegalTransition, JobNotFound
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.records import BLANKABLE, Actor, Event, Job
from tenure.lifecycle.statuses import Status
from tenure.lifecycle.transitions import allowed_from
from tenure.stores.commit_block import require_no_open_block
from tenure.stores.contract import (
    FinishedJobs,
    FinishedKind,
    Prunable,
    PrunedBatch,
    Resolution,
    StoppedWorkers,
    VerboseEvents,
    without_token,
)
from tenure.stores.contract.retention import PRUNE_BATCH, WORKER_SLACK_SECONDS
from tenure.stores.validation import validate_after, validate_prunable, validate_resolution
from tenure.testing.clock import ManualClock

ERASED = "null"


class ModelRetention(ModelContent):
    """Removes jobs with all their records."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._bodies: dict[UUID, Body] = {}
        self._deduplicated: dict[str, DeduplicatedEnqueue] = {}
        self._histories: dict[UUID, list[Event]] = {}
        self._log: list[Event] = []
        self._dead_letters: dict[UUID, DeadLetterRecord] = {}

    def _rows_after(self, after: UUID | None, *, newest_first: bool = False) -> list[Job]:
        validate_after(after)
        ordered = sorted(self._rows.values(), key=lambda job: job.id.bytes, reverse=newest_first)
        if after is None:
            return ordered
        first = after.bytes
        return [job for job in ordered if (job.id.bytes < first if newest_first else job.id.bytes > first)]

    async def finished_kinds(self) -> list[FinishedKind]:
        oldest: dict[tuple[Status, str], datetime] = {}
        for job in self._rows.values():
            if job.finished_at is not None:
                key = (job.status, job.kind)
                oldest[key] = min(oldest.get(key, job.finished_at), job.finished_at)
        return [FinishedKind(status, kind, oldest[status, kind]) for status, kind in sorted(oldest)]

    async def prune(self, prunable: Prunable, *, limit: int = PRUNE_BATCH, actor: Actor | None = None) -> PrunedBatch:
        validate_prunable(prunable, limit)
        require_no_open_block(self)
        match prunable:
            case VerboseEvents():
                return self._blank(prunable, limit)
            case FinishedJobs():
                jobs = self._old_jobs(prunable)[:limit]
                self._remove_jobs(set(jobs))
                removed = len(jobs)
            case StoppedWorkers():
                workers = self._old_workers(prunable)[:limit]
                self._workers = {name: worker for name, worker in self._workers.items() if name not in workers}
                removed = len(workers)
            case _:
                # Messages are not delivered, and rate usage is computed from the log.
                removed = 0
        return PrunedBatch(removed, prunable if removed == limit else None)

    async def count_prunable(self, prunable: Prunable) -> int:
        validate_prunable(prunable)
        match prunable:
            case VerboseEvents():
                return len(self._old_details(prunable))
            case FinishedJobs():
                return len(self._old_jobs(prunable))
            case StoppedWorkers():
                return len(self._old_workers(prunable))
        return 0

    def _old_jobs(self, prunable: FinishedJobs) -> list[UUID]:
        limit_at = self._clock.now() - timedelta(seconds=prunable.older_than_seconds)
        ended = [
            (job.finished_at, job.id)
            for job in self._rows.values()
            if (job.status, job.kind) == (prunable.status, prunable.kind)
            and job.finished_at is not None
            and job.finished_at <= limit_at
        ]
        return [job_id for _, job_id in sorted(ended)]

    def _old_workers(self, prunable: StoppedWorkers) -> list[str]:
        limit_at = self._clock.now() - timedelta(seconds=prunable.older_than_seconds)
        first = min(self._rows.values(), key=lambda job: job.id.bytes, default=None)
        slack = timedelta(seconds=WORKER_SLACK_SECONDS)
        last_seen = {worker.id: worker.stopped_at or worker.seen_at for worker in self._workers.values()}
        return [
            worker
            for worker, seen_at in last_seen.items()
            if seen_at <= limit_at and (first is None or first.created_at > seen_at + slack)
        ]

    def _old_details(self, prunable: VerboseEvents) -> list[Event]:
        limit_at = self._clock.now() - timedelta(seconds=prunable.older_than_seconds)
        return [event for history in self._histories.values() for event in superseded(history) if event.at <= limit_at]

    def _remove_jobs(self, gone: Set[UUID]) -> None:
        for job_id in gone:
            del self._rows[job_id], self._histories[job_id], self._bodies[job_id]
            self._dead_letters.pop(job_id, None)
            self._signals.pop(job_id, None)
            self._steps.pop(job_id, None)
        self._drop_artifacts(gone)
        self._budgets = {key: kept for key, kept in self._budgets.items() if key[0] not in gone}
        self._reservations = {key: kept for key, kept in self._reservations.items() if key[0] not in gone}
        self._deduplicated = {name: answer for name, answer in self._deduplicated.items() if answer.job_id not in gone}
        self._log = [event for event in self._log if event.job_id not in gone]

    def _blank(self, prunable: VerboseEvents, limit: int) -> PrunedBatch:
        old = self._old_details(prunable)
        chosen = {event.id for event in sorted(old, key=lambda event: event.position or "")[:limit]}
        self._replace_events(msgspec.structs.replace(event, detail=None) for event in old if event.id in chosen)
        return PrunedBatch(len(chosen), prunable if len(chosen) == limit else None)

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        require_no_open_block(self)
        job = self._rows.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        if job.live:
            allowed = allowed_from(job.status, committed=job.committed)
            raise IllegalTransition(without_token(job), "erase", allowed=allowed, why="only when it has ended")
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
        verbose = [event for event in self._histories[job.id] if event.type in BLANKABLE]
        self._replace_events(msgspec.structs.replace(event, detail=None) for event in verbose)
        if (letter := self._dead_letters.get(job.id)) is not None:
            self._dead_letters[job.id] = msgspec.structs.replace(letter, last_error=ERASED)
        self._drop_artifacts({job.id})
        for message_id in self._messages_of(job.id):
            number, message = self._outbox[message_id]
            self._outbox[message_id] = number, msgspec.structs.replace(message, body=ERASED, headers=None)
        blank: dict[str, None] = {"result": None, "error": None, "undo": None}
        self._steps[job.id] = [msgspec.structs.replace(step, **blank) for step in self._steps.get(job.id, ())]
        kept = self._signals.get(job.id, ())
        self._signals[job.id] = [msgspec.structs.replace(signal, payload=ERASED) for signal in kept]

    async def resolve_dead_letters(self, job_ids: Sequence[UUID], *, how: Resolution, actor: Actor) -> int:
        validate_resolution(job_ids, how)
        require_no_open_block(self)
        letters = [self._dead_letters[job_id] for job_id in set(job_ids) if job_id in self._dead_letters]
        open_ = [letter for letter in letters if letter.handled_at is None]
        for letter in open_:
            at = max(self._clock.now(), letter.at)
            marked = msgspec.structs.replace(letter, handled_at=at, handled_as=how)
            self._dead_letters[letter.job_id] = marked
        return len(open_)

    def _replace_events(self, changed: Iterable[Event]) -> None:
        by_id = {event.id: event for event in changed}
        self._log = [by_id.get(event.id, event) for event in self._log]
        for job_id in {event.job_id for event in by_id.values()}:
            self._histories[job_id] = [by_id.get(event.id, event) for event in self._histories[job_id]]
