"""Runs jobs in child processes that can be killed: the worker's side.

A child is a fresh interpreter that runs one job at a time and is reused. A crash costs the attempt that the child
runs and nothing else. An abandoned job ends with its process and with all that it started.
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
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from tenure.errors import InvalidInput
from tenure.jobs.definition import JobDefinition
from tenure.lifecycle.json_text import encode
from tenure.observe.log_format import current_log_style
from tenure.seams import ProcessHandle, Seams, imported_by_a_child
from tenure.workers.execution.attempt import RunningAttempt
from tenure.workers.execution.outcomes import Outcome, Raised, Snoozed
from tenure.workers.execution.process import child
from tenure.workers.execution.process.protocol import (
    HEADER,
    AttemptEnded,
    AttemptUpdate,
    CallEnded,
    CallFunction,
    ChildReady,
    ProgressReport,
    RunJob,
    ToChild,
    check_size,
    encode_frame,
    from_child,
)
from tenure.workers.execution.process.watchdog import ProcessGroupWatchdog
from tenure.workers.reconnect import ReconnectBackoff
from tenure.workers.supervisor.process import describe_exit

POLL_SECONDS = 0.1
"""How often a child's memory is measured, and changes of its lease are sent to it."""
LAST_MESSAGE_SECONDS = 1.0
REAP_SECONDS = 5.0
START_SECONDS_MIN, START_SECONDS_MAX = 1.0, 60.0
"""The backoff between starts of children while they fail."""
STATM = "/proc/{}/statm"

log = logging.getLogger("tenure.workers")


class ProcessExecutor:
    """Runs each job in a child process. There are never more children than jobs at a time.

    A child that cannot be started is a problem of this worker: the job is released without a failure.
    """

    def __init__(
        self, definitions: Mapping[str, JobDefinition[..., Any]], seams: Seams, load_job: child.LoadJob
    ) -> None:
        """Raises InvalidInput for definitions that a child could not run."""
        check_definitions(definitions, load_job)
        self._seams, self._load_job = seams, load_job
        self._all: set[StartedChild] = set()
        self._idle: list[StartedChild] = []
        self._starts = ChildStarts(seams)
        self._watchdog = ProcessGroupWatchdog()
        # The interpreter waits for its children when it ends, so an executor that was not closed must kill them.
        weakref.finalize(self, _kill_all, self._all, os.getpid())

    async def invoke(self, attempt: RunningAttempt) -> Outcome:
        """The job's outcome in its process. When this is cancelled, the process is killed."""
        one = await self._acquire(attempt.definition.options.memory_bytes_max)
        if one is None:
            return self._starts.released()
        try:
            ended = await one.run(attempt, self._message(attempt))
        except BaseException:
            await self._end(one)
            raise
        if one.ready:
            self._starts.succeeded()
        if isinstance(ended, AttemptEnded):
            self._idle.append(one)
            attempt.committer.artifacts.extend(ended.artifacts)
            return ended.outcome
        await self._end(one)
        if isinstance(ended, Raised):
            return ended
        if one.ready:
            return _died(one, "job")
        self._starts.failed(f"it {describe_exit(one.exit_code)} before it was ready")
        return self._starts.released()

    async def call(self, module: str, name: str, text: str, *, home: tuple[str, str] | None) -> str:
        """Await an async function of the program in a child process, with this text; the text that it returns.

        When this is cancelled, the process is killed. ProcessEnded: it has died. ProcessNotStarted: there was none.
        """
        one = await self._acquire(None)
        if one is None:
            raise ProcessNotStarted(self._starts.wait_seconds)
        level, style = logging.getLogger().getEffectiveLevel(), current_log_style()
        message = CallFunction(module=module, name=name, text=text, home=home, log_level=level, log_style=style)
        try:
            ended = await one.call(message)
        except BaseException:
            await self._end(one)
            raise
        if one.ready:
            self._starts.succeeded()
        if ended is not None:
            self._idle.append(one)
            if ended.text is None:
                raise ProcessEnded(ended.error or "{}")
            return ended.text
        await self._end(one)
        if one.ready:
            raise ProcessEnded(_died(one, "step").error)
        self._starts.failed(f"it {describe_exit(one.exit_code)} before it was ready")
        raise ProcessNotStarted(self._starts.wait_seconds)

    async def close(self) -> None:
        for one in self._all:
            one.kill()
        for one in list(self._all):
            await self._end(one)
        self._watchdog.close()

    def _message(self, attempt: RunningAttempt) -> RunJob:
        module, name = importable_home(attempt.definition)
        lease = attempt.lease
        return RunJob(
            module=module,
            name=name,
            database=self._load_job(*_home(attempt.definition)).app.database,
            job=lease.job,
            worker=lease.actor.name,
            where=attempt.database,
            local_deadline_seconds=lease.local_deadline_seconds,
            log_level=logging.getLogger().getEffectiveLevel(),
            log_style=current_log_style(),
        )

    async def _acquire(self, memory_bytes_max: int | None) -> StartedChild | None:
        """An idle child with enough memory left, or a new one; None if none can be started now."""
        for one in reversed(self._idle):
            if one.alive and one.has_room(memory_bytes_max):
                self._idle.remove(one)
                return one
        if self._idle:
            # Dead, or too large: the memory that earlier jobs left allocated must not count against this one.
            await self._end(self._idle.pop())
        if self._starts.wait_seconds > 0:
            return None
        try:
            self._watchdog.ensure_started()
            one = StartedChild(self._seams, self._load_job)
        except OSError as error:
            self._starts.failed(str(error))
            return None
        self._all.add(one)
        self._watchdog.add(one.pid)
        return one

    async def _end(self, one: StartedChild) -> None:
        one.kill()
        await one.reap()
        self._watchdog.discard(one.pid)
        self._all.discard(one)
        if one in self._idle:
            self._idle.remove(one)


