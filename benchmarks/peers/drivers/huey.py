# mypy: disable-error-code="import-not-found, untyped-decorator"
"""Huey on SQLite, with SQLite's own default of synchronous=FULL. A task leaves its table when it is claimed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from huey import SqliteHuey

from benchmarks.peers.drivers.protocol import Driver, Ledger, Sender, body, main
from benchmarks.peers.drivers.sqlite import Books, ledger

# Huey records no end of a task that returns nothing: what is not queued any more was at least begun.
BOOKS = Books(left="select count(*) from task")


def declared(url: str, *, fsync: bool | None = None) -> tuple[SqliteHuey, Any]:
    huey = SqliteHuey(filename=url.removeprefix("sqlite:///"), timeout=30, fsync=fsync)

    @huey.task(name="nothing")
    def nothing(sent_ns: int) -> None:
        body(sent_ns)

    return huey, nothing


class HueySender:
    def __init__(self, nothing: Any) -> None:
        self._nothing = nothing

    async def one(self, sent_ns: int) -> None:
        self._nothing(sent_ns)

    async def many(self, jobs: int) -> None:
        raise NotImplementedError


class Huey(Driver):
    configuration = (
        "SQLite in WAL mode, synchronous=FULL; 1 process: 1 thread worker, 2 processes: 2 process workers; polls every "
        "10 to 50 ms; ends are not recorded, so the bodies are counted"
    )
    bulk_batch = None
    starts_processes = True
    fsync: bool | None = None
    """None leaves SQLite's own default."""

    async def prepare(self, url: str) -> None:
        declared(url, fsync=self.fsync)

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Sender]:
        huey, nothing = declared(url, fsync=self.fsync)
        yield HueySender(nothing)
        huey.storage.close()

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return ledger(url, BOOKS)

    def work(self, url: str, *, processes: int) -> None:
        huey, _ = declared(url, fsync=self.fsync)
        kind = "thread" if processes == 1 else "process"
        huey.create_consumer(workers=processes, worker_type=kind, initial_delay=0.01, max_delay=0.05).run()


if __name__ == "__main__":
    main(Huey())
