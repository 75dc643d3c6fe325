"""A rolling upgrade from schema n to n + 1, rehearsed with a trial migration, while workers of both versions run.

The new version is a copy of the package with further migrations. It is what `PYTHONPATH` makes of the command.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import tenure
from tests.support.databases import Database
from tests.support.running_command import started
from tests.support.server_process import wait_until
from tools.generated import ROOT

TRIAL = """-- A trial: a column, an index and a table that the version before does not know.
-- min_code_version: 1
alter table {jobs} add column trial text;
create index trial_index on {jobs} (trial);
create table {trial} (name text primary key);
"""
BREAKING = """-- A trial of a change that the version before cannot use.
-- min_code_version: 3
drop table {trial};
"""
SHOP = """
import asyncio

import tenure

app = tenure.App()


@app.job
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"
"""
JOBS_PER_PHASE = 12


class Upgrade:
    """A folder with an app, its database, and a newer version of tenure beside it."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self.database = folder, database
        self.old = {"TENURE_DATABASE": database.url}
        self.new = {**self.old, "PYTHONPATH": str(folder / "newer")}
        shutil.copytree(
            ROOT / "src" / "tenure", folder / "newer" / "tenure", ignore=shutil.ignore_patterns("__pycache__")
        )
        (folder / "shop.py").write_text(SHOP)

    def add_migration(self, name: str, sql: str) -> None:
        tables = {"jobs": "tenure_jobs", "trial": "tenure_trial"}
        if not self.database.is_sqlite:
            tables = {"jobs": "tenure.jobs", "trial": "tenure.trial"}
        store = "sqlite" if self.database.is_sqlite else "postgres"
        folder = self.folder / "newer" / "tenure" / "stores" / store / "migrations"
        (folder / f"{name}.sql").write_text(sql.format(**tables))

    def newer(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the newer version."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
        return subprocess.run(
            [sys.executable, "-m", "tenure", *arguments],
            cwd=self.folder,
            env={**clean, **self.new},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def enqueue_with_older(self) -> None:
        for _ in range(JOBS_PER_PHASE):
            enqueued = tenure(
                "jobs", "enqueue", "nap", '{"seconds":0.1}', "--app", "shop:app", cwd=self.folder, env=self.old
            )
            assert enqueued.code == 0, enqueued.err

    def all_succeeded(self, count: int) -> bool:
        return self.database.rows("select status, count(*) from {jobs} group by status") == [("succeeded", count)]


@pytest.mark.deep
def test_workers_of_both_versions_run_while_the_schema_is_migrated(database: Database, tmp_path: Path) -> None:
    upgrade = Upgrade(tmp_path, database)
    assert tenure("migrate", env=upgrade.old).code == 0
    upgrade.add_migration("0002_trial", TRIAL)
    options = ("worker", "shop:app", "--poll-seconds", "0.2")
    with started(*options, folder=tmp_path, env=upgrade.old) as older:
        upgrade.enqueue_with_older()
        early = upgrade.newer(*options)
        assert early.returncode == 3
        assert "lacks 0002_trial; run `tenure migrate" in early.stderr

        migrated = upgrade.newer("migrate")
        assert migrated.stdout.startswith("applied 0002_trial"), migrated.stderr
        upgrade.enqueue_with_older()
        assert wait_until(lambda: upgrade.all_succeeded(2 * JOBS_PER_PHASE), seconds=60), older.log

        with started(*options, folder=tmp_path, env=upgrade.new) as newer:
            newer.wait_for_log("started, pid")
            upgrade.enqueue_with_older()
            assert wait_until(lambda: upgrade.all_succeeded(3 * JOBS_PER_PHASE), seconds=60), older.log + newer.log
            older.signal(signal.SIGTERM)
            assert older.ended() == 0, older.log
            for _ in range(3):
                assert upgrade.newer("jobs", "enqueue", "nap", '{"seconds":0}', "--app", "shop:app").returncode == 0
            assert wait_until(lambda: upgrade.all_succeeded(3 * JOBS_PER_PHASE + 3), seconds=60), newer.log
            newer.signal(signal.SIGTERM)
            assert newer.ended() == 0, newer.log
        for log in (older.log, newer.log):
            assert "ERROR" not in log
            assert "WARNING" not in log
    verified = [tenure("verify", env=upgrade.old).out, upgrade.newer("verify").stdout]
    assert ["every record matches its events" in out for out in verified] == [True, True]

    upgrade.add_migration("0003_breaking", BREAKING)
    assert upgrade.newer("migrate").returncode == 0
    refused = tenure("jobs", "ls", env=upgrade.old)
    assert refused.code == 3
    assert "needs code that knows schema 3, and this tenure knows only 1; upgrade tenure" in refused.err
    assert upgrade.newer("jobs", "ls").returncode == 0
