"""A job for each record that has words of its own, brought about on a model store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from simulation.model.store import ModelStore
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Ack,
    Cancel,
    Commit,
    Complete,
    DeadLetter,
    Fail,
    Halt,
    Operation,
    Release,
    Requeue,
    Retry,
    Stall,
    Start,
    Suspend,
)
from tenure.lifecycle.records import Actor, Event, Job, Role
from tenure.testing.clock import ManualClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver

Recipe = Callable[[Driver, ManualClock], Awaitable[Job]]


def after(*operations: Operation, start: bool = True, **facts: Any) -> Recipe:
    """A claimed job to which its owner, a gateway, did this."""

    async def recipe(drive: Driver, clock: ManualClock) -> Job:
        added = await drive.add(**facts)
        [job] = await drive.claim(role=Role.GATEWAY, kinds=(added.kind,), start=False)
        owner = Actor(Role.GATEWAY, "worker-1", job.token)
        chain = (Start(), *operations) if start else operations
        return await drive.apply(job.id, *chain, actor=owner) if chain else job

    return recipe


def lost(*operations: Operation, start: bool = True, **policy: Any) -> Recipe:
    """A job whose owner did this and was then lost."""

    async def recipe(drive: Driver, clock: ManualClock) -> Job:
        job = await after(*operations, start=start, policy=policy)(drive, clock)
        clock.advance(60)
        return await drive.apply(job.id, Stall(), actor=RECOVERY)

    return recipe


async def _queued(drive: Driver, clock: ManualClock) -> Job:
    return await drive.add()


async def _queued_again(drive: Driver, clock: ManualClock) -> Job:
    job = await after(Release())(drive, clock)
    return await drive.apply(job.id, Requeue(), actor=RECOVERY)


async def _cancelled(drive: Driver, clock: ManualClock) -> Job:
    job = await after()(drive, clock)
    return await drive.apply(job.id, Cancel(), actor=CLIENT)


RECIPES: dict[str, Recipe] = {
    "queued": _queued,
    "queued, after an attempt": _queued_again,
    "claimed": after(start=False),
    "claimed, acked": after(Ack(), start=False),
    "running": after(),
    "running, committed": after(Commit("1")),
    "waiting": after(Suspend()),
    "retry": after(Retry(ERROR)),
    "stalled": lost(),
    "stalled, committed": lost(Commit("1")),
    "stalled while running, ends": lost(on_lost="fail"),
    "stalled while acked, ends": lost(Ack(), start=False, on_lost="dead_letter"),
    "stalled while claimed, ends": lost(start=False, on_lost="fail"),
    "succeeded": after(Complete("1")),
    "failed": after(Fail(ERROR)),
    "cancelled": _cancelled,
    "halted": after(Halt("limit", "1")),
    "dead_lettered": after(DeadLetter(ReasonCode.POLICY_VIOLATION, Stage.EXEC, ERROR)),
}


async def brought_about(name: str) -> tuple[Job, list[Event]]:
    """The job of this record, and its log."""
    clock = ManualClock()
    drive = Driver(ModelStore(clock))
    made = await RECIPES[name](drive, clock)
    job, events = await drive.seen(made.id)
    assert job is not None
    return job, events
