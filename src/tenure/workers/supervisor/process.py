"""A worker process: a fresh interpreter in its own process group, with a control channel to its supervisor.

In its own process group it does not receive a terminal's interrupt: a stop comes from the supervisor alone, once.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import IO

Output = int | IO[bytes] | None
"""Where the output of a process goes: a descriptor, a file, or None for the output of this process."""


class WorkerProcess:
    """A started worker process. `connection` is the supervisor's end of its control channel."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        *,
        output: Output = None,
        errors: Output = None,
    ) -> None:
        """Start the command that `command` returns for the descriptor of the worker's end of the channel."""
        self.connection, workers_end = socket.socketpair()
        with workers_end:
            try:
                # Not the spawner's process, which shares this terminal's signals and may not have children.
                self._process = subprocess.Popen(  # noqa: TID251 - the one place that starts a program
                    command(workers_end.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    pass_fds=(workers_end.fileno(),),
                    process_group=0,
                )
            except BaseException:
                self.connection.close()
                raise
        self.connection.settimeout(0)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._process.poll()

    def send(self, command: bytes) -> None:
        """Send a command. A process that cannot receive it is ending, or is killed at its limit."""
        try:
            self.connection.send(command)
        except OSError:
            return

    def kill(self) -> None:
        """Kill it, unless it has ended: until its exit code was read, no other process can have its pid."""
        if self.exit_code is None:
            self._process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the channel, and reap the process."""
        self.connection.close()
        self._process.wait()


def describe_exit(exit_code: int) -> str:
    """How a process ended.

    >>> describe_exit(-9)
    'was killed by SIGKILL'
    """
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
