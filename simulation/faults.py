"""What can go wrong, and how often."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Fault(StrEnum):
    """A kind of fault. The first five befall single requests, the others a process or the database."""

    REQUEST_LOST = "request_lost"
    REPLY_LOST = "reply_lost"
    DONE_LATE = "done_late"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    CRASH = "crash"
    PAUSE = "pause"
    STOP = "stop"
    OUTAGE = "outage"
    CLOCK_JUMP = "clock_jump"
    HINT_LOST = "hint_lost"


OF_REQUESTS = (Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.DONE_LATE, Fault.DELAY, Fault.DUPLICATE)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is made of. Together with the seed it determines everything that happens."""

    store: str = "model"
    nodes: int = 3
    jobs: int = 20
    faulty_seconds: float = 25.0
    request_faults: float = 0.06
    """The share of requests that something happens to."""
    process_faults: int = 5
    """How many crashes, pauses, stops, outages and jumps of the clock there are."""
    without: tuple[Fault, ...] = ()
    """Kinds of faults that are left out; all others stay where they were."""
