"""Lets a synchronous thread use an async context on an event loop that runs in another thread.

Everything runs in one task of that loop, from entering to leaving, so that deadlines and context variables work as they
do for async code. The thread sends each call and waits for its result.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from tenure.seams import Spawner

T = TypeVar("T")
AsyncCall = Callable[[], Awaitable[Any]]
Exit = BaseException | None
"""Leave the context with this error, or without one."""


class BlockingPortal(Generic[T]):
    """One async context that a thread enters and leaves."""

    def __init__(
        self, context: AbstractAsyncContextManager[T], loop: asyncio.AbstractEventLoop, spawn: Spawner
    ) -> None:
        self._context, self._loop, self._spawn = context, loop, spawn
        self._entered: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._left: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._calls: asyncio.Queue[tuple[AsyncCall, concurrent.futures.Future[Any]] | Exit] = asyncio.Queue()

    def enter(self) -> T:
        self._loop.call_soon_threadsafe(self._start)
        return self._entered.result()

    def call(self, function: AsyncCall) -> Any:
        """The result of one call inside the context."""
        result: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._calls.put_nowait, (function, result))
        # A context that ends by itself, at its deadline, serves no more calls.
        concurrent.futures.wait([result, self._left], return_when=concurrent.futures.FIRST_COMPLETED)
        return result.result() if result.done() else self._left.result()

    def leave(self, error: BaseException | None) -> None:
        """Leave the context with this error, or without one. An error that the context raises is raised here."""
        self._loop.call_soon_threadsafe(self._calls.put_nowait, error)
        self._left.result()

    def _start(self) -> None:
        self._task = self._spawn.task(self._run(), name="tenure-portal")

    async def _run(self) -> None:
        try:
            async with self._context as inside:
                self._entered.set_result(inside)
                await self._serve()
        except BaseException as error:  # noqa: BLE001 - the thread raises it
            _set_exception(self._left, error)
            _set_exception(self._entered, error)
        else:
            self._left.set_result(None)

    async def _serve(self) -> None:
        while (call := await self._calls.get()) is not None:
            if isinstance(call, BaseException):
                raise call
            function, result = call
            try:
                result.set_result(await function())
            except Exception as error:  # noqa: BLE001 - the thread raises it
                result.set_exception(error)


def _set_exception(future: concurrent.futures.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
