"""The command `tenure` on a terminal, for tests of prompts and colours."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Terminal:
    """A command whose input and output is a terminal."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tenure", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": "xterm", "COLUMNS": "200", "NO_COLOR": "1"},
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def read_until(self, words: str, *, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < deadline, f"{words!r} did not come: {self.text!r}"
            if not self._read():
                break
        assert words in self.text, self.text

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], 0.2)
        if not ready:
            return self._process.poll() is None
        try:
            piece = os.read(self._ours, 65536)
        except OSError:
            return False
        self.text += piece.decode()
        return bool(piece)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Its exit code, once it has ended."""
        while self._read():
            pass
        return self._process.wait(timeout=60)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(timeout=60)
        os.close(self._ours)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    shown = Terminal(*arguments)
    try:
        yield shown
    finally:
        shown.close()
