"""The control channel between a worker process and its supervisor: one socket.

The worker sends a report once a second; the supervisor sends a command to stop or to abort. When the supervisor has
ended, for whatever reason, the channel is closed, and the worker stops.
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
"""The supervisor's commands."""
REPORT_SECONDS = 1.0
REPORT_BYTES_MAX = 65_536


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a worker process. The first report means that the process is up."""

    worker: str
    pid: int
    running: int
    counts: dict[str, int]
    uptime_seconds: float
    metrics: PackedMetrics | None = None
    """All that it has counted, if metrics are served."""
    database: str | None = None
    """The URL of its database, if metrics are served."""

    @property
    def ended(self) -> int:
        """How many attempts have ended, with whatever outcome."""
        return sum(self.counts.values()) - self.counts.get("claimed", 0)


class ControlChannel:
    """The worker's end of the channel."""

    def __init__(self, descriptor: int, seams: Seams) -> None:
        try:
            with socket.socket(fileno=descriptor) as inherited:
                # Programs that jobs start do not inherit the copy: the channel must be closed when this process ends.
                self._socket = inherited.dup()
        except OSError as problem:
            raise InvalidInput("supervised", f"descriptor {descriptor} is no control channel: {problem}") from None
        self._socket.settimeout(None)
        self._seams = seams

    def start_receiving(self, on_command: Callable[[bytes], None]) -> None:
        """Call back with each command, from a thread of its own. The end of the channel is the command to stop."""

        def body() -> None:
            try:
                while command := self._socket.recv(1):
                    on_command(command)
            except OSError:
                pass
            on_command(STOP)

        self._seams.spawn.thread(body, name="tenure-control-channel")

    async def send_reports(self, current: Callable[[], WorkerReport]) -> None:
        """Send a report now and once a second, until cancelled."""
        while True:
            self.send(current())
            await self._seams.clock.sleep(REPORT_SECONDS)

    def send(self, report: WorkerReport) -> None:
        """Send without waiting for a supervisor that does not read or has ended: the next report is complete again."""
        with contextlib.suppress(OSError):
            self._socket.send(msgspec.json.encode(report) + b"\n", socket.MSG_DONTWAIT)


async def receive_reports(connection: socket.socket) -> AsyncIterator[WorkerReport]:
    """The reports of a worker process, until its end of the channel is closed."""
    loop = asyncio.get_running_loop()
    pending = b""
    while True:
        try:
            received = await loop.sock_recv(connection, REPORT_BYTES_MAX)
        except OSError:
            return
        if not received:
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            # A report that a full socket buffer truncated is skipped: the next one is complete.
            with contextlib.suppress(msgspec.DecodeError):
                yield msgspec.json.decode(line, type=WorkerReport)
