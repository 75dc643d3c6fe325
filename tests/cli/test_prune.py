"""`tenure prune` in a process of its own, on real databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.lifecycle.operations import Complete, Fail
from tenure.testing.driver import ERROR, Driver
from tests.support.command import Answer, tenure
from tests.support.databases import Database

APP = """
from tenure import App, Retention
app = App(retention=Retention(failed_days=0))
"""


def prune(database: Database, *arguments: str, cwd: Path | None = None) -> Answer:
    return tenure("prune", *arguments, "--database", database.url, cwd=cwd)


async def with_finished_jobs(database: Database) -> None:
    async with database.opened() as store:
        drive = Driver(store)
        for _ in range(2):
            await drive.apply(await drive.running(), Complete("1"))
        await drive.apply(await drive.running(), Fail(ERROR))
        await drive.add()


def left(database: Database) -> list[str]:
    return [status for (status,) in database.rows("select status from {jobs} order by status")]


@pytest.mark.requirement("SM-12")
async def test_a_dry_run_counts_and_a_run_removes(database: Database) -> None:
    await with_finished_jobs(database)
    planned = prune(database, "--older-than", "0s", "--dry-run", "--json")
    assert planned.code == 0, planned
    assert planned.json["removed"]["jobs"] == {"succeeded": 2, "failed": 1}
    assert planned.json["removed"]["dry_run"] is True
    assert left(database) == ["failed", "queued", "succeeded", "succeeded"]
    answer = prune(database, "--older-than", "0s", "--status", "succeeded")
    assert (answer.code, answer.out) == (0, "removed 2 succeeded jobs\n")
    assert "2 of about 2" in answer.err
    assert left(database) == ["failed", "queued"]
    assert prune(database, "--older-than", "0s", "--kind", "post").out == "nothing to remove\n"
    assert prune(database, "--older-than", "1d").out == "nothing to remove\n"
    actions = database.rows("select distinct action from {operator_log}")
    assert actions == [("prune",)]


async def test_the_retention_of_an_app_can_be_carried_out_by_hand(database: Database, tmp_path: Path) -> None:
    await with_finished_jobs(database)
    (tmp_path / "jobs_app.py").write_text(APP)
    answer = prune(database, "--app", "jobs_app:app", cwd=tmp_path)
    assert (answer.code, answer.out) == (0, "removed 1 failed job\n"), answer
    young = prune(database, "--app", "jobs_app:app", "--older-than", "1d", cwd=tmp_path)
    assert (young.code, left(database)) == (0, ["queued", "succeeded", "succeeded"])


async def test_with_an_app_only_its_own_database_is_pruned(tmp_path: Path) -> None:
    """Not the database of the environment, in which nothing is old for this app."""
    own, other = (Database(f"sqlite:///{tmp_path / name}") for name in ("own.db", "other.db"))
    await with_finished_jobs(own)
    await with_finished_jobs(other)
    (tmp_path / "jobs_app.py").write_text(APP.replace("App(", f"App({own.url!r}, "))
    answer = tenure("prune", "--app", "jobs_app:app", cwd=tmp_path, env={"TENURE_DATABASE": other.url})
    assert (answer.code, answer.out) == (0, "removed 1 failed job\n"), answer
    assert (len(left(own)), len(left(other))) == (3, 4)


@pytest.mark.parametrize(
    "arguments", [(), ("--status", "failed"), ("--kind", "mail"), ("--older-than", "2030-01-01"), ("--older-than", "x")]
)
async def test_a_prune_that_does_not_name_what_to_remove_is_refused(
    database: Database, arguments: tuple[str, ...]
) -> None:
    await with_finished_jobs(database)
    answer = prune(database, *arguments)
    assert answer.code == 2, answer
    assert len(left(database)) == 4


async def test_live_jobs_cannot_be_named(database: Database) -> None:
    await with_finished_jobs(database)
    assert prune(database, "--older-than", "0s", "--status", "running").code == 2
