# mypy: disable-error-code="import-not-found, untyped-decorator"
"""DBOS: a no-op workflow without steps, from a queue in the system database that is polled."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

from dbos import DBOS, DBOSClient

from benchmarks.peers.drivers.postgres import Books, ledger
from benchmarks.peers.drivers.protocol import Driver, Ledger, Sender, body, main

QUEUE = "default"
POLL_SECONDS = 0.02
CONNECTIONS = 20
VERSION = "1"
BOOKS = Books(
    left="select count(*) from dbos.workflow_status where queue_name = 'default' and status <> 'SUCCESS'",
    done="select count(*) from dbos.workflow_status where queue_name = 'default' and status = 'SUCCESS'",
    first_claim="select min(started_at_epoch_ms) / 1000.0 from dbos.workflow_status where queue_name = 'default'",
)


class DBOSSender:
    def __init__(self, client: DBOSClient) -> None:
        self._client = client

    async def one(self, sent_ns: int) -> None:
        # The call that runs in no thread is the faster one.
        self._client.enqueue({"queue_name": QUEUE, "workflow_name": "nothing", "app_version": VERSION}, sent_ns)

    async def many(self, jobs: int) -> None:
        raise NotImplementedError


class DBOSDriver(Driver):
    configuration = (
        f"psycopg pool of {CONNECTIONS}, queue polled every {POLL_SECONDS} s (default 1 s), no limits, "
        "synchronous workflow without steps"
    )
    default_configuration = "queue polled every second, no limits, synchronous workflow without steps"
    bulk_batch = None

    async def prepare(self, url: str) -> None:
        await asyncio.to_thread(_migrate, url)

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Sender]:
        client = DBOSClient(system_database_url=url)
        yield DBOSSender(client)
        client.destroy()

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return ledger(url, BOOKS)

    def work(self, url: str, *, processes: int) -> None:
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        _launch(url)
        DBOS.register_queue(QUEUE, polling_interval_sec=1.0 if self.defaults else POLL_SECONDS)
        stop.wait()
        DBOS.destroy()


def _launch(url: str) -> None:
    DBOS(
        config={
            "name": "peers",
            "system_database_url": url,
            "sys_db_pool_size": CONNECTIONS,
            "application_version": VERSION,
            # At its launch an executor resumes the pending work of an executor with the same name, even if that one is
            # alive.
            "executor_id": f"worker-{os.getpid()}",
            "log_level": "ERROR",
        }
    )

    @DBOS.workflow(name="nothing")
    def nothing(sent_ns: int) -> None:
        body(sent_ns)

    DBOS.launch()


def _migrate(url: str) -> None:
    _launch(url)
    DBOS.register_queue(QUEUE, polling_interval_sec=POLL_SECONDS)
    DBOS.destroy()


if __name__ == "__main__":
    main(DBOSDriver())
