"""A proxy between a client and PostgreSQL that counts round trips and can cut the connection before or after a
request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum
from urllib.parse import urlsplit, urlunsplit


class Cut(Enum):
    """What the proxy does to the next request."""

    NOTHING = "nothing"
    REQUEST = "the request never arrives"
    REPLY = "the request is carried out, and its answer never arrives"


class Relay:
    """Forwards bytes in both directions, one pair of connections per client."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self.round_trips = 0
        self.cut = Cut.NOTHING

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._server)
        try:
            await self._greeting(reader, there_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._requests(reader, there_writer, writer))
                both.create_task(self._replies(there_reader, writer))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for end in (writer, there_writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _greeting(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The first message has no type byte. No TLS request comes before it: the address disables TLS."""
        size = await reader.readexactly(4)
        writer.write(size + await reader.readexactly(int.from_bytes(size, "big") - 4))
        await writer.drain()

    async def _requests(
        self, reader: asyncio.StreamReader, there: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        held = b""
        while True:
            kind, message = await _message(reader)
            held += message
            if kind not in (b"S", b"Q", b"H", b"X", b"p"):
                continue
            if kind in (b"S", b"Q", b"H"):
                self.round_trips += 1
                if self.cut is Cut.REQUEST:
                    self.cut = Cut.NOTHING
                    client.close()
                    raise ConnectionResetError("the request was cut")
            there.write(held)
            await there.drain()
            held = b""

    async def _replies(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while True:
            kind, message = await _message(reader)
            if self.cut is Cut.REPLY:
                # Ready for query: the request has been executed and committed.
                if kind == b"Z":
                    self.cut = Cut.NOTHING
                    client.close()
                    raise ConnectionResetError("the reply was cut")
                continue
            client.write(message)
            await client.drain()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(1)
    size = await reader.readexactly(4)
    return head, head + size + await reader.readexactly(int.from_bytes(size, "big") - 4)


@asynccontextmanager
async def relay_to(dsn: str) -> AsyncIterator[tuple[Relay, str]]:
    """A proxy in front of the database, and its address. Without TLS, so that messages can be parsed."""
    parts = urlsplit(dsn)
    relay = Relay(parts.hostname or "127.0.0.1", parts.port or 5432)
    listener = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    user = parts.netloc.rpartition("@")[0]
    here = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    netloc = f"{user}@{here}" if user else here
    query = "&".join(filter(None, [parts.query, "sslmode=disable"]))
    try:
        yield relay, urlunsplit(parts._replace(netloc=netloc, query=query))
    finally:
        listener.close()
