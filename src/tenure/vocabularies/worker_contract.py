"""The words of the worker contract (WC): a job is a run, and each of its states has one authority that leads to it.

An event there is a change of state, named after the new state; an event that keeps the state has no translation. A
claimed run is running, because the pool's claim is the dispatch. A run that waits for its next dispatch is in retry. A
cancelled run is halted; a dead-lettered one has failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.lifecycle.records import Event, EventType, Job, Role
from tenure.lifecycle.statuses import (
    CANCELLED,
    CLAIMED,
    DEAD_LETTERED,
    FAILED,
    HALTED,
    QUEUED,
    RETRY,
    RUNNING,
    STALLED,
    SUCCEEDED,
    WAITING,
)
from tenure.vocabularies.vocabulary import Fields, JobHistory, NamedFields, Vocabulary, payload_of, value_of

STATUSES = {
    QUEUED: "queued",
    CLAIMED: "running",
    RUNNING: "running",
    WAITING: "retry",
    RETRY: "retry",
    STALLED: "retry",
    SUCCEEDED: "succeeded",
    FAILED: "failed",
    CANCELLED: "halted",
    HALTED: "halted",
    DEAD_LETTERED: "failed",
}
EVENTS: dict[EventType, tuple[str, ...]] = {
    EventType.ENQUEUED: ("queued",),
    EventType.CLAIMED: ("running",),
    EventType.ACKED: (),
    EventType.STARTED: (),
    EventType.HEARTBEAT: (),
    EventType.PROGRESS: (),
    EventType.COMMITTED: (),
    EventType.SUCCEEDED: ("succeeded",),
    EventType.RETRY_SCHEDULED: ("retry",),
    EventType.FAILED: ("failed",),
    EventType.HALTED: ("halted",),
    EventType.SUSPENDED: ("retry",),
    EventType.SIGNALLED: (),
    EventType.WOKEN: (),
    EventType.COMPENSATED: (),
    EventType.RELEASED: ("retry",),
    EventType.CANCEL_REQUESTED: (),
    EventType.CANCELLED: ("halted",),
    EventType.STALLED: ("retry",),
    EventType.REQUEUED: ("queued",),
    EventType.DEAD_LETTERED: ("failed",),
}
AUTHORITIES = {
    Role.CLIENT: "API",
    Role.POOL: "WorkerPool",
    Role.GATEWAY: "Gateway",
    Role.RUNNER: "RunRunner",
    Role.RECOVERY: "RecoveryWorker",
    Role.WORKFLOW: "WorkflowEngine",
    Role.OUTBOX: "OutboxProcessor",
}
"""The gateway is an addition: it is pool and runner of remote engines."""


def _translate_job(job: Job, events: Sequence[Event]) -> Fields:
    status = STATUSES[job.status]
    return {
        "run_id": str(job.id),
        "kind": job.kind,
        "input": payload_of(job),
        "status": status,
        "priority": job.origin.priority,
        "attempts": job.attempt,
        "max_attempts": job.policy.max_attempts,
        "next_attempt_at": job.due_at if status == "retry" else None,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "completed_at": job.finished_at,
        "result": value_of(job.result),
        "partial_result": value_of(job.partial_result),
        "error": value_of(job.last_error) if status == "failed" else None,
        "halt_reason": job.reason if status == "halted" else None,
    }


def _translate_event(history: JobHistory) -> NamedFields:
    event = history.event
    before = None if event.from_status is None else STATUSES[event.from_status]
    after = STATUSES[event.to_status]
    if before == after:
        return
    role, _, name = event.actor.partition(":")
    yield (
        after,
        {
            "run_id": str(event.job_id),
            "from": before,
            "to": after,
            "at": event.at,
            "authority": AUTHORITIES[Role(role)],
            "by": name,
            "attempts": event.attempt,
            "cause": event.cause,
            "next_attempt_at": event.until_at if after == "retry" else None,
        },
    )


WORKER = Vocabulary(
    name="worker",
    about="the worker contract (WC)",
    statuses=STATUSES,
    events=EVENTS,
    translate_job=_translate_job,
    translate_event=_translate_event,
    content=frozenset({"input", "result", "partial_result", "error"}),
)
