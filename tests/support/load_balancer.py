"""A load balancer for TCP: connections go to the servers in turn, or to the next that accepts one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress


class Connections:
    """The open connections of clients."""

    def __init__(self) -> None:
        self.served = 0
        self.open: set[asyncio.StreamWriter] = set()

    def cut_one(self, rng: random.Random) -> bool:
        """Cut one of them without a goodbye. False: there is none."""
        writers = list(self.open)
        if writers:
            rng.choice(writers).transport.abort()
        return bool(writers)


async def _connected(ports: Sequence[int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    for port in ports:
        with suppress(OSError):
            return await asyncio.open_connection("127.0.0.1", port)
    return None


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def balanced(ports: Sequence[int], connections: Connections | None = None) -> AsyncIterator[int]:
    """The port of the load balancer."""
    known = connections or Connections()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = known.served % len(ports)
        known.served += 1
        found = await _connected([*ports[first:], *ports[:first]])
        if found is None:
            writer.close()
            return
        known.open.add(writer)
        await asyncio.gather(_forward(reader, found[1]), _forward(found[0], writer))
        known.open.discard(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in known.open:
            writer.transport.abort()
