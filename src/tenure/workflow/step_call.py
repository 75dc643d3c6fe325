"""The call of a step: returned from its record, or executed with retries and recorded."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from hashlib import sha256
from typing import Any, Generic, Literal, TypeVar, cast, get_args
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, PermanentError, TransientError, ValidationError
from tenure.jobs.middleware import StepAttempt, around_step
from tenure.jobs.step_codec import Errors, error_facts, recorded_error
from tenure.lifecycle.backoff import Backoff, retry_delay_ms
from tenure.lifecycle.durations import milliseconds
from tenure.lifecycle.json_text import check_integer, check_seconds, encode, load
from tenure.lifecycle.steps import NewStep, StepKind, StepRecord
from tenure.workers.execution.outcomes import UNAVAILABLE_SECONDS, Snoozed, describe_error, release_cause
from tenure.workers.execution.process.import_path import child_import_path
from tenure.workers.execution.process.parent import ProcessNotStarted
from tenure.workflow.branch import Branch, check_key
from tenure.workflow.budget import cancelled_key, charge_cancelled, unspent
from tenure.workflow.current_step import CurrentStep, as_current_step, running_step, step_spend
from tenure.workflow.engine import WorkflowEngine
from tenure.workflow.placed_call import Compensation, PlacedCall
from tenure.workflow.process_step import FailedInProcess, call_in_process, importable
from tenure.workflow.timed_waits import sleep_until_recorded

R = TypeVar("R")

OnError = Literal["abort", "continue", "retry"]
"""What follows an error of a step: raise it, return None instead, or retry the step and then raise it."""


StepIsolation = Literal["process"]
"""Where a step is executed instead of the worker's event loop or a thread: in a process that can be killed."""


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the steps that `run.using(...)` calls. Changing them never changes which step a call is."""

    key: str | None = None
    on_error: OnError = "abort"
    max_attempts: int = 20
    backoff: Backoff = Backoff()
    timeout_seconds: float | None = None
    isolation: StepIsolation | None = None
    compensation: Compensation | None = None
    spend_max: Mapping[str, int] = {}

    def __post_init__(self) -> None:
        if self.key is not None:
            check_key(self.key)
        if self.on_error not in get_args(OnError):
            raise InvalidInput("on_error", f"is {self.on_error!r}, and must be one of {', '.join(get_args(OnError))}")
        if self.isolation not in (None, *get_args(StepIsolation)):
            raise InvalidInput("isolation", f"is {self.isolation!r}; 'process' calls a step in a process of its own")
        check_integer(self.max_attempts, "max_attempts", least=1, most=30_000)
        if self.timeout_seconds is not None:
            check_seconds(self.timeout_seconds, "timeout_seconds", least=0.001)

    @property
    def attempts_max(self) -> int:
        return self.max_attempts if self.on_error == "retry" else 1


class _Released(Exception):
    """The step could not be executed by this worker now."""

    def __init__(self, outcome: Snoozed) -> None:
        super().__init__(outcome.cause)
        self.outcome = outcome


class StepExecution(Generic[R]):
    """One call of a step: its result or error comes from its record, or it is executed and recorded."""

    def __init__(
        self,
        engine: WorkflowEngine,
        branch: Branch,
        call: PlacedCall,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        options: StepOptions,
        errors: Errors,
    ) -> None:
        self._engine, self._branch, self._call, self._function = engine, branch, call, function
        self._bound = partial(function, *args, **kwargs)
        self._options, self._errors = options, errors
        self._args, self._kwargs = args, kwargs
        if options.isolation == "process":
            importable(function)
        self._reported: dict[str, int] = {}
        """What the attempt of the step in progress has spent."""

    async def result(self) -> R:
        """The result, or the error that the step ended with."""
        engine = self._engine
        engine.require_open()
        record = engine.recorded(self._call)
        if record is None:
            record = await self._execute()
        self._branch.completed(record.finished_at)
        return self._decoded(record)

    def _decoded(self, record: StepRecord) -> R:
        step = f"{record.name} ({record.key})"
        if record.status == "succeeded" and record.result is not None:
            result: R = self._engine.decode(record, self._function)
            self._engine.register(record, self._options.compensation, result)
            return result
        if self._options.on_error == "continue":
            return cast(R, None)
        raise recorded_error(record.error or "{}", self._errors, step=step)

    async def _execute(self) -> StepRecord:
        """Execute the step until it succeeds or has failed for good, and record that."""
        engine, clock = self._engine, self._engine.services.seams.clock
        if engine.steps.peek(cancelled_key(self._call)) is not None:
            self._call = unspent(self._call)
        attempt = 1
        while (waited := engine.steps.peek(self._retry_key(attempt))) is not None:
            attempt += 1
            engine.steps.use(waited.key)
        if attempt > 1:
            await self._wait_for_retry(attempt - 1)
        await engine.require_allowed(self._call, self._args, self._kwargs)
        while True:
            await engine.begin_execution(self._call, self._options.spend_max)
            self._reported = {}
            began_at_seconds = clock.monotonic_seconds()
            try:
                value = await self._invoke(attempt)
                step = self._call.step(result=engine.encode(value, self._call.name), undo=self._undo)
            except Exception as error:  # noqa: BLE001 - whatever the step raises is its outcome
                self._release_if_ours(error)
                described = self._described(error)
                if attempt < self._options.attempts_max and _is_retryable(error):
                    engine.end_execution()
                    await self._schedule_retry(attempt, error, described)
                    attempt += 1
                    continue
                step = self._call.step(status="failed", error=described)
            except BaseException:
                try:
                    await charge_cancelled(engine, self._call, self._reported)
                finally:
                    engine.end_execution()
                raise
            try:
                duration_ms = milliseconds(max(0.0, clock.monotonic_seconds() - began_at_seconds))
                timed = msgspec.structs.replace(step, duration_ms=duration_ms)
                return await engine.save_spend(timed, self._call, self._reported)
            finally:
                engine.end_execution()

    def _described(self, error: Exception) -> str:
        if isinstance(error, FailedInProcess):
            return error.described(self._errors)
        return error_facts(error, describe_error(error), self._errors)

    def _release_if_ours(self, error: Exception) -> None:
        """The run's own database, lease or processes are no failure of the step: another attempt executes it."""
        engine = self._engine
        if isinstance(error, _Released):
            engine.end_execution()
            engine.end_here(error.outcome)
        cause = release_cause(error, job_id=engine.job.id, database=engine.attempt.database)
        if cause is not None:
            engine.end_execution()
            engine.end_here(Snoozed(UNAVAILABLE_SECONDS, cause))

    async def _invoke(self, attempt: int) -> Any:
        step = CurrentStep(_outside_key(self._engine.job.id, self._call), attempt)
        timeout_seconds = self._options.timeout_seconds
        running = StepAttempt(key=self._call.place.key, name=self._call.name, attempt=attempt)
        with around_step(self._engine.services.middleware, running):
            if timeout_seconds is None:
                return await self._call_function(step)
            async with asyncio.timeout(timeout_seconds):
                return await self._call_function(step)

    async def _call_function(self, step: CurrentStep) -> Any:
        stub = self._engine.services.stub_of(self._function)
        if stub is not None:
            with as_current_step(step, self._reported):
                value = stub(*self._args, **self._kwargs)
                return await value if inspect.isawaitable(value) else value
        if self._options.isolation == "process":
            return await self._call_in_process(step)
        if inspect.iscoroutinefunction(self._function):
            with as_current_step(step, self._reported):
                return await self._bound()
        context = copy_context()
        context.run(running_step.set, step)
        context.run(step_spend.set, self._reported)
        try:
            value = await self._engine.services.call_in_thread(partial(context.run, self._bound))
        except asyncio.CancelledError:
            step.cancel_flag.is_set = True
            raise
        # A plain function may return an awaitable: a partial or a callable object around an async function.
        return await value if inspect.isawaitable(value) else value

    async def _call_in_process(self, step: CurrentStep) -> Any:
        engine = self._engine
        definition = engine.attempt.definition
        try:
            return await call_in_process(
                engine.services.call_in_process,
                self._function,
                self._args,
                self._kwargs,
                name=self._call.name,
                step=step,
                job_path=None if definition.import_path is None else child_import_path(definition),
                spend=self._reported,
            )
        except ProcessNotStarted as problem:
            raise _Released(Snoozed(problem.wait_seconds, "process_start_failed")) from problem

    @property
    def _undo(self) -> str | None:
        compensation = self._options.compensation
        return None if compensation is None else compensation.recorded

    # Retries.

    def _retry_key(self, attempt: int) -> str:
        return self._call.place.sub_key(f"retry.{attempt}")

    async def _schedule_retry(self, attempt: int, error: Exception, described: str) -> None:
        """Record that this attempt failed, and wait for the next one without holding a worker."""
        delay_ms = self._retry_delay_ms(attempt, error)
        step = NewStep(
            key=self._retry_key(attempt),
            kind=StepKind.SLEEP,
            name=self._call.name,
            branch=self._call.place.branch,
            ordinal=self._call.place.ordinal,
            result=encode({"milliseconds": delay_ms, "error": load(described)}),
        )
        await self._engine.save_spend(step, unspent(self._call), self._reported)
        await self._wait_for_retry(attempt)

    async def _wait_for_retry(self, attempt: int) -> None:
        record = self._engine.steps.peek(self._retry_key(attempt))
        assert record is not None, "it was recorded"
        await sleep_until_recorded(self._engine, record)

    def _retry_delay_ms(self, attempt: int, error: Exception) -> int:
        delay_seconds = error.delay_seconds if isinstance(error, TransientError) else None
        if isinstance(error, FailedInProcess):
            delay_seconds = error.reply.delay_seconds
        if delay_seconds is not None:
            return milliseconds(delay_seconds)
        # Seeded by run and step, so that parallel steps that fail together do not retry together.
        seed = sha256(f"{self._engine.job.id}/{self._call.place.key}".encode()).digest()[:16]
        return retry_delay_ms(self._options.backoff, job_id=UUID(bytes=seed), attempt=attempt, failures=attempt)


def _outside_key(job_id: UUID, call: PlacedCall) -> str:
    return f"{job_id}/{call.place.key}"


def _is_retryable(error: Exception) -> bool:
    if isinstance(error, FailedInProcess):
        return not error.reply.is_permanent
    return not isinstance(error, PermanentError | ValidationError)
