"""A worker as a program of its own: a fresh interpreter in a process group of its own, with one line to its supervisor.

The group of its own keeps a terminal's interrupt away from it: what it hears of a stop comes from the supervisor alone,
and not twice.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import IO

Output = int | IO[bytes] | None
"""Where a program's output goes: a descriptor, a file, or None for where ours goes."""


class WorkerProcess:
    """One started program. `line` is our end of the socket whose other end it holds; it ends when either of us does."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        *,
        output: Output = None,
        errors: Output = None,
    ) -> None:
        """Start what `command` says for the descriptor of the program's end of the line."""
        self.line, theirs = socket.socketpair()
        with theirs:
            try:
                # Not the spawner's process: that one shares our terminal's signals, and may have no children itself.
                self._process = subprocess.Popen(  # noqa: TID251 - the one place that starts a program
                    command(theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
            except BaseException:
                self.line.close()
                raise
        self.line.settimeout(0)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._process.poll()

    def say(self, word: bytes) -> None:
        """Send a word down the line. One that cannot take it is at its end, or is ended by its limit."""
        try:
            self.line.send(word)
        except OSError:
            return

    def kill(self) -> None:
        """End it on the spot, unless it has ended: nobody else can have its id before we have taken note of that."""
        if self.exit_code is None:
            self._process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Let go of the line and of what is left of the process."""
        self.line.close()
        self._process.wait()


def describe_exit(exit_code: int) -> str:
    """How a process ended.

    >>> describe_exit(-9)
    'was ended by SIGKILL'
    """
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"
