"""The usual cause of each event: why the transition took place, if its request gives no other cause. Pure.

Every event has a cause. Stores leave the usual one out of their rows and fill it in when they read: it follows from
the event's type. Functions in the databases repeat this table for readers in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping

from tenure.lifecycle.records import EventType

CAUSES: Mapping[EventType, str] = {
    EventType.ENQUEUED: "requested",
    EventType.CLAIMED: "due",
    EventType.ACKED: "received",
    EventType.STARTED: "claimed",
    EventType.HEARTBEAT: "alive",
    EventType.PROGRESS: "reported",
    EventType.COMMITTED: "effect_applied",
    EventType.SUCCEEDED: "returned",
    EventType.RETRY_SCHEDULED: "error",
    EventType.FAILED: "permanent_error",
    EventType.HALTED: "limit",
    EventType.SUSPENDED: "awaits_signal",
    EventType.SIGNALLED: "sent",
    EventType.WOKEN: "children_ended",
    EventType.UNWINDING: "exhausted_retries",
    EventType.COMPENSATED: "undone",
    EventType.RELEASED: "shutdown",
    EventType.CANCEL_REQUESTED: "requested",
    EventType.CANCELLED: "requested",
    EventType.STALLED: "lease_expired",
    EventType.REQUEUED: "recovered",
    EventType.DEAD_LETTERED: "exhausted_retries",
}

TIMEOUT = "timeout"
"""The cause of an event that a passed timeout led to."""
UNPINNED = "unpinned"
"""The cause of a wake that lets workers with any version of the code claim the job."""
REDRIVE = "redrive"
"""The cause of an enqueue that runs an ended job again; the origin names that job."""
SCHEDULE = "schedule"
"""The cause of an enqueue at a due time of a schedule; the tags name the schedule and the time."""


def stored_cause(type_: EventType, cause: str | None) -> str | None:
    """The cause as a store writes it: None for the usual one."""
    return None if cause == CAUSES[type_] else cause
