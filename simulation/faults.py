"""The kinds of faults, and how often each occurs."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Fault(StrEnum):
    """A kind of fault. The first seven affect single requests, the others a process or the database."""

    REQUEST_LOST = "request_lost"
    REPLY_LOST = "reply_lost"
    DONE_LATE = "done_late"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    ROW_LOCKED = "row_locked"
    LOCK_WAIT = "lock_wait"
    CRASH = "crash"
    PAUSE = "pause"
    STOP = "stop"
    OUTAGE = "outage"
    CLOCK_JUMP = "clock_jump"
    WAKEUP_LOST = "wakeup_lost"
    NO_CONNECTION = "no_connection"


OF_REQUESTS = (
    Fault.REQUEST_LOST,
    Fault.REPLY_LOST,
    Fault.DONE_LATE,
    Fault.DELAY,
    Fault.DUPLICATE,
    Fault.ROW_LOCKED,
    Fault.LOCK_WAIT,
)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a run and its faults. Together with the seed it determines the whole run."""

    store: str = "model"
    nodes: int = 3
    jobs: int = 20
    faulty_seconds: float = 25.0
    request_faults: float = 0.06
    """The share of requests with a fault."""
    process_faults: int = 5
    """The number of crashes, pauses, stops, outages and clock jumps."""
    without: tuple[Fault, ...] = ()
    """Kinds of faults that are left out. All others occur where they would without this option."""
