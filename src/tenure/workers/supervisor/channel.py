"""What a worker process and its supervisor say to each other, over one socket.

The worker sends a report once a second; the supervisor sends a letter when it wants an end. When the supervisor is
gone, however it went, the line ends, and the worker stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import msgspec

from tenure.errors import InvalidInput
from tenure.observe.snapshot import PackedMetrics
from tenure.seams import Seams

STOP, ABORT = b"s", b"a"
REPORT_SECONDS = 1.0
REPORT_BYTES_MAX = 65_536


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker process stands. The first one says that it is up."""

    worker: str
    pid: int
    running: int
    counts: dict[str, int]
    uptime_seconds: float
    metrics: PackedMetrics | None = None
    """All that it has counted, where that is wanted."""
    database: str | None = None
    """Where its jobs are, for whoever shows metrics of the database."""

    @property
    def ended(self) -> int:
        """How many runs came to an end, whichever."""
        return sum(self.counts.values()) - self.counts.get("claimed", 0)


class ControlChannel:
    """The worker's end."""

    def __init__(self, descriptor: int, seams: Seams) -> None:
        try:
            with socket.socket(fileno=descriptor) as given:
                # The copy is not handed down to what jobs start: the line must end when this process does.
                self._socket = given.dup()
        except OSError as problem:
            raise InvalidInput("supervised", f"descriptor {descriptor} is no line to a supervisor: {problem}") from None
        self._socket.settimeout(None)
        self._seams = seams

    def listen(self, told: Callable[[bytes], None]) -> None:
        """Pass on each letter from now on, from a thread of its own. The line's end is a letter to stop."""

        def body() -> None:
            try:
                while letter := self._socket.recv(1):
                    told(letter)
            except OSError:
                pass
            told(STOP)

        self._seams.spawn.thread(body, name="tenure-line")

    async def report(self, current: Callable[[], WorkerReport]) -> None:
        """Send how things stand, now and once a second, until cancelled."""
        while True:
            self.send(current())
            await self._seams.clock.sleep(REPORT_SECONDS)

    def send(self, report: WorkerReport) -> None:
        """A supervisor that does not read, or is gone, is no reason to wait: the next report says it all again."""
        with contextlib.suppress(OSError):
            self._socket.send(msgspec.json.encode(report) + b"\n", socket.MSG_DONTWAIT)


async def reports(line: socket.socket) -> AsyncIterator[WorkerReport]:
    """What a worker reports, until its end of the line is closed."""
    loop = asyncio.get_running_loop()
    pending = b""
    while True:
        try:
            received = await loop.sock_recv(line, REPORT_BYTES_MAX)
        except OSError:
            return
        if not received:
            return
        *whole, pending = (pending + received).split(b"\n")
        for one in whole:
            # Half of a report, which a full line cut off, is made good by the next.
            with contextlib.suppress(msgspec.DecodeError):
                yield msgspec.json.decode(one, type=WorkerReport)
