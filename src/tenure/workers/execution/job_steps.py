"""Steps of a plain job: `ctx.step(key, function, …)`. The key alone is the identity of a step.

A step that raises is not recorded: the job fails or is retried as for any other error, and executes the step again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.errors import StepCallRefused
from tenure.jobs.middleware import StepAttempt, around_step
from tenure.jobs.step_codec import arguments_digest, decode_result, encode_result
from tenure.lifecycle.durations import milliseconds
from tenure.lifecycle.json_text import check_text
from tenure.lifecycle.steps import NewStep, StepKind, StepRecord

if TYPE_CHECKING:
    from tenure.workers.execution.attempt import RunningAttempt

T = TypeVar("T")

KEY_LENGTH_MAX = 200


class JobSteps:
    """The steps of one attempt of a plain job. A recorded step returns what was recorded, whatever the code is now."""

    def __init__(self, attempt: RunningAttempt) -> None:
        self._attempt, self._services = attempt, attempt.services
        self._records: dict[str, StepRecord] | None = None
        self._loading = asyncio.Lock()
        self._executing: set[str] = set()

    async def step(self, key: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of the step, recorded or new. A plain function is called in a thread."""
        record = await self._begin(key)
        if record is None:
            called = self._services.stub_of(function) or function
            bound, is_async = partial(called, *args, **kwargs), inspect.iscoroutinefunction(called)
            clock = self._services.seams.clock
            try:
                began_at_seconds = clock.monotonic_seconds()
                with self._around(key, function):
                    value = await (bound() if is_async else self._services.call_in_thread(bound))
                seconds = clock.monotonic_seconds() - began_at_seconds
                record = await self._save(key, function, args, kwargs, value, seconds)
            finally:
                self._executing.discard(key)
        return decode_result(record.result or "null", function, step=key)

    def step_sync(self, key: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The same in a plain job, on whose thread the function is called."""
        if inspect.iscoroutinefunction(function):
            raise StepCallRefused(f"step {key!r} is an async function; make the job async, and await ctx.step(…)")
        record = self._on_loop(self._begin(key))
        if record is None:
            clock = self._services.seams.clock
            try:
                began_at_seconds = clock.monotonic_seconds()
                with self._around(key, function):
                    value = (self._services.stub_of(function) or function)(*args, **kwargs)
                seconds = clock.monotonic_seconds() - began_at_seconds
                record = self._on_loop(self._save(key, function, args, kwargs, value, seconds))
            finally:
                self._executing.discard(key)
        return decode_result(record.result or "null", function, step=key)

    def _around(self, key: str, function: Callable[..., Any]) -> AbstractContextManager[None]:
        step = StepAttempt(key=key, name=_name_of(function), attempt=self._attempt.job.attempt)
        return around_step(self._services.middleware, step)

    def _on_loop(self, body: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(body, self._services.loop).result()

    async def _begin(self, key: str) -> StepRecord | None:
        """The record of this key. Without one, the key is taken until the step has been executed."""
        check_text(key, "key", length_max=KEY_LENGTH_MAX)
        async with self._loading:
            if self._records is None:
                loaded = await self._services.checkpointer.load_at_start(self._attempt.lease)
                self._records = {record.key: record for record in loaded}
        record = self._records.get(key)
        if record is None:
            if key in self._executing:
                raise StepCallRefused(f"step {key!r} is being executed; use another key for another step")
            self._executing.add(key)
        return record

    async def _save(
        self, key: str, function: Callable[..., Any], args: Any, kwargs: Any, value: Any, seconds: float
    ) -> StepRecord:
        step = NewStep(
            key=key,
            kind=StepKind.STEP,
            name=_name_of(function),
            arguments_digest=arguments_digest(args, kwargs),
            result=encode_result(value, step=key, bytes_max=self._attempt.definition.limits.step_bytes_max),
            code_version=self._services.code_version,
            duration_ms=milliseconds(max(0.0, seconds)),
        )
        record = await self._services.checkpointer.save(self._attempt.lease, step)
        assert self._records is not None, "they were loaded"
        self._records[key] = record
        return record


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
