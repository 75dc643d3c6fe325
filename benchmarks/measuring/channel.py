"""The messages between a benchmark and its worker processes, over one socket each.

The benchmark sends the options, then commands of a letter each; the worker sends reports. When the benchmark ends, the
socket closes, and the worker stops.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import msgspec

GO, RELEASE, STOP = b"g", b"r", b"s"
BYTES_MAX = 65_536


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs a worker process runs. Sent over the socket, since a database URL may contain a password."""

    database: str
    queue: str
    concurrency: int


class BenchmarkReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a worker process: how many jobs it runs, how many have succeeded, and when the last one did, by the
    monotonic clock of the machine. The first report means that the process is ready."""

    pid: int
    running: int
    succeeded: int
    at_seconds: float
    rss_bytes: int


async def lines(connection: socket.socket) -> AsyncIterator[bytes]:
    """The lines received, until the other end is closed."""
    loop = asyncio.get_running_loop()
    pending = b""
    while True:
        try:
            received = await loop.sock_recv(connection, BYTES_MAX)
        except OSError:
            return
        if not received:
            return
        *complete, pending = (pending + received).split(b"\n")
        for one in complete:
            yield one
