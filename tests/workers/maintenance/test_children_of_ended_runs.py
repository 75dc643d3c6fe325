"""When recovery ends a run, its children end with it, as they would if its worker had ended it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from tenure.lifecycle.continuations import (
    CarriedChild,
    ContinuedFrom,
    continued_result,
    successor_origin,
    successor_steps,
)
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Job, Role
from tenure.lifecycle.statuses import DEAD_LETTERED, QUEUED
from tenure.lifecycle.steps import NewStep, StepKind
from tenure.seams import Seams
from tenure.stores.contract import EnqueueRequest, SaveStep, StepSaved
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.driver import CLIENT, Driver, runner
from tenure.workers.maintenance.recovery import RecoveryWorker

LEASE_SECONDS = 60
ENDS_WHEN_LOST: dict[str, Any] = {"max_attempts": 1, "lease_seconds": LEASE_SECONDS}


class Place:
    """A store with a manual clock, and recovery."""

    def __init__(self, store: SqliteStore, clock: ManualClock) -> None:
        self.drive, self._clock = Driver(store), clock

    async def spawn(self, parent: Job, on_parent_end: str, *, child: Job | None = None) -> Job:
        """A child that is recorded with its policy."""
        child = child or await self.drive.add(kind="child", parent_id=parent.id, awaited=True)
        result = encode({"on_parent_end": on_parent_end})
        step = NewStep(key=str(child.id), kind=StepKind.SPAWN, name="child", result=result, child_id=child.id)
        [saved] = await self.drive.store.save_steps([SaveStep(parent, step, runner(parent, role=Role.WORKFLOW))])
        assert isinstance(saved, StepSaved)
        return child

    async def recover(self) -> None:
        """Let all leases expire, and recover what was lost. Steps make a run stall first."""
        self._clock.advance(LEASE_SECONDS)
        recovery = RecoveryWorker(self.drive.store, Seams(clock=self._clock), name="mender")
        while await recovery.scan():
            pass

    async def is_cancelled(self, job: Job) -> bool:
        return (await self.drive.job(job.id)).cancel_requested


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    clock = ManualClock()
    store = SqliteStore(":memory:", seams=Seams(clock=clock), database_clock=clock.now, inline=True)
    await store.migrate()
    await store.open()
    yield Place(store, clock)
    await store.close()


@pytest.mark.requirement("WF-10", "WF-15")
async def test_children_of_a_run_that_recovery_ends_are_cancelled_by_their_policy(place: Place) -> None:
    parent = await place.drive.running(policy=ENDS_WHEN_LOST)
    cancelled, left = await place.spawn(parent, "cancel"), await place.spawn(parent, "leave")
    unrecorded = await place.drive.add(kind="child", parent_id=parent.id, awaited=True)
    plain = await place.drive.add(kind="other", parent_id=parent.id)
    await place.recover()
    assert (await place.drive.job(parent.id)).status is DEAD_LETTERED
    # The worker died between the enqueue of the child and its record: the default policy holds.
    found = [await place.is_cancelled(job) for job in (cancelled, left, unrecorded, plain)]
    assert found == [True, False, True, False]


@pytest.mark.requirement("WF-15")
async def test_children_of_a_run_that_goes_on_after_a_loss_are_kept(place: Place) -> None:
    parent = await place.drive.running(policy={**ENDS_WHEN_LOST, "max_attempts": 3})
    child = await place.spawn(parent, "cancel")
    await place.recover()
    assert (await place.drive.job(parent.id)).status is QUEUED
    assert not await place.is_cancelled(child)


@pytest.mark.requirement("WF-15")
@pytest.mark.parametrize("policy", ["cancel", "leave"])
async def test_a_child_that_went_on_as_another_run_keeps_its_policy(place: Place, policy: str) -> None:
    parent = await place.drive.running(policy=ENDS_WHEN_LOST)
    child = await place.drive.running(kind="child", parent_id=parent.id, awaited=True)
    await place.spawn(parent, policy, child=child)
    successor_id = UUID(int=child.id.int + 1)
    await place.drive.apply(child, Complete(continued_result(successor_id)))
    ended = await place.drive.job(child.id)
    origin = successor_origin(ended, successor_id, "null")
    [successor] = await place.drive.store.enqueue([EnqueueRequest(origin, CLIENT)])
    await place.recover()
    assert await place.is_cancelled(successor.job) is (policy == "cancel")


@pytest.mark.requirement("WF-15")
async def test_children_that_went_along_with_a_continued_run_are_cancelled_with_it(place: Place) -> None:
    first = await place.drive.running(policy=ENDS_WHEN_LOST)
    child = await place.spawn(first, "cancel")
    successor_id = UUID(int=first.id.int + 1)
    ended = await place.drive.apply(first, Complete(continued_result(successor_id)))
    carried = ContinuedFrom(first.id, first.id, (CarriedChild(child.id, "cancel"),))
    async with place.drive.store.transaction(deadline_seconds=5) as tx:
        [enqueued] = await tx.enqueue([EnqueueRequest(successor_origin(ended, successor_id, "null"), CLIENT)])
        await tx.write_steps(enqueued.job, successor_steps(ended, successor_id, carried, []))
    [claimed] = await place.drive.claim(kinds=(enqueued.job.kind,))
    assert claimed.id == successor_id
    await place.recover()
    assert (await place.drive.job(successor_id)).status is DEAD_LETTERED
    assert await place.is_cancelled(child)
