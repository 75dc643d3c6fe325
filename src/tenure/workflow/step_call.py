"""The call of a step: returned from its record, or executed with retries and recorded."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Generic, Literal, TypeVar, cast, get_args
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, PermanentError, TransientError, ValidationError
from tenure.jobs.middleware import StepAttempt, around_step
from tenure.jobs.step_codec import Errors, encode_result, error_facts, recorded_error
from tenure.lifecycle.backoff import Backoff, retry_delay_ms
from tenure.lifecycle.budgets import Amount, amounts_of
from tenure.lifecycle.json_text import check_integer, check_seconds, encode, load
from tenure.lifecycle.records import milliseconds
from tenure.lifecycle.steps import NewStep, StepKind, StepRecord
from tenure.workers.execution.outcomes import UNAVAILABLE_SECONDS, Snoozed, describe_error, release_cause
from tenure.workflow.branch import Branch, check_key
from tenure.workflow.budget import cancelled_key, charge_cancelled, unspent
from tenure.workflow.engine import Compensation, PlacedCall, WorkflowEngine
from tenure.workflow.waits import DurableWait

R = TypeVar("R")

OnError = Literal["abort", "continue", "retry"]
"""What follows an error of a step: raise it, return None instead, or retry the step and then raise it."""


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the steps that `run.using(...)` calls. Changing them never changes which step a call is."""

    key: str | None = None
    on_error: OnError = "abort"
    max_attempts: int = 20
    backoff: Backoff = Backoff()
    timeout_seconds: float | None = None
    compensation: Compensation | None = None
    spend_max: Mapping[str, int] = {}

    def __post_init__(self) -> None:
        if self.key is not None:
            check_key(self.key)
        if self.on_error not in get_args(OnError):
            raise InvalidInput("on_error", f"is {self.on_error!r}, and must be one of {', '.join(get_args(OnError))}")
        check_integer(self.max_attempts, "max_attempts", least=1, most=30_000)
        if self.timeout_seconds is not None:
            check_seconds(self.timeout_seconds, "timeout_seconds", least=0.001)

    @property
    def attempts_max(self) -> int:
        return self.max_attempts if self.on_error == "retry" else 1


class CancelFlag:
    """Set by the event loop, and read by the thread of the step."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False


class CurrentStep(msgspec.Struct, frozen=True):
    """The step that this code is part of. `key` is the same in every attempt of it, and of no other step: pass it to
    other systems, so that they recognise a repetition."""

    key: str
    attempt: int
    cancel_flag: CancelFlag = msgspec.field(default_factory=CancelFlag)

    @property
    def cancelled(self) -> bool:
        """Whether this call is cancelled: its run was, or its time is over. A step in a thread cannot be interrupted;
        if it takes long it should look here now and then, and return. What it returns is ignored."""
        return self.cancel_flag.is_set

    def spend(self, **amounts: Amount) -> None:
        """Report what this attempt of the step spends: `current_step().spend(cost=0.12, tokens=830)`. It is part of the
        record of the step; attempts that fail pay, too."""
        report_spend(amounts_of(amounts))


_step_spend: ContextVar[dict[str, int] | None] = ContextVar("tenure_step_spend", default=None)


def report_spend(amounts: Mapping[str, int]) -> bool:
    """Add to the spend of the step that calls this. False outside of a step."""
    spend = _step_spend.get()
    if spend is None:
        return False
    for unit, amount in amounts.items():
        spend[unit] = spend.get(unit, 0) + amount
    return True


_current_step: ContextVar[CurrentStep | None] = ContextVar("tenure_step", default=None)


def current_step() -> CurrentStep:
    """The step that calls this function. RuntimeError outside of a step.

    async def charge(order: str) -> str:
        return await bank.charge(order, idempotency_key=tenure.current_step().key)
    """
    step = _current_step.get()
    if step is None:
        raise RuntimeError("this code is not called by a step of a workflow, so that there is no current step")
    return step


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
        if engine.peek(cancelled_key(self._call)) is not None:
            self._call = unspent(self._call)
        attempt = 1
        while (waited := engine.peek(self._retry_key(attempt))) is not None:
            attempt += 1
            engine.use(waited.key)
        if attempt > 1:
            await self._wait_for_retry(attempt - 1)
        await engine.require_allowed(self._call, self._args, self._kwargs)
        while True:
            await engine.begin_execution(self._call, self._options.spend_max)
            self._reported = {}
            began_at_seconds = clock.monotonic_seconds()
            try:
                value = await self._invoke(attempt)
                step = self._call.step(result=encode_result(value, step=self._call.name), undo=self._undo)
            except Exception as error:  # noqa: BLE001 - whatever the step raises is its outcome
                self._release_if_ours(error)
                described = error_facts(error, describe_error(error), self._errors)
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

    def _release_if_ours(self, error: Exception) -> None:
        """The run's own database or lease is no failure of the step: another attempt executes it."""
        engine = self._engine
        cause = release_cause(error, job_id=engine.job.id, database=engine.attempt.database)
        if cause is not None:
            engine.end_execution()
            engine.end_here(Snoozed(UNAVAILABLE_SECONDS, cause))

    async def _invoke(self, attempt: int) -> Any:
        step = CurrentStep(_outside_key(self._engine.job.id, self._call), attempt)
        timeout_seconds = self._options.timeout_seconds
        running = StepAttempt(key=self._call.place.key, name=self._call.name, attempt=attempt)
        async with asyncio.timeout(timeout_seconds):
            with around_step(self._engine.services.middleware, running):
                return await self._call_function(step)

    async def _call_function(self, step: CurrentStep) -> Any:
        if inspect.iscoroutinefunction(self._function):
            tokens = _current_step.set(step), _step_spend.set(self._reported)
            try:
                return await self._bound()
            finally:
                _current_step.reset(tokens[0])
                _step_spend.reset(tokens[1])
        context = copy_context()
        context.run(_current_step.set, step)
        context.run(_step_spend.set, self._reported)
        try:
            value = await self._engine.services.call_in_thread(partial(context.run, self._bound))
        except asyncio.CancelledError:
            step.cancel_flag.is_set = True
            raise
        # A plain function may return an awaitable: a partial or a callable object around an async function.
        return await value if inspect.isawaitable(value) else value

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
        record = self._engine.peek(self._retry_key(attempt))
        assert record is not None, "it was recorded"
        await sleep_until_recorded(self._engine, record)

    def _retry_delay_ms(self, attempt: int, error: Exception) -> int:
        if isinstance(error, TransientError) and error.delay_seconds is not None:
            return milliseconds(error.delay_seconds)
        # Seeded by run and step, so that parallel steps that fail together do not retry together.
        seed = sha256(f"{self._engine.job.id}/{self._call.place.key}".encode()).digest()[:16]
        return retry_delay_ms(self._options.backoff, job_id=UUID(bytes=seed), attempt=attempt, failures=attempt)


async def sleep_until_recorded(engine: WorkflowEngine, record: StepRecord) -> None:
    """Sleep for the recorded time, which began when it was recorded."""
    duration = timedelta(milliseconds=load(record.result or "{}").get("milliseconds", 0))
    deadline = record.finished_at + duration
    if deadline > engine.now:
        await engine.wait(DurableWait(deadline=deadline))


def _outside_key(job_id: UUID, call: PlacedCall) -> str:
    return f"{job_id}/{call.place.key}"


def _is_retryable(error: Exception) -> bool:
    return not isinstance(error, PermanentError | ValidationError)
