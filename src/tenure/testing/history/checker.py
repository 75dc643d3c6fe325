"""The history checker: compares what clients saw with what the database has in the end.

A program or a simulation records each request and its result in a `History`; `snapshot` reads the database once no
session writes; `check_history` returns the problems. Nothing is repaired. Results, rows, each job's log and the tail
are compared with each other and with the lifecycle.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from uuid import UUID

import msgspec

from tenure.lifecycle.records import Event, Job
from tenure.seams import SYSTEM, Clock
from tenure.stores.contract import Store
from tenure.testing.history.job_log import job_problems, log_problems
from tenure.testing.history.problems import Code, HistoryProblem
from tenure.testing.history.recording import recorded
from tenure.testing.history.records import Call, Effect, Failed, History, Invoked, Ok, Record, Unknown
from tenure.testing.history.requests import effect_problems, request_problems, written
from tenure.testing.history.tail import dedupe_problems, tail_problems
from tenure.testing.store_check import all_jobs, whole_tail

__all__ = [
    "Call",
    "Code",
    "Effect",
    "Failed",
    "History",
    "HistoryProblem",
    "HistorySnapshot",
    "Invoked",
    "Ok",
    "Record",
    "Unknown",
    "check_history",
    "recorded",
    "snapshot",
]

HISTORIES_AT_ONCE = 500


class HistorySnapshot(msgspec.Struct, frozen=True):
    """Everything that a database has of its jobs: their rows, each job's log, and the whole log in its order."""

    jobs: tuple[Job, ...]
    logs: dict[UUID, tuple[Event, ...]]
    tail: tuple[Event, ...]

    def only(self, job_ids: Collection[UUID]) -> HistorySnapshot:
        """The part about these jobs. Taken before retention removes them, it can be added to a later snapshot."""
        return HistorySnapshot(
            tuple(job for job in self.jobs if job.id in job_ids),
            {job_id: events for job_id, events in self.logs.items() if job_id in job_ids},
            tuple(event for event in self.tail if event.job_id in job_ids),
        )

    def plus(self, removed: HistorySnapshot) -> HistorySnapshot:
        """This snapshot together with jobs that retention has removed."""
        tail = sorted((*self.tail, *removed.tail), key=_place)
        return HistorySnapshot((*self.jobs, *removed.jobs), {**self.logs, **removed.logs}, tuple(tail))


def _place(event: Event) -> list[int]:
    """The order of positions, which are numbers as text on every store."""
    return [int(number) for number in re.findall(r"[0-9]+", event.position or "")]


async def snapshot(store: Store, *, clock: Clock = SYSTEM.clock) -> HistorySnapshot:
    """Read everything. This is no consistent snapshot: no session may write meanwhile. Jobs that retention removed
    before count as lost, unless they are added with `plus`."""
    jobs = await all_jobs(store)
    tail = await whole_tail(store, expected=sum(job.rev for job in jobs), clock=clock)
    job_ids = list(dict.fromkeys([job.id for job in jobs] + [event.job_id for event in tail]))
    logs: dict[UUID, tuple[Event, ...]] = {}
    for begin in range(0, len(job_ids), HISTORIES_AT_ONCE):
        histories = await store.history(job_ids[begin : begin + HISTORIES_AT_ONCE])
        logs.update({job_id: tuple(events) for job_id, events in histories.items()})
    return HistorySnapshot(tuple(jobs), logs, tuple(tail))


def check_history(
    history: History, database: HistorySnapshot, *, drained: bool = False, effect_kinds: Collection[str] | None = None
) -> list[HistoryProblem]:
    """All problems; an empty list if there are none.

    With `drained` every job must have ended. `effect_kinds` are the kinds whose commit must have an
    effect in the history; by default those of which at least one job had one. Requests and effects that were not
    recorded are not expected, so a history of some of the processes can be checked too.
    """
    log = written({job.id: job for job in database.jobs}, database.logs)
    return [
        *_each_job(database),
        *tail_problems(database.logs, database.tail),
        *dedupe_problems(database.jobs, database.tail),
        *request_problems(history.requests(), log),
        *effect_problems(history.effects(), log, kinds=effect_kinds),
        *(_live_left(database.jobs) if drained else ()),
    ]


def _each_job(database: HistorySnapshot) -> Iterator[HistoryProblem]:
    known = set[UUID]()
    for job in database.jobs:
        known.add(job.id)
        yield from job_problems(job, database.logs.get(job.id, ()))
    for job_id, events in database.logs.items():
        if job_id not in known and events:
            yield HistoryProblem(
                Code.NO_JOB, f"the log has {len(events)} events of it, and there is no such job", job_id
            )
            yield from log_problems(job_id, events)


def _live_left(jobs: Sequence[Job]) -> Iterator[HistoryProblem]:
    for job in jobs:
        if job.live:
            message = f"it is still {job.status} at attempt {job.attempt}, due {job.due_at}, owned by {job.owner}"
            yield HistoryProblem(Code.LIVE_LEFT, message, job.id)
