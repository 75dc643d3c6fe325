"""The test's side of the processes that kill themselves at a crash point."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tests.crash.crashing_process import Command, ProcessEnd, Report

ROOT = Path(__file__).parents[2]


class CrashProcesses:
    """A process that forks a child for each command. It ends with its standard input, so that it does not outlive the
    test."""

    def __enter__(self) -> Self:
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.crashing_process"],
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

    def run(self, command: Command) -> ProcessEnd:
        """Run a child and return how it ended."""
        self._write_line(msgspec.json.encode(command))
        return self._require_no_test_error(self._read_end())

    def run_traced(self, command: Command, tracer: Callable[[int], AbstractContextManager[None]]) -> ProcessEnd:
        """Run a child that starts once the tracer of its process id is attached."""
        self._write_line(msgspec.json.encode(msgspec.structs.replace(command, waits_for_go=True)))
        waiting = self._read_end()
        with tracer(waiting.pid):
            self._write_line(b"go")
            end = self._read_end()
        return self._require_no_test_error(end)

    def run_to_end(self, command: Command) -> Report:
        """The report of a child that is not killed."""
        end = self.run(command)
        assert end.report is not None, f"the process did not end normally: {end}"
        return end.report

    def _require_no_test_error(self, end: ProcessEnd) -> ProcessEnd:
        assert end.report is None or end.report.test_error is None, end.report.test_error
        return end

    def _write_line(self, line: bytes) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(line + b"\n")
        self._program.stdin.flush()

    def _read_end(self) -> ProcessEnd:
        assert self._program.stdout is not None
        line = self._program.stdout.readline()
        assert line, "the forking process has ended"
        return msgspec.json.decode(line, type=ProcessEnd)
