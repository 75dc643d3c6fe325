"""Job definitions: a function, the types of its arguments and result, and its options.

A payload is validated against the signature of the function before it is enqueued, and again before it runs, because
the code may have changed in between. This module does not use a store.
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
"""Where a job runs: on the worker's event loop, on a thread, or in a process that can be killed."""

Upgrade = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Converts the arguments of an older version of a job to those of the current one."""


ErrorClasses = type[BaseException] | Iterable[type[BaseException]]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a declaration. `retry_on` and `fail_on` take precedence over the class of an error."""

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
    """A declared function with its options. `wants_context`: its first parameter is the Context."""

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
    def import_path(self) -> tuple[str, str] | None:
        """The module and the name under which a new process imports this job. None: it cannot be imported."""
        module, name = self.function.__module__, self.function.__qualname__
        loaded = sys.modules.get(module)
        is_interactive = module == "__main__" and not hasattr(loaded, "__file__")
        found = None if is_interactive else getattr(loaded, name, None)
        return (module, name) if getattr(found, "definition", None) is self else None

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Validate a call, and return its JSON text. PayloadRefused names the field."""
        if not kwargs and len(args) == len(self._names) and not self._keyword_only:
            return self.payload_of(dict(zip(self._names, args, strict=True)))
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise PayloadRefused(self.name, str(problem)) from None
        return self.payload_of(dict(bound.arguments))

    def payload_of(self, arguments: dict[str, Any]) -> str:
        """Validate arguments by name, and return their JSON text."""
        try:
            values = msgspec.to_builtins(arguments, enc_hook=_encode_model)
        except (TypeError, ValueError, NotImplementedError) as problem:
            raise PayloadRefused(self.name, f"cannot be encoded as JSON: {problem}") from None
        self._convert(values)
        return encode(values, where=self.name)

    def payload_from_json(self, payload: str) -> str:
        """Validate arguments that are JSON text, and return them in canonical form."""
        return self.payload_of(_require_object(self.name, parse(payload, where=self.name)))

    def call_arguments(self, payload: str, *, enqueued_as: str | None = None) -> dict[str, Any]:
        """Convert a payload to the arguments of the function, without those that it does not contain.

        A payload that was enqueued under an alias, or that does not validate, is passed through `upgrade` first.
        """
        if self._decode is not None:
            try:
                return msgspec.structs.asdict(self._decode(payload))
            except msgspec.ValidationError:
                # The conversion below raises the same error with the names of the fields.
                pass
        values = _require_object(self.name, msgspec.json.decode(payload))
        if self.options.upgrade is None:
            return self._converted(values)
        if enqueued_as in (None, self.name):
            try:
                return self._converted(values)
            except PayloadRefused:
                pass
        return self._converted(dict(self.options.upgrade(values)))

    def _decoder(self) -> Callable[[str], msgspec.Struct] | None:
        """Return a decoder that reads a payload in one pass. None: defaults or `upgrade` need the given names."""
        has_defaults = any(one.default is not one.empty for one in self._signature.parameters.values())
        if has_defaults or self.options.upgrade is not None:
            return None
        return msgspec.json.Decoder(self._arguments, strict=True, dec_hook=_decode_model).decode

    def _converted(self, values: Mapping[str, Any]) -> dict[str, Any]:
        converted = self._convert(values)
        return {name: getattr(converted, name) for name in values}

    def encode_result(self, value: Any) -> str:
        """Return the JSON text of a result of the function."""
        if value is None:
            return "null"
        try:
            values = msgspec.to_builtins(value, enc_hook=_encode_model)
        except (TypeError, ValueError, NotImplementedError) as problem:
            raise InvalidInput(f"result of {self.name}", f"cannot be encoded as JSON: {problem}") from None
        return encode(values, where=f"result of {self.name}")

    def decode_result(self, result: str) -> R:
        """Decode a result to the return type of the function."""
        returns: Any = self._returns
        value: R = msgspec.convert(msgspec.json.decode(result), type=returns, strict=True, dec_hook=_decode_model)
        return value

    def _convert(self, values: Mapping[str, Any]) -> msgspec.Struct:
        try:
            return msgspec.convert(values, type=self._arguments, strict=True, dec_hook=_decode_model)
        except msgspec.ValidationError as problem:
            raise PayloadRefused(self.name, str(problem).replace("`$.", "`").replace(" - at `$`", "")) from None


def error_classes(given: ErrorClasses, where: str) -> tuple[type[BaseException], ...]:
    """Return one error class or several as a tuple. InvalidInput: one of them is not an error class."""
    classes = (given,) if isinstance(given, type) else tuple(given)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise InvalidInput(where, f"{one!r} is not an exception class; pass classes")
    return classes


def _isolation(name: str, options: Options, *, is_async: bool) -> Isolation:
    """Return the declared isolation; by default `task` for async functions and `thread` for sync ones."""
    wanted = options.isolation
    if wanted is None:
        wanted = "task" if is_async else "thread"
    if wanted not in get_args(Isolation):
        raise InvalidInput(name, f"isolation={wanted!r} is unknown; use one of {', '.join(get_args(Isolation))}")
    if wanted == "task" and not is_async:
        raise InvalidInput(
            name, "isolation='task' would block the event loop, because the function is not async; use 'thread'"
        )
    if wanted == "thread" and is_async:
        raise InvalidInput(name, "isolation='thread' is for sync functions; use 'task' or 'process'")
    if options.memory_bytes_max is not None:
        check_integer(options.memory_bytes_max, f"{name}: memory_bytes_max", least=1, most=2**53)
        if wanted != "process":
            raise InvalidInput(name, "memory_bytes_max is measured per process; use isolation='process'")
    return wanted


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except NameError as problem:
        raise InvalidInput(
            function.__qualname__,
            f"has an annotation that cannot be resolved: {problem}; import the name at module level",
        ) from None


def _arguments_of(name: str, signature: inspect.Signature, hints: Mapping[str, Any]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidInput(
                name,
                f"parameter {parameter} cannot be read from a payload; use named parameters without *args, **kwargs",
            )
        annotation = hints.get(parameter.name, Any)
        if annotation is Context:
            raise InvalidInput(name, f"{parameter.name}: Context must be the first parameter; move it there")
        if parameter.default is parameter.empty:
            fields.append((parameter.name, annotation))
        else:
            fields.append((parameter.name, annotation, msgspec.field(default_factory=lambda: None)))
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)


def _require_object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PayloadRefused(name, f"must be an object of arguments by name, not {type(value).__name__}")
    return value


def _encode_model(value: Any) -> Any:
    """Encode a model of pydantic, which need not be installed."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON encoding")


def _model_errors(refusal: ValueError) -> str:
    """Describe the errors of a pydantic model by field, without the values, which may be secret."""
    if not hasattr(refusal, "errors"):
        return str(refusal)
    faults = refusal.errors(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)


def _decode_model(wanted: Any, value: Any) -> Any:
    if hasattr(wanted, "model_validate"):
        try:
            return wanted.model_validate(value)
        except ValueError as refusal:
            raise ValueError(_model_errors(refusal)) from None
    raise TypeError(f"{wanted!r} cannot be decoded from JSON")
