"""A fleet whose workers have three versions of a workflow's code: the old one, a new one that does not fit runs of the
old one, and a third that fits both by a patch. Workers are killed and replaced by any version, so that runs meet old
code, new code and old code again. The rules that are checked: a run is pinned to the version that wrote its last
record; only workers of that version claim it until it is unpinned; no version executes a call that does not fit what is
recorded, and such code counts no failure; every run comes to the end that its record determines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec

from simulation.invariants import InvariantViolated
from simulation.random_streams import RandomStream
from tenure.app import App
from tenure.client.admin import JobAdmin
from tenure.client.job_function import JobFunction
from tenure.errors import JobNotFound, Refused, StoreUnavailable
from tenure.jobs.definition import JobDefinition
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.causes import UNPINNED
from tenure.lifecycle.json_text import load
from tenure.lifecycle.operations import Signal
from tenure.lifecycle.records import Actor, Event, EventType, Job, Role
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.lifecycle.steps import StepKind, StepRecord
from tenure.seams import Seams
from tenure.stores.contract import Busy, Request
from tenure.workflow.current_step import current_step
from tenure.workflow.engine import CODE_MISMATCH
from tenure.workflow.run import Run

if TYPE_CHECKING:
    from simulation.cluster import SimulatedCluster

T = TypeVar("T")

SHARE = 0.3
"""The share of runs of the simulator that have a fleet."""
VERSIONS = OLD, NEW, PATCHED = ("1", "2", "3")
RUNS = 4
LEASE_SECONDS = 6.0
BACKOFF = Backoff(base_seconds=0.5, factor=2.0, max_seconds=5.0)
UNPIN_SHARE = 0.5
CLIENT = Actor(Role.CLIENT, "fleet")


class Executed(msgspec.Struct, frozen=True):
    """An execution of a step that has begun, by this version of the code."""

    key: str
    name: str
    argument: Any
    attempt: int
    version: str


class SimulatedFleet:
    """The workers of the fleet, its runs, and what the log shows of them."""

    def __init__(self, cluster: SimulatedCluster, chance: RandomStream, seams: Callable[[RandomStream], Seams]) -> None:
        self._cluster, self._chance, self._sleep = cluster, chance, cluster.clock.sleep
        self.happens = chance.happens(SHARE)
        self._apps = {version: self._app(version, seams(chance.of(f"ids {version}"))) for version in VERSIONS}
        self._run_ids: list[UUID] = []
        self._executed: dict[UUID, list[Executed]] = {}
        self._pins: dict[UUID, str] = {}
        self.seen: Counter[str] = Counter()
        """What happened and is worth counting."""

    # The code.

    def _app(self, version: str, seams: Seams) -> App:
        app = App("sqlite:///:memory:", seams=seams, environment={}, version=version)

        @app.workflow(lease_seconds=LEASE_SECONDS, backoff=BACKOFF, max_attempts=1000)
        async def parcel(run: Run, weighings: int, pause_seconds: float) -> list[Any]:
            return await self._deliver(run, version, weighings, pause_seconds)

        return app

    async def _deliver(self, run: Run, version: str, weighings: int, pause_seconds: float) -> list[Any]:
        async def weigh(number: int) -> int:
            return await self._work(run, version, "weigh", number)

        async def insure(fee: str) -> str:
            return await self._work(run, version, "insure", fee)

        async def charge(fee: str) -> str:
            return await self._work(run, version, "charge", fee)

        async def send(fee: str) -> str:
            return f"sent {await self._work(run, version, 'send', fee)}"

        weights = [await run.step(weigh, number) for number in range(weighings)]
        await run.wait_for("approved")
        is_insured = await run.patched("insurance") if version == PATCHED else version == NEW
        fee = await run.step(charge, await run.step(insure, "insured") if is_insured else "plain")
        await run.sleep(pause_seconds)
        return [*weights, fee, await run.step(send, fee)]

    async def _work(self, run: Run, version: str, name: str, argument: T) -> T:
        key = current_step().key.partition("/")[2]
        self._executed.setdefault(run.id, []).append(Executed(key, name, argument, run.attempt, version))
        await self._sleep(0.2)
        return argument

    # The workers.

    def definitions(self, version: str) -> Mapping[str, JobDefinition[..., Any]]:
        """The jobs of a worker of this version."""
        return self._apps[version].kinds

    def replacement(self, version: str, live: Collection[str | None]) -> str:
        """The version of the worker that replaces one of this version: any, until no more faults happen."""
        if self._cluster.faulty:
            return self._chance.pick(VERSIONS)
        return next(self.missing(live), version)

    def missing(self, live: Collection[str | None]) -> Iterator[str]:
        """The versions of which no worker lives. A run that is pinned to one of them would wait for ever."""
        return (version for version in VERSIONS if version not in live)

    # The clients.

    async def enqueue(self, store: Any) -> None:
        """Enqueue the runs, and send each the signal that it waits for."""
        parcel: JobFunction[..., Any] = JobFunction(self._apps[OLD], self._apps[OLD].kinds["parcel"])
        for _ in range(RUNS):
            await self._sleep(self._chance.between(0.0, 4.0))
            weighings, pause_seconds = self._chance.whole(0, 3), round(self._chance.between(0.0, 3.0), 3)
            request = parcel.request(weighings=weighings, pause_seconds=pause_seconds).enqueue
            job_id = self._chance.job_id()
            request = msgspec.structs.replace(request, origin=msgspec.structs.replace(request.origin, id=job_id))
            self._run_ids.append(job_id)
            await self._until_replied(partial(store.enqueue, [request]))
            await self._sleep(self._chance.between(0.0, 4.0))
            await self._approve(store, job_id)

    async def _approve(self, store: Any, job_id: UUID) -> None:
        request = Request(job=job_id, operations=(Signal("approved"),), actor=CLIENT, request_id=self._chance.name())
        while isinstance((await self._until_replied(partial(store.apply, [request])))[0], Busy):
            await self._sleep(0.5)

    async def _until_replied(self, send: Callable[[], Any]) -> Any:
        while True:
            try:
                return await send()
            except StoreUnavailable:
                await self._sleep(0.5)

    async def unpin(self, store: Any, seams: Seams) -> None:
        """An operator, who unpins some of the parked runs while there are faults."""
        operator = JobAdmin(store, actor=CLIENT, seams=seams)
        while self._cluster.faulty:
            await self._sleep(self._chance.between(0.3, 3.0))
            for job_id in list(self._run_ids):
                if self._chance.happens(UNPIN_SHARE):
                    try:
                        await operator.unpin(job_id)
                    except (Refused, JobNotFound, StoreUnavailable):
                        continue

    # The rules.

    async def check_events(self, store: Any, events: Sequence[Event]) -> None:
        """Called with all new events, in their order."""
        for event in events:
            if event.job_id not in self._run_ids:
                continue
            if event.type is EventType.SUSPENDED and event.cause == CODE_MISMATCH:
                self.seen["run parked"] += 1
                await self._see_parked(store, event)
            elif event.cause == UNPINNED:
                self.seen["run unpinned"] += self._pins.pop(event.job_id, None) is not None
            elif event.type is EventType.CLAIMED:
                self._see_claimed(event)

    async def _see_parked(self, store: Any, event: Event) -> None:
        pinned_version = self._pins[event.job_id] = load(event.detail or "{}").get("pinned_version")
        steps, jobs = await store.steps(event.job_id), await store.read([event.job_id])
        # Later attempts may have recorded more when several events are seen at once. A patch is recorded beside calls.
        earlier = [step for step in steps if step.attempt <= event.attempt and step.kind is not StepKind.PATCH]
        if event.job_id in jobs and (not earlier or earlier[-1].code_version != pinned_version):
            wrote = earlier[-1].code_version if earlier else None
            raise InvariantViolated(
                f"run {event.job_id} is pinned to version {pinned_version}, and version {wrote} wrote its last record"
            )

    def _see_claimed(self, event: Event) -> None:
        version, pinned = load(event.detail or "{}").get("code_version"), self._pins.get(event.job_id)
        if pinned is None:
            return
        if version != pinned:
            raise InvariantViolated(f"run {event.job_id} is pinned to version {pinned}, and {version} has claimed it")
        self.seen["pinned run continued"] += 1

    async def check(self, store: Any, jobs: Collection[Job]) -> None:
        """Called once every job has ended. Retention may have removed runs that ended early."""
        for run in jobs:
            if run.id in self._run_ids:
                steps = await store.steps(run.id)
                self._check_executions(run, steps)
                self._check_end(run, steps)

    def _check_executions(self, run: Job, steps: Sequence[StepRecord]) -> None:
        recorded = {step.key: step for step in steps if step.kind is StepKind.STEP}
        for one in self._executed.get(run.id, ()):
            record = recorded.get(one.key)
            if record is None or record.attempt > one.attempt:
                # That execution was lost with its worker before it was recorded.
                continue
            if record.attempt < one.attempt or record.name != one.name:
                what = f"attempt {one.attempt} executed {one.name!r} at {one.key} with code of version {one.version}"
                raise InvariantViolated(f"run {run.id}: {what}, and {record.name!r} was recorded there before")

    def _check_end(self, run: Job, steps: Sequence[StepRecord]) -> None:
        names = [step.name for step in steps if step.kind is StepKind.STEP]
        fee = "insured" if "insure" in names else "plain"
        weighings = load(run.origin.payload or "{}")["weighings"]
        expected = [*range(weighings), fee, f"sent {fee}"]
        if run.status is not SUCCEEDED or load(run.result or "null") != expected:
            raise InvariantViolated(
                f"run {run.id} is {run.status} with the result {run.result}; its record determines {expected}"
            )
        if run.failures > run.losses:
            raise InvariantViolated(f"run {run.id} has failed attempts, and its code raises nothing: {run.last_error}")
        self.seen["run of several versions"] += len({step.code_version for step in steps}) > 1
