"""`tenure migrate` in a process of its own, on real databases."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tenure.stores import migrations_for, script_for
from tenure.stores.database_url import shown_url
from tests.support.command import tenure
from tests.support.databases import Database


def test_what_is_pending_is_listed_applied_and_then_gone(database: Database) -> None:
    names = [f"{migration.number:04d}_{migration.name}" for migration in migrations_for(database.url)]
    assert names
    dry = tenure("migrate", "--dry-run", "--database", database.url)
    assert (dry.code, dry.out.splitlines()) == (
        0,
        [f"would apply {name} to {shown_url(database.url)}" for name in names],
    )
    applied = tenure("migrate", "--database", database.url)
    assert (applied.code, applied.out.splitlines()) == (
        0,
        [f"applied {name} to {shown_url(database.url)}" for name in names],
    )
    for again in (
        tenure("migrate", "--database", database.url),
        tenure("migrate", "--dry-run", "--database", database.url),
    ):
        assert again.code == 0
        assert "is up to date" in again.out


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    assert tenure("migrate", "--dry-run", cwd=tmp_path).code == 0
    assert list(tmp_path.iterdir()) == []


def test_the_answer_as_json(database: Database) -> None:
    dry = tenure("migrate", "--dry-run", "--json", "--database", database.url)
    assert dry.json["dry_run"] is True
    assert [step["number"] for step in dry.json["pending"]] == list(range(1, len(dry.json["pending"]) + 1))
    done = tenure("migrate", "--json", "--database", database.url)
    assert (done.json["dry_run"], done.json["applied"]) == (False, dry.json["pending"])
    assert tenure("migrate", "--json", "--database", database.url).json["applied"] == []


def test_the_sql_of_what_is_pending_or_of_everything(database: Database) -> None:
    pending = tenure("migrate", "sql", "--database", database.url)
    assert pending.code == 0
    for migration in migrations_for(database.url):
        assert migration.sql.rstrip() in pending.out
    before = tenure("migrate", "--database", database.url, "sql")
    assert before.out == pending.out
    tenure("migrate", "--database", database.url)
    assert tenure("migrate", "sql", "--database", database.url).out == "-- no pending migrations\n"
    assert tenure("migrate", "sql", "--all", "--database", database.url).out == pending.out
    in_json = tenure("migrate", "sql", "--all", "--json", "--database", database.url).json["migrations"]
    assert [step["sql"] for step in in_json] == [
        script_for(database.url, migration) for migration in migrations_for(database.url)
    ]


def test_the_sql_run_by_hand_leaves_what_migrate_would(database: Database) -> None:
    script = tenure("migrate", "sql", "--database", database.url).out
    if database.is_sqlite:
        with closing(sqlite3.connect(database.path)) as file:
            file.executescript(script)
    else:
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute(script.encode())
    assert tenure("migrate", "--json", "--database", database.url).json["applied"] == []
    assert tenure("verify", "--database", database.url).code == 0


def test_all_of_the_sql_needs_no_database() -> None:
    answer = tenure("migrate", "sql", "--all", "--database", "postgresql://127.0.0.1:1/nowhere")
    assert answer.code == 0
    assert "create table tenure.jobs" in answer.out


def test_several_at_once_apply_each_migration_once(database: Database) -> None:
    command = [sys.executable, "-m", "tenure", "migrate", "--database", database.url]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [process.communicate(timeout=100) for process in running]
    assert [process.returncode for process in running] == [0] * 4, answers
    applied = [line for out, _ in answers for line in out.splitlines() if line.startswith("applied")]
    assert len(applied) == len(migrations_for(database.url))


@pytest.mark.parametrize("command", ["verify", "migrate"])
def test_a_database_that_needs_newer_code_is_left_alone(database: Database, command: str) -> None:
    assert tenure("migrate", "--database", database.url).code == 0
    database.tamper("update {meta} set value = '99' where name = 'min_code_version'")
    answer = tenure(command, "--database", database.url)
    assert answer.code == 3, answer
    assert "upgrade tenure" in answer.err


def test_the_database_comes_from_the_option_then_the_environment_then_the_folder(tmp_path: Path) -> None:
    assert tenure("migrate", cwd=tmp_path).code == 0
    assert (tmp_path / "tenure.db").exists()
    named = {"TENURE_DATABASE": f"sqlite:///{tmp_path / 'named.db'}"}
    assert tenure("migrate", cwd=tmp_path, env=named).code == 0
    assert (tmp_path / "named.db").exists()
    assert tenure("migrate", "--database", f"sqlite:///{tmp_path / 'asked.db'}", cwd=tmp_path, env=named).code == 0
    assert (tmp_path / "asked.db").exists()
