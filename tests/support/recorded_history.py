"""A varied life of some jobs on one store, written down as its clients saw it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from tenure.errors import InvalidInput, RequestIdReused
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Ack,
    Cancel,
    Commit,
    Complete,
    DeadLetter,
    Fail,
    Halt,
    Heartbeat,
    Operation,
    Progress,
    Reconcile,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    Signal,
    Stall,
    Start,
    Suspend,
)
from tenure.lifecycle.records import Actor, Job, Role
from tenure.seams import Seams
from tenure.stores.contract import EnqueueRequest, Store
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver, runner
from tenure.testing.history.checker import History, HistorySnapshot, recorded, snapshot
from tenure.testing.model.store import ModelStore

BURIAL = DeadLetter(ReasonCode.VALIDATION_FAILED, Stage.INPUT, ERROR)
LEASE_SECONDS = 60.0
PATIENT = {"lease_seconds": LEASE_SECONDS, "heartbeat_seconds": 50.0}


@dataclass(frozen=True)
class RecordedRun:
    """What clients saw, what the database has, and which job is which."""

    history: History
    database: HistorySnapshot
    jobs: dict[str, UUID]

    def job(self, name: str) -> Job:
        return next(job for job in self.database.jobs if job.id == self.jobs[name])

    def saw(self, history: History) -> RecordedRun:
        return replace(self, history=history)

    def stored(self, database: HistorySnapshot) -> RecordedRun:
        return replace(self, database=database)


@dataclass
class Life:
    """Jobs named after what becomes of them. What `seen` asks is in the history, what `unseen` asks is not."""

    store: Store
    clock: ManualClock
    worker: History = field(default_factory=lambda: History("worker"))
    client: History = field(default_factory=lambda: History("client"))
    jobs: dict[str, UUID] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seen = Driver(recorded(self.store, self.worker, now=self.clock.now))
        self.calls = Driver(recorded(self.store, self.client, now=self.clock.now))
        self.unseen = Driver(self.store)

    async def running(self, name: str, driver: Driver, *, start: bool = True, **facts: Any) -> Job:
        """Added, claimed and started under this name; the moments differ, as they do in life."""
        facts = {"kind": name, "policy": PATIENT, **facts}
        added = await (self.calls if driver is self.seen else driver).add(**facts)
        self.jobs[name] = added.id
        self.clock.advance(1)
        [job] = await driver.claim(kinds=(added.kind,), start=start)
        self.clock.advance(1)
        return job

    async def through(self, name: str, driver: Driver, *operations: Operation, **facts: Any) -> Job:
        """Run, then one operation after the other, a second apart."""
        job = await self.running(name, driver, **facts)
        for operation in operations:
            job = await driver.apply(job, operation)
            self.clock.advance(1)
        return job

    async def again(self, name: str, driver: Driver, *operations: Operation) -> None:
        """Another attempt, to its end."""
        job = (await self.store.read([self.jobs[name]]))[self.jobs[name]]
        [job] = await driver.claim(kinds=(job.kind,), worker="worker-2")
        for operation in operations:
            job = await driver.apply(job, operation)
            self.clock.advance(1)

    def recorded_run(self, database: HistorySnapshot) -> RecordedRun:
        return RecordedRun(History.merged([self.client, self.worker]), database, dict(self.jobs))


async def live(life: Life) -> None:
    """All of it, but for the ends of some."""
    await _payments(life)
    await _ends(life)
    await _losses(life)
    await _answers(life)
    await _unseen(life)


async def _payments(life: Life) -> None:
    """Jobs that have an effect outside."""
    for name, operations in {
        "paid": (Heartbeat(), Progress(50, "half"), Commit('"paid"'), Heartbeat(), Complete('"paid"')),
        "paid at once": (Complete('"paid"'),),
        "paid later": (Retry(ERROR, delay_seconds=5),),
    }.items():
        await life.through(name, life.seen, *operations, kind="pays")
        life.clock.advance(10)
    await life.again("paid later", life.seen, Heartbeat(), Complete('"paid"'))
    life.worker.effect(life.jobs["paid"], 1, life.clock.now())
    life.worker.effect(life.jobs["paid at once"], None, life.clock.now())
    life.worker.effect(life.jobs["paid later"], 2, life.clock.now())
    await life.through("not paid", life.seen, Fail(ERROR), kind="pays")


async def _ends(life: Life) -> None:
    await life.through("halted", life.seen, Halt("too dear", "[1]"))
    await life.through("buried", life.seen, BURIAL)
    await life.through("slept", life.seen, Suspend())
    await life.calls.apply(life.jobs["slept"], Signal("wake", "1"), actor=CLIENT)
    await life.again("slept", life.seen, Complete("1"))
    await life.through("gave way", life.seen, Release("shutdown", delay_seconds=2))
    life.clock.advance(3)
    await life.unseen.apply(life.jobs["gave way"], Requeue(), actor=RECOVERY)
    await life.again("gave way", life.seen, Complete("1"))
    job = await life.running("cancelled", life.seen)
    await life.calls.apply(job.id, RequestCancel("enough"), actor=CLIENT)
    await life.seen.apply(job.id, Cancel("enough"), actor=runner(job))
    job = await life.running("started apart", life.seen, start=False)
    for operation in (Ack(), Start(), Complete("1")):
        job = await life.seen.apply(job, operation)


async def _losses(life: Life) -> None:
    """Workers that vanish; recovery's own history was not kept for the second of them."""
    await life.through("lost", life.seen, Heartbeat(), Progress(10))
    await life.through("lost after the commit", life.seen, Commit("2"))
    life.clock.advance(LEASE_SECONDS + 10)
    await life.seen.apply(life.jobs["lost"], Stall(), Requeue(), actor=RECOVERY)
    await life.unseen.apply(life.jobs["lost after the commit"], Stall(), Reconcile(), actor=RECOVERY)
    await life.again("lost", life.seen, Commit("1"), Complete("1"))


