"""Skills: functions that the steps of a plan call by name, with validated arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from typing import Any

import msgspec

from tenure.errors import InvalidInput, PayloadRefused, ValidationError
from tenure.jobs.definition import JobDefinition, Options
from tenure.jobs.models import decode_model


class Skill:
    """A registered function. `call` takes JSON values, and converts them to the types of its parameters."""

    def __init__(self, function: Callable[..., Any], *, name: str) -> None:
        self.name = name
        self._definition: JobDefinition[..., Any] = JobDefinition(function, name=name, options=Options())
        if self._definition.wants_context:
            raise InvalidInput(name, "a skill has no context; use tenure.current_step() in it")

    @property
    def function(self) -> Callable[..., Any]:
        return self._definition.function

    def check_arguments(self, arguments: Mapping[str, Any], *, where: str, is_open: Callable[[Any], bool]) -> None:
        """Validate names and types. Values that are `is_open` are not known yet: they are validated when the step is
        executed."""
        fields = {field.name: field for field in self._definition.fields}
        if extra := [name for name in arguments if name not in fields]:
            known = ", ".join(fields) or "none"
            raise InvalidInput(where, f"skill {self.name!r} has no argument {extra[0]!r}; its arguments are: {known}")
        if missing := [name for name, field in fields.items() if field.required and name not in arguments]:
            raise InvalidInput(where, f"skill {self.name!r} needs the argument {missing[0]!r}; add it")
        for name, value in arguments.items():
            if is_open(value):
                continue
            try:
                msgspec.convert(value, type=fields[name].type, strict=True, dec_hook=decode_model)
            except msgspec.ValidationError as problem:
                raise InvalidInput(where, f"arguments.{name}: {str(problem).replace(' - at `$`', '')}") from None

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The function of the step. It has the name of the skill and the return type of its function."""
        function = self.function

        if self._definition.is_async:

            @wraps(function)
            async def call_async(**arguments: Any) -> Any:
                return await function(**self._converted(arguments))

            call_async.__name__ = self.name
            return call_async

        @wraps(function)
        def call(**arguments: Any) -> Any:
            value = function(**self._converted(arguments))
            assert not inspect.isawaitable(value), f"skill {self.name} returned an awaitable; declare it async"
            return value

        call.__name__ = self.name
        return call

    def _converted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._definition.call_arguments(msgspec.json.encode(arguments).decode())
        except PayloadRefused as refusal:
            raise ValidationError(f"skill {self.name!r}: {refusal.problem}") from None
