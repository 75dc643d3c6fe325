"""A Django project in a folder, whose code and management commands run in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.databases import Database
from tests.support.server_process import wait_until

SHOP = Path(__file__).parent / "shop"
MANAGE = """
import sys
from django.core.management import execute_from_command_line
if __name__ == "__main__":
    execute_from_command_line(sys.argv)
"""
PREAMBLE = """
import json, django
django.setup()
from django.db import connection, transaction
from django.utils import timezone
from tenure.contrib.django import app
from shop import jobs, tasks
from importlib import import_module
from tenure.contrib.django.tasks import LIBRARY, library
signals, exceptions = import_module(f"{LIBRARY}.signals"), import_module(f"{LIBRARY}.exceptions")
InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
found = {}
"""


class DjangoProject:
    """The project on one database."""

    def __init__(self, folder: Path, database: Database, *, python: str = sys.executable) -> None:
        shutil.copytree(SHOP, folder / "shop")
        (folder / "manage.py").write_text(MANAGE)
        self._folder, self.database, self._python = folder, database, python
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "DJANGO_"))}
        self._environment = {**clean, "DJANGO_SETTINGS_MODULE": "shop.settings", "TEST_DATABASE": database.url}
        self.log = folder / "worker.log"

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run("manage.py", *arguments)

    def run(self, code: str) -> Any:
        """Run code of the project, which puts what it finds into `found`."""
        ended = self._run("-c", f"{PREAMBLE}\n{code}\nprint(json.dumps(found))")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1])

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._python, *arguments],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextmanager
    def worker(self, *options: str) -> Iterator[None]:
        """`manage.py tenure_worker` while the block runs. It stops in order afterwards."""
        command = [self._python, "manage.py", "tenure_worker", "--poll-seconds=0.1", *options]
        with self.log.open("wb") as log:
            process = subprocess.Popen(command, cwd=self._folder, env=self._environment, stdout=log, stderr=log)
        try:
            started = wait_until(lambda: "started, pid" in self.text() or process.poll() is not None, seconds=30)
            assert started, self.text()
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, self.text()
        finally:
            process.kill()
            process.wait(10)

    def text(self) -> str:
        return self.log.read_text(errors="replace")
