"""The whole log in its order, and what must hold between jobs: each event told once, one live job for a dedupe key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from tenure.lifecycle.records import Event, Job
from tenure.lifecycle.statuses import TERMINAL
from tenure.testing.history.problems import Code, HistoryProblem


def tail_problems(logs: Mapping[UUID, Sequence[Event]], tail: Sequence[Event]) -> Iterator[HistoryProblem]:
    """The tail has every event of every job exactly once, as the job's own log has it, in the order of revisions."""
    stored = {(job_id, event.rev): event for job_id, events in logs.items() for event in events}
    told: set[tuple[UUID, int]] = set()
    latest: dict[UUID, int] = {}
    for event in tail:
        key = (event.job_id, event.rev)
        if key in told:
            yield _of(event, Code.TAIL_REPEATED, f"the tail tells of {event.type} twice")
        elif event.rev < latest.get(event.job_id, 0):
            yield _of(event, Code.TAIL_ORDER, f"the tail tells of it after revision {latest[event.job_id]}")
        elif key not in stored and event.job_id in logs:
            yield _of(event, Code.TAIL_DIFFERS, f"the tail tells of {event.type}, and the job's log does not have it")
        elif stored.get(key, event) != event:
            yield _of(event, Code.TAIL_DIFFERS, f"{event.type} is not the same in the tail and in the job's log")
        told.add(key)
        latest[event.job_id] = max(event.rev, latest.get(event.job_id, 0))
    for key, event in stored.items():
        if key not in told:
            yield _of(event, Code.TAIL_MISSING, f"the tail does not tell of {event.type}")


class _Life(msgspec.Struct, frozen=True):
    """From when to when a job was live: by its place in the tail, and by time. Without an end it still is."""

    job_id: UUID
    begin: int
    end: int | None
    begin_at: datetime
    end_at: datetime | None

    def overlaps(self, later: _Life) -> bool:
        """Whether both were live at once; `later` begins after this one in the tail.

        Both orders must say so. The tail of PostgreSQL goes by the beginning of transactions, and so may show a job
        before the end of another that it waited for; and the time of a database may be set back.
        """
        in_tail = self.end is None or later.begin < self.end
        begins_in_time = self.end_at is None or later.begin_at < self.end_at
        return in_tail and begins_in_time and (later.end_at is None or self.begin_at < later.end_at)


def dedupe_problems(jobs: Iterable[Job], tail: Sequence[Event]) -> Iterator[HistoryProblem]:
    """Two jobs of a kind that were live at once under one dedupe key."""
    alike: dict[tuple[str, str], list[UUID]] = {}
    for job in jobs:
        if job.origin.dedupe_key is not None:
            alike.setdefault((job.kind, job.origin.dedupe_key), []).append(job.id)
    wanted = {job_id for job_ids in alike.values() if len(job_ids) > 1 for job_id in job_ids}
    lives = _lives(tail, wanted)
    for (kind, key), job_ids in alike.items():
        active: list[_Life] = []
        for life in sorted((lives[job_id] for job_id in job_ids if job_id in lives), key=lambda life: life.begin):
            for other in active:
                if other.overlaps(life):
                    message = f"it was live together with job {other.job_id}: both are {kind!r} with dedupe key {key!r}"
                    yield HistoryProblem(Code.DEDUPE_OVERLAP, message, life.job_id)
            active = [other for other in active if other.end is None or other.end > life.begin] + [life]


def _lives(tail: Sequence[Event], wanted: set[UUID]) -> dict[UUID, _Life]:
    lives: dict[UUID, _Life] = {}
    for place, event in enumerate(tail):
        if event.job_id not in wanted:
            continue
        if event.from_status is None:
            lives[event.job_id] = _Life(event.job_id, place, None, event.at, None)
        elif event.to_status in TERMINAL and (life := lives.get(event.job_id)) is not None and life.end is None:
            lives[event.job_id] = msgspec.structs.replace(life, end=place, end_at=event.at)
    return lives


def _of(event: Event, code: Code, message: str) -> HistoryProblem:
    return HistoryProblem(code, message, event.job_id, event.rev)
