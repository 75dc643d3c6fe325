"""`fold`: a job's record and executions, computed from its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tenure.errors import TenureError
from tenure.lifecycle.enqueue import enqueued_job
from tenure.lifecycle.evolve import evolve
from tenure.lifecycle.executions import Execution, ExecutionStatus, execution_id
from tenure.lifecycle.json_text import digest
from tenure.lifecycle.records import Event, EventType, Job, Origin
from tenure.lifecycle.statuses import LEASED
from tenure.lifecycle.transitions import legal_events

_LEGAL = legal_events()
_ENDS_EXECUTION = frozenset(
    {
        EventType.SUCCEEDED,
        EventType.RETRY_SCHEDULED,
        EventType.FAILED,
        EventType.HALTED,
        EventType.SUSPENDED,
        EventType.RELEASED,
        EventType.CANCELLED,
        EventType.STALLED,
        EventType.DEAD_LETTERED,
    }
)


class BrokenLog(TenureError):
    """The events of a job are not a chain of legal transitions. `rev` is the first illegal one."""

    def __init__(self, event: Event, problem: str) -> None:
        self.event, self.rev, self.problem = event, event.rev, problem
        super().__init__(f"job {event.job_id}, revision {event.rev}: {problem}")


def fold(origin: Origin, events: Iterable[Event], contents: Mapping[str, str] | None = None) -> Job | None:
    """The job after these events; None for no events. The token is secret and not in the log.

    `contents` maps digests to content; missing content becomes None. An illegal chain raises BrokenLog. An event of a
    later version sets the status, and no other field.
    """
    job: Job | None = None
    known = contents or {}
    for event in events:
        _check(job, event)
        if job is None:
            job = enqueued_job(origin, at=event.at, due_at=event.until_at)
        else:
            job = evolve(job, event, known.get(event.digest or ""))
    return job


def contents_of(job: Job) -> dict[str, str]:
    """The content stored beside a job, by digest."""
    texts = (job.committed_result, job.result, job.partial_result, job.error, job.last_error)
    return {digest(text): text for text in texts if text is not None}


def differences(job: Job, folded: Job | None) -> dict[str, tuple[object, object]]:
    """The fields in which the stored record differs from the replayed one: field → (stored, replayed)."""
    if folded is None:
        return {"events": ("none", "at least one")}
    return {
        name: (stored, replayed)
        for name in Job.__struct_fields__
        if name not in ("token", "erased_at", "origin")
        and (stored := getattr(job, name)) != (replayed := getattr(folded, name))
    }


def executions(events: Iterable[Event]) -> list[Execution]:
    """One record per attempt, in order. An ended execution does not change again."""
    found: list[Execution] = []
    committed = False
    for event in events:
        committed = committed or event.commits
        if event.type is EventType.CLAIMED:
            found.append(_opened(event))
        elif found and (changes := _progressed(found[-1], event, committed)):
            found[-1] = msgspec.structs.replace(found[-1], **changes)
    return found


def _opened(event: Event) -> Execution:
    return Execution(
        exec_id=execution_id(event.job_id, event.attempt),
        job_id=event.job_id,
        attempt=event.attempt,
        lease_owner=event.owner,
        lease_expires_at=event.until_at or event.at,
        status=ExecutionStatus.LEASED,
        leased_at=event.at,
    )


def _progressed(execution: Execution, event: Event, committed: bool) -> dict[str, object]:
    if execution.status is ExecutionStatus.DONE or execution.status is ExecutionStatus.ABORTED:
        return {}
    if event.type is EventType.STARTED:
        return {"status": ExecutionStatus.IN_PROGRESS, "started_at": event.at}
    if event.type is EventType.HEARTBEAT and event.until_at is not None:
        return {"lease_expires_at": event.until_at}
    if event.type is EventType.COMMITTED:
        return {"status": ExecutionStatus.COMMITTED}
    if event.type is EventType.SUCCEEDED:
        return {"status": ExecutionStatus.DONE, "finished_at": event.at}
    if event.type in _ENDS_EXECUTION and event.from_status in LEASED and not committed:
        return {"status": ExecutionStatus.ABORTED, "finished_at": event.at, "cause": event.cause}
    return {}


def _check(job: Job | None, event: Event) -> None:
    if (event.type, event.from_status, event.to_status) not in _LEGAL and not event.is_of_later_version:
        raise BrokenLog(event, f"{event.type} from {event.from_status} to {event.to_status} is not in the table")
    if event.rev != (1 if job is None else job.rev + 1):
        raise BrokenLog(event, f"follows revision {0 if job is None else job.rev}")
    if job is None:
        if event.type is not EventType.ENQUEUED:
            raise BrokenLog(event, "is the first event of the log, which must be enqueued")
        return
    if event.from_status is not job.status:
        raise BrokenLog(event, f"starts from {event.from_status}, but the job was {job.status}")
    if event.at < job.updated_at:
        raise BrokenLog(event, f"is dated before its predecessor ({event.at} < {job.updated_at})")
    if event.attempt != job.attempt + (event.type is EventType.CLAIMED):
        raise BrokenLog(event, f"has attempt {event.attempt} after attempt {job.attempt}")
    if event.commits and job.committed:
        raise BrokenLog(event, "commits a job that was committed before")
