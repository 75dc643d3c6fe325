"""Runs a check and says what it found. Only what a check says counts; code that is merely wrong is an error."""

from __future__ import annotations

import inspect
import logging
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest

from simulation.invariants import InvariantViolated
from tenure.errors import StoreError, TenureError

_NAME = re.compile(r"[a-z_]+")

SAYS = (AssertionError, pytest.fail.Exception, TenureError, InvariantViolated, TimeoutError)
"""How a check says that something is wrong. Whatever else is raised is a mistake in the mutant."""


def found_by(check: Callable[[], object]) -> str | None:
    """What the check says is wrong; None when it passes."""
    with _quiet():
        try:
            check()
        except BaseExceptionGroup as several:
            said, rest = several.split(SAYS)
            if said is None or rest is not None:
                raise
            return told(_first(said))
        except SAYS as problem:
            _refuse_nonsense(problem)
            return told(problem)
    return None


def told(problem: BaseException) -> str:
    """The problem in one line: what it says, the line of the check that noticed it, and what its names stood for."""
    frames = [frame for frame, _ in traceback.walk_tb(problem.__traceback__)]
    lines = [frame.line or "" for frame in traceback.extract_tb(problem.__traceback__)]
    noticed = [at for at, frame in enumerate(frames) if _is_a_check(frame.f_code.co_filename)]
    line, values = (lines[noticed[-1]], frames[noticed[-1]].f_locals) if noticed else ("", {})
    shown = [f"{name}={repr(values[name])[:300]}" for name in dict.fromkeys(_NAME.findall(line)) if name in values]
    return f"{type(problem).__name__}: {str(problem).strip()} [{line}] {', '.join(shown)}"


def _is_a_check(filename: str) -> bool:
    return "/testing/" in filename or "/tests/" in filename


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _refuse_nonsense(problem: BaseException) -> None:
    """A statement that does not even parse is refused by the database, which proves nothing."""
    text = f"{problem} {problem.__cause__ or ''}".lower()
    if isinstance(problem, StoreError) and ("syntax" in text or "no such column" in text or "does not exist" in text):
        raise RuntimeError(f"the mutant's statement makes no sense: {problem}") from problem


def cases_of(function: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """The arguments of each case that the test's parametrize marks give it; one without any where there are none."""
    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    choices = [[_case(mark.args[0], values) for values in mark.args[1]] for mark in marks]
    for combination in product(*choices):
        yield {name: value for part in combination for name, value in part.items()}


def _case(names: Any, values: Any) -> dict[str, Any]:
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    given = getattr(values, "values", values) if isinstance(values, type(pytest.param())) else values
    return dict(zip(wanted, given if len(wanted) > 1 else [given], strict=True))


def wants(function: Callable[..., Any], **fixtures: Any) -> dict[str, Any]:
    """Those of the fixtures that the test takes."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in fixtures.items() if name in names}


@contextmanager
def _quiet() -> Iterator[None]:
    """InvariantViolated code complains a lot."""
    logger = logging.getLogger("tenure")
    usual = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(usual)
