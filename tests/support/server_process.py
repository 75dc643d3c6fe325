"""Server programs that a test starts: under an account without privileges, and no longer than the test process lives.

This module has what all servers share; what is specific to one of them is in that server's module.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOCKET_FOLDER_LENGTH_MAX = 60  # A socket's path may have about 100 characters, its file name included.
MEMORY_FOLDER = "/dev/shm"
MEMORY_BYTES_MIN = 4 * 2**30
"""What must be free in it. The databases of a test run need a few hundred megabytes."""

# It waits on a pipe that only this process holds. A byte means a regular end; the end of the file means that this
# process has died.
WATCHDOG = """
read -r word && exit 0
kill -QUIT "$1"
tries=0
while kill -0 "$1" && [ "$tries" -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
rm -rf "$2"
"""


class ServerFailed(Exception):
    """A program did not start or stop in time; the message ends with the end of its log."""


@dataclass(frozen=True, slots=True)
class Account:
    """The account that a program runs under."""

    uid: int
    gid: int

    def as_arguments(self) -> dict[str, Any]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.uid != os.geteuid() else {}


def unprivileged_account() -> Account:
    """The current account, unless it is root."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = known.get("postgres") or known["nobody"]
    return Account(entry.pw_uid, entry.pw_gid)


def temporary_folder(account: Account, *, in_memory: bool = False) -> Path:
    """A folder of the account whose path is short enough for a socket in it.

    With `in_memory` it is on a file system in memory where the machine has one with enough free space.
    """
    above = tempfile.gettempdir()
    if in_memory:
        above = memory_folder() or above
    folder = Path(tempfile.mkdtemp(prefix="tenure-", dir="/tmp" if len(above) > SOCKET_FOLDER_LENGTH_MAX else above))
    os.chown(folder, account.uid, account.gid)
    return folder


def memory_folder() -> str | None:
    """A folder on a file system in memory; None where the machine has none with enough free space."""
    try:
        room = os.access(MEMORY_FOLDER, os.W_OK | os.X_OK) and shutil.disk_usage(MEMORY_FOLDER).free >= MEMORY_BYTES_MIN
    except OSError:
        return None
    return MEMORY_FOLDER if room else None


def free_port() -> int:
    """A port of the loopback address that is free now; another program may take it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Whether the condition held in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()


def children_of(pid: int) -> list[int]:
    """The direct children; none where the system has no such list."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def command_of(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


class Supervised:
    """A program that runs under an account in a folder, logs into it, and does not outlive this process.

    A watchdog process ends it when this process dies, and removes the folder. A parent-death signal of the kernel would
    be simpler, but it is bound to the thread that started the program.
    """

    def __init__(self, command: Sequence[str | Path], *, folder: Path, account: Account) -> None:
        # A terminal's interrupt goes to its whole session. These programs have their own, so that the test decides when
        # they end.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,
                **account.as_arguments(),
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "watchdog", str(self.process.pid), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            **account.as_arguments(),
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def end(self, *requests: tuple[signal.Signals, float]) -> None:
        """Send each signal, wait that many seconds after it, and kill what is left."""
        for request, seconds in requests:
            self.process.send_signal(request)
            if wait_until(lambda: not self.running, seconds=seconds):
                break
        else:
            self.process.kill()
            self.process.wait()
        self.dismiss_watchdog()

    def dismiss_watchdog(self) -> None:
        self._watchdog.communicate(b"ended\n", timeout=10)
