"""The command `tenure` in its own process, as users run it.

The process is forked from one that has imported the command already, because most of a short command's time is
importing. `tests/project/test_start_up.py` starts real interpreters.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

SECONDS_MAX = 100.0
PRELOADED = [
    "tests.support.command",
    "tenure.cli.main",
    "tenure.app",
    "tenure.cli.output",
    "tenure.testing.harness.mode",
]
"""Imported by the process that is forked, and nothing else: a command must import what it needs by itself."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The exit code and output of the process."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def tenure(*arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Answer:
    """Run it to its end. Of tenure's environment variables it has only those given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = _context().Process(
            target=_run, args=(arguments, str(cwd or Path.cwd()), {**clean, **(env or {})}, str(out), str(err))
        )
        process.start()
        process.join(SECONDS_MAX)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"tenure {' '.join(arguments)} still ran after {SECONDS_MAX} s:\n{err.read_text()}")
        answer = Answer(process.exitcode, out.read_text(), err.read_text())
        process.close()
    assert "Traceback" not in answer.err, answer.err
    return answer


@lru_cache(maxsize=1)
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _run(arguments: tuple[str, ...], folder: str, env: dict[str, str], out: str, err: str) -> None:
    """In the forked process: what `python -m tenure` does."""
    for path, descriptor in ((os.devnull, 0), (out, 1), (err, 2)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 - until the end
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.path[0] = folder
    sys.argv = ["tenure", *arguments]
    from tenure.cli.main import main

    main()
