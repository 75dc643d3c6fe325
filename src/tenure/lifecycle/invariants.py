"""The invariants of a record in each status. The databases' guards repeat them."""

from __future__ import annotations

from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import (
    CANCELLED,
    DEAD_LETTERED,
    FAILED,
    HALTED,
    LEASED,
    LIVE,
    SUCCEEDED,
    TERMINAL,
    WAITING,
)


def violations(job: Job) -> list[str]:
    """The invariants that the record violates, in words."""
    return [text for text, broken in _checks(job) if broken]


def _checks(job: Job) -> list[tuple[str, bool]]:
    leased, live, terminal = job.status in LEASED, job.status in LIVE, job.status in TERMINAL
    has_lease = job.owner is not None and job.lease_expires_at is not None and job.heartbeat_deadline_at is not None
    has_no_lease = job.owner is None and job.lease_expires_at is None and job.heartbeat_deadline_at is None
    erased = job.erased_at is not None
    return [
        (f"a {job.status} job has an owner and a lease", leased and not has_lease),
        (f"a {job.status} job has no owner and no lease", not leased and not (has_no_lease and job.token is None)),
        (f"a {job.status} job has no result", job.status is not SUCCEEDED and job.result is not None),
        (f"a {job.status} job has no error", job.status is not FAILED and job.error is not None),
        ("a succeeded job has a result", job.status is SUCCEEDED and job.result is None and not erased),
        ("a succeeded job is committed", job.status is SUCCEEDED and not job.committed),
        ("a committed job that ended has succeeded", terminal and job.committed and job.status is not SUCCEEDED),
        ("a failed job has an error", job.status is FAILED and job.error is None and not erased),
        ("a halted job has a reason", job.status is HALTED and job.reason is None),
        ("a halted job has its partial result", job.status is HALTED and job.partial_result is None and not erased),
        ("only a halted job has a partial result", job.status is not HALTED and job.partial_result is not None),
        ("a cancelled job has a reason", job.status is CANCELLED and job.reason is None),
        ("a dead-lettered job has its reason code", job.status is DEAD_LETTERED and job.reason is None),
        (
            "a live job has no reason and has not finished",
            live and not (job.reason is None and job.finished_at is None),
        ),
        ("a terminal job has a time of finishing", terminal and job.finished_at is None),
        ("only a live job waits for its committed result", terminal and job.committed_result is not None),
        ("a waiting job, and no other, waits for something", (job.status is WAITING) != (job.waiting_for is not None)),
        (
            "only a job that waits for children has a number of them",
            job.children_max is not None and (job.waiting_for != "children" or job.children_max < 0),
        ),
        ("only a job that was claimed is pinned to a version", job.pinned_version is not None and job.attempt == 0),
        ("the end that follows has a cause", (job.ends_as is None) != (job.ends_because is None)),
        (
            "only a compensated job or one that undoes its steps has an end that follows",
            job.compensated and not job.unwinding,
        ),
        (
            "a compensated job that ended has ended as was recorded",
            terminal and job.compensated and job.status.value != job.ends_as,
        ),
        ("failures before undo are failures", not 0 <= job.failures_before_undo <= job.failures),
        ("an awaited job has a parent", job.origin.awaited and job.origin.parent_id is None),
        ("a job that waits for a time has a due time", job.waiting_for == "time" and job.due_at is None),
        ("a signal's revision is one of the job's", not 0 <= job.signal_rev <= job.rev),
        ("an attempt is counted by its claim", job.attempt < 0 or (leased and job.attempt == 0)),
        ("failures do not exceed attempts", not 0 <= job.losses <= job.failures <= job.attempt),
        ("revisions count from 1", job.rev < 1),
        ("created_at ≤ started_at ≤ finished_at", not _in_order(job)),
    ]


def _in_order(job: Job) -> bool:
    times = [at for at in (job.created_at, job.started_at, job.finished_at) if at is not None]
    return times == sorted(times) and job.updated_at >= times[-1]
