"""Results, errors and arguments of steps as JSON text.

Code sees the same value after a crash as before it: results and errors pass through this codec also when they are new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

import msgspec

from tenure.errors import InvalidInput, PermanentError, StepFailed, StepUnreadable
from tenure.jobs.models import decode_model, encode_model
from tenure.lifecycle.json_text import digest, encode

Errors = Mapping[str, type[Exception]]
"""Classes of errors that are raised again as themselves, by their names."""

_deterministic = msgspec.json.Encoder(enc_hook=encode_model, order="deterministic").encode


def arguments_digest(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The digest by which a replay recognises the call. None: the arguments have no JSON form, and are not compared."""
    try:
        return digest(_deterministic([args, kwargs]).decode())
    except (TypeError, ValueError, NotImplementedError):
        return None


def encode_result(value: Any, *, step: str, bytes_max: int) -> str:
    """The JSON text of a step's result. PermanentError names the step if it has none, or is too large."""
    try:
        builtins = msgspec.to_builtins(value, enc_hook=encode_model, str_keys=True, order="deterministic")
        return encode(builtins, where=f"result of step {step}", bytes_max=bytes_max)
    except InvalidInput as refusal:
        problem = str(refusal)
    except (TypeError, ValueError, NotImplementedError) as unencodable:
        problem = f"result of step {step} cannot be encoded as JSON: {unencodable}"
    raise PermanentError(f"{problem}; return less, or store it elsewhere and return a reference")


def decode_result(text: str, function: Callable[..., Any] | None, *, step: str) -> Any:
    """The result in the return type of the function. StepUnreadable: the type has changed since it was recorded."""
    wanted = Any if function is None else return_type(function)
    return decode(text, wanted, step=step)


def decode(text: str, wanted: Any, *, step: str) -> Any:
    try:
        return msgspec.json.decode(text, type=wanted, dec_hook=decode_model)
    except (msgspec.MsgspecError, TypeError, ValueError) as problem:
        raise StepUnreadable(step, str(problem)) from None


def error_facts(error: BaseException, described: str, errors: Errors) -> str:
    """The JSON text of an error. The arguments of a registered class are kept, so that it can be raised again."""
    if errors.get(type(error).__qualname__) is not type(error):
        return described
    try:
        facts = {**msgspec.json.decode(described), "arguments": msgspec.to_builtins(list(error.args))}
        return encode(facts, where="error")
    except (TypeError, ValueError, NotImplementedError):
        return described


def recorded_error(text: str, errors: Errors, *, step: str) -> Exception:
    """The error to raise for a step that failed: of its registered class, or else StepFailed."""
    facts = msgspec.json.decode(text)
    type_, message = str(facts.get("type")), str(facts.get("message"))
    registered = errors.get(type_)
    if registered is not None and "arguments" in facts:
        try:
            raised = registered(*facts["arguments"])
        except Exception as problem:  # noqa: BLE001 - the constructor is user code
            raise StepUnreadable(step, f"{type_} cannot be made from its arguments: {problem}") from None
    else:
        raised = StepFailed(step, error_type=type_, message=message, traceback_text=facts.get("traceback"))
    raised.__dict__["tenure_step"] = step
    return raised


def failed_step(error: BaseException) -> str | None:
    """The step whose recorded failure this error is, or was raised from. Of a group, the first one, if all are such."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, BaseExceptionGroup):
            steps = [failed_step(one) for one in found.exceptions]
            if None not in steps:
                return steps[0]
        step: str | None = getattr(found, "tenure_step", None)
        if step is not None:
            return step
        found = found.__cause__
    return None


_return_types: WeakKeyDictionary[Callable[..., Any], Any] = WeakKeyDictionary()


def return_type(function: Callable[..., Any]) -> Any:
    """The annotated return type; Any without one, or with one that cannot be resolved."""
    try:
        return _return_types[function]
    except (KeyError, TypeError):
        found = _annotated(function)
    # Some callables cannot be referred to weakly.
    with suppress(TypeError):
        _return_types[function] = found
    return found


def _annotated(function: Callable[..., Any]) -> Any:
    try:
        return get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        return Any
