"""Plans as data: their form, and the checks that a plan passes before it is enqueued.

A plan is JSON: steps that call skills, with arguments that may refer to the results of other steps. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any

import msgspec

from tenure.errors import InvalidInput, PermanentError
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.budgets import amounts_of
from tenure.lifecycle.json_text import check_integer
from tenure.workflow.skills import Skill
from tenure.workflow.step_call import OnError, StepOptions

STEPS_MAX = 10_000
CONCURRENCY_MAX = 1000
REFERENCE = "$ref"
_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
_REFERENCE = re.compile(r"steps\.([A-Za-z0-9_-]+)\.result((?:\.[^.\[\]]+|\[[0-9]+\])*)")
_PART = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")
FORM = '{"$ref": "steps.ID.result"}, and after it a path such as [0].title'


class PlanStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step of a plan. It is executed after the steps that it names in `depends_on` or refers to in its arguments.

    The other fields are those of `run.using(...)`.
    """

    id: str
    skill: str
    arguments: dict[str, Any] = {}
    depends_on: list[str] = []
    on_error: OnError = "abort"
    max_attempts: int = 20
    backoff: Backoff = Backoff()
    timeout_seconds: float | None = None
    spend_max: dict[str, float] = {}


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The steps of a run, and how many of them may run at the same time: one, unless `concurrency` is given.

    The result of the run is `output`, which may contain references; without it the results of all steps by their ids.
    """

    steps: list[PlanStep]
    concurrency: int = 1
    output: Any = None


class Reference(msgspec.Struct, frozen=True):
    """A reference to a part of the result of a step."""

    text: str
    step: str
    path: tuple[str | int, ...]

    def resolve(self, results: Mapping[str, Any], where: str) -> Any:
        """PermanentError: the result has no such part."""
        value = results[self.step]
        for part in self.path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                problem = f"{self.text}: the result of step {self.step!r} has no {part!r} there"
                raise PermanentError(f"{where}: {problem}") from None
        return value


def decode_plan(given: Any) -> Plan:
    """The plan in this JSON value. InvalidInput names the step and the field."""
    if isinstance(given, Plan):
        return given
    if not isinstance(given, Mapping) or not isinstance(given.get("steps"), Sequence):
        raise InvalidInput("plan", 'must be an object with a list of steps: {"steps": [...]}')
    steps = [_decode_step(step, number) for number, step in enumerate(given["steps"], 1)]
    try:
        rest = msgspec.convert({**given, "steps": []}, type=Plan)
    except msgspec.ValidationError as problem:
        raise InvalidInput("plan", _shown(problem)) from None
    return msgspec.structs.replace(rest, steps=steps)


def _decode_step(given: Any, number: int) -> PlanStep:
    id_ = given.get("id") if isinstance(given, Mapping) else None
    where = f"plan step {id_!r}" if isinstance(id_, str) else f"plan step number {number}"
    try:
        return msgspec.convert(given, type=PlanStep)
    except (msgspec.ValidationError, InvalidInput) as problem:
        raise InvalidInput(where, _shown(problem)) from None


def _shown(problem: Exception) -> str:
    return str(problem).replace("`$.", "`").replace(" - at `$`", "")


def check_plan(plan: Plan, skills: Mapping[str, Skill]) -> None:
    """InvalidInput names the first step that cannot be executed, and what to do."""
    check_structure(plan)
    for step in plan.steps:
        skill = skills.get(step.skill)
        if skill is None:
            known = ", ".join(sorted(skills)) or "none"
            raise _refused(step, f"skill {step.skill!r} is not registered; use one of: {known}")
        skill.check_arguments(
            step.arguments, where=_where(step), is_open=lambda value: any(_references(value, "plan", ""))
        )


def check_structure(plan: Plan) -> None:
    """The checks that need no skills: ids, references, dependencies, options."""
    if not 1 <= len(plan.steps) <= STEPS_MAX:
        raise InvalidInput("plan", f"has {len(plan.steps)} steps, and may have 1 to {STEPS_MAX}")
    check_integer(plan.concurrency, "plan.concurrency", least=1, most=CONCURRENCY_MAX)
    ids: set[str] = set()
    for step in plan.steps:
        if _ID.fullmatch(step.id) is None:
            problem = f"the id {step.id!r} must begin with a letter, and have only letters, digits, _ and -"
            raise _refused(step, f"{problem}; at most 100 of them")
        if step.id in ids:
            raise _refused(step, "another step has this id; give each step an id of its own")
        ids.add(step.id)
    for step in plan.steps:
        _check_step(step, ids)
    list(_references(plan.output, "plan.output", "output", ids=ids))
    in_order(plan)


def _check_step(step: PlanStep, ids: set[str]) -> None:
    where = _where(step)
    for other in step.depends_on:
        if other not in ids:
            raise _refused(step, f"depends_on names {other!r}, and the plan has no such step")
        if other == step.id:
            raise _refused(step, "depends_on names the step itself; remove it")
    for reference in _references(step.arguments, where, "arguments", ids=ids):
        if reference.step == step.id:
            raise _refused(step, f"{reference.text} refers to the step itself; refer to another step")
    try:
        StepOptions(on_error=step.on_error, max_attempts=step.max_attempts, timeout_seconds=step.timeout_seconds)
    except InvalidInput as problem:
        raise _refused(step, str(problem)) from None
    try:
        amounts_of(step.spend_max)
    except InvalidInput as problem:
        raise _refused(step, f"spend_max: {problem}") from None


def dependencies(step: PlanStep) -> list[str]:
    """The ids of the steps that must have ended before this one."""
    referred = (reference.step for reference in _references(step.arguments, _where(step), "arguments"))
    return list(dict.fromkeys([*step.depends_on, *referred]))


class ReadySteps:
    """The steps of a plan whose dependencies have ended, in the order of the plan. InvalidInput: a cycle."""

    def __init__(self, plan: Plan) -> None:
        self._steps = plan.steps
        self._positions = {step.id: position for position, step in enumerate(plan.steps)}
        self._sorter = TopologicalSorter({step.id: dependencies(step) for step in plan.steps})
        try:
            self._sorter.prepare()
        except CycleError as cycle:
            ids: list[str] = cycle.args[1]
            step, path = plan.steps[self._positions[ids[-1]]], " → ".join(reversed(ids))
            raise _refused(step, f"depends on itself: {path}; remove one of these dependencies") from None
        self._ready: list[int] = []
        self._add_ready()

    def take(self) -> PlanStep | None:
        """The next step that can begin; None: there is none until another one has ended."""
        return self._steps[heappop(self._ready)] if self._ready else None

    def ended(self, id_: str) -> None:
        """The steps that depend on this one alone can begin."""
        self._sorter.done(id_)
        self._add_ready()

    def _add_ready(self) -> None:
        for id_ in self._sorter.get_ready():
            heappush(self._ready, self._positions[id_])


def in_order(plan: Plan) -> list[PlanStep]:
    """The steps, each after those that it depends on, and else in the order of the plan. InvalidInput: a cycle."""
    ready, ordered = ReadySteps(plan), []
    while (step := ready.take()) is not None:
        ordered.append(step)
        ready.ended(step.id)
    return ordered


def resolve(value: Any, results: Mapping[str, Any], *, where: str) -> Any:
    """The value with the results in place of references."""
    match value:
        case {"$ref": str(text)}:
            return _reference(text, where, "").resolve(results, where)
        case dict():
            return {name: resolve(one, results, where=where) for name, one in value.items()}
        case list():
            return [resolve(one, results, where=where) for one in value]
    return value


def _references(value: Any, where: str, field: str, *, ids: set[str] | None = None) -> Iterator[Reference]:
    """The references in a value. InvalidInput: one is malformed, or names none of `ids`."""
    match value:
        case dict() if REFERENCE in value:
            if len(value) != 1 or not isinstance(value[REFERENCE], str):
                raise InvalidInput(where, f"{field}: a reference has the form {FORM}, and no other fields")
            reference = _reference(value[REFERENCE], where, field)
            if ids is not None and reference.step not in ids:
                problem = f"{reference.text} names {reference.step!r}, and the plan has no such step"
                raise InvalidInput(where, f"{field}: {problem}; use the id of a step")
            yield reference
        case dict():
            for name, one in value.items():
                yield from _references(one, where, f"{field}.{name}", ids=ids)
        case list():
            for index, one in enumerate(value):
                yield from _references(one, where, f"{field}[{index}]", ids=ids)


def _reference(text: str, where: str, field: str) -> Reference:
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise InvalidInput(where, f"{field}: {text!r} is not a reference; write {FORM}")
    path = tuple(int(index) if index else name for name, index in _PART.findall(found[2]))
    return Reference(text, found[1], path)


def _where(step: PlanStep) -> str:
    return f"plan step {step.id!r}"


def _refused(step: PlanStep, problem: str) -> InvalidInput:
    return InvalidInput(_where(step), problem)
