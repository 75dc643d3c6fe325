"""The waits of one attempt of a run: they end in this process, or the run is suspended once every branch waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tenure.errors import StoreUnavailable
from tenure.lifecycle.continuations import continued_as
from tenure.lifecycle.records import Job
from tenure.observe.log_context import job_fields
from tenure.workers.execution.outcomes import Raised, Suspended, UndoUnfinished, describe_error
from tenure.workflow.waits import DurableWait, undurable_wait, waits_durably

if TYPE_CHECKING:
    from tenure.workflow.engine import WorkflowEngine

WATCH_SECONDS = 1.0
"""How often a run that waits, and is not suspended since it also works, looks for what it waits for."""
WARNING_SECONDS = 10.0
"""After this time a warning names what keeps a waiting run on its worker."""

log = logging.getLogger("tenure.workflow")


class RunWaits:
    """The durable waits of an attempt, and the task that watches them."""

    def __init__(self, engine: WorkflowEngine) -> None:
        self._engine, self._clock = engine, engine.services.seams.clock
        self._waits: set[DurableWait] = set()
        self._changed = asyncio.Event()
        self.watching: asyncio.Task[None] | None = None
        """The task that watches the waits, once there was one."""
        self._live_children: set[UUID] = set()
        """The awaited children that are not known to have ended."""
        self._seen_rev = engine.job.rev
        """The revision of the run up to which its children were read."""

    def notice_change(self) -> None:
        """Check the waits again: a task or a call of the run has ended."""
        self._changed.set()

    def child_spawned(self, child_id: UUID) -> None:
        self._live_children.add(child_id)

    def child_ended(self, child_id: UUID) -> None:
        self._live_children.discard(child_id)

    async def wait(self, wait: DurableWait) -> Any:
        """Wait in this process, or suspend the run if all of its branches wait."""
        self._engine.require_open()
        self._waits.add(wait)
        self._changed.set()
        if self.watching is None:
            self.watching = self._engine.services.seams.spawn.task(self._watch(), name="tenure-run-waits")
            self.watching.add_done_callback(self._watch_ended)
        try:
            return await wait
        finally:
            self._waits.discard(wait)

    async def _watch(self) -> None:
        """Suspend the run once every branch waits; until then, end the waits that are over."""
        engine, clock = self._engine, self._clock
        warned, waiting_since_seconds = False, clock.monotonic_seconds()
        while True:
            self._changed.clear()
            await clock.sleep(0)
            main = engine.main.task
            if not self._waits or main is None:
                await self._changed.wait()
                continue
            if not engine.is_replay and not await self._end_waits():
                await self._change_or(WATCH_SECONDS)
                continue
            if await self._every_branch_waits(main):
                engine.end(UndoUnfinished() if engine.is_replay else self._suspension())
                return
            if engine.is_executing or waits_durably(main):
                waiting_since_seconds = clock.monotonic_seconds()
            elif not warned and clock.monotonic_seconds() - waiting_since_seconds > WARNING_SECONDS:
                warned = True
                _warn_of(engine.job, main)
            await self._change_or(WATCH_SECONDS)

    async def _every_branch_waits(self, main: asyncio.Task[Any]) -> bool:
        if self._engine.is_executing or not waits_durably(main):
            return False
        # A branch that ended just now makes those that await it continue in the next iteration of the event loop.
        await self._clock.sleep(0)
        return not (self._changed.is_set() or self._engine.is_executing) and waits_durably(main)

    async def _change_or(self, seconds: float) -> None:
        """Wait for a change of this run, or for this time by the run's clock."""
        spawn = self._engine.services.seams.spawn
        waits = {
            spawn.task(self._clock.sleep(seconds), name="tenure-run-watch"),
            spawn.task(_wait_for(self._changed), name="tenure-run-changed"),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    def _watch_ended(self, watching: asyncio.Task[None]) -> None:
        """Without this task the run would never be suspended: an error that it does not handle ends the attempt."""
        error = None if watching.cancelled() else watching.exception()
        if isinstance(error, Exception):
            job = self._engine.job
            log.error("run %s: its waits cannot be ended", job.id, exc_info=error, extra=job_fields(job))
            self._engine.end(Raised(describe_error(error)))

    async def _end_waits(self) -> bool:
        """End the waits whose time has come or whose signal is there. False if the database is unavailable."""
        engine = self._engine
        try:
            if any(wait.signal is not None for wait in self._waits):
                await engine.signals.refresh()
            if any(wait.child_id is not None for wait in self._waits):
                await self._refresh_children()
        except StoreUnavailable as error:
            log.warning("run %s: read of what it waits for failed, retrying: %s", engine.job.id, error)
            return False
        now = engine.now
        for wait in list(self._waits):
            arrived = wait.signal is not None and engine.signals.has(wait.signal)
            arrived = arrived or (wait.child_id is not None and wait.child_id not in self._live_children)
            if not wait.done() and (arrived or (wait.deadline is not None and wait.deadline <= now)):
                wait.set_result(None)
                self._changed.set()
        return True

    def _suspension(self) -> Suspended:
        """What the run waits for: children, signals or a time. Signals and the time end every wait."""
        deadlines = [wait.deadline for wait in self._waits if wait.deadline is not None]
        delay_seconds = None
        if deadlines:
            delay_seconds = max(0.0, (min(deadlines) - self._engine.now).total_seconds())
        has_signals = any(wait.signal is not None for wait in self._waits)
        children = [wait for wait in self._waits if wait.child_id is not None]
        seen_rev = self._engine.signals.seen_rev
        if children:
            # Signals and children are read at a revision each: all of both is known up to the earlier one.
            seen_rev = min(seen_rev, self._seen_rev) if has_signals else self._seen_rev
            # Branches that end with their child continue together; any other continues with the first child to end.
            together = all(wait.is_leaf for wait in self._waits)
            needed = len({wait.child_id for wait in children}) if together else 1
            children_max = max(0, len(self._live_children) - needed)
            return Suspended("children", delay_seconds, seen_rev, children_max)
        return Suspended("signal" if has_signals else "time", delay_seconds, seen_rev)

    async def _refresh_children(self) -> None:
        """Read which children have ended. The number of live ones decides when a suspended run is woken."""
        seen_rev = self._engine.job.rev
        read = await latest_children(self._engine, list(self._live_children))
        self._live_children = {job.id for job in read.values() if job.live}
        self._seen_rev = max(self._seen_rev, seen_rev)


async def latest_children(engine: WorkflowEngine, child_ids: Sequence[UUID]) -> dict[UUID, Job]:
    """The record of each child, or of its last successor. Removed ones are left out."""
    found = await engine.read_children(child_ids)
    while continued := {id_: next_id for id_, job in found.items() if (next_id := continued_as(job)) is not None}:
        successors = await engine.read_children(list(continued.values()))
        for id_, successor_id in continued.items():
            found.pop(id_)
            if successor_id in successors:
                found[id_] = successors[successor_id]
    return found


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


def _warn_of(job: Job, main: asyncio.Task[Any]) -> None:
    template = "run %s (%s) waits on its worker, since it also awaits something that is not durable: %s"
    log.warning(template, job.id, job.kind, undurable_wait(main), extra=job_fields(job))
