"""What the model may forget: whole jobs that have ended, verbose detail, and a job's content; and who dealt with dead
letters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec

from tenure.errors import IllegalTransition, JobNotFound
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.records import BLANKABLE, Actor, Event, Job
from tenure.lifecycle.transitions import allowed_from
from tenure.stores.commit_block import require_outside
from tenure.stores.contract import Resolution, SignalRecord, without_token
from tenure.stores.validation import validate_after, validate_age, validate_resolution
from tenure.testing.clock import ManualClock
from tenure.testing.model.content import Belongings
from tenure.testing.model.rows import AnsweredEnqueue, Body, superseded

ERASED = "null"


class Forgetting(Belongings):
    """The part of the model that takes things away, with all that it must take them from."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._bodies: dict[UUID, Body] = {}
        self._answers: dict[str, AnsweredEnqueue] = {}
        self._histories: dict[UUID, list[Event]] = {}
        self._log: list[Event] = []
        self._dead_letters: dict[UUID, DeadLetterRecord] = {}
        self._signals: dict[UUID, list[SignalRecord]] = {}

    def _rows_after(self, after: UUID | None) -> list[Job]:
        validate_after(after)
        ordered = sorted(self._rows.values(), key=lambda job: job.id.bytes)
        return [job for job in ordered if after is None or job.id.bytes > after.bytes]

    async def prune(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        require_outside(self)
        limit_at = self._clock.now() - validate_age(older_than_seconds, limit)
        ended = [job for job in self._rows_after(None) if job.finished_at is not None and job.finished_at <= limit_at]
        gone = {job.id for job in sorted(ended, key=lambda job: job.finished_at or limit_at)[:limit]}
        for job_id in gone:
            del self._rows[job_id], self._histories[job_id], self._bodies[job_id]
            self._dead_letters.pop(job_id, None)
            self._signals.pop(job_id, None)
        self._drop_artifacts(gone)
        self._answers = {name: answer for name, answer in self._answers.items() if answer.job_id not in gone}
        self._log = [event for event in self._log if event.job_id not in gone]
        return len(gone)

    async def blank(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        require_outside(self)
        limit_at = self._clock.now() - validate_age(older_than_seconds, limit)
        old = [event for history in self._histories.values() for event in superseded(history) if event.at <= limit_at]
        chosen = {event.id for event in sorted(old, key=lambda event: event.position or "")[:limit]}
        self._replace_events(msgspec.structs.replace(event, detail=None) for event in old if event.id in chosen)
        return len(chosen)

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        require_outside(self)
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
        telling = [event for event in self._histories[job.id] if event.type in BLANKABLE]
        self._replace_events(msgspec.structs.replace(event, detail=None) for event in telling)
        if (letter := self._dead_letters.get(job.id)) is not None:
            self._dead_letters[job.id] = msgspec.structs.replace(letter, last_error=ERASED)
        self._drop_artifacts({job.id})
        kept = self._signals.get(job.id, ())
        self._signals[job.id] = [msgspec.structs.replace(signal, payload=ERASED) for signal in kept]

    async def resolve_dead_letters(self, job_ids: Sequence[UUID], *, how: Resolution, actor: Actor) -> int:
        validate_resolution(job_ids, how)
        require_outside(self)
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
