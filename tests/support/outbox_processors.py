"""Outbox processors in processes of their own, which a test kills."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Processors:
    """Processes that deliver to endpoints, each named after the last part of its URL. A killed one is replaced."""

    def __init__(self, database: str, urls: Sequence[str], *, count: int) -> None:
        self._command = [sys.executable, "-m", "tests.support.outbox_process", database, *urls]
        self.running = [self._started() for _ in range(count)]

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def kill(self, place: int) -> None:
        self.running[place].kill()
        self.running[place].wait()
        self.running[place] = self._started()

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
