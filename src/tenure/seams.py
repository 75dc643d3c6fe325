"""Clock, randomness and spawning: the only module that uses the system's time, entropy, threads and processes.

Stores and roles receive a `Seams`, so that the same code runs in a simulator. A lint rule refuses `time`, `random`,
`threading`, `subprocess` and task creation elsewhere.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol, TypeVar
from uuid import UUID

import uuid_utils.compat

from tenure.errors import InvalidInput

T = TypeVar("T")


class Clock(Protocol):
    """`now` is wall-clock time, for records and logs; `monotonic_seconds` measures durations."""

    def now(self) -> datetime: ...

    def monotonic_seconds(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class Random(Protocol):
    """Ids, secrets and jitter."""

    def job_id(self) -> UUID:
        """A UUIDv7: unique, and ordered by creation time."""
        ...

    def token(self) -> UUID:
        """An unguessable 128-bit secret."""
        ...

    def name(self) -> str:
        """A short public name, unique within a fleet with high probability."""
        ...

    def fraction(self) -> float:
        """A number in [0, 1)."""
        ...


class JoinHandle(Protocol):
    """A started thread or process that can be waited for."""

    def join(self, timeout_seconds: float | None = None) -> None: ...


class ProcessHandle(JoinHandle, Protocol):
    """A started process that can be killed."""

    @property
    def pid(self) -> int: ...

    @property
    def exit_code(self) -> int | None:
        """None while the process runs; negative if a signal ended it."""
        ...

    def kill(self) -> None: ...


class Spawner(Protocol):
    """Starts threads, tasks and processes."""

    def thread(self, body: Callable[[], None], *, name: str) -> JoinHandle: ...

    def task(self, body: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]: ...

    def process(self, body: Callable[..., None], *arguments: Any, name: str) -> ProcessHandle:
        """A new interpreter, never a fork: the child inherits the arguments and no other state."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_seconds(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_FORK_MASK_BITS = 32
"""The last bits of an id, which are random. Ids of one process keep their order."""
_fork_mask = 0


def _change_fork_mask() -> None:
    """A forked child may have inherited the generator's state, and would repeat the ids of its siblings."""
    global _fork_mask  # noqa: PLW0603 - one generator per process
    _fork_mask = secrets.randbits(_FORK_MASK_BITS) or 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_change_fork_mask)


class SystemRandom:
    """The machine's entropy."""

    def job_id(self) -> UUID:
        made = uuid_utils.compat.uuid7()
        return UUID(int=made.int ^ _fork_mask) if _fork_mask else made

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

    def thread(self, body: Callable[[], None], *, name: str) -> JoinHandle:
        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        return _ThreadHandle(thread)

    def task(self, body: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return asyncio.create_task(body, name=name)

    def process(self, body: Callable[..., None], *arguments: Any, name: str) -> ProcessHandle:
        process = multiprocessing.get_context("spawn").Process(
            target=_run_in_child, args=(body, *arguments), name=name, daemon=True
        )
        process.start()
        return _ProcessHandle(process)


def _run_in_child(body: Callable[..., None], *arguments: Any) -> None:
    # A daemon, so that the parent's exit does not wait for it; reset here, since a daemon must not start processes.
    multiprocessing.current_process().daemon = False
    body(*arguments)


UNGUARDED = (
    "tenure: this program enqueues jobs or starts its worker when it is imported, and the process of a job has just "
    "imported it; do so under `if __name__ == '__main__':`\n"
)

_importing: list[str] = []
"""The module that a command or a child imports at the time."""


@contextmanager
def importing(module: str) -> Iterator[None]:
    """While a module of the user's program is imported for what it declares, a use of its app is refused."""
    if module in sys.modules:  # Nothing is executed, and other threads may use the app.
        yield
        return
    _importing.append(module)
    try:
        yield
    finally:
        _importing.pop()


def imported_by_a_child() -> bool:
    """Whether this process is a spawned child that is still importing its parent's main module."""
    return "--multiprocessing-fork" in sys.orig_argv and multiprocessing.parent_process() is None


def refuse_use_at_import() -> None:
    """Raise InvalidInput, or end a child, if a program enqueues jobs or starts a worker when it is imported."""
    if imported_by_a_child():
        # Not an exception, which the program might catch: this process must end, so that its worker notices.
        os.write(2, UNGUARDED.encode())
        os._exit(1)
    if _importing:
        raise InvalidInput(
            _importing[-1],
            "uses the database when it is imported, to enqueue jobs or to run a worker; do so under "
            "`if __name__ == '__main__':`",
        )


@dataclass(frozen=True, slots=True)
class Seams:
    """The clock, randomness and spawner that a store or a role uses."""

    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=SystemRandom)
    spawn: Spawner = field(default_factory=SystemSpawner)


SYSTEM = Seams()


SeededRandom = random.Random
"""A generator whose numbers follow from its seed alone."""


def seeded_random(seed: str) -> SeededRandom:
    """A generator for what must be the same in every attempt. Not for secrets."""
    return random.Random(seed)
