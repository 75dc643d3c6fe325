"""How plain code uses what is written once, as async."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_synchronously(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing: it runs to its end here and now, with or without a loop."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("what must not wait for anything had something to wait for")
