"""A call of a run at its place, and how the step that records it is undone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.steps import NewStep, StepKind, StepRecord, StepStatus
from tenure.workflow.branch import Place


class PlacedCall(msgspec.Struct, frozen=True):
    """A call of the run at its place."""

    place: Place
    kind: StepKind
    name: str
    arguments_digest: str | None = None
    spend: Mapping[str, int] = {}
    """What the code has spent before this call, which is charged with it."""

    def step(self, *, status: StepStatus = "succeeded", **facts: Any) -> NewStep:
        """The step that records this call."""
        place = self.place
        return NewStep(
            key=place.key,
            kind=self.kind,
            name=self.name,
            branch=place.branch,
            ordinal=place.ordinal,
            arguments_digest=self.arguments_digest,
            status=status,
            **facts,
        )


class Compensation(msgspec.Struct, frozen=True):
    """The function that undoes a step. It is called with the result of the step."""

    function: Callable[[Any], Any]
    timeout_seconds: float | None = None

    @property
    def recorded(self) -> str:
        """The compensation as the step's record has it."""
        return encode({"function": name_of(self.function)})


class UndoableStep(msgspec.Struct, frozen=True):
    """A recorded step, how it is undone, and its result."""

    record: StepRecord
    compensation: Compensation
    result: Any


def name_of(function: Callable[..., Any]) -> str:
    """The name under which a step, or what undoes it, is recorded."""
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise InvalidInput("step", f"{function!r} has no name; wrap it in a function")
    return name
