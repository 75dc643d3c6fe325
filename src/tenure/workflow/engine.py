"""One attempt of a run: its recorded steps, its branches, what it waits for, and how it ends.

The function of a workflow runs from its beginning in every attempt. Calls that were recorded return what was recorded;
the first call that was not is executed. The engine compares each call with its record, and never executes a call that
does not fit: then the run is parked until code that fits can continue it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NoReturn, TypeVar
from uuid import UUID

import msgspec

from tenure.errors import (
    CheckpointNotSaved,
    LeaseLost,
    PermanentError,
    StepCallRefused,
    StoreUnavailable,
)
from tenure.jobs.step_codec import decode_result, encode_result
from tenure.lifecycle.budgets import sum_amounts
from tenure.lifecycle.continuations import continued_from
from tenure.lifecycle.forks import fork_origin
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Job
from tenure.lifecycle.steps import NewStep, StepKind, StepRecord
from tenure.observe.log_context import job_fields
from tenure.stores.contract import Charge, SignalRecord
from tenure.workers.commit.commit import Continuation
from tenure.workers.execution.attempt import RunningAttempt
from tenure.workers.execution.outcomes import (
    Cancelled,
    EndsAttempt,
    Halted,
    Lost,
    Outcome,
    Raised,
    Returned,
    Suspended,
)
from tenure.workflow.branch import Branch, Place, current_branch, require_own_task
from tenure.workflow.budget import SpendMeter, charge_cancelled
from tenure.workflow.placed_call import Compensation, PlacedCall, UndoableStep
from tenure.workflow.policy import RunPolicy, check_policy
from tenure.workflow.recorded_steps import RecordedSteps, described, mismatch
from tenure.workflow.run_signals import RunSignals
from tenure.workflow.run_waits import RunWaits
from tenure.workflow.waits import DurableWait, undurable_wait

T = TypeVar("T")

STEPS_MAX = 100_000
"""How many steps a run may record."""
SWALLOWED_SECONDS = 5.0
"""After this time a warning names a run that was cancelled and continues."""
CODE_MISMATCH, CHECKPOINT_SAVE_FAILED = "code_mismatch", "checkpoint-save-failed"

log = logging.getLogger("tenure.workflow")


class RunEnded(BaseException):
    """The attempt of this run has ended, so that no further call takes effect. `except Exception` does not catch it."""


class Mode(StrEnum):
    """What an engine does with a call that is not recorded."""

    RUN = "run"
    """Execute it."""
    REPLAY = "replay"
    """Nothing: the call waits until all branches have come to such a call, and then the replay is over."""
    UNDO = "undo"
    """Execute it: it undoes a step. A request to cancel has no effect."""


class WorkflowEngine:
    """The state of one attempt of a run. All of it is used on the worker's event loop only."""

    def __init__(self, attempt: RunningAttempt, records: Sequence[StepRecord], mode: Mode = Mode.RUN) -> None:
        self.attempt, self.services, self._mode = attempt, attempt.services, mode
        self.undoable: dict[str, UndoableStep] = {}
        """The steps that this attempt has come to and that can be undone, by key."""
        self.steps = RecordedSteps(records)
        self.signals = RunSignals(self, records)
        self.continued = continued_from(self.steps.by_key)
        """What the run has of the one that it continues."""
        forked = fork_origin(self.steps.by_key)
        self.main = Branch(
            "",
            seed=str(attempt.job.id if forked is None else forked.seed_id),
            began_at=attempt.job.created_at if forked is None else forked.began_at,
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._executing = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._halt_reason: str | None = None
        self.meter = SpendMeter(attempt)
        self.policy: RunPolicy | None = None
        self.partial_result: Callable[[], str] = lambda: "null"
        """Returns what the run is halted with, if it is, as JSON text."""
        self._outcome: Outcome | None = None
        self.save_cut_off = False
        """Whether a call was cancelled while its step was being saved: the step may be recorded all the same."""
        self._timer: asyncio.TimerHandle | None = None
        clock = self.services.seams.clock
        self._clock_base = attempt.job.started_at or attempt.job.updated_at, clock.monotonic_seconds()
        self.waits = RunWaits(self)

    @property
    def job(self) -> Job:
        return self.attempt.job

    @property
    def is_replay(self) -> bool:
        """Whether a call that is not recorded is not executed either."""
        return self._mode is Mode.REPLAY

    @property
    def is_executing(self) -> bool:
        """Whether a call is in progress, so that the run is not suspended."""
        return self._executing > 0

    @property
    def now(self) -> datetime:
        """A time that the database's clock has reached."""
        at, monotonic_seconds = self._clock_base
        return at + timedelta(seconds=self.services.seams.clock.monotonic_seconds() - monotonic_seconds)

    # The attempt.

    async def run(self, function: Coroutine[Any, Any, T]) -> T:
        """Run the workflow's function to its end, or to the end of the attempt."""
        self.attempt.on_cancel_request = self._cancel if self._mode is Mode.RUN else None
        main = self.start_task(function, self.main)
        try:
            await asyncio.wait({main})
        finally:
            if self._timer is not None:
                self._timer.cancel()
            ended = self._outcome is not None
            self._outcome = self._outcome or Cancelled()
            await self._stop_tasks()
        if ended:
            raise EndsAttempt(self._outcome)
        return await main

    def start_task(self, body: Coroutine[Any, Any, T], branch: Branch | None) -> asyncio.Task[T]:
        """Start a task of this run; with a branch, its calls belong to that branch."""
        context = copy_context()
        if branch is not None:
            context.run(current_branch.set, branch)
        task: asyncio.Task[T] = context.run(self.services.seams.spawn.task, body, name="tenure-run")
        if branch is not None:
            branch.task = task
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self.waits.notice_change()
        if not task.cancelled():
            # Retrieved: a branch that was dropped is not awaited.
            task.exception()

    async def _stop_tasks(self) -> None:
        watching = () if self.waits.watching is None else (self.waits.watching,)
        while tasks := {task for task in (*self._tasks, *watching) if not task.done()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _warn_if_swallowed(self, main: asyncio.Task[Any]) -> None:
        if main.done():
            return
        job, awaited = self.job, undurable_wait(main)
        template = "run %s (%s) still runs %s s after its cancellation, which its code swallows; it awaits %s"
        log.warning(template, job.id, job.kind, SWALLOWED_SECONDS, awaited, extra=job_fields(job))

    def end(self, outcome: Outcome) -> None:
        """End the attempt with this outcome. Its tasks are cancelled."""
        if self._outcome is None:
            self._outcome = outcome
            if self.main.task is not None:
                self.main.task.cancel()
                self._timer = self.services.loop.call_later(SWALLOWED_SECONDS, self._warn_if_swallowed, self.main.task)

    def end_here(self, outcome: Outcome) -> NoReturn:
        """End the attempt in the call that is being made."""
        self.end(outcome)
        raise RunEnded

    def _cancel(self) -> None:
        self.end(Cancelled())

    def park(self, call: str, problem: str) -> NoReturn:
        """The code does not fit what is recorded: nothing is executed, and the run waits for code that fits.

        It is pinned to the version that wrote the last record of a call, because that version got further than all
        others. Where that is the version of this code, the run waits until it is unpinned.
        """
        note = f"the code does not fit what is recorded at {call}: {problem}"
        pinned_version = self.steps.last_code_version()
        here = pinned_version in (None, self.services.code_version)
        self.end_here(
            Suspended(
                "code",
                None if here else 0.0,
                seen_rev=self.job.rev,
                cause=CODE_MISMATCH,
                note=note,
                pinned_version=pinned_version,
            )
        )

    def require_all_made(self) -> None:
        """After the function has returned, every recorded call must have been made again. Else the run is parked."""
        unmade = self.steps.unmade()
        if unmade is not None:
            recorded = described(unmade.kind, unmade.name)
            self.park(unmade.key, f"recorded is {recorded}, but the function returned before it")

    # Calls.

    def branch(self, what: str) -> Branch:
        """The branch of the code that calls."""
        self.require_open()
        return require_own_task(current_branch.get(), what)

    def place(self, what: str, key: str | None) -> tuple[Branch, Place]:
        """The place of a call that is made now."""
        self.require_open()
        if key is None:
            branch = require_own_task(current_branch.get(), what)
            place = branch.take()
        else:
            branch = current_branch.get() or self.main
            place = branch.take_key(key)
        if place.key in self.steps.used:
            raise StepCallRefused(f"{what}: the key {place.key!r} was used before in this run; use another key")
        self.steps.use(place.key)
        return branch, place

    def take(self, branch: Branch) -> Place:
        """The place of the next call of this branch."""
        place = branch.take()
        self.steps.use(place.key)
        return place

    @property
    def has_ended(self) -> bool:
        """Whether the attempt has an outcome, so that no further call takes effect."""
        return self._outcome is not None

    def require_open(self) -> None:
        if self._outcome is not None:
            raise RunEnded

    def recorded(self, call: PlacedCall) -> StepRecord | None:
        """The record of this call, if there is one. The run is parked if it is the record of another call."""
        record = self.steps.peek(call.place.key)
        if record is not None and (problem := mismatch(call, record)) is not None:
            self.park(call.place.key, problem)
        return record

    def decode(self, record: StepRecord, function: Callable[..., Any]) -> Any:
        """The result of a recorded step, in the return type of its function."""
        return decode_result(record.result or "null", function, step=f"{record.name} ({record.key})")

    def encode(self, value: Any, step: str) -> str:
        """The JSON text of a step's result. PermanentError names the step if it is larger than the app allows."""
        return encode_result(value, step=step, bytes_max=self.attempt.definition.limits.step_bytes_max)

    async def read_signals(self) -> list[SignalRecord]:
        return await self.services.run_store.signals(self.job.id)

    async def read_children(self, child_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await self.services.run_store.read(child_ids)

    def register(self, record: StepRecord, compensation: Compensation | None, result: Any) -> None:
        """The step of this record can be undone, if it was recorded as such."""
        if record.undo is not None and compensation is not None:
            self.undoable[record.key] = UndoableStep(record, compensation, result)

    def take_spend(self, branch: Branch) -> dict[str, int]:
        """What the code of this branch has spent since its last executed call. A recorded call was charged with it."""
        spend, branch.spend = branch.spend, {}
        return spend

    async def save_spend(self, step: NewStep, call: PlacedCall, reported: Mapping[str, int]) -> StepRecord:
        """Record a step, with what was spent for it: charged to the budget in the same transaction."""
        charged, charge = self.meter.charged(step, call.place.key, sum_amounts(call.spend, reported))
        record = await self.save(charged, charge)
        self.meter.settled(call.place.key)
        return record

    async def save(self, step: NewStep, charge: Charge | None = None) -> StepRecord:
        """Record a step. Returns the record, which counts from now on."""
        await self._require_executing()
        if len(self.steps) >= STEPS_MAX:
            raise PermanentError(
                f"run {self.job.id} has recorded {STEPS_MAX} steps, the most that a run may have; continue as a new "
                f"run before that, with run.continue_as"
            )
        step = msgspec.structs.replace(step, code_version=self.services.code_version)
        try:
            return self.adopt(await self.services.checkpointer.save(self.attempt.lease, step, charge))
        except asyncio.CancelledError:
            self.save_cut_off = True
            raise
        except (LeaseLost, StoreUnavailable):
            self.end_here(Lost())
        except CheckpointNotSaved as error:
            self.end_here(Raised(encode({"type": CHECKPOINT_SAVE_FAILED, "message": str(error)}, where="error")))

    def adopt(self, record: StepRecord) -> StepRecord:
        self.steps.add(record)
        if record.finished_at > self.now:
            self._clock_base = record.finished_at, self.services.seams.clock.monotonic_seconds()
        return record

    async def require_allowed(self, call: PlacedCall, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}) -> None:
        """Ask the policy of the run about a call that is not recorded."""
        if self.policy is None or self._mode is Mode.UNDO:
            return
        await self._require_executing()
        reason = await check_policy(self, self.policy, call, tuple(args), kwargs)
        if reason is not None:
            await self.halt(reason)

    async def begin_execution(self, call: PlacedCall, spend_max: Mapping[str, int] | None = None) -> None:
        """A call is executed from now on. A run that was asked to cancel executes no further call, and one whose budget
        does not allow the call is halted."""
        await self._require_executing()
        if self.job.cancel_requested and self._mode is Mode.RUN:
            self.end_here(Cancelled())
        self.require_open()
        if self._halt_reason is not None:
            await self.halt(self._halt_reason)
        try:
            reason = await self.meter.reserve(call, spend_max or {})
        except (LeaseLost, StoreUnavailable):
            self.end_here(Lost())
        except asyncio.CancelledError:
            await charge_cancelled(self, call, {}, has_begun=False)
            raise
        if reason is not None:
            await self._record_spend(call.spend, "spend:halt")
            await self.halt(reason)
        self.require_open()
        self._executing += 1
        self._idle.clear()

    async def _require_executing(self) -> None:
        """In a replay, a call that is not recorded waits until the replay is over."""
        if self._mode is Mode.REPLAY:
            await self.waits.wait(DurableWait())

    def end_execution(self) -> None:
        self._executing -= 1
        self.waits.notice_change()
        if not self._executing:
            self._idle.set()

    async def halt(self, reason: str) -> NoReturn:
        """End the run at a limit. Calls in progress end first and are recorded; no further one begins."""
        self._halt_reason = self._halt_reason or reason
        await self._idle.wait()
        self.end_here(Halted(self._halt_reason, self.partial_result()))

    async def settle(self, result: str) -> None:
        """The function has returned: record what it has spent since its last call. Beyond a limit the run is halted,
        and keeps the result as its partial one."""
        try:
            await self._record_spend(self.take_spend(self.main), "spend:end")
            reason = await self.meter.exceeded("spend:end")
        except (LeaseLost, StoreUnavailable):
            self.end_here(Lost())
        if reason is not None:
            self.partial_result = lambda: result
            await self.halt(reason)

    async def end_with(self, continuation: Continuation, result: str) -> NoReturn:
        """End the run with this result, and write the continuation in the transaction that completes it."""
        await self._require_executing()
        if self.job.cancel_requested:
            self.end_here(Cancelled())
        self.require_all_made()
        if self.meter.budget is not None or self.main.spend:
            await self.settle(self.partial_result())
        self.attempt.committer.continuation = continuation
        self.end_here(Returned(result))

    async def _record_spend(self, amounts: Mapping[str, int], key: str) -> None:
        self.steps.use(key)
        if amounts and self.steps.peek(key) is None:
            if not self.meter.is_open:
                await self.meter.exceeded(key)
            step = NewStep(key=key, kind=StepKind.DECISION, name="spend", result="null")
            await self.save(*self.meter.charged(step, key, amounts, executed=False))
