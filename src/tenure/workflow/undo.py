"""Compensation: a run that ends without success first undoes its steps, in reverse order of their completion.

How the run ends is recorded before the first undo step, so that each later attempt only undoes, whatever the function
does in a newer version of the code. Such an attempt replays the function over the recorded steps to find what undoes
each of them; it executes none of its calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from tenure.errors import Refused, StoreError
from tenure.jobs.step_codec import failed_step
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.operations import Cancel, Compensate, DeadLetter, Fail
from tenure.lifecycle.records import EndsAs, Job
from tenure.lifecycle.steps import NewStep, StepKind, StepRecord, steps_to_undo
from tenure.observe.log_context import job_fields
from tenure.workers.execution.attempt import RunningAttempt
from tenure.workers.execution.outcomes import (
    Compensated,
    EndsAttempt,
    Lost,
    Outcome,
    UndoFailed,
    describe_error,
    operation_for,
)
from tenure.workflow.branch import Place
from tenure.workflow.engine import Mode, WorkflowEngine
from tenure.workflow.placed_call import PlacedCall, UndoableStep, name_of
from tenure.workflow.step_call import StepExecution, StepOptions

END_KEY = "undo:end"

log = logging.getLogger("tenure.workflow")


class RunEnd(msgspec.Struct, frozen=True):
    """How a run ends once its steps are undone. The error is JSON text."""

    ends_as: EndsAs
    ends_because: str
    error: str | None = None

    @classmethod
    def after(cls, job: Job, outcome: Outcome) -> RunEnd | None:
        """The end that this outcome leads to. None: the run goes on later, or it has succeeded."""
        operation = operation_for(job, outcome)
        match operation:
            case Fail(error):
                return cls("failed", operation.event_fields().cause or "", error)
            case DeadLetter(reason_code, _, error):
                return cls("dead_lettered", reason_code.value, error)
            case Cancel():
                return cls("cancelled", job.cancel_reason or "")
            case _:
                return None

    @classmethod
    def recorded(cls, job: Job, records: Iterable[StepRecord]) -> RunEnd | None:
        """The end that was recorded by recovery or by an earlier attempt."""
        if job.ends_as is not None:
            return cls(job.ends_as, job.ends_because or "", job.last_error)
        found = next((record for record in records if record.key == END_KEY), None)
        return None if found is None else msgspec.json.decode(found.result or "{}", type=cls)

    def step(self) -> NewStep:
        return NewStep(key=END_KEY, kind=StepKind.DECISION, name="undo", result=encode(msgspec.to_builtins(self)))


async def undo(
    attempt: RunningAttempt, records: Sequence[StepRecord], found: Mapping[str, UndoableStep], end: RunEnd
) -> NoReturn:
    """Undo the steps, record that, and end the attempt with the recorded end."""
    engine = WorkflowEngine(attempt, records, Mode.UNDO)
    job = attempt.job
    steps = steps_to_undo(records)
    left = sum(engine.steps.peek(_undo_place(step).key) is None for step in steps)
    template = "job %s (%s) attempt %s undoes %s of %s steps before it is %s"
    log.warning(template, job.id, job.kind, job.attempt, left, len(steps), end.ends_as, extra=job_fields(job))
    await engine.run(_undo_all(engine, steps, found, end))
    compensate = Compensate(end.ends_as, end.ends_because)
    try:
        await attempt.services.completer.write(attempt.lease, "compensate", lambda _: compensate)
    except (Refused, StoreError) as error:
        raise EndsAttempt(Lost()) from error
    raise EndsAttempt(Compensated(end.error))


async def _undo_all(
    engine: WorkflowEngine, steps: Sequence[StepRecord], found: Mapping[str, UndoableStep], end: RunEnd
) -> None:
    for step in steps:
        if step.key not in found:
            engine.park(step.key, f"step {step.name!r} is to be undone, and the code does not call it with compensate=")
    if not engine.job.unwinding and engine.steps.peek(END_KEY) is None:
        await engine.save(end.step())
    for step in steps:
        await _undo_step(engine, found[step.key])


async def _undo_step(engine: WorkflowEngine, step: UndoableStep) -> None:
    """Call what undoes the step until it succeeds, as often as the policy of the run allows, and record that."""
    policy, function = engine.job.policy, step.compensation.function
    options = StepOptions(
        on_error="retry",
        max_attempts=policy.max_attempts,
        backoff=policy.backoff,
        timeout_seconds=step.compensation.timeout_seconds,
    )
    call = PlacedCall(_undo_place(step.record), StepKind.UNDO, name_of(function))
    execution: StepExecution[Any] = StepExecution(
        engine, engine.main, call, function, (step.result,), {}, options=options, errors={}
    )
    try:
        await execution.result()
    except Exception as error:
        if failed_step(error) is None:
            raise
        engine.end_here(UndoFailed(describe_error(error)))


def _undo_place(step: StepRecord) -> Place:
    place = Place(step.key, step.branch, step.ordinal)
    return Place(place.sub_key("undo"), step.branch, step.ordinal)
