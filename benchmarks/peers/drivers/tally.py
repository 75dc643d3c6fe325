"""What the body of every job does: note that it ran, and how long after its enqueue began.

Each process writes to a file of its own in a common folder, mapped into memory, so that the driver counts
without a request to the workers or the database. Nothing here knows any peer.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

FOLDER_VARIABLE = "TENURE_PEERS_TALLIES"
SECONDS_VARIABLE = "TENURE_PEERS_JOB_SECONDS"
JOB_SECONDS = float(os.environ.get(SECONDS_VARIABLE, "0"))
"""How long a body waits after it was counted."""
SAMPLES_MAX = 4096
RAN, FIRST_NS, SAMPLES, HEADER = 0, 1, 2, 3
FILE_BYTES = 8 * (HEADER + SAMPLES_MAX)


class Tally:
    """The count of one process. A process that was forked off begins its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._words = memoryview(bytearray(FILE_BYTES)).cast("Q")

    def ran(self, sent_ns: int) -> None:
        """Count one body; with the monotonic time at which its enqueue began, keep its latency too."""
        now_ns = time.monotonic_ns()
        with self._lock:
            if self._pid != os.getpid():
                self._begin()
            words = self._words
            if words[RAN] == 0:
                words[FIRST_NS] = time.time_ns()
            words[RAN] += 1
            if sent_ns and words[SAMPLES] < SAMPLES_MAX:
                words[HEADER + words[SAMPLES]] = now_ns - sent_ns
                words[SAMPLES] += 1

    def _begin(self) -> None:
        self._pid = os.getpid()
        path = Path(os.environ[FOLDER_VARIABLE]) / f"{self._pid}"
        path.write_bytes(bytes(FILE_BYTES))
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), FILE_BYTES)).cast("Q")


@dataclass(frozen=True)
class Counted:
    """What all processes together have noted so far."""

    ran: int
    first_ns: int | None
    """By the machine's clock, when the first body began."""
    samples_ns: tuple[int, ...]


def counted(folder: Path) -> Counted:
    """Read all tallies. A count may be a job behind its process, never ahead."""
    ran, firsts, samples = 0, [], []
    for path in folder.iterdir():
        words = memoryview(path.read_bytes())
        if len(words) < FILE_BYTES:  # A process is writing it.
            continue
        numbers = words.cast("Q")
        ran += numbers[RAN]
        firsts += [numbers[FIRST_NS]] if numbers[RAN] else []
        samples += list(numbers[HEADER : HEADER + numbers[SAMPLES]])
    return Counted(ran, min(firsts, default=None), tuple(samples))


TALLY = Tally()


def body(sent_ns: int) -> None:
    """The body of a plain job."""
    TALLY.ran(sent_ns)
    if JOB_SECONDS:
        time.sleep(JOB_SECONDS)


async def async_body(sent_ns: int) -> None:
    """The body of an async job."""
    TALLY.ran(sent_ns)
    if JOB_SECONDS:
        await asyncio.sleep(JOB_SECONDS)
