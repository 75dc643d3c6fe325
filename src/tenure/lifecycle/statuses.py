"""The eleven statuses of a job, and how they group and rank."""

from __future__ import annotations

from enum import StrEnum


class Word(StrEnum):
    """A word of a closed vocabulary. It hashes as the text that it is: an enum's own hash is a call of Python code, at
    every look-up in a table."""

    __hash__ = str.__hash__


class Status(Word):
    """Where a job is in its life."""

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
LIVE = frozenset(Status) - TERMINAL
HELD = frozenset({CLAIMED, RUNNING})
"""Somebody holds a lease on the job."""
READY = frozenset({QUEUED, RETRY, WAITING, STALLED})
"""Nobody holds the job, and a claim may take it once it is due."""


class Coarse(Word):
    """What a user needs to know who only asks whether it is done."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


def coarse(status: Status) -> Coarse:
    """The coarse state of a job, which is a pure function of its log.

    >>> coarse(Status.STALLED)
    <Coarse.PENDING: 'PENDING'>
    """
    if status in HELD:
        return Coarse.RUNNING
    if status is SUCCEEDED:
        return Coarse.SUCCEEDED
    return Coarse.FAILED if status in TERMINAL else Coarse.PENDING


def rank(status: Status, *, requeued: bool = False) -> int:
    """How far an attempt has come; (attempt, rank) never falls.

    `requeued` says that the attempt was given back to the queue: it waits there, or ends there, at the last rank.
    """
    if requeued:
        return 4
    return {QUEUED: 0, CLAIMED: 1, RUNNING: 2}.get(status, 3)
