"""The words of the execution ledger (EL): executions are recorded, and a job's state is derived from them.

Its events are the changes of both: of an execution (LEASED … DONE, ABORTED), and of the job's coarse state where that
changes too. A completion that is also the commit is therefore three events: COMMITTED, DONE, SUCCEEDED. The enqueue,
and the end of a job that was never claimed, have no execution and change only the job's state. The ledger has no
transition to FAILED, and returns a job to PENDING only by a lost lease: these two are extensions.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tenure.lifecycle.executions import Execution, ExecutionStatus, execution_id
from tenure.lifecycle.fold import executions
from tenure.lifecycle.records import EventType, Job
from tenure.lifecycle.statuses import CLAIMED, RUNNING, SUCCEEDED, CoarseState, coarse_state
from tenure.vocabularies.steps import WordFacts
from tenure.vocabularies.vocabulary import (
    ANY_EVENT,
    Fields,
    JobHistory,
    Report,
    SourceTransition,
    Vocabulary,
    WordChange,
    changed_word,
    payload_of,
)

PENDING, JOB_RUNNING = CoarseState.PENDING.value, CoarseState.RUNNING.value
JOB_SUCCEEDED, FAILED = CoarseState.SUCCEEDED.value, CoarseState.FAILED.value
LEASED, IN_PROGRESS, COMMITTED, DONE, ABORTED = (one.value.upper() for one in ExecutionStatus)

BY_OWNER = frozenset({EventType.RETRY_SCHEDULED, EventType.SUSPENDED, EventType.RELEASED})
"""The ends of an attempt by its owner, whose lease was not lost."""
TRANSITIONS = (
    SourceTransition(None, PENDING),
    SourceTransition(PENDING, JOB_RUNNING),
    SourceTransition(JOB_RUNNING, JOB_SUCCEEDED),
    SourceTransition(JOB_RUNNING, PENDING, ANY_EVENT - BY_OWNER),
    SourceTransition(None, LEASED),
    SourceTransition(LEASED, IN_PROGRESS),
    SourceTransition(IN_PROGRESS, COMMITTED),
    SourceTransition(COMMITTED, DONE),
    SourceTransition(LEASED, ABORTED),
    SourceTransition(IN_PROGRESS, ABORTED),
)
EXTENSIONS = (
    SourceTransition(JOB_RUNNING, FAILED),
    SourceTransition(PENDING, FAILED),
    SourceTransition(JOB_RUNNING, PENDING, BY_OWNER),
)


def word(facts: WordFacts) -> str:
    """The coarse state of the job."""
    return coarse_state(facts.status).value


def execution_word(facts: WordFacts) -> str | None:
    """The status of the job's last execution; None where it was never claimed."""
    if facts.attempt == 0:
        return None
    if facts.status is RUNNING:
        return COMMITTED if facts.committed else IN_PROGRESS
    return {CLAIMED: LEASED, SUCCEEDED: DONE}.get(facts.status, ABORTED)


def _translate_job(job: Job, history: JobHistory) -> Fields:
    return {
        "job_id": str(job.id),
        "payload": payload_of(job),
        "state": word(history.step.after),
        "attempt": job.attempt,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "executions": [_execution(one) for one in _executions(history)],
    }


def _executions(history: JobHistory) -> list[Execution]:
    """The executions; the last one as the ledger has it until the job ends, though its lease may be lost."""
    found = executions(history.events)
    if found and execution_word(history.step.after) in (LEASED, IN_PROGRESS):
        status = ExecutionStatus(str(execution_word(history.step.after)).lower())
        found[-1] = msgspec.structs.replace(found[-1], status=status, finished_at=None, cause=None)
    return found


def _execution(execution: Execution) -> Fields:
    return {
        "exec_id": execution.exec_id,
        "job_id": str(execution.job_id),
        "attempt": execution.attempt,
        "lease_owner": execution.lease_owner,
        "lease_expires_at": execution.lease_expires_at,
        "status": execution.status.value.upper(),
        "started_at": execution.started_at,
        "finished_at": execution.finished_at,
    }


def _translate_event(history: JobHistory) -> Iterator[Report]:
    event = history.event
    changes = list(_execution_changes(history))
    # Without the claim, which retention may have removed, nothing is known of the execution.
    if changes and (known := _executions(history)):
        for change in changes:
            fields = {**_execution(known[-1]), "status": change.after, "at": event.at}
            yield Report(change.after, fields, change)
    if (of_job := changed_word(history, word)) is not None:
        fields = {"job_id": str(event.job_id), "state": of_job.after, "from": of_job.before, "at": event.at}
        yield Report(of_job.after, fields, of_job)


def _execution_changes(history: JobHistory) -> Iterator[WordChange]:
    """The changes of the current execution by the history's last event."""
    step = history.step
    after = execution_word(step.after)
    claimed = step.before is None or step.before.attempt != step.after.attempt
    before = None if step.before is None or claimed else execution_word(step.before)
    if after is None or before == after:
        return
    subject = execution_id(step.event.job_id, step.after.attempt)
    if after == DONE and before == IN_PROGRESS:
        yield WordChange(subject, before, COMMITTED)
        before = COMMITTED
    yield WordChange(subject, before, after)


LEDGER = Vocabulary(
    name="ledger",
    about="the execution ledger (EL)",
    word=word,
    transitions=TRANSITIONS,
    extensions=EXTENSIONS,
    translate_job=_translate_job,
    translate_event=_translate_event,
    content=frozenset({"payload"}),
)
