# mypy: disable-error-code="import-not-found, untyped-decorator"
"""Dramatiq on Redis by its own command, with its defaults: eight threads a process, late acknowledgement."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.drivers.protocol import Driver, Ledger, Sender, body, main
from benchmarks.peers.drivers.redis_ledger import ledger

URL_VARIABLE = "TENURE_PEERS_REDIS"
THREADS = 8


def connect(url: str) -> None:
    broker = RedisBroker(url=url)
    broker.declare_queue(nothing.queue_name)
    dramatiq.set_broker(broker)
    nothing.broker = broker
    broker.declare_actor(nothing)


if URL_VARIABLE in os.environ:  # This module is then imported by Dramatiq's own command.
    dramatiq.set_broker(RedisBroker(url=os.environ[URL_VARIABLE]))
else:
    dramatiq.set_broker(RedisBroker(url="redis://127.0.0.1:1"))


@dramatiq.actor
def nothing(sent_ns: int) -> None:
    body(sent_ns)


def left(client: redis.Redis) -> int:
    return int(client.hlen("dramatiq:default.msgs"))


class DramatiqSender:
    async def one(self, sent_ns: int) -> None:
        nothing.send(sent_ns)

    async def many(self, jobs: int) -> None:
        raise NotImplementedError


class DramatiqDriver(Driver):
    configuration = (
        f"Redis without persistence; its command with as many processes of {THREADS} threads (default), late "
        "acknowledgement (default), no result backend; acknowledged messages are gone, so the bodies are counted"
    )
    bulk_batch = None
    starts_processes = True

    async def prepare(self, url: str) -> None:
        return

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Sender]:
        connect(url)
        yield DramatiqSender()

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return ledger(url, left)

    def work(self, url: str, *, processes: int) -> None:
        os.environ[URL_VARIABLE] = url
        command = Path(sys.executable).parent / "dramatiq"
        options = ["--processes", str(processes), "--threads", str(THREADS)]
        os.execv(command, [str(command), "benchmarks.peers.drivers.dramatiq", *options])


if __name__ == "__main__":
    main(DramatiqDriver())
