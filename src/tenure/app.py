"""The front door: declare jobs, put them into the queue, look at them and cancel them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload
from uuid import UUID

from tenure.background import BackgroundLoop
from tenure.context import Context
from tenure.enqueuing import EnqueueOptions, Enqueuer, JobFunction, Prepared
from tenure.errors import InvalidInput, JobNotFound, UnknownKind
from tenure.handles import Handle
from tenure.kinds import Kind, Options
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.operations import Cancel, Operation, RequestCancel
from tenure.lifecycle.records import Actor, Job, OnExhausted, OnLost, Policy, Role, Timeouts
from tenure.seams import SYSTEM, Seams
from tenure.settings import database_url
from tenure.stores import Store, store_for
from tenure.stores.contract import Applied, Busy, Repeated, Request

P = ParamSpec("P")
R = TypeVar("R")

ENQUEUE_BATCH = 1000

log = logging.getLogger("tenure")


class Declares(Protocol):
    """Turns a function into a job: async or plain, with its run as first parameter or without."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R]) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> JobFunction[P, R]: ...


class App:
    """Jobs of one program on one database.

    >>> app = App("sqlite:///jobs.db")
    >>> @app.job(max_attempts=3)
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> double.request(21).enqueue.origin.payload
    '{"number":21}'
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        name: str = "app",
        seams: Seams = SYSTEM,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.database = database_url(database, environment)
        self.seams = seams
        self.client = Actor(Role.CLIENT, name)
        self.background = BackgroundLoop(seams.spawn)
        self.kinds: dict[str, Kind[..., Any]] = {}
        self.rejections: Counter[str] = Counter()
        """Enqueues that were refused before anything was queued, by kind."""
        self._stores: dict[tuple[int, int], Store] = {}

    def job(
        self,
        *,
        kind: str | None = None,
        aliases: Iterable[str] = (),
        queue: str = "default",
        priority: int = 0,
        max_attempts: int = 5,
        lease_seconds: float = 60.0,
        heartbeat_seconds: float | None = None,
        backoff: Backoff | None = None,
        timeouts: Timeouts | None = None,
        on_lost: OnLost = "requeue",
        on_exhausted: OnExhausted = "fail",
    ) -> Declares:
        """Declare a job. Its kind is the function's name unless `kind` gives another."""
        policy = Policy(
            max_attempts=max_attempts,
            lease_seconds=lease_seconds,
            heartbeat_seconds=heartbeat_seconds,
            backoff=backoff or Backoff(),
            timeouts=timeouts or Timeouts(),
            on_lost=on_lost,
            on_exhausted=on_exhausted,
        )
        options = Options(queue=queue, priority=priority, policy=policy, aliases=tuple(aliases))

        def declare(function: Callable[..., Any]) -> JobFunction[..., Any]:
            declared: Kind[..., Any] = Kind(function, name=kind or function.__name__, options=options)
            self._register(declared)
            return JobFunction(self, declared)

        return cast(Declares, declare)

    def _register(self, kind: Kind[..., Any]) -> None:
        for name in (kind.name, *kind.options.aliases):
            if name in self.kinds:
                other = self.kinds[name].function
                raise InvalidInput("kind", f"{name!r} is declared already, by {other.__module__}.{other.__qualname__}")
        self.kinds.update(dict.fromkeys((kind.name, *kind.options.aliases), kind))

    async def enqueue_many(self, requests: Iterable[Prepared[R]]) -> list[Handle[R]]:
        """Queue many calls, a thousand in one round trip; each thousand is taken whole or not at all."""
        store = await self.store()
        prepared = list(requests)
        handles: list[Handle[R]] = []
        for start in range(0, len(prepared), ENQUEUE_BATCH):
            batch = prepared[start : start + ENQUEUE_BATCH]
            added = await store.add([one.enqueue for one in batch])
            handles += [Handle(self, a.job, p.kind, created=a.created) for a, p in zip(added, batch, strict=True)]
        return handles

    async def submit(self, kind: str, payload: str, *, options: EnqueueOptions | None = None) -> Handle[Any]:
        """Queue a call that came as a name and JSON text, from the command line or the network."""
        known = self.kinds.get(kind)
        if known is None:
            raise self._rejected(kind, UnknownKind(kind, self.kinds))
        enqueuer: Enqueuer[..., Any] = Enqueuer(self, known, options or EnqueueOptions())
        [handle] = await self.enqueue_many([enqueuer.prepared(lambda: known.parsed(payload))])
        return handle

    def accepted(self, kind: str, payload: Callable[[], str]) -> str:
        """The payload, or its refusal, which is counted and logged."""
        try:
            return payload()
        except InvalidInput as refusal:
            raise self._rejected(kind, refusal) from None

    def _rejected(self, kind: str, refusal: InvalidInput) -> InvalidInput:
        self.rejections[kind] += 1
        log.warning("a job was refused before it was queued: %s", refusal)
        return refusal

    async def cancel(self, job_id: UUID, *, hard: bool = False, reason: str = "requested") -> Job:
        """End a job. Softly: one that nobody holds ends at once, a running one is told. Hard: now, whoever holds it."""
        store = await self.store()
        job = (await store.read([job_id])).get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        asked: tuple[Operation, ...] = (Cancel(reason),) if hard else (RequestCancel(reason),)
        if not hard and not job.held:
            asked = (RequestCancel(reason), Cancel(reason))
        request_id = f"cancel-{self.seams.random.name()}"
        expected = None if hard else job.rev
        [outcome] = await store.perform(
            [Request(job=job_id, operations=asked, actor=self.client, request_id=request_id, expected_rev=expected)]
        )
        if isinstance(outcome, Applied | Repeated | Busy):
            return outcome.job
        raise outcome.error

    async def store(self) -> Store:
        """The open store of the running event loop. A new SQLite file is given its schema."""
        key = (os.getpid(), id(asyncio.get_running_loop()))
        store = self._stores.get(key)
        if store is None:
            store = store_for(self.database, seams=self.seams)
            if self.database.startswith("sqlite") and not (await store.schema()).applied:
                await store.migrate()
            await store.open()
            self._stores[key] = store
        return store

    async def close(self) -> None:
        """Let go of the running event loop's store."""
        store = self._stores.pop((os.getpid(), id(asyncio.get_running_loop())), None)
        if store is not None:
            await store.close()

    async def __aenter__(self) -> App:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
