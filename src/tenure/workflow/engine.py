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
    InvalidInput,
    LeaseLost,
    PermanentError,
    StepCallRefused,
    StoreUnavailable,
)
from tenure.jobs.step_codec import decode_result, encode_result
from tenure.lifecycle.budgets import plus
from tenure.lifecycle.continuations import CONTINUE_PREFIX, continued_as, continued_from
from tenure.lifecycle.forks import FORK_KEY, fork_origin
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Job
from tenure.lifecycle.steps import NewStep, StepKind, StepRecord, StepStatus
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
    UndoUnfinished,
    describe_error,
)
from tenure.workflow.branch import Branch, Place, call_key, current_branch, require_own_task
from tenure.workflow.budget import SpendMeter, charge_cancelled
from tenure.workflow.policy import RunPolicy, check_policy
from tenure.workflow.waits import DurableWait, undurable_wait, waits_durably

T = TypeVar("T")

STEPS_MAX = 100_000
"""How many steps a run may record."""
WATCH_SECONDS = 1.0
"""How often a run that waits, and is not suspended since it also works, looks for what it waits for."""
SWALLOWED_SECONDS = 5.0
"""After this time a warning names a run that was cancelled and goes on."""
WARNING_SECONDS = 10.0
"""After this time a warning names what keeps a waiting run on its worker."""
CODE_MISMATCH, CHECKPOINT_SAVE_FAILED = "code_mismatch", "checkpoint-save-failed"

log = logging.getLogger("tenure.workflow")


class RunEnded(BaseException):
    """The attempt of this run has ended, so that no further call takes effect. `except Exception` does not catch it."""


class PlacedCall(msgspec.Struct, frozen=True):
    """A call of the run at its place."""

    place: Place
    kind: StepKind
    name: str
    arguments_digest: str | None = None
    spend: Mapping[str, int] = {}
    """What the code has spent before this call, which is charged with it."""

    def step(self, *, status: StepStatus = "succeeded", **facts: Any) -> NewStep:
        """The step that records this call."""
        place = self.place
        return NewStep(
            key=place.key,
            kind=self.kind,
            name=self.name,
            branch=place.branch,
            ordinal=place.ordinal,
            arguments_digest=self.arguments_digest,
            status=status,
            **facts,
        )


class Compensation(msgspec.Struct, frozen=True):
    """The function that undoes a step. It is called with the result of the step."""

    function: Callable[[Any], Any]
    timeout_seconds: float | None = None

    @property
    def recorded(self) -> str:
        """What the record of the step says of it."""
        return encode({"function": name_of(self.function)})


