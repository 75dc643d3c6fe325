"""The words of the worker contract (WC): a job is a run, and each of its states has one authority that leads to it.

An event there is a change of state, named after the new state; an event that keeps the state has no translation. A
claimed run is running, because the pool's claim is the dispatch. A run that waits for its next dispatch is in retry,
also once it is queued again after an attempt. A cancelled run is halted; a dead-lettered one has failed. The contract
ends only running runs, so the end of any other is an extension.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenure.lifecycle.records import Job, Role
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
from tenure.vocabularies.steps import WordFacts
from tenure.vocabularies.vocabulary import (
    Fields,
    JobHistory,
    Report,
    SourceTransition,
    Vocabulary,
    changed_word,
    payload_of,
    value_of,
)

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
TRANSITIONS = (
    SourceTransition(None, "queued"),
    SourceTransition("queued", "running"),
    SourceTransition("running", "succeeded"),
    SourceTransition("running", "failed"),
    SourceTransition("running", "halted"),
    SourceTransition("running", "retry"),
    SourceTransition("retry", "running"),
)
EXTENSIONS = (
    SourceTransition("queued", "failed"),
    SourceTransition("queued", "halted"),
    SourceTransition("retry", "failed"),
    SourceTransition("retry", "halted"),
)
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


def word(facts: WordFacts) -> str:
    """The state there."""
    return "retry" if facts.status is QUEUED and facts.attempt > 0 else STATUSES[facts.status]


def _translate_job(job: Job, history: JobHistory) -> Fields:
    status = word(history.step.after)
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


def _translate_event(history: JobHistory) -> Iterator[Report]:
    if (change := changed_word(history, word)) is None:
        return
    event = history.event
    role, _, name = event.actor.partition(":")
    fields = {
        "run_id": str(event.job_id),
        "from": change.before,
        "to": change.after,
        "at": event.at,
        "authority": AUTHORITIES[Role(role)],
        "by": name,
        "attempts": event.attempt,
        "cause": event.cause,
        "next_attempt_at": event.until_at if change.after == "retry" else None,
    }
    yield Report(change.after, fields, change)


WORKER = Vocabulary(
    name="worker",
    about="the worker contract (WC)",
    word=word,
    transitions=TRANSITIONS,
    extensions=EXTENSIONS,
    translate_job=_translate_job,
    translate_event=_translate_event,
    content=frozenset({"input", "result", "partial_result", "error"}),
)
