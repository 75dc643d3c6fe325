"""A load balancer for TCP: each connection goes to the first server that accepts one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress


async def _first(ports: Sequence[int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
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
async def balanced(ports: Sequence[int]) -> AsyncIterator[int]:
    """The port of the load balancer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = await _first(ports)
        if found is None:
            writer.close()
            return
        await asyncio.gather(_forward(reader, found[1]), _forward(found[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
