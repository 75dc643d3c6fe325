"""Kinds of jobs: a function, what its arguments must be, and what becomes of a job when things go wrong.

A payload is checked against the function's own signature before anything is queued, and again before it runs, since the
code may have changed in between. Nothing here touches a store.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypeVar, get_args, get_type_hints

import msgspec

from tenure.errors import InvalidInput, PayloadRefused
from tenure.jobs.context import Context
from tenure.lifecycle.json_text import check_integer, check_name, encode, parse
from tenure.lifecycle.records import Policy

P = ParamSpec("P")
R = TypeVar("R")


Isolation = Literal["task", "thread", "process"]
"""Where a job runs: on the worker's event loop, in a thread of its own, or in a process that can be killed."""

Upgrade = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Turns the arguments of an older version of a job into those of today's."""


ErrorClasses = type[BaseException] | Iterable[type[BaseException]]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a declaration says beyond the function. `retry_on` and `fail_on` come before what an error's class says."""

    queue: str = "default"
    priority: int = 0
    policy: Policy = Policy()
    aliases: tuple[str, ...] = ()
    upgrade: Upgrade | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    fail_on: tuple[type[BaseException], ...] = ()
    isolation: Isolation | None = None
    memory_bytes_max: int | None = None


class JobDefinition(Generic[P, R]):
    """One kind of job. `arguments` checks payloads, `wants_context` says whether the function takes its run."""

    def __init__(self, function: Callable[..., Any], *, name: str, options: Options) -> None:
        self.function = function
        self.name = check_name(name, "kind")
        self.options = options
        check_name(options.queue, "queue")
        for alias in options.aliases:
            check_name(alias, "aliases")
        check_integer(options.priority, "priority", least=-32_768, most=32_767)
        hints = _hints(function)
        parameters = list(inspect.signature(function).parameters.values())
        self.wants_context = bool(parameters) and hints.get(parameters[0].name) is Context
        self._signature = inspect.Signature(parameters[1:] if self.wants_context else parameters)
        self._names = tuple(self._signature.parameters)
        self._keyword_only = any(one.kind is one.KEYWORD_ONLY for one in self._signature.parameters.values())
        self._arguments = _arguments_of(self.name, self._signature, hints)
        self._returns = hints.get("return", Any)
        self._decode = self._decoder()
        self.isolation: Isolation = _isolation(self.name, options, is_async=self.is_async)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def home(self) -> tuple[str, str] | None:
        """The module and the name under which a fresh process finds this job; None where it cannot."""
        module, name = self.function.__module__, self.function.__qualname__
        loaded = sys.modules.get(module)
        typed_in = module == "__main__" and not hasattr(loaded, "__file__")
        found = None if typed_in else getattr(loaded, name, None)
        return (module, name) if getattr(found, "kind", None) is self else None

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The JSON text of a call, or a refusal that names the field."""
        if not kwargs and len(args) == len(self._names) and not self._keyword_only:
            return self.checked(dict(zip(self._names, args, strict=True)))
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise PayloadRefused(self.name, str(problem)) from None
        return self.checked(dict(bound.arguments))

    def checked(self, arguments: dict[str, Any]) -> str:
        """The JSON text of arguments by name, once they fit the function."""
        try:
            plain = msgspec.to_builtins(arguments, enc_hook=_plain)
        except (TypeError, ValueError, NotImplementedError) as problem:
            raise PayloadRefused(self.name, f"cannot be written as JSON: {problem}") from None
        self._convert(plain)
        return encode(plain, where=self.name)

    def parsed(self, payload: str) -> str:
        """The same for JSON text that came from outside."""
        return self.checked(_object(self.name, parse(payload, where=self.name)))

    def call_arguments(self, payload: str, *, queued_as: str | None = None) -> dict[str, Any]:
        """What the function is called with for this payload: converted to its own types, defaults left to it.

        A payload that was queued under an old name, or that does not fit, is upgraded first where there is a way.
        """
        if self._decode is not None:
            try:
                return msgspec.structs.asdict(self._decode(payload))
            except msgspec.ValidationError:
                # The longer way says what does not fit in the words that callers know.
                pass
        plain = _object(self.name, msgspec.json.decode(payload))
        if self.options.upgrade is None:
            return self._converted(plain)
        if queued_as in (None, self.name):
            try:
                return self._converted(plain)
            except PayloadRefused:
                pass
        return self._converted(dict(self.options.upgrade(plain)))

    def _decoder(self) -> Callable[[str], msgspec.Struct] | None:
        """Reads a payload in one pass; None where it must be known which arguments were given, or what their names
        were."""
        defaults = any(one.default is not one.empty for one in self._signature.parameters.values())
        if defaults or self.options.upgrade is not None:
            return None
        return msgspec.json.Decoder(self._arguments, strict=True, dec_hook=_typed).decode

    def _converted(self, plain: Mapping[str, Any]) -> dict[str, Any]:
        converted = self._convert(plain)
        return {name: getattr(converted, name) for name in plain}

    def encoded_result(self, value: Any) -> str:
        """The JSON text of what the function returned."""
        if value is None:
            return "null"
        try:
            plain = msgspec.to_builtins(value, enc_hook=_plain)
        except (TypeError, ValueError, NotImplementedError) as problem:
            raise InvalidInput(f"result of {self.name}", f"cannot be written as JSON: {problem}") from None
        return encode(plain, where=f"result of {self.name}")

    def decoded_result(self, result: str) -> R:
        """What the function returned, in the type that it promises."""
        returns: Any = self._returns
        value: R = msgspec.convert(msgspec.json.decode(result), type=returns, strict=True, dec_hook=_typed)
        return value

    def _convert(self, plain: Mapping[str, Any]) -> msgspec.Struct:
        try:
            return msgspec.convert(plain, type=self._arguments, strict=True, dec_hook=_typed)
        except msgspec.ValidationError as problem:
            raise PayloadRefused(self.name, str(problem).replace("`$.", "`").replace(" - at `$`", "")) from None


def error_classes(given: ErrorClasses, where: str) -> tuple[type[BaseException], ...]:
    """One error class or several, as a tuple; anything else is refused."""
    classes = (given,) if isinstance(given, type) else tuple(given)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise InvalidInput(where, f"{one!r} is not a class of errors")
    return classes


def _isolation(name: str, options: Options, *, is_async: bool) -> Isolation:
    """The one that was asked for, if it makes sense; else tasks for async functions, and threads for plain ones."""
    wanted = options.isolation
    if wanted is None:
        wanted = "task" if is_async else "thread"
    if wanted not in get_args(Isolation):
        raise InvalidInput(name, f"isolation is {wanted!r}, and must be one of {', '.join(get_args(Isolation))}")
    if wanted == "task" and not is_async:
        raise InvalidInput(name, "isolation='task' would block the event loop: the function is plain, so use 'thread'")
    if wanted == "thread" and is_async:
        raise InvalidInput(name, "isolation='thread' is for plain functions; an async one is a 'task' or a 'process'")
    if options.memory_bytes_max is not None:
        check_integer(options.memory_bytes_max, f"{name}: memory_bytes_max", least=1, most=2**53)
        if wanted != "process":
            raise InvalidInput(name, "memory_bytes_max needs isolation='process': only a process can be measured")
    return wanted


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except NameError as problem:
        raise InvalidInput(function.__qualname__, f"has an annotation that cannot be resolved: {problem}") from None


def _arguments_of(name: str, signature: inspect.Signature, hints: Mapping[str, Any]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidInput(
                name, f"{parameter} cannot come from a payload: every argument needs a name, and no *args or **kwargs"
            )
        annotation = hints.get(parameter.name, Any)
        if annotation is Context:
            raise InvalidInput(name, f"{parameter.name}: Context must be the first parameter")
        if parameter.default is parameter.empty:
            fields.append((parameter.name, annotation))
        else:
            fields.append((parameter.name, annotation, msgspec.field(default_factory=lambda: None)))
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PayloadRefused(name, f"must be an object of arguments by name, not {type(value).__name__}")
    return value


def _plain(value: Any) -> Any:
    """Models of pydantic, which need not be installed, say themselves how they are written."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _without_values(refusal: ValueError) -> str:
    """Which fields of a model of pydantic do not fit, and why; not what was in them, which may be a secret."""
    if not hasattr(refusal, "errors"):
        return str(refusal)
    faults = refusal.errors(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)


def _typed(wanted: Any, value: Any) -> Any:
    if hasattr(wanted, "model_validate"):
        try:
            return wanted.model_validate(value)
        except ValueError as refusal:
            raise ValueError(_without_values(refusal)) from None
    raise TypeError(f"{wanted!r} cannot be read from JSON")
