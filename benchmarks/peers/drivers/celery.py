# mypy: disable-error-code="import-not-found, untyped-decorator"
"""Celery on Redis: prefork, early acknowledgement (its default), no result backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import redis
from celery import Celery

from benchmarks.peers.drivers.protocol import Driver, Ledger, Sender, body, main
from benchmarks.peers.drivers.redis_ledger import ledger

PREFETCH = 64
DEFAULT_PREFETCH = 4


def declared(url: str, *, prefetch: int = PREFETCH) -> tuple[Celery, Any]:
    app = Celery("peers", broker=url)
    app.conf.update(worker_prefetch_multiplier=prefetch, task_ignore_result=True, worker_hijack_root_logger=False)

    @app.task(name="nothing")
    def nothing(sent_ns: int) -> None:
        body(sent_ns)

    return app, nothing


def left(client: redis.Redis) -> int:
    return int(client.llen("celery")) + int(client.hlen("unacked"))


class CelerySender:
    def __init__(self, nothing: Any) -> None:
        self._nothing = nothing

    async def one(self, sent_ns: int) -> None:
        self._nothing.delay(sent_ns)

    async def many(self, jobs: int) -> None:
        raise NotImplementedError


class CeleryDriver(Driver):
    configuration = (
        f"Redis without persistence; prefork pool of as many processes, prefetch multiplier {PREFETCH}, early "
        "acknowledgement (default), no result backend, gossip, mingle and heartbeat off; the bodies are counted"
    )
    default_configuration = (
        f"Redis without persistence; prefork pool of as many processes, prefetch multiplier {DEFAULT_PREFETCH}, early "
        "acknowledgement, no result backend"
    )
    bulk_batch = None
    starts_processes = True

    async def prepare(self, url: str) -> None:
        return

    @asynccontextmanager
    async def sender(self, url: str) -> AsyncIterator[Sender]:
        app, nothing = declared(url)
        yield CelerySender(nothing)
        app.close()

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return ledger(url, left)

    def work(self, url: str, *, processes: int) -> None:
        app, _ = declared(url, prefetch=DEFAULT_PREFETCH if self.defaults else PREFETCH)
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
        app.worker_main(["worker", "--pool=prefork", f"--concurrency={processes}", *quiet])


if __name__ == "__main__":
    main(CeleryDriver())
