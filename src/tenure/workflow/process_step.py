"""Steps in a process of their own: the call as JSON text, its execution in the child process, and its reply.

Nothing is pickled. The child imports the function by its module and name, which come from the program and never from
the database. Middleware does not run there.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from importlib import import_module
from typing import Any, get_type_hints

import msgspec

from tenure.errors import InvalidInput, PermanentError, TransientError, ValidationError
from tenure.jobs.models import decode_model, encode_model
from tenure.jobs.step_codec import Errors, encode_result
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.size_limits import STORED_STEP_BYTES_MAX
from tenure.seams import SYSTEM
from tenure.workers.execution.attempt import CallInProcess
from tenure.workers.execution.executors import set_result
from tenure.workers.execution.outcomes import describe_error
from tenure.workers.execution.process.import_path import child_module_name
from tenure.workers.execution.process.parent import ProcessEnded
from tenure.workflow.current_step import CurrentStep, as_current_step

_RUNNER = __name__, "execute_call"


class ProcessCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a step for another process. Arguments are JSON values."""

    module: str
    function: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    name: str
    step_key: str
    attempt: int


class ProcessReply(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended: with a result or an error, both JSON text."""

    result: str | None = None
    error: str | None = None
    error_arguments: list[Any] | None = None
    is_permanent: bool = False
    delay_seconds: float | None = None
    spend: Mapping[str, int] = {}


class FailedInProcess(Exception):
    """The error that a step has raised in another process, or that ended the process."""

    def __init__(self, reply: ProcessReply) -> None:
        super().__init__(reply.error)
        self.reply = reply

    def described(self, errors: Errors) -> str:
        """The JSON text of the error, with its arguments where its class is registered."""
        facts = msgspec.json.decode(self.reply.error or "{}")
        if facts.get("type") in errors and self.reply.error_arguments is not None:
            facts["arguments"] = self.reply.error_arguments
        return encode(facts, where="error")


def importable(function: Callable[..., Any]) -> tuple[str, str]:
    """The module and name by which another process finds the function. InvalidInput: it cannot."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str) and _found(sys.modules.get(module), name) is function:
        return child_module_name(module), name
    raise InvalidInput(
        "isolation",
        f"'process' calls {name or function!r} in another process, which cannot find it; move the function to a "
        f"module, at its top level and under its own name",
    )


def _found(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


async def call_in_process(
    call_process: CallInProcess | None,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    step: CurrentStep,
    job_path: tuple[str, str] | None,
    spend: dict[str, int],
) -> Any:
    """The result of the function, as JSON values, from another process. Raises FailedInProcess."""
    module, function_name = importable(function)
    try:
        values = msgspec.to_builtins([args, kwargs], enc_hook=encode_model, str_keys=True)
    except (TypeError, ValueError, NotImplementedError) as problem:
        raise PermanentError(f"arguments of step {name} cannot be sent to a process as JSON: {problem}") from None
    call = ProcessCall(
        module=module,
        function=function_name,
        args=values[0],
        kwargs=values[1],
        name=name,
        step_key=step.key,
        attempt=step.attempt,
    )
    text = msgspec.json.encode(call).decode()
    try:
        replied = await (
            execute_call(text) if call_process is None else call_process(*_RUNNER, text, job_path=job_path)
        )
    except ProcessEnded as ended:
        raise FailedInProcess(ProcessReply(error=ended.error)) from None
    reply = msgspec.json.decode(replied, type=ProcessReply)
    for unit, amount in reply.spend.items():
        spend[unit] = spend.get(unit, 0) + amount
    if reply.result is None:
        raise FailedInProcess(reply)
    return msgspec.json.decode(reply.result)


async def execute_call(text: str) -> str:
    """Execute a call in this process, and return the reply."""
    call, spend = msgspec.json.decode(text, type=ProcessCall), dict[str, int]()
    try:
        function = _found(import_module(call.module), call.function)
        bound = _bound(function, call.args, call.kwargs)
        with as_current_step(CurrentStep(call.step_key, call.attempt), spend):
            if inspect.iscoroutinefunction(function):
                value = await function(*bound.args, **bound.kwargs)
            else:
                # Not on the event loop's thread: a plain function may start an event loop of its own.
                value = await _on_thread(partial(function, *bound.args, **bound.kwargs))
        reply = ProcessReply(result=encode_result(value, step=call.name, bytes_max=STORED_STEP_BYTES_MAX), spend=spend)
    except Exception as error:  # noqa: BLE001 - whatever the function raises is the step's outcome
        reply = _failed(error, spend)
    return msgspec.json.encode(reply).decode()


async def _on_thread(function: Callable[[], Any]) -> Any:
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def body() -> None:
        try:
            value, error = context.run(function), None
        except BaseException as raised:  # noqa: BLE001 - the error is set on the future
            value, error = None, raised
        loop.call_soon_threadsafe(set_result, result, value, error)

    SYSTEM.spawn.thread(body, name="tenure-step")
    return await result


def _bound(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    """The arguments in the types of the function's annotations."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        hints = {}
    for name, value in bound.arguments.items():
        kind, hint = bound.signature.parameters[name].kind, hints.get(name, Any)
        if kind is inspect.Parameter.VAR_POSITIONAL:
            bound.arguments[name] = tuple(_converted(one, hint) for one in value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            bound.arguments[name] = {key: _converted(one, hint) for key, one in value.items()}
        else:
            bound.arguments[name] = _converted(value, hint)
    return bound


def _converted(value: Any, hint: Any) -> Any:
    return msgspec.convert(value, hint, dec_hook=decode_model, str_keys=True)


def _failed(error: Exception, spend: Mapping[str, int]) -> ProcessReply:
    try:
        arguments: list[Any] | None = msgspec.to_builtins(list(error.args))
    except (TypeError, ValueError, NotImplementedError):
        arguments = None
    return ProcessReply(
        error=describe_error(error),
        error_arguments=arguments,
        is_permanent=isinstance(error, PermanentError | ValidationError),
        delay_seconds=error.delay_seconds if isinstance(error, TransientError) else None,
        spend=spend,
    )
