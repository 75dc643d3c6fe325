"""Runs a check and returns what it reports. Only a report counts; any other exception is an error of the mutant."""

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

REPORTS = (AssertionError, pytest.fail.Exception, TenureError, InvariantViolated, TimeoutError)
"""How a check reports a problem. Any other exception is an error of the mutant."""


def found_by(check: Callable[[], object]) -> str | None:
    """What the check reports; None if it passes."""
    with _quiet():
        try:
            check()
        except BaseExceptionGroup as several:
            reported, rest = several.split(REPORTS)
            if reported is None or rest is not None:
                raise
            return one_line(_first(reported))
        except REPORTS as problem:
            _refuse_nonsense(problem)
            return one_line(problem)
    return None


def one_line(problem: BaseException) -> str:
    """The problem in one line: its message, the line of the check, and the values of the names in it."""
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
    """A statement that does not parse is refused by the database, which proves nothing."""
    text = f"{problem} {problem.__cause__ or ''}".lower()
    if isinstance(problem, StoreError) and ("syntax" in text or "no such column" in text or "does not exist" in text):
        raise RuntimeError(f"the mutant's statement makes no sense: {problem}") from problem


def cases_of(function: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """The arguments of each case of the test's parametrize marks; one empty case if there are none."""
    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    choices = [[_case(mark.args[0], values) for values in mark.args[1]] for mark in marks]
    for combination in product(*choices):
        yield {name: value for part in combination for name, value in part.items()}


def _case(names: Any, values: Any) -> dict[str, Any]:
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    given = getattr(values, "values", values) if isinstance(values, type(pytest.param())) else values
    return dict(zip(wanted, given if len(wanted) > 1 else [given], strict=True))


def wants(function: Callable[..., Any], **fixtures: Any) -> dict[str, Any]:
    """The fixtures that the test takes."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in fixtures.items() if name in names}


@contextmanager
def _quiet() -> Iterator[None]:
    """Broken code logs a lot."""
    logger = logging.getLogger("tenure")
    usual = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(usual)
