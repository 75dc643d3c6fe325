"""Kinds of jobs: a function, what its arguments must be, and what becomes of a job when things go wrong.

A payload is checked against the function's own signature before anything is queued, and again before it runs, since the
code may have changed in between. Nothing here touches a store.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints

import msgspec

from tenure.context import Context
from tenure.errors import InvalidInput, PayloadRefused
from tenure.lifecycle.content import check_integer, check_name, encode, parse
from tenure.lifecycle.records import Policy

P = ParamSpec("P")
R = TypeVar("R")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a declaration says beyond the function."""

    queue: str = "default"
    priority: int = 0
    policy: Policy = Policy()
    aliases: tuple[str, ...] = ()


class Kind(Generic[P, R]):
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
        self._arguments = _arguments_of(self.name, self._signature, hints)
        self._returns = hints.get("return", Any)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The JSON text of a call, or a refusal that names the field."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise PayloadRefused(self.name, str(problem)) from None
        return self.checked(bound.arguments)

    def checked(self, arguments: Mapping[str, Any]) -> str:
        """The JSON text of arguments by name, once they fit the function."""
        try:
            plain = msgspec.to_builtins(dict(arguments), enc_hook=_plain)
        except (TypeError, ValueError, NotImplementedError) as problem:
            raise PayloadRefused(self.name, f"cannot be written as JSON: {problem}") from None
        self._convert(plain)
        return encode(plain, where=self.name)

    def parsed(self, payload: str) -> str:
        """The same for JSON text that came from outside."""
        return self.checked(_object(self.name, parse(payload, where=self.name)))

    def call_arguments(self, payload: str) -> dict[str, Any]:
        """What the function is called with for this payload: converted to its own types, defaults left to it."""
        plain = _object(self.name, msgspec.json.decode(payload))
        converted = self._convert(plain)
        return {name: getattr(converted, name) for name in plain}

    def encoded_result(self, value: Any) -> str:
        """The JSON text of what the function returned."""
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


def _typed(wanted: Any, value: Any) -> Any:
    if hasattr(wanted, "model_validate"):
        return wanted.model_validate(value)
    raise TypeError(f"{wanted!r} cannot be read from JSON")
