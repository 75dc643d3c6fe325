"""Runs the coroutines of synchronous drivers without an event loop. Nothing else here drives a coroutine."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from tenure.errors import InvalidInput
from tenure.stores.user_connections.protocol import UserConnection

T = TypeVar("T")


def run_sync(connection: UserConnection, work: Awaitable[T], *, instead: str) -> T:
    """Run `work`, which awaits this connection and nothing else, on the calling thread. InvalidInput: the connection
    is asynchronous; `instead` is what the user should write."""
    steps = work.__await__()
    if connection.is_async:
        steps.close()
        raise InvalidInput("connection", f"{connection.name} is asynchronous; use `{instead}`")
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    steps.close()
    raise AssertionError(f"the driver of {connection.name} suspended, although it is synchronous")
