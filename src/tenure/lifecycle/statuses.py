"""The eleven statuses of a job, and how they group and rank."""

from __future__ import annotations

from enum import StrEnum


class TextEnum(StrEnum):
    """A text enum that hashes as its text. The hash of `Enum` is a Python call, and these are looked up in every
    change."""

    __hash__ = str.__hash__


class Status(TextEnum):
    """The status of a job."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    WAITING = "waiting"
    RETRY = "retry"
    STALLED = "stalled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    HALTED = "halted"
    DEAD_LETTERED = "dead_lettered"


QUEUED, CLAIMED, RUNNING = Status.QUEUED, Status.CLAIMED, Status.RUNNING
WAITING, RETRY, STALLED = Status.WAITING, Status.RETRY, Status.STALLED
SUCCEEDED, FAILED, CANCELLED = Status.SUCCEEDED, Status.FAILED, Status.CANCELLED
HALTED, DEAD_LETTERED = Status.HALTED, Status.DEAD_LETTERED

TERMINAL = frozenset({SUCCEEDED, FAILED, CANCELLED, HALTED, DEAD_LETTERED})
UNSUCCESSFUL = TERMINAL - {SUCCEEDED}
LIVE = frozenset(Status) - TERMINAL
LEASED = frozenset({CLAIMED, RUNNING})
"""Statuses under a lease."""
READY = frozenset({QUEUED, RETRY, WAITING, STALLED})
"""Statuses without a lease, from which a due job can be claimed."""


class CoarseState(TextEnum):
    """The job state of the execution ledger (EL-02)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


def coarse_state(status: Status) -> CoarseState:
    """The coarse state of a status. That of a job is `Job.coarse_state`, which also depends on its commit and policy.

    >>> coarse_state(Status.STALLED)
    <CoarseState.PENDING: 'PENDING'>
    """
    if status in LEASED:
        return CoarseState.RUNNING
    if status is SUCCEEDED:
        return CoarseState.SUCCEEDED
    return CoarseState.FAILED if status in TERMINAL else CoarseState.PENDING


def rank(status: Status, *, requeued: bool = False) -> int:
    """The rank of a status within its attempt; (attempt, rank) never falls (SM-03).

    `requeued`: the attempt ended with a requeue. Rank 4 until the next claim, whatever the status.
    """
    if requeued:
        return 4
    return {QUEUED: 0, CLAIMED: 1, RUNNING: 2}.get(status, 3)
