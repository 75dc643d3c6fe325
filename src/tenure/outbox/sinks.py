"""What delivers a message: the interface of a sink, what it receives and returns, and the sink of a Python function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol, TypeGuard
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, TransientError
from tenure.lifecycle.json_text import check_seconds, clean_text
from tenure.seams import SYSTEM, Spawner
from tenure.workers.execution.executors import ThreadExecutor

REASON_LENGTH_MAX = 1000
TIMEOUT_SECONDS = 30.0


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to deliver one message to one endpoint.

    All fields but `attempt` and `previous` are those of the stored message, so that a receiver can deduplicate by `id`.
    `body` is JSON text. `previous` is the sequence of the message of this aggregate that was attempted before this one,
    delivered or not; None for the first one. A receiver whose own last sequence is another one has missed messages.
    """

    id: UUID
    topic: str
    body: str
    at: datetime
    correlation_id: str
    attempt: int
    headers: Mapping[str, str] = {}
    aggregate: str | None = None
    sequence: int | None = None
    previous: int | None = None
    job_id: UUID | None = None
    trace: str | None = None


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver has accepted the message. `status` is that of its HTTP response."""

    status: int | None = None


class Undelivered(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver did not accept the message, or no response arrived. `reason` never contains a secret.

    `retry_after_seconds` is what the receiver asks for. `throttle` pauses the whole endpoint; `gone` disables it.
    `attempted` is False if the sink made no request: it is then no attempt of the message.
    """

    reason: str
    status: int | None = None
    retry_after_seconds: float | None = None
    throttle: bool = False
    gone: bool = False
    attempted: bool = True


class Sink(Protocol):
    """Delivers messages to one endpoint. A sink has no store: it can change no job and write no message."""

    async def deliver(self, delivery: Delivery) -> Delivered | Undelivered:
        """Attempt one delivery. A problem of the receiver or of the network is returned, not raised."""
        ...

    async def close(self) -> None:
        """Release connections and threads."""
        ...


class CallableSink:
    """Delivers each message to a Python function, async or plain. A plain function runs in a thread.

    The message is delivered when the function returns, and undelivered when it raises or exceeds the timeout. A
    TransientError with `delay_seconds` decides when the next attempt is made. A thread cannot be stopped: a plain
    function that exceeded the timeout runs on, beside the next attempt.
    """

    def __init__(
        self,
        function: Callable[[Delivery], Any],
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        spawn: Spawner = SYSTEM.spawn,
    ) -> None:
        self._function, self._timeout_seconds = function, timeout_seconds
        self._is_async = is_async(function)
        self._threads = ThreadExecutor((), spawn)

    async def deliver(self, delivery: Delivery) -> Delivered | Undelivered:
        deadline = asyncio.timeout(self._timeout_seconds)
        try:
            async with deadline:
                await self._call(delivery)
        except Exception as error:  # noqa: BLE001 - the user's function decides what it raises
            if deadline.expired():
                return Undelivered(reason=f"no return within {self._timeout_seconds:g} s")
            return Undelivered(reason=error_reason(error), retry_after_seconds=_delay_seconds(error))
        return Delivered()

    async def close(self) -> None:
        await self._threads.close()

    async def _call(self, delivery: Delivery) -> None:
        if self._is_async:
            await self._function(delivery)
        else:
            await self._threads.call(lambda: self._function(delivery))


def is_sink(receiver: object) -> TypeGuard[Sink]:
    """Whether the receiver is a sink, and not a function."""
    return inspect.iscoroutinefunction(getattr(receiver, "deliver", None)) and hasattr(receiver, "close")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of the function, or of an object with `async def __call__`, is awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def error_reason(error: BaseException) -> str:
    """The type and message of an error, as every store can hold them.

    >>> error_reason(ValueError("no such account"))
    'ValueError: no such account'
    """
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an error whose message cannot be built is a failed delivery like any other
        message = ""
    reason = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return clean_text(reason)[:REASON_LENGTH_MAX]


def _delay_seconds(error: BaseException) -> float | None:
    """The delay that the error names, if it is valid."""
    if not isinstance(error, TransientError) or error.delay_seconds is None:
        return None
    try:
        return check_seconds(error.delay_seconds, "delay_seconds")
    except InvalidInput:
        return None
