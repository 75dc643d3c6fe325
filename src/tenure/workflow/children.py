"""Child jobs of a run: spawned once, awaited without a worker, and cancelled with their parent by default."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar
from uuid import UUID

import msgspec

from tenure.jobs.definition import JobDefinition
from tenure.jobs.step_codec import Errors, recorded_error
from tenure.lifecycle.continuations import CarriedChild, continued_as, spawned_children
from tenure.lifecycle.deadlines import deadline_of, with_deadline
from tenure.lifecycle.json_text import digest, encode, load
from tenure.lifecycle.operations import RequestCancel
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.lifecycle.steps import StepKind, StepRecord
from tenure.observe.log_context import job_fields
from tenure.stores.contract import Applied, EnqueueRequest, Repeated, Request
from tenure.workflow.branch import Branch, RunCall, current_branch
from tenure.workflow.budget import charge_cancelled
from tenure.workflow.engine import WorkflowEngine
from tenure.workflow.placed_call import PlacedCall
from tenure.workflow.run_waits import latest_children
from tenure.workflow.waits import DurableWait

log = logging.getLogger("tenure.workflow")

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

OnParentEnd = Literal["cancel", "leave", "wait"]
"""What follows for a live child when its parent ends: its cancel is requested, it continues, or the parent waits for
it."""


CANCELS_MAX, CANCEL_PAUSE_SECONDS = 50, 0.05
"""How often, and with which pause, the cancel of a child is requested while its row is locked."""
CARRIED_POLL = timedelta(seconds=30)
"""How often a run that waits at its end for a child of an earlier run of its chain reads that child."""


class PreparedChild(Protocol):
    """A validated call of a job: what `job.request(…)` returns."""

    @property
    def enqueue(self) -> EnqueueRequest: ...

    @property
    def definition(self) -> Any: ...


class HasResult(Protocol[R_co]):
    """What an enqueue returns, for the type of its result."""

    async def result(self, timeout_seconds: float | None = None) -> R_co: ...


class Spawnable(Protocol[P, R_co]):
    """A declared job or workflow, or one with options: `summarise`, `summarise.options(queue="slow")`."""

    def request(self, *args: P.args, **kwargs: P.kwargs) -> PreparedChild: ...

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> HasResult[R_co]: ...


class Child(Generic[R]):
    """A child job of a run. `await child.result()` waits for its end without holding a worker."""

    def __init__(
        self, engine: WorkflowEngine, child_id: UUID, definition: JobDefinition[..., R], *, errors: Errors
    ) -> None:
        self._engine, self.id, self._definition, self._errors = engine, child_id, definition, errors

    def __repr__(self) -> str:
        return f"Child({self._definition.name!r}, {self.id})"

    def result(self) -> RunCall[R]:
        """Its result. A child that ended without one raises StepFailed, or the registered class of its error."""
        what = f"result of child {self._definition.name}"
        branch, place = self._engine.place(what, None)
        call = PlacedCall(place, StepKind.WAIT, f"child {self._definition.name}")
        return RunCall(what, lambda: self._result(branch, call), is_leaf=True)

    async def _result(self, branch: Branch, call: PlacedCall) -> R:
        record = self._engine.recorded(call)
        if record is None:
            record = await self._engine.save(_ended_step(call, await ended_child(self._engine, self.id)))
        branch.completed(record.finished_at)
        if record.status == "succeeded" and record.result is not None:
            return self._definition.decode_result(record.result, job_id=self.id)
        raise recorded_error(record.error or "{}", self._errors, step=f"{record.name} ({record.key})")


async def ended_child(engine: WorkflowEngine, child_id: UUID) -> Job:
    """The record of a child once it has ended; if it has successors, the record of the last one."""
    while True:
        job = (await engine.read_children([child_id])).get(child_id)
        if job is None:
            raise LookupError(f"child {child_id} was removed before its parent had read its result")
        if not job.live:
            engine.waits.child_ended(child_id)
            successor_id = continued_as(job)
            if successor_id is None:
                return job
            engine.waits.child_spawned(successor_id)
            child_id = successor_id
        elif job.origin.parent_id != engine.job.id:
            # Spawned by an earlier run of this one's chain: its end does not wake this run.
            await engine.waits.wait(DurableWait(deadline=engine.now + CARRIED_POLL))
        else:
            branch = current_branch.get()
            await engine.waits.wait(DurableWait(child_id=child_id, is_leaf=branch is not None and branch.is_leaf))


def _ended_step(call: PlacedCall, job: Job) -> Any:
    if job.status is SUCCEEDED and job.result is not None:
        return call.step(result=job.result, child_id=job.id)
    last = load(job.error or job.last_error or "{}")
    facts = {
        "type": last.get("type") or "JobEnded",
        "message": last.get("message") or f"child {job.id} ({job.kind}) is {job.status}: {job.reason}",
        "traceback": last.get("traceback"),
    }
    if "arguments" in last:
        facts["arguments"] = last["arguments"]
    return call.step(status="failed", error=encode(facts, where="error"), child_id=job.id)


class ChildJobs:
    """The children that this attempt has spawned or found spawned."""

    def __init__(self, engine: WorkflowEngine, errors: Errors) -> None:
        self._engine, self._errors = engine, errors

    def spawn(self, prepared: PreparedChild, *, key: str | None, on_parent_end: OnParentEnd) -> RunCall[Child[Any]]:
        """Enqueue the child, once however often the run is replayed."""
        definition: JobDefinition[..., Any] = prepared.definition
        what = f"run.spawn({definition.name})"
        branch, place = self._engine.place(what, key)
        call = PlacedCall(
            place,
            StepKind.SPAWN,
            definition.name,
            digest(prepared.enqueue.origin.payload),
            self._engine.take_spend(branch),
        )

        async def spawned() -> Child[Any]:
            record = self._engine.recorded(call)
            if record is None:
                shares_budget = definition.invoker is not None
                request = self._with_budget(prepared.enqueue) if shares_budget else prepared.enqueue
                record = await self._enqueue(call, request, on_parent_end)
            branch.completed(record.finished_at)
            assert record.child_id is not None, "a spawn is recorded with its child"
            self._engine.waits.child_spawned(record.child_id)
            return Child(self._engine, record.child_id, definition, errors=self._errors)

        return RunCall(what, spawned)

    def _with_budget(self, request: EnqueueRequest) -> EnqueueRequest:
        """A child that is a workflow shares the budget of this run, whatever it has declared."""
        budget = self._engine.meter.budget
        if budget is None:
            return request
        policy = msgspec.structs.replace(request.origin.policy, budget=budget)
        return msgspec.structs.replace(request, origin=msgspec.structs.replace(request.origin, policy=policy))

    async def _enqueue(self, call: PlacedCall, request: EnqueueRequest, on_parent_end: OnParentEnd) -> StepRecord:
        engine = self._engine
        await engine.require_allowed(call)
        await engine.begin_execution(call)
        try:
            origin = msgspec.structs.replace(
                with_deadline(request.origin, deadline_of(engine.job)),
                parent_id=engine.job.id,
                awaited=True,
                # A repetition after a crash returns the same child.
                request_id=f"{engine.job.id}/{call.place.key}",
            )
            try:
                [enqueued] = await engine.services.run_store.enqueue([msgspec.structs.replace(request, origin=origin)])
            except asyncio.CancelledError:
                await charge_cancelled(engine, call, {})
                raise
            result = encode({"on_parent_end": on_parent_end})
            return await engine.save_spend(call.step(result=result, child_id=enqueued.job.id), call, {})
        finally:
            engine.end_execution()

    async def finish(self) -> None:
        """The run has ended: wait for the children that it waits for, and cancel those that end with it."""
        for child_id in self._ids("wait"):
            await ended_child(self._engine, child_id)
        await self.cancel_live("its parent has ended")

    async def carried_on(self) -> list[CarriedChild]:
        """The live children, which the successor of this run takes over."""
        carried = self._carried()
        policies = {child.child_id: child.on_parent_end for child in carried}
        jobs = await latest_children(self._engine, list(policies))
        return [CarriedChild(job.id, policies[child_id]) for child_id, job in jobs.items() if job.live]

    def _carried(self) -> list[CarriedChild]:
        """The children of this run and of those before it, whether or not this attempt has come to their calls."""
        return spawned_children(self._engine.steps.all())

    def _ids(self, on_parent_end: OnParentEnd) -> list[UUID]:
        """The children with this policy."""
        return [child.child_id for child in self._carried() if child.on_parent_end == on_parent_end]

    async def cancel_live(self, reason: str) -> None:
        """Request a cancel of the live children that end with their parent."""
        engine = self._engine
        for _ in range(CANCELS_MAX):
            live = [job for job in await self._live(self._ids("cancel")) if not job.cancel_requested]
            if not live:
                return
            outcomes = await engine.services.run_store.apply([self._cancel(job, reason) for job in live])
            if all(isinstance(outcome, Applied | Repeated) for outcome in outcomes):
                return
            # Another transaction has locked the row, or the child has a successor now.
            await engine.services.seams.clock.sleep(CANCEL_PAUSE_SECONDS)
        log.warning("run %s: not all of its children could be cancelled", engine.job.id, extra=job_fields(engine.job))

    def _cancel(self, job: Job, reason: str) -> Request:
        parent_id = self._engine.job.id
        return Request(
            job=job.id,
            operations=(RequestCancel(reason),),
            actor=Actor(Role.CLIENT, f"run {parent_id}"),
            request_id=f"{parent_id}/cancel/{job.id}",
        )

    async def _live(self, ids: Sequence[UUID]) -> list[Job]:
        if not ids:
            return []
        return [job for job in (await latest_children(self._engine, ids)).values() if job.live]
