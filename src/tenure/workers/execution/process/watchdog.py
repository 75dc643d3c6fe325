"""Kills the process groups of a worker's children when the worker dies, however it dies.

The kernel kills a child together with its worker (`PR_SET_PDEATHSIG`), but not the programs that the child's job has
started. So a small process beside the worker has the ids of all children's groups, and kills the groups when its pipe
from the worker is closed. It runs no user code, and leaves no process behind when the worker ends normally.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

PROGRAM = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""
"""Reads `+id` and `-id` lines until the worker's end of the pipe is closed."""
END_SECONDS_MAX = 5.0


class ProcessGroupWatchdog:
    """The watchdog of one worker. `ensure_started` is called before each child is started."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None  # noqa: TID251 - a type

    def ensure_started(self) -> None:
        """Start the watchdog, unless it runs. Raises OSError if that fails."""
        if self._process is None or self._process.poll() is not None:
            self._start()

    def add(self, group: int) -> None:
        """Kill this group if the worker dies."""
        self._groups.add(group)
        self._send(f"+{group}\n")

    def discard(self, group: int) -> None:
        """The worker has ended this group itself."""
        self._groups.discard(group)
        self._send(f"-{group}\n")

    def close(self) -> None:
        """End the watchdog. Groups that it still has are killed."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        self.close()
        # Its own session: it gets no signals of the terminal, and none that are sent to the worker's group. No output
        # is inherited, so that a reader of the worker's output sees its end when the worker ends.
        self._process = subprocess.Popen(  # noqa: TID251 - not the spawner's: it must outlive this process
            [sys.executable, "-I", "-S", "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._send("".join(f"+{group}\n" for group in sorted(self._groups)))

    def _send(self, lines: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            # A watchdog that was killed is replaced when the next child is started.
            with contextlib.suppress(OSError):
                os.write(self._process.stdin.fileno(), lines.encode())
