"""Clock, randomness and spawning: the only places where tenure touches the world's time, chance and threads.

Everything else receives what it needs from here, so that the real roles can run in a simulator. A lint rule
keeps the rest of the house from reaching for `time`, `random`, `threading` or the default event loop.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.context import SpawnProcess
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


class ProcessHandle(Handle, Protocol):
    """A process that was spawned, and can be ended from outside."""

    @property
    def pid(self) -> int: ...

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        ...

    def kill(self) -> None: ...


class Spawner(Protocol):
    """Starts threads, tasks and processes."""

    def thread(self, body: Callable[[], None], *, name: str) -> Handle: ...

    def task(self, body: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]: ...

    def process(self, body: Callable[..., None], *arguments: Any, name: str) -> ProcessHandle:
        """A fresh interpreter, never a fork: nothing of this process is carried over but the arguments."""
        ...


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


class _ProcessHandle:
    def __init__(self, process: SpawnProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None, "a process that was started has a pid"
        return pid

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def join(self, timeout_seconds: float | None = None) -> None:
        self._process.join(timeout_seconds)

    def kill(self) -> None:
        self._process.kill()


class SystemSpawner:
    """Real threads and processes, and tasks of the running event loop."""

    def thread(self, body: Callable[[], None], *, name: str) -> Handle:
        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        return _ThreadHandle(thread)

    def task(self, body: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return asyncio.create_task(body, name=name)

    def process(self, body: Callable[..., None], *arguments: Any, name: str) -> ProcessHandle:
        process = multiprocessing.get_context("spawn").Process(
            target=_begun, args=(body, *arguments), name=name, daemon=True
        )
        process.start()
        return _ProcessHandle(process)


def _begun(body: Callable[..., None], *arguments: Any) -> None:
    # It is a daemon so that whoever started it does not wait for it when they end. What it runs is free to start
    # processes of its own, which a daemon would not be.
    multiprocessing.current_process().daemon = False
    body(*arguments)


def imported_by_a_child() -> bool:
    """Whether this is a process that was just spawned, and still imports the program that it was spawned from."""
    return "--multiprocessing-fork" in sys.orig_argv and multiprocessing.parent_process() is None


@dataclass(frozen=True, slots=True)
class Seams:
    """What a role or a store is given of the world."""

    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=SystemRandom)
    spawn: Spawner = field(default_factory=SystemSpawner)


SYSTEM = Seams()