async def _answers(life: Life) -> None:
    """Every kind of answer: refused, repeated, deduplicated, none at all."""
    job = await life.through("held", life.seen, Progress(1), Heartbeat())
    life.jobs["queued"] = (await life.calls.add("queued", request_id="order-1")).id
    await life.seen.refuse(job.id, Complete("1"), actor=Actor(Role.RUNNER, "worker-1", life.unseen.random.token()))
    await life.calls.refuse(life.unseen.random.job_id(), Cancel(), actor=CLIENT)
    repeated = life.seen.request(job, Progress(2), request_id="twice")
    await life.seen.try_apply(repeated)
    await life.seen.try_apply(repeated)
    await _refused(life, life.calls.enqueue("queued", request_id="order-1", payload='{"other":1}'), RequestIdReused)
    await _refused(life, life.calls.enqueue("queued", queue=""), InvalidInput)
    again = life.calls.claim_request(kinds=("queued too",), request_id="claim-1")
    life.jobs["queued too"] = (await life.calls.add("queued too")).id
    await life.seen.store.claim(again)
    await life.seen.store.claim(again)
    await life.seen.claim(kinds=("nothing of this",))
    await _deduplicated(life)
    await _unanswered(life)


async def _deduplicated(life: Life) -> None:
    await life.through("first of its key", life.unseen, Complete("1"), kind="keyed", dedupe_key="k")
    life.jobs["second of its key"] = (await life.calls.add("keyed", dedupe_key="k")).id
    third = life.calls.enqueue("keyed", dedupe_key="k")
    [added] = await life.calls.store.enqueue([third])
    assert (added.job.id, added.created) == (life.jobs["second of its key"], False)
    await life.calls.store.enqueue([third])


async def _unanswered(life: Life) -> None:
    """Requests whose answers were lost on the way: one was carried out, one was not, one was asked once more."""
    request = life.unseen.enqueue("unanswered")
    life.jobs["unanswered"] = request.origin.id
    life.client.invoke("enqueue", request.request_id, request.origin.id, life.clock.now()).unknown()
    await life.store.enqueue([request])
    job_id = life.jobs["unanswered"]
    life.client.invoke("signal", "signal-1", job_id, life.clock.now()).unknown()
    await life.unseen.apply(job_id, Signal("a"), actor=CLIENT, request_id="signal-1")
    life.client.invoke("signal", "signal-2", job_id, life.clock.now())
    life.client.invoke("signal", "signal-3", job_id, life.clock.now()).unknown()
    await life.unseen.apply(job_id, Signal("c"), actor=CLIENT, request_id="signal-3")
    await life.calls.try_apply(life.calls.request(job_id, Signal("c"), actor=CLIENT, request_id="signal-3"))


async def _unseen(life: Life) -> None:
    """Jobs that nobody wrote anything down about, so that only the database tells of them."""
    await life.through("done", life.unseen, Heartbeat(), Commit('"kept"'), Complete('"kept"'))
    await life.through("working", life.unseen, Heartbeat(), Progress(5), Heartbeat())
    await life.through("on its last try", life.unseen, Heartbeat(), policy={**PATIENT, "max_attempts": 1})
    await life.through("committed", life.unseen, Commit("3"))
    await life.through("claimed", life.unseen, start=False)
    await life.through("stopped", life.unseen, Halt("too dear", "[1]"))
    life.jobs["put off"] = (await life.unseen.add("put off", delay_ms=1000)).id
    life.clock.advance(1)
    await life.unseen.claim(kinds=("put off",))


async def _refused(life: Life, request: EnqueueRequest, error: type[Exception]) -> None:
    try:
        await life.calls.store.enqueue([request])
    except error:
        return
    raise AssertionError(f"{request} was not refused")


async def finish(life: Life) -> None:
    """Everything that is still live is ended, and drained it is."""
    for job_id in life.jobs.values():
        job = await life.unseen.job(job_id)
        if job.live and not job.committed:
            await life.calls.apply(job_id, Cancel(), actor=CLIENT)
    life.clock.advance(LEASE_SECONDS)
    await life.unseen.apply(life.jobs["committed"], Stall(), Reconcile(), actor=RECOVERY)


def model(clock: ManualClock) -> Store:
    return ModelStore(clock)


def sqlite(clock: ManualClock) -> Store:
    return SqliteStore(":memory:", seams=Seams(clock=clock), database_clock=clock.now, inline=True)


def tell(new_store: Callable[[ManualClock], Store]) -> tuple[RecordedRun, RecordedRun]:
    """The recorded_run while some jobs are live, and the same once all have ended."""

    async def telling() -> tuple[RecordedRun, RecordedRun]:
        clock = ManualClock()
        store = new_store(clock)
        await store.migrate()
        await store.open()
        try:
            life = Life(store, clock)
            await live(life)
            before = life.recorded_run(await snapshot(store, clock=clock))
            await finish(life)
            return before, life.recorded_run(await snapshot(store, clock=clock))
        finally:
            await store.close()

    return asyncio.run(telling())
