"""Invokes a job's function: decodes its payload, runs it inside the middleware, encodes its result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from tenure.errors import InvalidInput
from tenure.jobs.context import AttemptHandle, Context, current_context
from tenure.jobs.definition import JobDefinition
from tenure.jobs.middleware import Middleware, around_run
from tenure.lifecycle.dead_letter import Stage
from tenure.workers.execution.outcomes import Cancelled, ErrorPolicy, Outcome, Returned, outcome_of_error

Call = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls the function in the executor's task, thread or process, and returns its result."""


async def invoke(
    definition: JobDefinition[..., Any], attempt: AttemptHandle, middleware: Sequence[Middleware], call: Call
) -> Outcome:
    """The outcome of the function, whatever it raises. Raises only a cancellation of the current task."""
    job = attempt.job
    if job.cancel_requested:
        return Cancelled()
    try:
        arguments = definition.call_arguments(job.origin.payload, enqueued_as=job.kind)
    except Exception as error:  # noqa: BLE001 - a payload upgrade is user code
        return outcome_of_error(error, _policy(definition), stage=Stage.INPUT)
    context = Context(attempt)
    positional = (context,) if definition.wants_context else ()
    bound = partial(definition.function, *positional, **arguments)
    # Not reset: `SharedTasks` clears it before the next attempt in this task.
    current_context.set(context)
    try:
        value = await (around_run(middleware, context, partial(call, bound)) if middleware else call(bound))
    except (asyncio.CancelledError, GeneratorExit):
        # The attempt was interrupted, or the event loop is closed. The runner decides on the outcome.
        raise
    except BaseException as error:  # noqa: BLE001 - any error of a user's function is the outcome of its job
        return outcome_of_error(error, _policy(definition))
    try:
        return Returned(definition.encode_result(value))
    except InvalidInput as error:
        return outcome_of_error(error, _policy(definition), stage=Stage.OUTPUT)


def _policy(definition: JobDefinition[..., Any]) -> ErrorPolicy:
    return ErrorPolicy(definition.options.retry_on, definition.options.fail_on)
