"""A run of varied jobs on one store, recorded as its clients saw it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from simulation.model.store import ModelStore
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

DEAD_LETTER = DeadLetter(ReasonCode.VALIDATION_FAILED, Stage.INPUT, ERROR)
LEASE_SECONDS = 60.0
PATIENT = {"lease_seconds": LEASE_SECONDS, "heartbeat_seconds": 50.0}


@dataclass(frozen=True)
class RecordedRun:
    """What clients saw, what the database has, and the names of the jobs."""

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
class RunRecorder:
    """Jobs named after what happens to them. Calls through `seen` are recorded, calls through `unseen` are not."""

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
        """Enqueued, claimed and started under this name, at different times."""
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


async def run_jobs(run: RunRecorder) -> None:
    """The whole run, except the ends of some jobs."""
    await _payments(run)
    await _ends(run)
    await _losses(run)
    await _answers(run)
    await _unseen(run)


async def _payments(run: RunRecorder) -> None:
    """Jobs that have an effect outside."""
    for name, operations in {
        "paid": (Heartbeat(), Progress(50, "half"), Commit('"paid"'), Heartbeat(), Complete('"paid"')),
        "paid at once": (Complete('"paid"'),),
        "paid later": (Retry(ERROR, delay_seconds=5),),
    }.items():
        await run.through(name, run.seen, *operations, kind="pays")
        run.clock.advance(10)
    await run.again("paid later", run.seen, Heartbeat(), Complete('"paid"'))
    run.worker.effect(run.jobs["paid"], 1, run.clock.now())
    run.worker.effect(run.jobs["paid at once"], None, run.clock.now())
    run.worker.effect(run.jobs["paid later"], 2, run.clock.now())
    await run.through("not paid", run.seen, Fail(ERROR), kind="pays")


async def _ends(run: RunRecorder) -> None:
    await run.through("halted", run.seen, Halt("too dear", "[1]"))
    await run.through("dead", run.seen, DEAD_LETTER)
    await run.through("slept", run.seen, Suspend())
    await run.calls.apply(run.jobs["slept"], Signal("wake", "1"), actor=CLIENT)
    await run.again("slept", run.seen, Complete("1"))
    await run.through("gave way", run.seen, Release("shutdown", delay_seconds=2))
    run.clock.advance(3)
    await run.unseen.apply(run.jobs["gave way"], Requeue(), actor=RECOVERY)
    await run.again("gave way", run.seen, Complete("1"))
    job = await run.running("cancelled", run.seen)
    await run.calls.apply(job.id, RequestCancel("enough"), actor=CLIENT)
    await run.seen.apply(job.id, Cancel("enough"), actor=runner(job))
    job = await run.running("started apart", run.seen, start=False)
    for operation in (Ack(), Start(), Complete("1")):
        job = await run.seen.apply(job, operation)


async def _losses(run: RunRecorder) -> None:
    """Workers that vanish; the recovery of the second is not recorded."""
    await run.through("lost", run.seen, Heartbeat(), Progress(10))
    await run.through("lost after the commit", run.seen, Commit("2"))
    run.clock.advance(LEASE_SECONDS + 10)
    await run.seen.apply(run.jobs["lost"], Stall(), Requeue(), actor=RECOVERY)
    await run.unseen.apply(run.jobs["lost after the commit"], Stall(), Reconcile(), actor=RECOVERY)
    await run.again("lost", run.seen, Commit("1"), Complete("1"))


async def _answers(run: RunRecorder) -> None:
    """Every kind of result: refused, repeated, deduplicated, none."""
    job = await run.through("held", run.seen, Progress(1), Heartbeat())
    run.jobs["queued"] = (await run.calls.add("queued", request_id="order-1")).id
    await run.seen.refuse(job.id, Complete("1"), actor=Actor(Role.RUNNER, "worker-1", run.unseen.random.token()))
    await run.calls.refuse(run.unseen.random.job_id(), Cancel(), actor=CLIENT)
    repeated = run.seen.request(job, Progress(2), request_id="twice")
    await run.seen.try_apply(repeated)
    await run.seen.try_apply(repeated)
    await _refused(run, run.calls.enqueue("queued", request_id="order-1", payload='{"other":1}'), RequestIdReused)
    await _refused(run, run.calls.enqueue("queued", queue=""), InvalidInput)
    again = run.calls.claim_request(kinds=("queued too",), request_id="claim-1")
    run.jobs["queued too"] = (await run.calls.add("queued too")).id
    await run.seen.store.claim(again)
    await run.seen.store.claim(again)
    await run.seen.claim(kinds=("nothing of this",))
    await _deduplicated(run)
    await _unanswered(run)


async def _deduplicated(run: RunRecorder) -> None:
    await run.through("first of its key", run.unseen, Complete("1"), kind="keyed", dedupe_key="k")
    run.jobs["second of its key"] = (await run.calls.add("keyed", dedupe_key="k")).id
    third = run.calls.enqueue("keyed", dedupe_key="k")
    [added] = await run.calls.store.enqueue([third])
    assert (added.job.id, added.created) == (run.jobs["second of its key"], False)
    await run.calls.store.enqueue([third])


async def _unanswered(run: RunRecorder) -> None:
    """Requests whose replies were lost: one was applied, one was not, one was repeated."""
    request = run.unseen.enqueue("unanswered")
    run.jobs["unanswered"] = request.origin.id
    run.client.invoke("enqueue", request.request_id, request.origin.id, run.clock.now()).unknown()
    await run.store.enqueue([request])
    job_id = run.jobs["unanswered"]
    run.client.invoke("signal", "signal-1", job_id, run.clock.now()).unknown()
    await run.unseen.apply(job_id, Signal("a"), actor=CLIENT, request_id="signal-1")
    run.client.invoke("signal", "signal-2", job_id, run.clock.now())
    run.client.invoke("signal", "signal-3", job_id, run.clock.now()).unknown()
    await run.unseen.apply(job_id, Signal("c"), actor=CLIENT, request_id="signal-3")
    await run.calls.try_apply(run.calls.request(job_id, Signal("c"), actor=CLIENT, request_id="signal-3"))


async def _unseen(run: RunRecorder) -> None:
    """Jobs without recorded calls, known only from the database."""
    await run.through("done", run.unseen, Heartbeat(), Commit('"kept"'), Complete('"kept"'))
    await run.through("working", run.unseen, Heartbeat(), Progress(5), Heartbeat())
    await run.through(
        "on its last try", run.unseen, Heartbeat(), policy={**PATIENT, "max_attempts": 1, "on_exhausted": "fail"}
    )
    await run.through("committed", run.unseen, Commit("3"))
    await run.through("claimed", run.unseen, start=False)
    await run.through("stopped", run.unseen, Halt("too dear", "[1]"))
    run.jobs["put off"] = (await run.unseen.add("put off", delay_ms=1000)).id
    run.clock.advance(1)
    await run.unseen.claim(kinds=("put off",))


async def _refused(run: RunRecorder, request: EnqueueRequest, error: type[Exception]) -> None:
    try:
        await run.calls.store.enqueue([request])
    except error:
        return
    raise AssertionError(f"{request} was not refused")


async def finish(run: RunRecorder) -> None:
    """End every live job, so that the queue is drained."""
    for job_id in run.jobs.values():
        job = await run.unseen.job(job_id)
        if job.live and not job.committed:
            await run.calls.apply(job_id, Cancel(), actor=CLIENT)
    run.clock.advance(LEASE_SECONDS)
    await run.unseen.apply(run.jobs["committed"], Stall(), Reconcile(), actor=RECOVERY)


def model(clock: ManualClock) -> Store:
    return ModelStore(clock)


def sqlite(clock: ManualClock) -> Store:
    return SqliteStore(":memory:", seams=Seams(clock=clock), database_clock=clock.now, inline=True)


def record_runs(new_store: Callable[[ManualClock], Store]) -> tuple[RecordedRun, RecordedRun]:
    """The recorded run while some jobs are live, and the same after all have ended."""

    async def recording() -> tuple[RecordedRun, RecordedRun]:
        clock = ManualClock()
        store = new_store(clock)
        await store.migrate()
        await store.open()
        try:
            run = RunRecorder(store, clock)
            await run_jobs(run)
            before = run.recorded_run(await snapshot(store, clock=clock))
            await finish(run)
            return before, run.recorded_run(await snapshot(store, clock=clock))
        finally:
            await store.close()

    return asyncio.run(recording())
