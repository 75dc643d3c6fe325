"""The words of the lifecycle contract (LC): six statuses, and fields that are absent where they do not apply.

Every event keeps its type, and each accepted change is one event: the contract names eight events as examples of one
canonical set, and tenure's set is that one. Waiting and retrying jobs are stalled: the contract lets a stalled job be
claimed again. A job that ended without a result has failed; the contract fails only running jobs, so the failure of any
other is an extension.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenure.lifecycle.fold import executions
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import (
    CANCELLED,
    CLAIMED,
    DEAD_LETTERED,
    FAILED,
    HALTED,
    LEASED,
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
    CLAIMED: "claimed",
    RUNNING: "running",
    WAITING: "stalled",
    RETRY: "stalled",
    STALLED: "stalled",
    SUCCEEDED: "succeeded",
    FAILED: "failed",
    CANCELLED: "failed",
    HALTED: "failed",
    DEAD_LETTERED: "failed",
}
TRANSITIONS = (
    SourceTransition(None, "queued"),
    SourceTransition("queued", "claimed"),
    SourceTransition("stalled", "claimed"),
    SourceTransition("claimed", "running"),
    SourceTransition("running", "succeeded"),
    SourceTransition("running", "failed"),
    SourceTransition("claimed", "stalled"),
    SourceTransition("running", "stalled"),
    SourceTransition("stalled", "queued"),
)
EXTENSIONS = (
    SourceTransition("queued", "failed"),
    SourceTransition("claimed", "failed"),
    SourceTransition("stalled", "failed"),
)


def word(facts: WordFacts) -> str:
    """The status there."""
    return STATUSES[facts.status]


def _translate_job(job: Job, history: JobHistory) -> Fields:
    facts = history.step.after
    fields: Fields = {
        "id": str(job.id),
        "kind": job.kind,
        "payload": payload_of(job),
        "status": word(facts),
        "attempt": job.attempt,
        "rev": job.rev,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
    }
    if facts.status in LEASED:
        # From the log: a stalled job that is still running there has an owner there, the last one.
        execution = executions(history.events)[-1]
        fields["owner"] = execution.lease_owner
        fields["lease"] = {"execution_id": execution.exec_id, "expires_at": execution.lease_expires_at}
    if job.status is SUCCEEDED:
        fields["result"] = value_of(job.result)
    elif not job.live:
        fields["error"] = _error(job)
    return fields


def _error(job: Job) -> object:
    """A failed job has an error there; for one that was cancelled, halted or dead-lettered it is built from those."""
    if job.status is FAILED:
        return value_of(job.error)
    error: Fields = {"type": job.status.value, "message": job.reason}
    if job.status is HALTED:
        error["partial_result"] = value_of(job.partial_result)
    if job.status is DEAD_LETTERED:
        error["last_error"] = value_of(job.last_error)
    return error


def _translate_event(history: JobHistory) -> Iterator[Report]:
    event, step = history.event, history.step
    fields = {
        "job_id": str(event.job_id),
        "type": event.type.value,
        "from_status": None if step.before is None else word(step.before),
        "to_status": word(step.after),
        "at": event.at,
        "actor": event.actor,
        "request_id": event.request_id,
        "rev": event.rev,
        "attempt": event.attempt,
    }
    yield Report(event.type.value, fields, changed_word(history, word))


CONTRACT = Vocabulary(
    name="contract",
    about="the lifecycle contract (LC)",
    word=word,
    transitions=TRANSITIONS,
    extensions=EXTENSIONS,
    translate_job=_translate_job,
    translate_event=_translate_event,
    content=frozenset({"payload", "result", "error"}),
)
