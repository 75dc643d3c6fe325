"""One child process: its messages, its memory limit, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tenure.lifecycle.json_text import encode
from tenure.seams import ProcessHandle, Seams
from tenure.workers.execution.attempt import RunningAttempt
from tenure.workers.execution.outcomes import Raised
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

POLL_SECONDS = 0.1
"""How often a child's memory is measured, and changes of its lease are sent to it."""
LAST_MESSAGE_SECONDS = 1.0
REAP_SECONDS = 5.0
STATM = "/proc/{}/statm"

log = logging.getLogger("tenure.workers")


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


def _no_progress(_percent: int, _message: str | None) -> None:
    """A call reports none."""


def can_measure_memory() -> bool:
    """Whether the system shows the memory of a process."""
    return Path(STATM.format("self")).exists()


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


def _exceeded(size: int, limit: int) -> Raised:
    message = f"the process of the job had {size} bytes in memory, and memory_bytes_max is {limit}; it was killed"
    return Raised(encode({"type": "MemoryExceeded", "message": message}))
