"""The commands of the tutorial, as they are written, in a new virtual environment that has only the built wheel."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.clean_environment import build_wheel, make_environment
from tests.support.databases import Database
from tests.support.server_process import wait_until
from tools.generated import DOCS

TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")
WORKER = "tenure worker shop:app"
SECONDS_MAX = 60


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL)


class Shell:
    """A shell in the folder of the tutorial, whose programs are those of the new environment."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        self._environment = {**kept, "PATH": f"{programs}:/usr/bin:/bin"}
        self.database = Database(f"sqlite:///{folder / 'shop.db'}")

    def run(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(WORKER.split(), cwd=self._folder, env=self._environment, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait(SECONDS_MAX)

    def run_worker_until(self, condition: Callable[[], bool]) -> None:
        """Start the worker, and press Ctrl-C when the condition holds."""
        with self.worker() as process:
            assert wait_until(condition, seconds=SECONDS_MAX)
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS_MAX) == 0

    def statuses(self, kind: str) -> list[str]:
        return [status for of, status in self.database.rows("select kind, status from {jobs}") if of == kind]


@pytest.mark.deep
def test_the_commands_of_the_tutorial_run_where_only_the_wheel_is_installed(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    install, first_worker, look, kill = blocks("sh")
    assert install == "pip install tenure\n"
    shell = Shell(folder, make_environment(tmp_path / "environment", build_wheel(tmp_path / "wheel")))
    for name, program in zip(("shop.py", "enqueue.py"), blocks("python"), strict=True):
        (folder / name).write_text(program)
    assert [shell.run("python enqueue.py") for _ in range(2)] == ["queued queued\n"] * 2

    create_table, worker = first_worker.splitlines()
    assert worker == WORKER
    shell.run(create_table)
    shell.run_worker_until(lambda: shell.statuses("greet") + shell.statuses("pay") == ["succeeded"] * 3)

    ls, show, verify = look.splitlines()
    [paid] = re.findall(r"^(\S+) +succeeded +pay ", shell.run(ls), re.MULTILINE)
    shown = shell.run(show.replace("ID", paid))
    assert re.findall(r"Z +\d+ +(\w+)", shown) == ["enqueued", "claimed", "started", "committed", "succeeded"]
    assert "every record matches its events" in shell.run(verify)

    in_background, enqueue, sleep, kill_it, ls, again = kill.splitlines()
    assert (in_background, sleep, kill_it, again) == (f"{WORKER} &", "sleep 2", "kill -9 $!", WORKER)
    with shell.worker() as process:
        shell.run(enqueue)
        assert wait_until(lambda: shell.statuses("report") == ["running"], seconds=SECONDS_MAX)
        process.kill()
        process.wait(SECONDS_MAX)
    assert re.search(r" running +report ", shell.run(ls))
    shell.run_worker_until(lambda: shell.statuses("report") == ["succeeded"])
    assert shell.database.rows("select result from {jobs} where kind = 'report'") == [('"written by attempt 2"',)]
