"""The continuation of a run: a successor that is enqueued in the transaction that completes it.

The payload is new; the successor takes over attributes, live children, the state, the budget, and signals that no call
has received.
"""

from __future__ import annotations

from typing import NoReturn
from uuid import UUID

from tenure.errors import InvalidInput, StepCallRefused, StoreError
from tenure.lifecycle.continuations import (
    ContinuedFrom,
    continued_result,
    successor_origin,
    successor_steps,
)
from tenure.lifecycle.operations import Operation, RequestCancel, Signal
from tenure.lifecycle.records import Actor, Job, Role
from tenure.stores.contract import Applied, EnqueueRequest, Request, SignalRecord, StoreTransaction
from tenure.workers.commit.commit import Overtaken
from tenure.workflow.children import ChildJobs, PreparedChild
from tenure.workflow.engine import WorkflowEngine


async def continue_run(engine: WorkflowEngine, children: ChildJobs, prepared: PreparedChild) -> NoReturn:
    """End the run, and start its successor with this payload."""
    if engine.branch("run.continue_as") is not engine.main:
        raise StepCallRefused("run.continue_as ends the run; call it in the workflow's own function, not in a branch")
    job, kind = engine.job, prepared.enqueue.origin.kind
    if kind != job.kind:
        raise InvalidInput("continue_as", f"takes the workflow itself, {job.kind!r}, not {kind!r}; spawn that one")
    if job.committed:
        raise InvalidInput("continue_as", "comes too late: the run has committed its result")
    origin = ContinuedFrom(job.id, engine.meter.root_id, tuple(await children.carried_on()))
    continuation = RunContinuation(engine, prepared.enqueue, origin)
    await engine.end_with(continuation, continued_result(continuation.successor_id))


class RunContinuation:
    """Writes the successor of a run after the completion of the run, in its transaction."""

    def __init__(self, engine: WorkflowEngine, enqueue: EnqueueRequest, origin: ContinuedFrom) -> None:
        self._engine, self._origin = engine, origin
        self._payload, self._actor = enqueue.origin.payload, enqueue.actor
        self._signal_rev = 0
        self._unread: list[SignalRecord] = []
        self.successor_id: UUID = enqueue.origin.id

    async def prepare(self) -> None:
        """Read the signals that no call has received."""
        store, job_id = self._engine.services.run_store, self._engine.job.id
        # The record before the signals: one that is sent in between changes its `signal_rev`.
        job = (await store.read([job_id])).get(job_id)
        self._signal_rev = -1 if job is None else job.signal_rev
        self._unread = self._engine.signals.unread(await store.signals(job_id))

    async def write(self, inner: StoreTransaction, before: Job) -> None:
        """Enqueue the successor, and pass on signals and a request to cancel."""
        if before.signal_rev != self._signal_rev:
            raise Overtaken
        request = EnqueueRequest(successor_origin(before, self.successor_id, self._payload), self._actor)
        [enqueued] = await inner.enqueue([request])
        if not enqueued.created:
            raise StoreError(f"run {before.id} cannot go on as {self.successor_id}: {enqueued.job.id} is there instead")
        records = self._engine.steps.all()
        await inner.write_steps(enqueued.job, successor_steps(before, self.successor_id, self._origin, records))
        job = enqueued.job
        for signal in self._unread:
            job = await self._apply(inner, job, Signal(signal.name, signal.payload), f"signal/{signal.rev}")
        if before.cancel_requested:
            await self._apply(inner, job, RequestCancel(before.cancel_reason or "requested"), "cancel")

    async def _apply(self, inner: StoreTransaction, job: Job, operation: Operation, name: str) -> Job:
        before_id = self._engine.job.id
        actor = Actor(Role.CLIENT, f"run {before_id}")
        request = Request(job=job, operations=(operation,), actor=actor, request_id=f"{before_id}/{name}")
        outcome = await inner.apply(request)
        if not isinstance(outcome, Applied):
            raise StoreError(f"run {before_id} could not pass on {name} to {job.id}: {outcome!r}")
        return outcome.job
