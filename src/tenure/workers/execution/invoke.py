"""Calling a job's function: from its payload to the value that says what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from tenure.errors import InvalidInput
from tenure.jobs.context import AttemptHandle, Context, current_context
from tenure.jobs.definition import JobDefinition
from tenure.jobs.middleware import Middleware, around_run
from tenure.lifecycle.records import Stage
from tenure.workers.execution.outcomes import ErrorPolicy, Obeyed, Outcome, Returned, raised

Invoke = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs the call where it is meant to run, and returns what it returns."""


async def call(
    kind: JobDefinition[..., Any], run: AttemptHandle, layers: Sequence[Middleware], invoke: Invoke
) -> Outcome:
    """Check the input, run the function through the middleware, check the output. Only a cancellation gets past."""
    job = run.job
    if job.cancel_requested:
        return Obeyed()
    try:
        arguments = kind.call_arguments(job.origin.payload, enqueued_as=job.kind)
    except Exception as error:  # noqa: BLE001 - an upgrade is the user's own code
        return raised(error, _policy(kind), stage=Stage.INPUT)
    context = Context(run)
    given = (context,) if kind.wants_context else ()
    bound = partial(kind.function, *given, **arguments)
    # Never reset: every call has a task, and so a context, of its own, which ends with it.
    current_context.set(context)
    try:
        value = await (around_run(layers, context, partial(invoke, bound)) if layers else invoke(bound))
    except (asyncio.CancelledError, GeneratorExit):
        # Somebody wants this call gone, or its event loop is gone already: that is no outcome.
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a user's function raises is the outcome of its job
        return raised(error, _policy(kind))
    try:
        return Returned(kind.encode_result(value))
    except InvalidInput as error:
        return raised(error, _policy(kind), stage=Stage.OUTPUT)


def _policy(kind: JobDefinition[..., Any]) -> ErrorPolicy:
    return ErrorPolicy(kind.options.retry_on, kind.options.fail_on)