class UndoableStep(msgspec.Struct, frozen=True):
    """A recorded step, how it is undone, and its result."""

    record: StepRecord
    compensation: Compensation
    result: Any


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
        self._records = {record.key: record for record in records}
        self._used: set[str] = set()
        """The keys of the calls that this attempt has made."""
        self._dropped: list[str] = []
        """The branches whose calls need not all be made again: another branch was first."""
        self.continued = continued_from(self._records)
        """What the run has of the one that it continues."""
        forked = fork_origin(self._records)
        self.main = Branch(
            "",
            seed=str(attempt.job.id if forked is None else forked.seed_id),
            began_at=attempt.job.created_at if forked is None else forked.began_at,
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waits: set[DurableWait] = set()
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
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._signals: list[SignalRecord] | None = None
        self._consumed = {record.signal_rev for record in records if record.signal_rev is not None}
        self._live_children: set[UUID] = set()
        """The awaited children that are not known to have ended."""
        self._seen_rev = attempt.job.rev
        clock = self.services.seams.clock
        self._clock_base = attempt.job.started_at or attempt.job.updated_at, clock.monotonic_seconds()

    @property
    def job(self) -> Job:
        return self.attempt.job

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
        self._changed.set()
        if not task.cancelled():
            # Retrieved: a branch that was dropped is not awaited.
            task.exception()

    async def _stop_tasks(self) -> None:
        watching = () if self._watching is None else (self._watching,)
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

        It is pinned to the version that wrote the last record, since that version has come past all the others. Where
        that is the version of this code, the run waits until it is unpinned.
        """
        note = f"the code does not fit what is recorded at {call}: {problem}"
        last = max(self._records.values(), key=lambda record: record.number, default=None)
        pinned_version = None if last is None else last.code_version
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
        self._used |= {"spend:end", "spend:halt"}
        for key, record in self._records.items():
            made = call_key(key) in self._used or record.kind is StepKind.PATCH
            made = made or key == FORK_KEY or key.startswith(CONTINUE_PREFIX)
            if not made and not any(key.startswith(prefix) for prefix in self._dropped):
                recorded = _described(record.kind, record.name)
                self.park(key, f"recorded is {recorded}, but the function returned before it")

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
        if place.key in self._used:
            raise StepCallRefused(f"{what}: the key {place.key!r} was used before in this run; use another key")
        self._used.add(place.key)
        return branch, place

    @property
    def has_ended(self) -> bool:
        """Whether the attempt has an outcome, so that no further call takes effect."""
        return self._outcome is not None

    def require_open(self) -> None:
        if self._outcome is not None:
            raise RunEnded

    def recorded(self, call: PlacedCall) -> StepRecord | None:
        """The record of this call, if there is one. The run is parked if it is the record of another call."""
        record = self._records.get(call.place.key)
        if record is None:
            return None
        if (record.kind, record.name) != (call.kind, call.name):
            made, found = _described(call.kind, call.name), _described(record.kind, record.name)
            self.park(call.place.key, f"the code calls {made}, recorded is {found}")
        digests = record.arguments_digest, call.arguments_digest
        if None not in digests and digests[0] != digests[1]:
            made = _described(call.kind, call.name)
            self.park(call.place.key, f"the code calls {made} with other arguments than recorded")
        return record

    def decode(self, record: StepRecord, function: Callable[..., Any]) -> Any:
        """The result of a recorded step, in the return type of its function."""
        return decode_result(record.result or "null", function, step=f"{record.name} ({record.key})")

    def encode(self, value: Any, step: str) -> str:
        """The JSON text of a step's result. PermanentError names the step if it is larger than the app allows."""
        return encode_result(value, step=step, bytes_max=self.attempt.definition.limits.step_bytes_max)

    async def read_children(self, child_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await self.services.run_store.read(child_ids)

    async def latest_children(self, child_ids: Sequence[UUID]) -> dict[UUID, Job]:
        """The record of each child, or of the run that it has gone on as. Removed ones are left out."""
        found = await self.read_children(child_ids)
        while continued := {id_: next_id for id_, job in found.items() if (next_id := continued_as(job)) is not None}:
            successors = await self.read_children(list(continued.values()))
            for id_, successor_id in continued.items():
                found.pop(id_)
                if successor_id in successors:
                    found[id_] = successors[successor_id]
        return found

    def records(self) -> list[StepRecord]:
        """All that is recorded of this run."""
        return list(self._records.values())

    def peek(self, key: str) -> StepRecord | None:
        """The record under this key, whatever call it is of."""
        return self._records.get(key)

    def use(self, key: str) -> None:
        self._used.add(key)

    def drop_branches(self, place: Place, indexes: Sequence[int]) -> None:
        """These branches of a call need not make all their calls again."""
        self._dropped += [f"{place.key}.{index}/" for index in indexes]

    def register(self, record: StepRecord, compensation: Compensation | None, result: Any) -> None:
        """The step of this record can be undone, if it was recorded as such."""
        if record.undo is not None and compensation is not None:
            self.undoable[record.key] = UndoableStep(record, compensation, result)

    def placed(self, place: Place, kind: StepKind, name: str) -> PlacedCall:
        """A record that belongs to another call."""
        return PlacedCall(place, kind, name)

    def take_spend(self, branch: Branch) -> dict[str, int]:
        """What the code of this branch has spent since its last executed call. A recorded call was charged with it."""
        spend, branch.spend = branch.spend, {}
        return spend

    async def save_spend(self, step: NewStep, call: PlacedCall, reported: Mapping[str, int]) -> StepRecord:
        """Record a step, with what was spent for it: charged to the budget in the same transaction."""
        charged, charge = self.meter.charged(step, call.place.key, plus(call.spend, reported))
        record = await self.save(charged, charge)
        self.meter.settled(call.place.key)
        return record

    async def save(self, step: NewStep, charge: Charge | None = None) -> StepRecord:
        """Record a step. Returns the record, which counts from now on."""
        await self._require_executing()
        if len(self._records) >= STEPS_MAX:
            raise PermanentError(
                f"run {self.job.id} has recorded {STEPS_MAX} steps, the most that a run may have; go on as a new run "
                f"before that, with run.continue_as"
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
        self._records[record.key] = record
        self._used.add(record.key)
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
            await self.wait(DurableWait())

    def end_execution(self) -> None:
        self._executing -= 1
        self._changed.set()
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

    async def hand_over(self, continuation: Continuation, result: str) -> NoReturn:
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
        self._used.add(key)
        if amounts and key not in self._records:
            if not self.meter.is_open:
                await self.meter.exceeded(key)
            step = NewStep(key=key, kind=StepKind.DECISION, name="spend", result="null")
            await self.save(*self.meter.charged(step, key, amounts, executed=False))

    # Waits.

    async def wait(self, wait: DurableWait) -> Any:
        """Wait in this process, or be suspended if nothing else is to be done."""
        self.require_open()
        self._waits.add(wait)
        self._changed.set()
        if self._watching is None:
            self._watching = self.services.seams.spawn.task(self._watch(), name="tenure-run-waits")
            self._watching.add_done_callback(self._watch_ended)
        try:
            return await wait
        finally:
            self._waits.discard(wait)

    async def _watch(self) -> None:
        """Suspend the run once every branch waits; until then, end the waits that are over."""
        clock = self.services.seams.clock
        warned, waiting_since_seconds = False, clock.monotonic_seconds()
        while True:
            self._changed.clear()
            await clock.sleep(0)
            main = self.main.task
            if not self._waits or main is None:
                await self._changed.wait()
                continue
            if self._mode is not Mode.REPLAY and not await self._end_waits():
                await self._change_or(WATCH_SECONDS)
                continue
            if not self._executing and waits_durably(main) and not self._changed.is_set():
                self.end(UndoUnfinished() if self._mode is Mode.REPLAY else self._suspension())
                return
            if self._executing or waits_durably(main):
                waiting_since_seconds = clock.monotonic_seconds()
            elif not warned and clock.monotonic_seconds() - waiting_since_seconds > WARNING_SECONDS:
                warned = True
                self._warn_of(main)
            await self._change_or(WATCH_SECONDS)

    async def _change_or(self, seconds: float) -> None:
        """Wait for a change of this run, or for this time by the run's clock."""
        spawn = self.services.seams.spawn
        waits = {
            spawn.task(self.services.seams.clock.sleep(seconds), name="tenure-run-watch"),
            spawn.task(_wait_for(self._changed), name="tenure-run-changed"),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    def _warn_of(self, main: asyncio.Task[Any]) -> None:
        job, awaited = self.job, undurable_wait(main)
        template = "run %s (%s) waits on its worker, since it also awaits something that is not durable: %s"
        log.warning(template, job.id, job.kind, awaited, extra=job_fields(job))

    def _watch_ended(self, watching: asyncio.Task[None]) -> None:
        """Without it the run would keep its worker for ever: an error that it does not handle ends the attempt."""
        error = None if watching.cancelled() else watching.exception()
        if isinstance(error, Exception):
            log.error("run %s: its waits cannot be ended", self.job.id, exc_info=error, extra=job_fields(self.job))
            self.end(Raised(describe_error(error)))

    async def _end_waits(self) -> bool:
        """End the waits whose time has come or whose signal is there. False if the database is unavailable."""
        try:
            if any(wait.signal is not None for wait in self._waits):
                await self.refresh_signals()
            if any(wait.child_id is not None for wait in self._waits):
                await self._refresh_children()
        except StoreUnavailable as error:
            log.warning("run %s: read of what it waits for failed, retrying: %s", self.job.id, error)
            return False
        now = self.now
        for wait in list(self._waits):
            arrived = wait.signal is not None and self.has_signal(wait.signal)
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
            delay_seconds = max(0.0, (min(deadlines) - self.now).total_seconds())
        children = [wait for wait in self._waits if wait.child_id is not None]
        if children:
            # Branches that end with their child continue together; any other continues with the first child to end.
            together = all(wait.is_leaf for wait in self._waits)
            needed = len({wait.child_id for wait in children}) if together else 1
            children_max = max(0, len(self._live_children) - needed)
            return Suspended("children", delay_seconds, self._seen_rev, children_max)
        has_signals = any(wait.signal is not None for wait in self._waits)
        return Suspended("signal" if has_signals else "time", delay_seconds, self._seen_rev)

    # Children.

    def child_spawned(self, child_id: UUID) -> None:
        self._live_children.add(child_id)

    def child_ended(self, child_id: UUID) -> None:
        self._live_children.discard(child_id)

    async def _refresh_children(self) -> None:
        """Read which children have ended. The number of live ones decides when a suspended run is woken."""
        seen_rev = self.job.rev
        read = await self.latest_children(list(self._live_children))
        self._live_children = {job.id for job in read.values() if job.live}
        self._seen_rev = max(self._seen_rev, seen_rev)

    # Signals.

    async def signals(self) -> list[SignalRecord]:
        """The signals of this run, read once."""
        if self._signals is None:
            await self.refresh_signals()
        return self._signals or []

    async def refresh_signals(self) -> None:
        """Read the signals again."""
        # The revision before the read: a signal that comes after it ends the suspension at once.
        seen_rev = self.job.rev
        self._signals = await self.services.run_store.signals(self.job.id)
        self._seen_rev = max(self._seen_rev, seen_rev)

    def unread(self, signals: Sequence[SignalRecord]) -> list[SignalRecord]:
        """Those of these signals that no call has received."""
        return [signal for signal in signals if signal.rev not in self._consumed]

    def has_signal(self, name: str) -> bool:
        return self._unread(name, None) is not None

    def take_signal(self, name: str, *, until: datetime | None) -> SignalRecord | None:
        """Take the first signal of this name that came in time and that no call has taken."""
        signal = self._unread(name, until)
        if signal is not None:
            self._consumed.add(signal.rev)
        return signal

    def _unread(self, name: str, until: datetime | None) -> SignalRecord | None:
        for signal in self._signals or ():
            in_time = until is None or signal.at <= until
            if signal.name == name and signal.rev not in self._consumed and in_time:
                return signal
        return None


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


def name_of(function: Callable[..., Any]) -> str:
    """The name under which a step, or what undoes it, is recorded."""
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise InvalidInput("step", f"{function!r} has no name; wrap it in a function")
    return name


def _described(kind: StepKind, name: str) -> str:
    return f"{kind.value} {name!r}"
