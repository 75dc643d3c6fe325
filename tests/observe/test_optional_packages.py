"""tenure works without the packages of its extras, and names the missing one where a feature needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
for name in ("prometheus_client", "opentelemetry"):
    sys.modules[name] = None
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + program], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("prometheus", "prometheus_client", "metrics"), ("metrics_server", "prometheus_client", "metrics"),
     ("tracing", "opentelemetry", "otel")],
)  # fmt: skip
def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(
    module: str, package: str, extra: str
) -> None:
    answer = run(f"import tenure.observe.{module}")
    assert answer.returncode == 1
    last = answer.stderr.splitlines()[-1]
    assert f"need the package {package}, which is not installed; pip install 'tenure[{extra}]'" in last


def test_everything_else_works_without_them() -> None:
    program = """
import asyncio, logging, tenure
from tenure.observe.log_context import JobLogFilter
app = tenure.App()

@app.job()
async def work() -> int:
    return 7

async def main():
    async with app.testing() as harness:
        handle = await work.enqueue()
        await harness.drain()
        print(await handle.result(), app.metrics().value("tenure_rejections_total"))

asyncio.run(main())
"""
    answer = run(program)
    assert (answer.returncode, answer.stdout) == (0, "7 0\n"), answer.stderr


def test_neither_is_imported_by_a_worker_that_does_not_ask_for_it() -> None:
    program = "import sys, tenure.app, tenure.workers.worker, tenure.cli.worker, tenure.cli.worker_processes\n"
    program += "heavy = {'prometheus_client', 'opentelemetry', 'http.server'}\n"
    answer = subprocess.run(
        [sys.executable, "-c", program + "print(sorted(heavy & set(sys.modules)))"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert answer.stdout == "[]\n"
