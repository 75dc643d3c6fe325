"""The end of a run names every reason why tests were skipped, once, with its count."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SKIPPING = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_one(number):
    pytest.skip("this store has SQL")

@pytest.mark.skip(reason="not here")
def test_two(): ...

def test_three(): ...
"""


def test_skips_are_summed_up_in_one_line_per_reason(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SKIPPING, encoding="utf-8")
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.skip_summary", "-q", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    lines = [line for line in answer.stdout.splitlines() if line.startswith("skipped")]
    assert lines == ["skipped 3 x: this store has SQL", "skipped 1 x: not here"], answer.stdout + answer.stderr
    assert "1 passed, 4 skipped" in answer.stdout
