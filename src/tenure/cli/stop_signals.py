"""How a process that works for ever is brought to its end: asked once it stops, asked twice it aborts, and at the third
time, or when it takes too long, it is over at once.

Signals are read off a socket by a thread, so that they are heard also while a job keeps the event loop busy.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType

from tenure.seams import Seams

STOP, ABORT, OVER = 1, 2, 3
LEAVE_SECONDS_MOST = 5.0
"""What is left of a process after its work may take this long, such as a thread that a job has left behind."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LEVELS = 200
"""Bytes above this one are levels; those below are numbers of signals, which the interpreter writes."""
_LEAVE = 255


class Stopping:
    """Listens for whatever asks for the end. A process that takes longer than it may is ended, whatever it does."""

    def __init__(self, *, stop_seconds_most: float, abort_seconds_most: float, seams: Seams) -> None:
        self._limits_seconds = {STOP: stop_seconds_most, ABORT: abort_seconds_most}
        self._seams = seams
        self._ours, self._theirs = socket.socketpair()
        self._theirs.settimeout(0)
        self._signals = 0
        self._signal: int = signal.SIGTERM
        self._level = 0
        self._ends_at_seconds: float | None = None

    @property
    def exit_code(self) -> int:
        """0 after a stop, and what a shell would say after an abort: 128 and the number of the signal."""
        return 0 if self._level < ABORT else 128 + self._signal

    def heed(self, *, stop: Callable[[], None], abort: Callable[[], None]) -> None:
        """From now on call these on the running event loop when they are asked for. Signals do nothing else."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            signal.signal(number, _nothing)
        signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        self._seams.spawn.thread(lambda: self._listen(loop, {STOP: stop, ABORT: abort}), name="tenure-stopping")

    def ask(self, level: int) -> None:
        """Ask for this much of an end. Asked for as much or more before, it changes nothing."""
        self._theirs.send(bytes((_LEVELS + level,)))

    def leave(self) -> None:
        """The work is over. Whatever else keeps the process from ending has a little time, and is then left."""
        self._theirs.send(bytes((_LEAVE,)))

    def _listen(self, loop: asyncio.AbstractEventLoop, actions: dict[int, Callable[[], None]]) -> None:
        while True:
            try:
                heard = self._next()
            except TimeoutError:
                self._over("it took too long to stop", 128 + self._signal)
            else:
                self._heard(heard, loop, actions)

    def _next(self) -> int:
        ends_at = self._ends_at_seconds
        left = None if ends_at is None else max(0.01, ends_at - self._seams.clock.monotonic_seconds())
        self._ours.settimeout(left)
        return self._ours.recv(1)[0]

    def _heard(self, byte: int, loop: asyncio.AbstractEventLoop, actions: dict[int, Callable[[], None]]) -> None:
        if byte == _LEAVE:
            self._leave()
        level = self._level_of(byte)
        if level <= self._level:
            return
        self._level = level
        if level >= OVER:
            self._over("asked a third time", 128 + self._signal)
        try:
            loop.call_soon_threadsafe(actions[level])
        except RuntimeError:
            self._over("its event loop is closed", 128 + self._signal)
        self._end_within(self._limits_seconds[level])

    def _level_of(self, byte: int) -> int:
        if byte > _LEVELS:
            return byte - _LEVELS
        if byte not in SIGNALS:
            return 0
        self._signal = byte
        self._signals += 1
        return self._signals

    def _leave(self) -> None:
        self._end_within(LEAVE_SECONDS_MOST)
        try:
            while self._next() not in SIGNALS:
                continue
        except TimeoutError:
            pass
        self._over("something that a job has left behind goes on and is not waited for", self.exit_code)

    def _end_within(self, seconds: float) -> None:
        self._ends_at_seconds = self._seams.clock.monotonic_seconds() + seconds

    def _over(self, why: str, exit_code: int) -> None:
        """Nothing is tidied up any more: leases that are still held run out, and recovery takes their jobs."""
        os.write(2, f"tenure: {why}; this process ends now\n".encode())
        os._exit(exit_code)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """The socket has heard of it."""
