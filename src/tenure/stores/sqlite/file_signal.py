"""Wake-ups between the processes that use one file, through the kernel. A sender opens the file `-lock` for writing and
closes it; Linux reports that to every process that watches it (inotify). Nothing is written, and no name is sent.

They are an optimisation: where a process cannot watch the file, or receives nothing, it polls.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tenure.stores.sqlite.file_lock import open_beside

CLOSED_AFTER_WRITING = 0x8
"""IN_CLOSE_WRITE of inotify: other stores open the file for reading only, to lock it."""
EVENT_BYTES_MAX = 4096

_log = logging.getLogger("tenure.stores.sqlite")


class FileSignal:
    """A signal without content to all processes that use a database file, this one included."""

    def __init__(self, path: str) -> None:
        # As the file lock does: beside the file that a link leads to.
        self._path = os.path.realpath(path)

    def send(self) -> None:
        """Signal the processes that watch. If there is no file, none does. From any thread."""
        if sys.platform == "linux":
            with suppress(OSError):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(f"{self._path}-lock", flags))

    @contextmanager
    def watched(self, received: Callable[[], None]) -> Iterator[None]:
        """Call `received` on this event loop for each signal, or never."""
        loop = asyncio.get_running_loop()
        watch: int | None = None
        if sys.platform == "linux":
            try:
                watch = _watch(self._path)
                loop.add_reader(watch, _drain, watch, received)
            except (OSError, AttributeError, ImportError, NotImplementedError) as problem:
                _log.info("%s is polled for the work of other processes: %s", self._path, problem)
        try:
            yield
        finally:
            if watch is not None:
                with suppress(NotImplementedError):
                    loop.remove_reader(watch)
                os.close(watch)


def _watch(path: str) -> int:
    """A file descriptor that becomes readable after each signal."""
    # Only a process that waits for work needs it.
    import ctypes

    os.close(open_beside(path, "-lock"))
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if watch < 0 or libc.inotify_add_watch(watch, os.fsencode(f"{path}-lock"), CLOSED_AFTER_WRITING) < 0:
        number = ctypes.get_errno()
        if watch >= 0:
            os.close(watch)
        raise OSError(number, os.strerror(number))
    return int(watch)


def _drain(watch: int, received: Callable[[], None]) -> None:
    with suppress(BlockingIOError):
        os.read(watch, EVENT_BYTES_MAX)
    received()
