"""Processes that die on demand, from the side of the test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tests.crash.victim import Death, Order, Report

ROOT = Path(__file__).parents[2]


class Mortals:
    """One program that forks a process for each death. It ends with its input, so that it never outlives us."""

    def __enter__(self) -> Self:
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.victim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            process_group=0,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.close()
        self._program.wait(60)
        self._program.stdout.close()

    def send(self, order: Order) -> Death:
        """Let one live, and say how it ended."""
        self._say(msgspec.json.encode(order))
        return self._checked(self._hear())

    def send_under(self, order: Order, tracer: Callable[[int], AbstractContextManager[None]]) -> Death:
        """The same for one that begins once the tracer of its process id has been entered."""
        self._say(msgspec.json.encode(msgspec.structs.replace(order, held=True)))
        waiting = self._hear()
        with tracer(waiting.pid):
            self._say(b"go")
            death = self._hear()
        return self._checked(death)

    def survived(self, order: Order) -> Report:
        """The report of one that nothing happens to."""
        death = self.send(order)
        assert death.report is not None, f"it should have lived: {death}"
        return death.report

    def _checked(self, death: Death) -> Death:
        assert death.report is None or death.report.broken is None, death.report.broken
        return death

    def _say(self, line: bytes) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(line + b"\n")
        self._program.stdin.flush()

    def _hear(self) -> Death:
        assert self._program.stdout is not None
        line = self._program.stdout.readline()
        assert line, "the program that forks has ended"
        return msgspec.json.decode(line, type=Death)
