"""The programs in docs/guides/observability.md work as the page describes."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.generated import ROOT

PAGE = (ROOT / "docs" / "guides" / "observability.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def run(program: str, folder: Path) -> str:
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_block_of_code_is_one_that_is_run_here() -> None:
    assert len(BLOCKS) == 4


def test_a_separate_program_serves_its_metrics(tmp_path: Path) -> None:
    assert run(BLOCKS[0], tmp_path).splitlines() == ["hello, Ada", 'tenure_claims_total{kind="greet"} 1.0']


def test_the_traces_of_the_page_are_made(tmp_path: Path) -> None:
    assert run(BLOCKS[1], tmp_path).splitlines() == ["enqueue order", "enqueue receipt", "run order", "run receipt"]


def test_the_filter_of_the_page_can_be_set_up(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, logging.Handler] = {}
    try:
        exec(BLOCKS[2], names)  # noqa: S102 - the page's own code
        logging.getLogger("shop").warning("said")
        assert "WARNING said" in capsys.readouterr().err
    finally:
        logging.getLogger().removeHandler(names["handler"])


def test_the_middleware_for_sentry_reports_the_error_with_its_job(tmp_path: Path) -> None:
    (tmp_path / "sentry_sdk.py").write_text(SENTRY)
    program = BLOCKS[3] + RUN_FAILING
    assert run(program, tmp_path).splitlines() == ["job.kind fail", "job 1", "captured ValueError: no stock"]


SENTRY = """
from contextlib import contextmanager

class Scope:
    def set_tag(self, name, value):
        print(name, value)

    def set_context(self, name, facts):
        print(name, facts["attempt"])

@contextmanager
def new_scope():
    yield Scope()

def capture_exception(error):
    print(f"captured {type(error).__name__}: {error}")
"""
"""The part of sentry_sdk that the page uses."""
RUN_FAILING = """
import asyncio


@app.job(max_attempts=1)
async def fail():
    raise ValueError("no stock")


async def main():
    async with app.testing() as harness:
        await fail.enqueue()
        await harness.drain()


asyncio.run(main())
"""