class ProcessEnded(Exception):
    """The process of a call has ended without a reply, or could not make the call. The error is JSON text."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


class ProcessNotStarted(Exception):
    """No child process could be started now."""

    def __init__(self, wait_seconds: float) -> None:
        super().__init__(f"no child process could be started; the next try is in {wait_seconds:.1f} s")
        self.wait_seconds = wait_seconds


class ChildStarts:
    """The backoff of a worker that cannot start children: no memory, no process, or a program that fails at import."""

    def __init__(self, seams: Seams) -> None:
        self._clock = seams.clock
        self._backoff = ReconnectBackoff(seams, seconds_min=START_SECONDS_MIN, seconds_max=START_SECONDS_MAX)
        self._next_at_seconds = float("-inf")

    @property
    def wait_seconds(self) -> float:
        """How long no child is to be started; 0 if one may be started now."""
        return max(0.0, self._next_at_seconds - self._clock.monotonic_seconds())

    def failed(self, reason: str) -> None:
        if self.wait_seconds > 0:
            # Another start, made at the same time, has failed before.
            return
        seconds = self._backoff.next_seconds()
        self._next_at_seconds = self._clock.monotonic_seconds() + seconds
        log.error("child process not started: %s; its jobs are released, retrying in %.1f s", reason, seconds)

    def succeeded(self) -> None:
        self._backoff.reset()

    def released(self) -> Snoozed:
        """The outcome of a job whose child was not started: it has not failed."""
        return Snoozed(self.wait_seconds, "process_start_failed")


class StartedChild:
    """One child process and the connection to it."""

    def __init__(self, seams: Seams, load_job: child.LoadJob) -> None:
        self._seams = seams
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(0)
        try:
            # From this thread, which lives as long as the worker: the kernel signals a child when that thread ends.
            self._process: ProcessHandle = seams.spawn.process(child.main, theirs, load_job, name="tenure-child")
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self.ready = False
        self._killed = False

    @property
    def pid(self) -> int:
        """The process id, which is also that of its process group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.exit_code is None

    @property
    def exit_code(self) -> int:
        """The exit code; 0 while it is unknown."""
        return self._process.exit_code or 0

    def has_room(self, memory_bytes_max: int | None) -> bool:
        """Whether it uses at most half of the memory that a job may use."""
        return memory_bytes_max is None or 2 * resident_bytes(self._process.pid) <= memory_bytes_max

    async def run(self, attempt: RunningAttempt, message: RunJob) -> AttemptEnded | Raised | None:
        """How the job ended, or the limit that it exceeded; None if the process ended instead."""
        limit = attempt.definition.options.memory_bytes_max
        sending = self._send_updates(attempt, message)
        ended = await self._until_ended(sending, attempt.report, memory_bytes_max=limit)
        assert not isinstance(ended, CallEnded), "it was sent a job"
        return ended

    async def call(self, message: CallFunction) -> CallEnded | None:
        """How the call ended; None if the process ended instead."""
        ended = await self._until_ended(self._send_call(message), _no_progress, memory_bytes_max=None)
        assert ended is None or isinstance(ended, CallEnded), "it was sent a call"
        return ended

    async def _until_ended(
        self,
        sends: Coroutine[Any, Any, None],
        on_progress: Callable[[int, str | None], None],
        *,
        memory_bytes_max: int | None,
    ) -> AttemptEnded | CallEnded | Raised | None:
        spawn = self._seams.spawn.task
        sending = spawn(sends, name="tenure-child-sends")
        receiving = spawn(self._receive(on_progress), name="tenure-child-receives")
        watching = spawn(self._watch(memory_bytes_max), name="tenure-child-watches")
        try:
            await asyncio.wait({receiving, watching, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                # It ends when the connection does, which the other tasks notice too. Any other error is raised.
                sending.result()
                await asyncio.wait({receiving, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done() and watching.result() is None:
                # The process has ended, and its last message may still be in the socket.
                await asyncio.wait({receiving}, timeout=LAST_MESSAGE_SECONDS)
            return receiving.result() if receiving.done() else watching.result()
        finally:
            for task in (sending, receiving, watching):
                task.cancel()
            await asyncio.wait({sending, receiving, watching})

    async def _send_call(self, message: CallFunction) -> None:
        with contextlib.suppress(OSError):
            await self._send(message)

    async def _send_updates(self, attempt: RunningAttempt, message: RunJob) -> None:
        """Send the job, then each change of its lease."""
        with contextlib.suppress(OSError):
            await self._send(message)
            sent = _update(attempt)
            while True:
                await self._seams.clock.sleep(POLL_SECONDS)
                if (update := _update(attempt)) != sent:
                    await self._send(update)
                    sent = update

    async def _receive(self, on_progress: Callable[[int, str | None], None]) -> AttemptEnded | CallEnded | None:
        """Pass on progress until the job or call has ended; None if the connection ends first."""
        while True:
            try:
                [size] = HEADER.unpack(await self._exactly(HEADER.size))
                message = from_child.decode(await self._exactly(check_size(size)))
            except (EOFError, OSError):
                return None
            match message:
                case ChildReady():
                    self.ready = True
                case ProgressReport(percent, text):
                    on_progress(percent, text)
                case AttemptEnded() | CallEnded():
                    return message

    async def _watch(self, limit: int | None) -> Raised | None:
        """An error once the child exceeds its memory limit; None once it has ended."""
        while self.alive:
            if limit is not None and (size := resident_bytes(self._process.pid)) > limit:
                return _exceeded(size, limit)
            await self._seams.clock.sleep(POLL_SECONDS)
        return None

    async def _send(self, message: ToChild) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, encode_frame(message))

    async def _exactly(self, size: int) -> bytearray:
        body = bytearray(size)
        rest = memoryview(body)
        while rest:
            received = await asyncio.get_running_loop().sock_recv_into(self._socket, rest)
            if not received:
                raise EOFError("the child has ended")
            rest = rest[received:]
        return body

    def kill(self) -> None:
        """Kill it and all that its job has started. Once: later another process may have its id."""
        if self._killed:
            return
        self._killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self.alive:
            # It may not have created its process group yet.
            self._process.kill()

    async def reap(self) -> None:
        """Wait until the killed process has ended, and close the connection."""
        pause_seconds, waited_seconds = 0.001, 0.0
        while self.alive and waited_seconds < REAP_SECONDS:
            await self._seams.clock.sleep(pause_seconds)
            waited_seconds += pause_seconds
            pause_seconds = min(2 * pause_seconds, POLL_SECONDS)
        if self.alive:
            log.error("child process %d did not end within %.0f s of its kill", self._process.pid, REAP_SECONDS)
        self._socket.close()


def exit_if_imported_by_a_child() -> None:
    """End this process if a child imports a program that starts its worker when it is imported."""
    if imported_by_a_child():
        # Not an exception, which the program might catch: this process must end, so that its worker notices.
        sys.exit(
            "tenure: this program starts its worker when it is imported, and the process of a job has just imported "
            "it; start the worker under `if __name__ == '__main__':`"
        )


def _no_progress(_percent: int, _message: str | None) -> None:
    """A call reports none."""


def check_definitions(definitions: Mapping[str, JobDefinition[..., Any]], load_job: child.LoadJob) -> None:
    """Refuse definitions that could only fail later."""
    exit_if_imported_by_a_child()
    for definition in definitions.values():
        if definition.isolation == "process":
            _check_home(definition, load_job)
            if definition.options.memory_bytes_max is not None and not Path(STATM.format("self")).exists():
                raise InvalidInput(
                    f"{definition.name}: memory_bytes_max",
                    "cannot be enforced here: this system has no /proc to measure memory with",
                )


def _check_home(definition: JobDefinition[..., Any], load_job: child.LoadJob) -> None:
    function = f"{definition.function.__module__}.{definition.function.__qualname__}"
    if definition.import_path is None:
        raise InvalidInput(
            definition.name,
            f"isolation='process' starts the function in a fresh process, which cannot find {function}; "
            f"move the function to a module, at its top level and under its own name",
        )
    if ":memory:" in load_job(*definition.import_path).app.database:
        raise InvalidInput(
            definition.name,
            "isolation='process' needs a database that other processes see; use a file, sqlite:///jobs.db, in place "
            "of one in memory",
        )


def _home(definition: JobDefinition[..., Any]) -> tuple[str, str]:
    assert definition.import_path is not None, "a definition without a home is not sent to a process"
    return definition.import_path


def importable_home(definition: JobDefinition[..., Any]) -> tuple[str, str]:
    """The module and name to send. A package that runs with `python -m` is imported under its full name."""
    module, name = _home(definition)
    return importable_module(module), name


def importable_module(module: str) -> str:
    """The name under which a child imports the module."""
    spec = getattr(sys.modules[module], "__spec__", None)
    is_package = module == "__main__" and spec is not None and spec.name.endswith(".__main__")
    return spec.name if is_package and spec is not None else module


def resident_bytes(pid: int) -> int:
    """The resident memory of a process; 0 if it has ended."""
    try:
        return int(Path(STATM.format(pid)).read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _update(attempt: RunningAttempt) -> AttemptUpdate:
    return AttemptUpdate(
        cancel_reason=attempt.job.cancel_reason,
        stopping=attempt.stopping,
        local_deadline_seconds=attempt.lease.local_deadline_seconds,
    )


def _died(one: StartedChild, what: str) -> Raised:
    message = f"the process of the {what} {describe_exit(one.exit_code)}"
    return Raised(encode({"type": "ProcessDied", "message": message}))


def _exceeded(size: int, limit: int) -> Raised:
    message = f"the process of the job had {size} bytes in memory, and memory_bytes_max is {limit}; it was killed"
    return Raised(encode({"type": "MemoryExceeded", "message": message}))


def _kill_all(children: set[StartedChild], owner: int) -> None:
    if os.getpid() == owner:
        for one in list(children):
            one.kill()
