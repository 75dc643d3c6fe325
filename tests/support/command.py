"""The command `tenure` as its users run it: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """What the process left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def tenure(*arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Answer:
    """Run it to its end, with nothing of tenure's in the environment but what is given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    done = subprocess.run(
        [sys.executable, "-m", "tenure", *arguments],
        cwd=cwd,
        env={**clean, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    answer = Answer(done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in answer.err, answer.err
    return answer
