"""A signal or the end of a child at every point of a suspend: between the reads, the decision and the write.

Recovery does not scan here, so that a wake-up that is lost is a run that never ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

import tenure
from tenure.errors import RevisionConflict
from tenure.lifecycle.operations import Heartbeat, Suspend
from tenure.lifecycle.records import EventType, Job
from tenure.stores.base import BaseStore
from tenure.stores.contract import Failure, Outcome, Request, SignalRecord
from tenure.workflow.run_waits import RunWaits
from tenure.workflow.waits import Join
from tests.support.in_process_worker import working

NEVER_SECONDS = 3600.0
POINTS = ("before the read", "after the read", "before the write", "after the write")


class Interference:
    """Does something once, at a point of the first suspend of a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
        self._point = point
        self._action: Callable[[], Awaitable[Any]] | None = None
        self.done = False
        self._wrap_reads(monkeypatch)
        self._wrap_apply(monkeypatch)

    def arm(self, run_id: UUID, read_id: UUID, action: Callable[[], Awaitable[Any]]) -> None:
        """`read_id` is the job that the run reads before it decides to wait."""
        self._run_id, self._read_id = run_id, read_id
        self._action = action

    async def _reach(self, point: str) -> None:
        if point == self._point and self._action is not None:
            action, self._action = self._action, None
            await action()
            self.done = True

    def _wrap_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        signals, read = BaseStore.signals, BaseStore.read

        async def read_signals(store: BaseStore, job_id: UUID) -> list[SignalRecord]:
            of_run = self._action is not None and job_id == self._read_id
            if of_run:
                await self._reach("before the read")
            found = await signals(store, job_id)
            if of_run:
                await self._reach("after the read")
            return found

        async def read_jobs(store: BaseStore, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
            of_run = self._action is not None and list(job_ids) == [self._read_id] != [self._run_id]
            if of_run:
                await self._reach("before the read")
            found = await read(store, job_ids)
            if of_run:
                await self._reach("after the read")
            return found

        monkeypatch.setattr(BaseStore, "signals", read_signals)
        monkeypatch.setattr(BaseStore, "read", read_jobs)

    def _wrap_apply(self, monkeypatch: pytest.MonkeyPatch) -> None:
        apply = BaseStore.apply

        async def apply_requests(store: BaseStore, requests: Sequence[Request]) -> list[Outcome]:
            suspends = self._action is not None and any(
                request.job_id == self._run_id and isinstance(request.operations[0], Suspend) for request in requests
            )
            if suspends:
                await self._reach("before the write")
            outcomes = await apply(store, requests)
            if suspends:
                await self._reach("after the write")
            return outcomes

        monkeypatch.setattr(BaseStore, "apply", apply_requests)


@pytest.mark.requirement("WF-11", "WF-13")
@pytest.mark.parametrize("timeout_seconds", [None, NEVER_SECONDS])
@pytest.mark.parametrize("point", POINTS)
async def test_a_signal_at_any_point_of_a_suspend_is_received(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch, point: str, timeout_seconds: float | None
) -> None:
    @app.workflow()
    async def waits(run: tenure.Run) -> Any:
        return await run.wait_for("go", timeout_seconds=timeout_seconds)

    async with app:
        handle = await waits.enqueue()
        interference = Interference(monkeypatch, point)
        interference.arm(handle.id, handle.id, lambda: handle.signal("go", 7))
        async with working(app, scan_seconds=NEVER_SECONDS):
            assert await handle.result(timeout_seconds=60) == 7
        types = [event.type for event in await handle.events()]
    assert interference.done
    assert types.count(EventType.SIGNALLED) == 1
    # A signal that comes before the suspend is decided upon may end the wait in the same attempt.
    assert types.count(EventType.SUSPENDED) <= 1
    assert types.count(EventType.CLAIMED) == types.count(EventType.SUSPENDED) + 1


@pytest.mark.requirement("WF-06", "WF-13", "SM-16")
@pytest.mark.parametrize("point", POINTS)
async def test_the_end_of_a_child_at_any_point_of_a_suspend_is_noticed(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    interference = Interference(monkeypatch, point)

    @app.job(queue="nobody")
    async def child() -> None: ...

    @app.workflow()
    async def parent(run: tenure.Run) -> str:
        spawned = await run.spawn(child)
        interference.arm(run.id, spawned.id, lambda: app.cancel(spawned.id, hard=True))
        try:
            await spawned.result()
        except tenure.StepFailed as error:
            return error.error_type
        return "succeeded"

    async with app:
        handle = await parent.enqueue()
        async with working(app, queues=["default"], scan_seconds=NEVER_SECONDS):
            assert await handle.result(timeout_seconds=60) == "JobEnded"
    assert interference.done


@pytest.mark.requirement("WF-11", "WF-13")
async def test_a_signal_between_the_reads_of_a_run_that_waits_for_a_child_too_is_received(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat between the two reads, after the signal, brings the signal's revision into the lease's record."""
    interference = Interference(monkeypatch, "after the read")

    @app.job(queue="nobody")
    async def child() -> None: ...

    @app.workflow()
    async def parent(run: tenure.Run) -> Any:
        spawned = await run.spawn(child)
        lease = run._engine.attempt.lease

        async def signal() -> None:
            await handle.signal("go", 7)
            [outcome] = await (await app.store()).apply([lease.request(Heartbeat(), lease.request_id("heartbeat"))])
            assert isinstance(outcome, Failure)
            assert isinstance(outcome.error, RevisionConflict)
            assert isinstance(outcome.error.current, Job)
            assert lease.adopt(outcome.error.current)

        if run.attempt == 1:
            interference.arm(run.id, run.id, signal)
        return (await run.first(run.wait_for("go"), spawned.result())).value

    async with app:
        handle = await parent.enqueue()
        async with working(app, queues=["default"], scan_seconds=NEVER_SECONDS):
            assert await handle.result(timeout_seconds=20) == 7
    assert interference.done


@pytest.mark.requirement("WF-03", "WF-13")
async def test_a_run_is_not_suspended_when_the_first_of_its_branches_has_just_ended(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reads before the suspend end in the same iteration of the event loop as the branch."""
    end_waits = RunWaits._end_waits

    signalled = False

    async def end_waits_late(waits: RunWaits) -> bool:
        nonlocal signalled
        if not signalled and len(waits._waits) == 2:
            signalled = True
            await handle.signal("go", 7)
        elif signalled:
            joined = getattr(waits._engine.main.task, "_fut_waiter", None)
            while isinstance(joined, Join) and not joined.tasks[0].done():  # noqa: ASYNC110 - no event is as early
                await asyncio.sleep(0)
            return True
        return await end_waits(waits)

    monkeypatch.setattr(RunWaits, "_end_waits", end_waits_late)

    @app.job(queue="nobody")
    async def child() -> None: ...

    @app.workflow()
    async def parent(run: tenure.Run) -> Any:
        spawned = await run.spawn(child)
        return (await run.first(run.wait_for("go"), spawned.result())).value

    async with app:
        handle = await parent.enqueue()
        async with working(app, queues=["default"], scan_seconds=NEVER_SECONDS):
            assert await handle.result(timeout_seconds=20) == 7
        assert (await handle.refresh()).attempt == 1
