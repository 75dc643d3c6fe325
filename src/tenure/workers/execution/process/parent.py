"""Jobs in processes that can be killed: the worker's side.

A child is a fresh interpreter, kept for one job after another, and one at a time. Whatever it does to itself costs the
attempt that it runs and nothing else; a job that is given up on ends with its process, and with all that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenure.errors import InvalidInput
from tenure.jobs.definition import JobDefinition
from tenure.lifecycle.json_text import encode
from tenure.observe.log_format import current_log_style
from tenure.seams import ProcessHandle, Seams, imported_by_a_child
from tenure.workers.execution.attempt import AttemptRun
from tenure.workers.execution.outcomes import Outcome, Raised
from tenure.workers.execution.process import child
from tenure.workers.execution.process.protocol import (
    HEADER,
    Begin,
    Ended,
    News,
    Ready,
    Reported,
    ToChild,
    check_size,
    framed,
    from_child,
)
from tenure.workers.supervisor.supervisor import how

WATCH_SECONDS = 0.1
"""How often a child's memory is measured, and the child told what there is to tell."""
LAST_WORDS_SECONDS = 1.0
REAP_SECONDS = 5.0
STARTS_MAX = 3
"""How often a child may die on its way up before its job is blamed."""
STATM = "/proc/{}/statm"

log = logging.getLogger("tenure.workers")


class ProcessExecutor:
    """Runs each job in a child process. There are never more children than jobs at a time."""

    def __init__(self, kinds: Mapping[str, JobDefinition[..., Any]], seams: Seams) -> None:
        """Refuses, before anything is claimed, kinds that a child could not run."""
        check_kinds(kinds)
        self._seams = seams
        self._all: set[Child] = set()
        self._idle: list[Child] = []
        self._closed = False
        # Children that nobody closed must not hold up the end of the interpreter, which waits for them.
        weakref.finalize(self, _kill_all, self._all, os.getpid())

    async def outcome(self, run: AttemptRun) -> Outcome:
        """What the job came to in its process. When this is cancelled, the process is killed."""
        for tries_left in reversed(range(STARTS_MAX)):
            one = await self._taken(run.kind.options.memory_bytes_max)
            try:
                ended = await one.work(run)
            except BaseException:
                await self._end(one)
                raise
            if isinstance(ended, Ended):
                self._idle.append(one)
                run.committer.artifacts.extend(ended.artifacts)
                return ended.outcome
            await self._end(one)
            if isinstance(ended, Raised):
                return ended
            if one.ready or not tries_left or self._closed:
                return _died(one)
            log.warning("a process %s before it was ready; another is started", how(one.exit_code))
        raise AssertionError("the last try returns")

    async def close(self) -> None:
        """End all of them."""
        self._closed = True
        for one in self._all:
            one.kill()
        for one in list(self._all):
            await self._end(one)

    async def _taken(self, memory_bytes_max: int | None) -> Child:
        """An idle child that fits, or a new one."""
        for one in reversed(self._idle):
            if one.alive and one.has_room(memory_bytes_max):
                self._idle.remove(one)
                return one
        if self._idle:
            # Dead, or too large: what an earlier job has left in its memory must not count against this one.
            await self._end(self._idle.pop())
        one = Child(self._seams)
        self._all.add(one)
        return one

    async def _end(self, one: Child) -> None:
        one.kill()
        await one.gone()
        self._all.discard(one)
        if one in self._idle:
            self._idle.remove(one)


