"""Results fit the return annotation of their function, or are refused before they are stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

import pytest

from tenure.errors import InvalidInput, ResultRefused
from tenure.jobs.results import ResultType

AT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("returns", "value"),
    [
        (int, 7),
        (float, 1.5),
        (int | None, None),
        (None, None),
        (list[str], ["a"]),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (dict[int, str], {1: "a"}),
        (Mapping[str, float], {"a": 0.5}),
        (datetime, AT),
        (date, AT.date()),
        (Decimal, Decimal("1.10")),
        (UUID, UUID(int=7)),
        (bytes, b"raw"),
        (Any, {"a": [1, None]}),
        (object, [1]),
    ],
)
def test_a_result_comes_back_in_the_type_of_the_annotation(returns: Any, value: Any) -> None:
    result = ResultType[Any]("work", returns)
    assert result.decode(result.encode(value)) == value


@pytest.mark.parametrize(
    ("returns", "value", "problem"),
    [
        (int, "7", "Expected `int`, got `str`"),
        (int, None, "Expected `int`, got `null`"),
        (None, 7, "Expected `null`, got `int`"),
        (list[int], [1, "2"], "Expected `int`, got `str` - at `$[1]`"),
        (dict[str, int], [1], "Expected `object`, got `array`"),
        (Iterable[int], 7, "cannot be decoded from JSON"),
        (Any, object(), "object has no JSON encoding"),
    ],
)
def test_a_result_that_does_not_fit_is_refused(returns: Any, value: Any, problem: str) -> None:
    with pytest.raises(ResultRefused) as refused:
        ResultType[Any]("work", returns).encode(value)
    assert str(refused.value).startswith("result of work: ")
    assert problem in str(refused.value)


def test_a_function_that_only_raises_may_say_so() -> None:
    assert ResultType[Any]("work", NoReturn).encode(None) == "null"


def test_an_annotation_that_no_json_can_fit_is_refused_at_the_declaration() -> None:
    with pytest.raises(InvalidInput, match="work: its results cannot be read from JSON"):
        ResultType[Any]("work", list[int] | set[int])
