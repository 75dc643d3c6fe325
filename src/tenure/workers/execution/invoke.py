"""Invokes a job's function: decodes its payload, runs it inside the middleware, encodes its result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from tenure.errors import ResultRefused
from tenure.jobs.context import AttemptHandle, Context, current_context
from tenure.jobs.definition import JobDefinition
from tenure.jobs.middleware import Middleware, around_run
from tenure.lifecycle.dead_letter import Stage
from tenure.lifecycle.json_text import clean_text
from tenure.lifecycle.records import Job
from tenure.workers.execution.outcomes import (
    UNAVAILABLE_SECONDS,
    Cancelled,
    EndsAttempt,
    ErrorPolicy,
    Outcome,
    Returned,
    Snoozed,
    UnknownArgument,
    describe_error,
    outcome_of_error,
    release_cause,
)

Call = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls the function in the executor's task, thread or process, and returns its result."""


async def invoke(
    definition: JobDefinition[..., Any], attempt: AttemptHandle, middleware: Sequence[Middleware], call: Call
) -> Outcome:
    """The outcome of the function, whatever it raises. Raises only a cancellation of the current task."""
    job = attempt.job
    if job.cancel_requested and definition.invoker is None:
        return Cancelled()
    try:
        arguments = definition.call_arguments(job.origin.payload, enqueued_as=job.kind)
    except Exception as error:  # noqa: BLE001 - a payload upgrade is user code
        return _refused_payload(definition, job, error)
    context = Context(attempt)
    bound: Callable[[], Any]
    if definition.invoker is not None:
        bound = partial(definition.invoker, attempt, arguments)
    else:
        positional = (context,) if definition.wants_context else ()
        bound = partial(definition.function, *positional, **arguments)
    # Not reset: `SharedTasks` clears it before the next attempt in this task.
    current_context.set(context)
    try:
        value = await (around_run(middleware, context, partial(call, bound)) if middleware else call(bound))
    except EndsAttempt as end:
        return end.outcome
    except (asyncio.CancelledError, GeneratorExit):
        # The attempt was interrupted, or the event loop is closed. The runner decides on the outcome.
        raise
    except BaseException as error:  # noqa: BLE001 - any error of a user's function is the outcome of its job
        if (cause := release_cause(error, job_id=job.id, database=attempt.database)) is not None:
            return Snoozed(UNAVAILABLE_SECONDS, cause)
        stage = Stage.COMMIT if attempt.raised_in_commit(error) else Stage.EXEC
        return outcome_of_error(error, _policy(definition), stage=stage)
    try:
        return Returned(definition.encode_result(value, job_id=job.id))
    except ResultRefused as error:
        return outcome_of_error(error, _policy(definition))


def _refused_payload(definition: JobDefinition[..., Any], job: Job, error: Exception) -> Outcome:
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        return outcome_of_error(error, _policy(definition), stage=Stage.FETCH)
    argument = definition.unknown_argument(job.origin.payload, enqueued_as=job.kind)
    if argument is not None:
        return UnknownArgument(clean_text(argument), describe_error(error))
    return outcome_of_error(error, _policy(definition), stage=Stage.INPUT)


def _policy(definition: JobDefinition[..., Any]) -> ErrorPolicy:
    return ErrorPolicy(definition.options.retry_on, definition.options.fail_on)
