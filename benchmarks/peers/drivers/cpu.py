"""The CPU time of processes and their descendants, as Linux counts it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of these processes, of their live descendants, and of those that have ended."""
    return sum(_ticks(pid) for pid in pids) / TICKS_PER_SECOND


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # utime, stime, and both of the children that were waited for.
    return sum(map(int, fields[11:15])) + sum(_ticks(int(child)) for child in children)
