"""Stops a long-running process by signals: the first stops, the second aborts, the third exits at once. A signal within
two seconds of the one before it is the same request. A SIGHUP stops, however often it comes.

A stop or abort that exceeds its time limit exits, too. A thread reads the signals from a socket, so that they take
effect while a job blocks the event loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType

from tenure.seams import Clock, Seams

STOP, ABORT, EXIT = 1, 2, 3
EXIT_SECONDS_MAX = 5.0
"""The time for the process to exit after its work, for example for a thread that a job did not end."""
SAME_SECONDS = 2.0
"""Closer signals are one request: `timeout` and process managers signal a process and its group."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LEVELS = 200
"""Bytes above this one are levels; those below are signal numbers, which the interpreter writes."""
_WORK_ENDED = 255


class SignalLevels:
    """Turns signals into levels: STOP, then ABORT, then EXIT."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._level = 0
        self._raised_at_seconds = 0.0

    def level_of(self, number: int) -> int:
        """The level that this signal requests. One that comes too soon after a level was raised repeats that level."""
        if number == signal.SIGHUP:
            # Sent by a terminal that closes, and by some process managers beside SIGTERM: it only ever stops.
            return STOP
        now_seconds = self._clock.monotonic_seconds()
        if self._level == 0 or now_seconds - self._raised_at_seconds >= SAME_SECONDS:
            self._level += 1
            self._raised_at_seconds = now_seconds
        return self._level


class StopSignals:
    """Receives signals and `request`, and exits the process when a time limit is exceeded."""

    def __init__(self, *, stop_seconds_max: float, abort_seconds_max: float, seams: Seams) -> None:
        self._limits_seconds = {STOP: stop_seconds_max, ABORT: abort_seconds_max}
        self._seams = seams
        self._reader, self._writer = socket.socketpair()
        self._writer.settimeout(0)
        self._levels = SignalLevels(seams.clock)
        self._signal: int = signal.SIGTERM
        self._level = 0
        self._exits_at_seconds: float | None = None

    @property
    def exit_code(self) -> int:
        """0 after a stop; after an abort 128 + the signal's number, as in a shell."""
        return 0 if self._level < ABORT else 128 + self._signal

    def listen(self, *, stop: Callable[[], None], abort: Callable[[], None]) -> None:
        """Call these on the running event loop from now on. Signals have no other effect."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            # `nohup` has a process ignore SIGHUP.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _ignore)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._seams.spawn.thread(lambda: self._receive(loop, {STOP: stop, ABORT: abort}), name="tenure-signals")

    def request(self, level: int) -> None:
        """Request STOP or ABORT. No effect if the same or more was requested before."""
        self._writer.send(bytes((_LEVELS + level,)))

    def work_ended(self) -> None:
        """The work has ended: the process exits soon, even if a thread of a job continues."""
        self._writer.send(bytes((_WORK_ENDED,)))

    def _receive(self, loop: asyncio.AbstractEventLoop, actions: dict[int, Callable[[], None]]) -> None:
        while True:
            try:
                byte = self._next()
            except TimeoutError:
                self._exit("stopping took too long", 128 + self._signal)
            else:
                self._handle(byte, loop, actions)

    def _next(self) -> int:
        exits_at = self._exits_at_seconds
        left = None if exits_at is None else max(0.01, exits_at - self._seams.clock.monotonic_seconds())
        self._reader.settimeout(left)
        return self._reader.recv(1)[0]

    def _handle(self, byte: int, loop: asyncio.AbstractEventLoop, actions: dict[int, Callable[[], None]]) -> None:
        if byte == _WORK_ENDED:
            self._exit_soon()
        level = self._level_of(byte)
        if level <= self._level:
            return
        self._level = level
        if level >= EXIT:
            self._exit("third signal", 128 + self._signal)
        try:
            loop.call_soon_threadsafe(actions[level])
        except RuntimeError:
            self._exit("the event loop is closed", 128 + self._signal)
        self._exit_within(self._limits_seconds[level])

    def _level_of(self, byte: int) -> int:
        if byte > _LEVELS:
            return byte - _LEVELS
        if byte not in SIGNALS:
            return 0
        if byte != signal.SIGHUP:
            self._signal = byte
        return self._levels.level_of(byte)

    def _exit_soon(self) -> None:
        self._exit_within(EXIT_SECONDS_MAX)
        try:
            while self._level_of(self._next()) <= self._level:
                continue
        except TimeoutError:
            pass
        self._exit("a thread of a job has not ended", self.exit_code)

    def _exit_within(self, seconds: float) -> None:
        self._exits_at_seconds = self._seams.clock.monotonic_seconds() + seconds

    def _exit(self, why: str, exit_code: int) -> None:
        """Exit without cleanup: remaining leases expire, and recovery requeues their jobs."""
        os.write(2, f"tenure: {why}; exiting now\n".encode())
        os._exit(exit_code)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """The interpreter writes the signal to the socket."""
