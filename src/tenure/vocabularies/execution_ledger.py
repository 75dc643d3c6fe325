"""The words of the execution ledger (EL): executions are what is, and a job's state is read off them.

Its events are the changes of both: of an execution (LEASED … DONE, ABORTED), and of the job's coarse state where that
follows. A completion that is also the commit is therefore three: COMMITTED, DONE, SUCCEEDED. The enqueue, and the end
of a job that nobody ever claimed, have no execution and change the job's state alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tenure.lifecycle.fold import executions
from tenure.lifecycle.records import Event, EventType, Execution, ExecutionStatus, Job
from tenure.lifecycle.statuses import CoarseState, Status, coarse_state
from tenure.vocabularies.vocabulary import EventFields, Fields, JobHistory, Vocabulary, payload_of

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


def _write(job: Job, events: Sequence[Event]) -> Fields:
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


def _speak(story: JobHistory) -> EventFields:
    event = story.event
    if EVENTS[event.type]:
        for status in _execution_steps(story):
            execution = _execution(executions(story.events)[-1])
            yield status, {**execution, "status": status, "at": event.at}
    before = None if event.from_status is None else STATUSES[event.from_status]
    after = STATUSES[event.to_status]
    if before != after:
        yield after, {"job_id": str(event.job_id), "state": after, "from": before, "at": event.at}


def _execution_steps(story: JobHistory) -> Iterator[str]:
    """Which statuses the current execution goes through with this event."""
    before, after = executions(story.events[:-1]), executions(story.events)
    if not after or (len(before) == len(after) and before[-1].status is after[-1].status):
        return
    if story.event.type is EventType.SUCCEEDED and story.event.commits:
        yield COMMITTED
    yield EXECUTION_STATUSES[after[-1].status]


LEDGER = Vocabulary(
    name="ledger",
    about="the execution ledger (EL)",
    statuses=STATUSES,
    events=EVENTS,
    write=_write,
    speak=_speak,
    content=frozenset({"payload"}),
)
