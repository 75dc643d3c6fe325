"""The dead-letter record: why a job was dead-lettered, at which stage, and what was done about it."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from tenure.lifecycle.statuses import TextEnum


class ReasonCode(TextEnum):
    """Why a job was dead-lettered."""

    PARSE_ERROR = "parse_error"
    VALIDATION_FAILED = "validation_failed"
    DEPENDENCY_UNAVAILABLE = "dependency_unavailable"
    TIMEOUT = "timeout"
    EXHAUSTED_RETRIES = "exhausted_retries"
    POLICY_VIOLATION = "policy_violation"
    INFRASTRUCTURE_FAILURE = "infrastructure_failure"
    COMPENSATION_FAILED = "compensation_failed"


class Stage(TextEnum):
    """The stage at which a job was dead-lettered."""

    FETCH = "fetch"
    INPUT = "input"
    EXEC = "exec"
    OUTPUT = "output"
    COMMIT = "commit"


class DeadLetterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a dead-lettered job, for an operator."""

    job_id: UUID
    reason_code: ReasonCode
    stage: Stage
    last_error: str
    attempts: int
    at: datetime
    last_owner: str | None = None
    last_lease_expires_at: datetime | None = None
    correlation_id: str
    handled_at: datetime | None = None
    handled_as: str | None = None
    """`redriven` or `discarded`, once resolved."""
