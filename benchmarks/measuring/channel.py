"""The messages between a benchmark and its worker processes, over one socket each.

The benchmark sends its orders, then single letters; a worker sends its standing. When the benchmark ends, the socket
closes, and the worker stops.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import msgspec

GO, RELEASE, STOP = b"g", b"r", b"s"
BYTES_MAX = 65_536


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs a worker process is to run. They come over the line: an address may hold a password."""

    database: str
    queue: str
    concurrency: int


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker process stands: how many jobs it runs, how many of its jobs have succeeded, and since when that
    many, by the clock that all processes of a machine share. The first one says that it is ready to go."""

    pid: int
    running: int
    succeeded: int
    at_seconds: float
    rss_bytes: int


async def lines(line: socket.socket) -> AsyncIterator[bytes]:
    """What comes over the line, until its other end is closed."""
    loop = asyncio.get_running_loop()
    pending = b""
    while True:
        try:
            received = await loop.sock_recv(line, BYTES_MAX)
        except OSError:
            return
        if not received:
            return
        *whole, pending = (pending + received).split(b"\n")
        for one in whole:
            yield one
