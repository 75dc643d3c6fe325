"""Job definitions: a function, the types of its arguments and result, and its options.

A payload is validated against the signature of the function before it is enqueued, and again before it runs, because
the code may have changed in between. This module does not use a store.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, Literal, ParamSpec, TypeVar, get_args, get_type_hints
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, PayloadRefused, ResultRefused
from tenure.jobs.context import Context
from tenure.jobs.models import decode_model, encode_model
from tenure.jobs.results import ResultType
from tenure.jobs.settings import ContentLimits
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
    remote: bool = False
    """Whether a remote engine runs the job, and no worker does."""


Invoker = Callable[[Any, Mapping[str, Any]], Awaitable[Any]]
"""Runs the function of an attempt with these arguments, and returns its result. The attempt is that of a worker."""


class JobDefinition(Generic[P, R]):
    """A declared function with its options. `wants_context`: its first parameter is the Context."""

    invoker: Invoker | None = None
    """Runs the function instead of a plain call: a workflow brings its own."""
    context_class: ClassVar[type] = Context
    """The annotation of a first parameter that does not come from the payload."""

    def __init__(self, function: Callable[..., Any], *, name: str, options: Options) -> None:
        self.function = function
        self.name = check_name(name, "kind")
        self.options = options
        self.limits = ContentLimits()
        """Those of the app that declares the job."""
        check_name(options.queue, "queue")
        for alias in options.aliases:
            check_name(alias, "aliases")
        check_integer(options.priority, "priority", least=-32_768, most=32_767)
        hints = _hints(function)
        parameters = list(inspect.signature(function).parameters.values())
        self.wants_context = bool(parameters) and _is_context(parameters[0], hints, self.context_class)
        self._signature = inspect.Signature(parameters[1:] if self.wants_context else parameters)
        self._names = tuple(self._signature.parameters)
        self._keyword_only = any(one.kind is one.KEYWORD_ONLY for one in self._signature.parameters.values())
        self._arguments = _arguments_of(self.name, self._signature, hints, self.context_class)
        self.result: ResultType[R] = ResultType(self.name, hints.get("return", Any))
        self._decode = self._decoder()
        self.isolation: Isolation = _isolation(self.name, options, is_async=self.is_async)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def fields(self) -> tuple[msgspec.structs.FieldInfo, ...]:
        """The names and types of the arguments, and which are required."""
        return msgspec.structs.fields(self._arguments)

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
            values = msgspec.to_builtins(arguments, enc_hook=encode_model)
        except (TypeError, ValueError, NotImplementedError) as problem:
            raise PayloadRefused(self.name, f"cannot be encoded as JSON: {problem}") from None
        self._convert(values)
        return encode(values, where=self.name, bytes_max=self.limits.payload_bytes_max)

    def payload_from_json(self, payload: str) -> str:
        """Validate arguments that are JSON text, and return them in canonical form."""
        try:
            values = parse(payload, where=self.name, bytes_max=self.limits.payload_bytes_max)
        except InvalidInput as refusal:
            example = f"; write an object of arguments by name, such as {self._example()}"
            raise PayloadRefused(self.name, refusal.problem + example * refusal.problem.startswith("is not")) from None
        if not isinstance(values, dict):
            problem = f"must be an object of arguments by name, such as {self._example()}, not {type(values).__name__}"
            raise PayloadRefused(self.name, problem)
        return self.payload_of(values)

    def _example(self) -> str:
        """Arguments as JSON text."""
        return f'{{"{self._names[0]}": …}}' if self._names else "{}"

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

    def unknown_argument(self, payload: str, *, enqueued_as: str) -> str | None:
        """The first argument of a payload that the function does not have: newer code may have enqueued it.

        None: there is no such argument, or the payload was enqueued under an alias, so that older code did.
        """
        if enqueued_as != self.name:
            return None
        values = msgspec.json.decode(payload)
        return next((name for name in values if name not in self._names), None) if isinstance(values, dict) else None

    def _decoder(self) -> Callable[[str], msgspec.Struct] | None:
        """Return a decoder that reads a payload in one pass. None: defaults or `upgrade` need the given names."""
        has_defaults = any(one.default is not one.empty for one in self._signature.parameters.values())
        if has_defaults or self.options.upgrade is not None:
            return None
        return msgspec.json.Decoder(self._arguments, strict=True, dec_hook=decode_model).decode

    def _converted(self, values: Mapping[str, Any]) -> dict[str, Any]:
        converted = self._convert(values)
        return {name: getattr(converted, name) for name in values}

    def encode_result(self, value: Any, *, job_id: UUID) -> str:
        """Return the JSON text of a result of the function. ResultRefused: it cannot be stored, or breaks the
        annotation of the function."""
        try:
            return self.result.encode(value, bytes_max=self.limits.result_bytes_max)
        except ResultRefused as refusal:
            raise ResultRefused(f"job {job_id}, {refusal.where}", refusal.problem) from None

    def encode_committed(self, value: Any, *, job_id: UUID) -> str:
        """Return the JSON text of a result that a commit block was given. None: it was given none."""
        return "null" if value is None else self.encode_result(value, job_id=job_id)

    def decode_result(self, result: str, *, job_id: UUID) -> R:
        """Decode a result to the return type of the function. ResultRefused: it breaks the annotation."""
        try:
            return self.result.decode(result)
        except ResultRefused as refusal:
            raise ResultRefused(f"job {job_id}, {refusal.where}", refusal.problem) from None

    def _convert(self, values: Mapping[str, Any]) -> msgspec.Struct:
        try:
            return msgspec.convert(values, type=self._arguments, strict=True, dec_hook=decode_model)
        except msgspec.ValidationError as problem:
            raise PayloadRefused(self.name, self._problem_of(str(problem))) from None

    def _problem_of(self, message: str) -> str:
        """The error of msgspec about the arguments, in terms of the function."""
        message = message.replace("`$.", "`").replace(" - at `$`", "")
        match = _ARGUMENT_PROBLEM.fullmatch(message)
        if match is None:
            return message
        takes = f"it takes {', '.join(self._names)}" if self._names else "it takes none"
        is_missing = match[1].startswith("missing")
        return (
            f"{'the argument' if is_missing else 'has no argument'} `{match[2]}`{' is missing' * is_missing}; {takes}"
        )


_ARGUMENT_PROBLEM = re.compile(r"Object (missing required|contains unknown) field `([^`]*)`")


def check_function(function: Any) -> None:
    """Refuse what is not a function of its own: a class, a method, another callable."""
    name = getattr(function, "__qualname__", None) or repr(function)
    if inspect.isclass(function):
        raise InvalidInput(name, "is a class, and a job is a function; declare a function that uses it")
    if not inspect.isfunction(function):
        raise InvalidInput(name, "is not a function; declare one with `def` or `async def`")
    if function.__name__ == "<lambda>":
        raise InvalidInput("<lambda>", "has no name under which jobs are stored; declare the function with `def`")
    if "." in name.rpartition("<locals>.")[2]:
        raise InvalidInput(
            name, "is a method, whose object no payload holds; declare a function at module level that calls it"
        )


def _is_context(parameter: inspect.Parameter, hints: Mapping[str, Any], context: type) -> bool:
    """Whether it is annotated as the context, or named `ctx` (`run` in a workflow) without an annotation."""
    if parameter.annotation is parameter.empty:
        return parameter.name == ("ctx" if context is Context else "run")
    return hints.get(parameter.name) is context


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


def _arguments_of(
    name: str, signature: inspect.Signature, hints: Mapping[str, Any], context: type
) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidInput(
                name,
                f"parameter {parameter} cannot be read from a payload; use named parameters without *args, **kwargs",
            )
        annotation = hints.get(parameter.name, Any)
        if annotation is context:
            problem = f"{parameter.name}: {context.__name__} must be the first parameter; move it there"
            raise InvalidInput(name, problem)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, annotation))
        else:
            fields.append((parameter.name, annotation, msgspec.field(default_factory=lambda: None)))
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)


def _require_object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PayloadRefused(name, f"must be an object of arguments by name, not {type(value).__name__}")
    return value
