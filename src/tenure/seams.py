"""Clock, randomness and spawning: the only places where tenure touches the world's time, chance and threads.

Everything else receives what it needs from here, so that the real roles can run in a simulator. A lint rule
keeps the rest of the house from reaching for `time`, `random`, `threading` or the default event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

import uuid_utils.compat

T = TypeVar("T")


class Clock(Protocol):
    """Tells the time. `now` is for people and records; `monotonic_seconds` is for measuring waits."""

    def now(self) -> datetime: ...

    def monotonic_seconds(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class Random(Protocol):
    """Makes ids, secrets and jitter."""

    def job_id(self) -> UUID:
        """A UUIDv7: unique, and ordered by the time at which it was made."""
        ...

    def token(self) -> UUID:
        """128 bits that nobody can guess."""
        ...

    def name(self) -> str:
        """A short public name, unique for all practical purposes."""
        ...

    def fraction(self) -> float:
        """A number from 0 up to, and not including, 1."""
        ...


class Handle(Protocol):
    """Something that was spawned and can be waited for."""

    def join(self, timeout_seconds: float | None = None) -> None: ...


class Spawner(Protocol):
    """Starts threads and tasks."""

    def thread(self, body: Callable[[], None], *, name: str) -> Handle: ...

    def task(self, body: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]: ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_seconds(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemRandom:
    """The machine's entropy."""

    def job_id(self) -> UUID:
        return uuid_utils.compat.uuid7()

    def token(self) -> UUID:
        return UUID(bytes=secrets.token_bytes(16), version=4)

    def name(self) -> str:
        return secrets.token_hex(5)

    def fraction(self) -> float:
        return secrets.randbits(53) / (1 << 53)


class _ThreadHandle:
    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def join(self, timeout_seconds: float | None = None) -> None:
        self._thread.join(timeout_seconds)


class SystemSpawner:
    """Real threads and tasks of the running event loop."""

    def thread(self, body: Callable[[], None], *, name: str) -> Handle:
        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        return _ThreadHandle(thread)

    def task(self, body: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return asyncio.create_task(body, name=name)


@dataclass(frozen=True, slots=True)
class Seams:
    """What a role or a store is given of the world."""

    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=SystemRandom)
    spawn: Spawner = field(default_factory=SystemSpawner)


SYSTEM = Seams()
