"""The whole log in its order, and relations between jobs: each event once, one live job per dedupe key."""

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
    seen: set[tuple[UUID, int]] = set()
    latest: dict[UUID, int] = {}
    for event in tail:
        key = (event.job_id, event.rev)
        if key in seen:
            yield _of(event, Code.TAIL_REPEATED, f"the tail has {event.type} twice")
        elif event.rev < latest.get(event.job_id, 0):
            yield _of(event, Code.TAIL_ORDER, f"the tail has it after revision {latest[event.job_id]}")
        elif key not in stored and event.job_id in logs:
            yield _of(event, Code.TAIL_DIFFERS, f"the tail has {event.type}, and the log of the job does not")
        elif stored.get(key, event) != event:
            yield _of(event, Code.TAIL_DIFFERS, f"{event.type} is not the same in the tail and in the job's log")
        seen.add(key)
        latest[event.job_id] = max(event.rev, latest.get(event.job_id, 0))
    for key, event in stored.items():
        if key not in seen:
            yield _of(event, Code.TAIL_MISSING, f"the tail lacks {event.type}")


class _LiveSpan(msgspec.Struct, frozen=True):
    """When a job was live: by its positions in the tail, and by time. Without an end it still is."""

    job_id: UUID
    begin: int
    end: int | None
    begin_at: datetime
    end_at: datetime | None

    def overlaps(self, later: _LiveSpan) -> bool:
        """Whether both were live at once; `later` begins after this one in the tail.

        Both orders must agree. The tail of PostgreSQL is in the order of transaction starts, so it may show a job
        before the end of another that it waited for; and the database's clock may be set back.
        """
        in_tail = self.end is None or later.begin < self.end
        begins_in_time = self.end_at is None or later.begin_at < self.end_at
        return in_tail and begins_in_time and (later.end_at is None or self.begin_at < later.end_at)


def dedupe_problems(jobs: Iterable[Job], tail: Sequence[Event]) -> Iterator[HistoryProblem]:
    """Two jobs that were live at once under one dedupe key."""
    by_key: dict[str, list[UUID]] = {}
    for job in jobs:
        if job.origin.dedupe_key is not None:
            by_key.setdefault(job.origin.dedupe_key, []).append(job.id)
    wanted = {job_id for job_ids in by_key.values() if len(job_ids) > 1 for job_id in job_ids}
    spans = _live_spans(tail, wanted)
    for key, job_ids in by_key.items():
        active: list[_LiveSpan] = []
        for span in sorted((spans[job_id] for job_id in job_ids if job_id in spans), key=lambda span: span.begin):
            for other in active:
                if other.overlaps(span):
                    message = f"it was live together with job {other.job_id}: both have the dedupe key {key!r}"
                    yield HistoryProblem(Code.DEDUPE_OVERLAP, message, span.job_id)
            active = [other for other in active if other.end is None or other.end > span.begin] + [span]


def _live_spans(tail: Sequence[Event], wanted: set[UUID]) -> dict[UUID, _LiveSpan]:
    spans: dict[UUID, _LiveSpan] = {}
    for place, event in enumerate(tail):
        if event.job_id not in wanted:
            continue
        if event.from_status is None:
            spans[event.job_id] = _LiveSpan(event.job_id, place, None, event.at, None)
        elif event.to_status in TERMINAL and (span := spans.get(event.job_id)) is not None and span.end is None:
            spans[event.job_id] = msgspec.structs.replace(span, end=place, end_at=event.at)
    return spans


def _of(event: Event, code: Code, message: str) -> HistoryProblem:
    return HistoryProblem(code, message, event.job_id, event.rev)