class Child:
    """One child process and the line to it."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._line, theirs = socket.socketpair()
        self._line.settimeout(0)
        try:
            # From this thread, which lives as long as the worker: a child is told when the thread that started it ends.
            self._process: ProcessHandle = seams.spawn.process(child.main, theirs, name="tenure-child")
        except BaseException:
            self._line.close()
            raise
        finally:
            theirs.close()
        self.ready = False
        self._killed = False

    @property
    def alive(self) -> bool:
        return self._process.exit_code is None

    @property
    def exit_code(self) -> int:
        """How it ended; 0 while that is not known."""
        return self._process.exit_code or 0

    def has_room(self, memory_bytes_max: int | None) -> bool:
        """Whether it is slim enough for a job that may use so much."""
        return memory_bytes_max is None or 2 * resident_bytes(self._process.pid) <= memory_bytes_max

    async def work(self, run: AttemptRun) -> Ended | Raised | None:
        """How the job ended, or what it was ended for; None where the process ended instead."""
        spawn = self._seams.spawn.task
        telling = spawn(self._tell(run), name="tenure-child-told")
        hearing = spawn(self._hear(run), name="tenure-child-heard")
        watching = spawn(self._watch(run), name="tenure-child-watched")
        try:
            await asyncio.wait({hearing, watching, telling}, return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                # It ends by itself when the line does, which the others notice too; an error is an error of ours.
                telling.result()
                await asyncio.wait({hearing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not hearing.done() and watching.result() is None:
                # It is gone, but what it said last may still be on its way.
                await asyncio.wait({hearing}, timeout=LAST_WORDS_SECONDS)
            return hearing.result() if hearing.done() else watching.result()
        finally:
            for task in (telling, hearing, watching):
                task.cancel()
            await asyncio.wait({telling, hearing, watching})

    async def _tell(self, run: AttemptRun) -> None:
        """Give the child its job, then the news about it as they come."""
        with contextlib.suppress(OSError):
            await self._say(_begin(run))
            told = _news(run)
            while True:
                await self._seams.clock.sleep(WATCH_SECONDS)
                if (news := _news(run)) != told:
                    await self._say(news)
                    told = news

    async def _hear(self, run: AttemptRun) -> Ended | None:
        """Pass on what the child says until it says that the job has ended; None when its line ends first."""
        while True:
            try:
                [size] = HEADER.unpack(await self._exactly(HEADER.size))
                message = from_child.decode(await self._exactly(check_size(size)))
            except (EOFError, OSError):
                return None
            match message:
                case Ready():
                    self.ready = True
                case Reported(percent, text):
                    run.report(percent, text)
                case Ended():
                    return message

    async def _watch(self, run: AttemptRun) -> Raised | None:
        """An error once the child has too much memory; None once it has ended."""
        limit = run.kind.options.memory_bytes_max
        while self.alive:
            if limit is not None and (size := resident_bytes(self._process.pid)) > limit:
                return _exceeded(size, limit)
            await self._seams.clock.sleep(WATCH_SECONDS)
        return None

    async def _say(self, message: ToChild) -> None:
        await asyncio.get_running_loop().sock_sendall(self._line, framed(message))

    async def _exactly(self, size: int) -> bytearray:
        body = bytearray(size)
        rest = memoryview(body)
        while rest:
            received = await asyncio.get_running_loop().sock_recv_into(self._line, rest)
            if not received:
                raise EOFError("the child is gone")
            rest = rest[received:]
        return body

    def kill(self) -> None:
        """End it and all that its job has started. Once: later its number may be somebody else's."""
        if self._killed:
            return
        self._killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self.alive:
            # Before it has a group of its own.
            self._process.kill()

    async def gone(self) -> None:
        """Wait until the killed process is no more, and close the line: by then nobody listens there."""
        pause_seconds, waited_seconds = 0.001, 0.0
        while self.alive and waited_seconds < REAP_SECONDS:
            await self._seams.clock.sleep(pause_seconds)
            waited_seconds += pause_seconds
            pause_seconds = min(2 * pause_seconds, WATCH_SECONDS)
        if self.alive:
            log.error("process %d was killed and has not ended: the system is busy with it", self._process.pid)
        self._line.close()


def check_kinds(kinds: Mapping[str, JobDefinition[..., Any]]) -> None:
    """Refuse what could only fail later."""
    if imported_by_a_child():
        # Not an error that somebody might handle: this process must end, so that its worker hears of it.
        sys.exit(
            "tenure: this program starts its worker when it is imported, and the process of a job has just imported "
            "it; start the worker under `if __name__ == '__main__':`"
        )
    for kind in kinds.values():
        if kind.isolation == "process":
            _check_home(kind)
            if kind.options.memory_bytes_max is not None and not Path(STATM.format("self")).exists():
                raise InvalidInput(
                    f"{kind.name}: memory_bytes_max", "cannot be kept here: this system has no /proc to measure with"
                )


def _check_home(kind: JobDefinition[..., Any]) -> None:
    where = f"{kind.function.__module__}.{kind.function.__qualname__}"
    if kind.import_path is None:
        raise InvalidInput(
            kind.name,
            f"isolation='process' starts the function in a fresh process, which cannot find {where}; "
            f"move the function to a module, at its top level and under its own name",
        )
    if ":memory:" in child.declared(*kind.import_path).app.database:
        raise InvalidInput(
            kind.name,
            "isolation='process' needs a database that other processes see; use a file, sqlite:///jobs.db, in place "
            "of one in memory",
        )


def _home(kind: JobDefinition[..., Any]) -> tuple[str, str]:
    assert kind.import_path is not None, "a kind without a home is not sent to a process"
    return kind.import_path


def home_of(kind: JobDefinition[..., Any]) -> tuple[str, str]:
    """The module and the name to send. A package that is run with `python -m` is imported under its full name."""
    module, name = _home(kind)
    spec = getattr(sys.modules[module], "__spec__", None)
    if module == "__main__" and spec is not None and spec.name.endswith(".__main__"):
        return spec.name, name
    return module, name


def resident_bytes(pid: int) -> int:
    """How much memory a process has in use; 0 for one that is gone."""
    try:
        return int(Path(STATM.format(pid)).read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _begin(run: AttemptRun) -> Begin:
    module, name = home_of(run.kind)
    return Begin(
        module=module,
        name=name,
        database=child.declared(*_home(run.kind)).app.database,
        job=run.job,
        worker=run.held.actor.name,
        trusted_until_seconds=run.held.trusted_until_seconds,
        log_level=logging.getLogger().getEffectiveLevel(),
        log_style=current_log_style(),
    )


def _news(run: AttemptRun) -> News:
    return News(
        cancel_requested=run.job.cancel_requested,
        stopping=run.stopping,
        trusted_until_seconds=run.held.trusted_until_seconds,
    )


def _died(one: Child) -> Raised:
    when = "the process of the job" if one.ready else "the process was not up yet; it"
    return Raised(encode({"type": "ProcessDied", "message": f"{when} {how(one.exit_code)}"}))


def _exceeded(size: int, limit: int) -> Raised:
    said = f"the process of the job had {size} bytes in memory, and memory_bytes_max is {limit}; it was killed"
    return Raised(encode({"type": "MemoryExceeded", "message": said}))


def _kill_all(children: set[Child], owner: int) -> None:
    if os.getpid() == owner:
        for one in list(children):
            one.kill()
