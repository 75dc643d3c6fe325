"""The types of operations, a closed set: the rows of the transition table."""

from __future__ import annotations

from tenure.lifecycle.statuses import TextEnum


class OperationType(TextEnum):
    """The type of an operation."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    ACK = "ack"
    START = "start"
    HEARTBEAT = "heartbeat"
    PROGRESS = "progress"
    COMMIT = "commit"
    COMPLETE = "complete"
    RETRY = "retry"
    FAIL = "fail"
    HALT = "halt"
    SUSPEND = "suspend"
    SIGNAL = "signal"
    WAKE = "wake"
    UNWIND = "unwind"
    COMPENSATE = "compensate"
    RELEASE = "release"
    REQUEST_CANCEL = "request_cancel"
    CANCEL = "cancel"
    STALL = "stall"
    REQUEUE = "requeue"
    RECONCILE = "reconcile"
    GIVE_UP = "give_up"
    TIME_OUT = "time_out"
    DEAD_LETTER = "dead_letter"
