"""The words of the execution ledger (EL): executions are recorded, and a job's state is derived from them.

Its events are the changes of both: of an execution (LEASED … DONE, ABORTED), and of the job's coarse state where that
changes too. A completion that is also the commit is therefore three events: COMMITTED, DONE, SUCCEEDED. The enqueue,
and the end of a job that was never claimed, have no execution and change only the job's state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tenure.lifecycle.fold import executions
from tenure.lifecycle.records import Event, EventType, Execution, ExecutionStatus, Job
from tenure.lifecycle.statuses import CoarseState, Status, coarse_state
from tenure.vocabularies.vocabulary import Fields, JobHistory, NamedFields, Vocabulary, payload_of

STATUSES = {one: coarse_state(one).value for one in Status}
EXECUTION_STATUSES = {one: one.value.upper() for one in ExecutionStatus}

LEASED, IN_PROGRESS = EXECUTION_STATUSES[ExecutionStatus.LEASED], EXECUTION_STATUSES[ExecutionStatus.IN_PROGRESS]
COMMITTED, DONE = EXECUTION_STATUSES[ExecutionStatus.COMMITTED], EXECUTION_STATUSES[ExecutionStatus.DONE]
ABORTED = EXECUTION_STATUSES[ExecutionStatus.ABORTED]

EVENTS: dict[EventType, tuple[str, ...]] = {
    EventType.ENQUEUED: (CoarseState.PENDING.value,),
    EventType.CLAIMED: (LEASED, CoarseState.RUNNING.value),
    EventType.ACKED: (),
    EventType.STARTED: (IN_PROGRESS,),
    EventType.HEARTBEAT: (),
    EventType.PROGRESS: (),
    EventType.COMMITTED: (COMMITTED,),
    EventType.SUCCEEDED: (COMMITTED, DONE, CoarseState.SUCCEEDED.value),
    EventType.RETRY_SCHEDULED: (ABORTED, CoarseState.PENDING.value),
    EventType.FAILED: (ABORTED, CoarseState.FAILED.value),
    EventType.HALTED: (ABORTED, CoarseState.FAILED.value),
    EventType.SUSPENDED: (ABORTED, CoarseState.PENDING.value),
    EventType.SIGNALLED: (),
    EventType.WOKEN: (),
    EventType.COMPENSATED: (),
    EventType.RELEASED: (ABORTED, CoarseState.PENDING.value),
    EventType.CANCEL_REQUESTED: (),
    EventType.CANCELLED: (ABORTED, CoarseState.FAILED.value),
    EventType.STALLED: (ABORTED, CoarseState.PENDING.value),
    EventType.REQUEUED: (),
    EventType.DEAD_LETTERED: (ABORTED, CoarseState.FAILED.value),
}


def _translate_job(job: Job, events: Sequence[Event]) -> Fields:
    return {
        "job_id": str(job.id),
        "payload": payload_of(job),
        "state": STATUSES[job.status],
        "attempt": job.attempt,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "executions": [_execution(one) for one in executions(events)],
    }


def _execution(execution: Execution) -> Fields:
    return {
        "exec_id": execution.exec_id,
        "job_id": str(execution.job_id),
        "attempt": execution.attempt,
        "lease_owner": execution.lease_owner,
        "lease_expires_at": execution.lease_expires_at,
        "status": EXECUTION_STATUSES[execution.status],
        "started_at": execution.started_at,
        "finished_at": execution.finished_at,
    }


def _translate_event(history: JobHistory) -> NamedFields:
    event = history.event
    if EVENTS[event.type]:
        for status in _execution_steps(history):
            execution = _execution(executions(history.events)[-1])
            yield status, {**execution, "status": status, "at": event.at}
    before = None if event.from_status is None else STATUSES[event.from_status]
    after = STATUSES[event.to_status]
    if before != after:
        yield after, {"job_id": str(event.job_id), "state": after, "from": before, "at": event.at}


def _execution_steps(history: JobHistory) -> Iterator[str]:
    """The statuses that the current execution enters with this event."""
    before, after = executions(history.events[:-1]), executions(history.events)
    if not after or (len(before) == len(after) and before[-1].status is after[-1].status):
        return
    if history.event.type is EventType.SUCCEEDED and history.event.commits:
        yield COMMITTED
    yield EXECUTION_STATUSES[after[-1].status]


LEDGER = Vocabulary(
    name="ledger",
    about="the execution ledger (EL)",
    statuses=STATUSES,
    events=EVENTS,
    translate_job=_translate_job,
    translate_event=_translate_event,
    content=frozenset({"payload"}),
)
