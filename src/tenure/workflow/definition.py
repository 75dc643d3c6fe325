"""The definition of a workflow: an async function whose first parameter is the `Run`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, ParamSpec, TypeVar

from tenure.errors import InvalidInput, TenureError
from tenure.jobs.context import Context
from tenure.jobs.definition import JobDefinition, Options
from tenure.jobs.step_codec import failed_step
from tenure.lifecycle.dead_letter import Stage
from tenure.lifecycle.steps import StepRecord, steps_to_undo
from tenure.stores.contract import SignalRecord
from tenure.workers.execution.attempt import RunningAttempt
from tenure.workers.execution.outcomes import (
    Cancelled,
    EndsAttempt,
    ErrorAction,
    ErrorPolicy,
    Halted,
    Outcome,
    Raised,
    TimedOut,
    UndoUnfinished,
    describe_error,
    outcome_of_error,
    release_cause,
)
from tenure.workers.leases import Interruption
from tenure.workers.timeouts import timeout_error
from tenure.workflow.budget import SpendMeter
from tenure.workflow.children import ChildJobs
from tenure.workflow.engine import Mode, WorkflowEngine
from tenure.workflow.placed_call import UndoableStep
from tenure.workflow.policy import RunPolicy
from tenure.workflow.run import Run
from tenure.workflow.undo import RunEnd, undo

log = logging.getLogger("tenure.workflow")

ENDED = {"cancelled": "was cancelled", "failed": "has failed", "dead_lettered": "became a dead letter"}

P = ParamSpec("P")
R = TypeVar("R")


class WorkflowDefinition(JobDefinition[P, R]):
    """A declared workflow. `errors` are the classes that a step's recorded error is raised as again."""

    context_class: ClassVar[type] = Run
    run_class: ClassVar[type[Run]] = Run
    """The class of the object that the function receives."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        options: Options,
        errors: Iterable[type[Exception]] = (),
        policy: RunPolicy | None = None,
    ) -> None:
        super().__init__(function, name=name, options=options)
        if not self.is_async:
            raise InvalidInput(self.name, "a workflow is an async function; its steps may be plain ones")
        if not self.wants_context:
            raise InvalidInput(self.name, "the first parameter of a workflow is its run; annotate it: run: tenure.Run")
        if self.isolation != "task":
            raise InvalidInput(self.name, "a workflow runs on the worker's event loop; isolation is for its steps")
        self.errors = {one.__qualname__: one for one in errors}
        if policy is not None and not callable(policy):
            raise InvalidInput("policy", f"must be a function that returns a PolicyDecision, not {policy!r}")
        self.policy = policy
        self.invoker = self._invoke

    async def _invoke(self, attempt: RunningAttempt, arguments: Mapping[str, Any]) -> Any:
        """Run the function from its beginning over the recorded steps. If the run ends without success, undo them."""
        # The revision before the read: a signal that comes after it ends a suspension at once.
        job, seen_rev = attempt.job, attempt.job.rev
        records, signals = await _read_at_start(attempt)
        end, ended = RunEnd.recorded(job, records), _ended_before(attempt)
        if end is None and ended is not None:
            end = RunEnd.after(job, ended)
        if end is not None:
            await self._end(attempt, records, end, arguments, without_steps=ended)
        engine = WorkflowEngine(attempt, records)
        engine.signals.adopt(signals, seen_rev=seen_rev)
        engine.policy, engine.meter = self.policy, await SpendMeter.of(attempt, engine.continued)
        children = ChildJobs(engine, self.errors)
        try:
            result = await engine.run(self._run_to_end(engine, children, arguments))
            if steps_to_undo(engine.steps.all()):
                # Refused here, while the steps can still be undone.
                self.encode_result(result, job_id=job.id)
            return result
        except asyncio.CancelledError:
            if attempt.interruption is not Interruption.OVERDUE:
                raise
            end = RunEnd.after(attempt.job, TimedOut(attempt.lease.at_deadline))
            if end is not None:
                await self._end_later(engine, children, end)
            raise
        except EndsAttempt as ended:
            await self._undo_after(engine, children, ended.outcome, arguments)
            raise
        except Exception as error:
            outcome = self._outcome(attempt, error)
            if outcome is not None:
                await self._undo_after(engine, children, outcome, arguments)
            if failed_step(error) is None:
                raise
            # The failure is recorded, and every further attempt would find it again.
            raise EndsAttempt(Raised(describe_error(error), ErrorAction.END)) from error

    def _outcome(self, attempt: RunningAttempt, error: Exception) -> Outcome | None:
        """The outcome of a function that raised this. None: the run is released."""
        if failed_step(error) is not None:
            return Raised(describe_error(error), ErrorAction.END)
        if release_cause(error, job_id=attempt.job.id, database=attempt.database) is not None:
            return None
        stage = Stage.COMMIT if attempt.raised_in_commit(error) else Stage.EXEC
        return outcome_of_error(error, ErrorPolicy(self.options.retry_on, self.options.fail_on), stage=stage)

    async def _run_to_end(self, engine: WorkflowEngine, children: ChildJobs, arguments: Mapping[str, Any]) -> Any:
        run = self.run_class(engine, Context(engine.attempt), children, self.errors)
        try:
            result = await self.function(run, **arguments)
        except Exception as error:
            if failed_step(error) is not None:
                await children.finish()
            raise
        engine.require_all_made()
        await children.finish()
        if engine.meter.budget is not None or engine.main.spend:
            await engine.settle(self.encode_result(result, job_id=engine.job.id))
        return result

    # Compensation.

    async def _undo_after(
        self, engine: WorkflowEngine, children: ChildJobs, outcome: Outcome, arguments: Mapping[str, Any]
    ) -> None:
        """Undo the steps if the run ends with this outcome and has any to undo."""
        end = RunEnd.after(engine.job, outcome)
        if end is None and not isinstance(outcome, Halted):
            return
        records = await self._recorded(engine)
        if engine.save_cut_off:
            children = ChildJobs(WorkflowEngine(engine.attempt, records, Mode.REPLAY), self.errors)
        await children.cancel_live(f"its parent {'was halted' if end is None else ENDED[end.ends_as]}")
        if end is None or not steps_to_undo(records):
            return
        if engine.save_cut_off:
            await self._replay_and_undo(engine.attempt, records, end, arguments)
        else:
            await self._undo(engine.attempt, records, engine.undoable, end)

    async def _recorded(self, engine: WorkflowEngine) -> Sequence[StepRecord]:
        """All that is recorded of the run, also if a call was cancelled while its step was being saved."""
        if not engine.save_cut_off:
            return engine.steps.all()
        await engine.attempt.steps_saved()
        return await engine.services.checkpointer.load(engine.attempt.lease)

    async def _end(
        self,
        attempt: RunningAttempt,
        records: Sequence[StepRecord],
        end: RunEnd,
        arguments: Mapping[str, Any],
        *,
        without_steps: Outcome | None,
    ) -> NoReturn:
        """End a run that was to end before this attempt; with this outcome, if it has no steps to undo."""
        children = ChildJobs(WorkflowEngine(attempt, records, Mode.REPLAY), self.errors)
        await children.cancel_live(f"its parent {ENDED[end.ends_as]}")
        if not steps_to_undo(records) and not attempt.job.unwinding:
            raise EndsAttempt(without_steps or Cancelled())
        await self._replay_and_undo(attempt, records, end, arguments)

    async def _replay_and_undo(
        self, attempt: RunningAttempt, records: Sequence[StepRecord], end: RunEnd, arguments: Mapping[str, Any]
    ) -> NoReturn:
        """Replay the run to find what undoes its steps, and undo them."""
        engine = WorkflowEngine(attempt, records, Mode.REPLAY)
        children = ChildJobs(engine, self.errors)
        try:
            await engine.run(
                self.function(self.run_class(engine, Context(attempt), children, self.errors), **arguments)
            )
        except EndsAttempt as ended:
            if not isinstance(ended.outcome, UndoUnfinished):
                raise
        except Exception:
            # What the function raised is part of how the run came to its end, which is recorded.
            log.debug("run %s replayed", attempt.job.id, exc_info=True)
        await self._undo(attempt, records, engine.undoable, end)

    async def _undo(
        self,
        attempt: RunningAttempt,
        records: Sequence[StepRecord],
        undoable: Mapping[str, UndoableStep],
        end: RunEnd,
    ) -> NoReturn:
        try:
            await undo(attempt, records, undoable, end)
        except asyncio.CancelledError:
            if attempt.interruption is not Interruption.OVERDUE:
                raise
            raise EndsAttempt(UndoUnfinished(timeout_error(attempt.job), timed_out=True)) from None
        except Exception as error:
            raise EndsAttempt(UndoUnfinished(describe_error(error))) from error

    async def _end_later(self, engine: WorkflowEngine, children: ChildJobs, end: RunEnd) -> None:
        """The time of the last attempt is over: cancel the children, and if there are steps to undo, record how the run
        ends, and let the next attempt undo them."""
        try:
            await children.cancel_live("its parent has timed out")
            if not steps_to_undo(await self._recorded(engine)):
                raise EndsAttempt(TimedOut(engine.attempt.lease.at_deadline))
            await engine.services.checkpointer.save(engine.attempt.lease, end.step())
        except TenureError:
            # The next attempt or recovery ends the run: see `_after_timeout` of the runner.
            log.exception("run %s: its end was not recorded", engine.job.id)
            return
        raise EndsAttempt(UndoUnfinished())


def _ended_before(attempt: RunningAttempt) -> Outcome | None:
    """The outcome of a run that was to end before this attempt: it was cancelled, or its deadline has passed."""
    if attempt.job.committed:
        return None
    if attempt.job.cancel_requested:
        return Cancelled()
    return TimedOut(at_deadline=True) if attempt.lease.past_deadline else None


async def _read_at_start(attempt: RunningAttempt) -> tuple[Sequence[StepRecord], list[SignalRecord]]:
    """The recorded steps and the signals of the run, read at the same time. What cannot be there is not read."""
    services, job = attempt.services, attempt.job
    if not job.signal_rev:
        return await services.checkpointer.load_at_start(attempt.lease), []
    reading = services.seams.spawn.task(services.run_store.signals(job.id), name="tenure-run-signals")
    try:
        return await services.checkpointer.load_at_start(attempt.lease), await reading
    finally:
        reading.cancel()
