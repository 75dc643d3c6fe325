"""The attempts at a job as records: what the execution ledger lists."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from tenure.lifecycle.statuses import TextEnum


class ExecutionStatus(TextEnum):
    """The status of one attempt."""

    LEASED = "leased"
    IN_PROGRESS = "in_progress"
    COMMITTED = "committed"
    DONE = "done"
    ABORTED = "aborted"


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a job, derived from the log."""

    exec_id: str
    job_id: UUID
    attempt: int
    lease_owner: str
    lease_expires_at: datetime
    status: ExecutionStatus
    leased_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cause: str | None = None


def execution_id(job_id: UUID, attempt: int) -> str:
    """The public, unique id of one attempt."""
    return f"{job_id}/{attempt}"
