"""`tenure doctor`, and how every command takes bad news: one clear line, the right exit code, never a traceback."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from simulation.model.store import ModelStore
from tenure.cli.doctor import clock_skew, find_problems
from tenure.lifecycle.records import Policy
from tenure.lifecycle.schedules import Schedule
from tenure.stores.database_url import shown_url
from tenure.stores.postgres import doctor as examination
from tenure.testing.clock import ManualClock
from tenure.testing.driver import OPERATOR, Driver
from tests.support.command import Answer, tenure
from tests.support.databases import Database


def doctor(database: Database, *options: str) -> Answer:
    return tenure("doctor", "--database", database.url, *options)


def findings(answer: Answer, level: str) -> list[str]:
    return [finding["about"] for finding in answer.json["findings"] if finding["level"] == level]


def test_a_healthy_database_has_no_errors(database: Database) -> None:
    tenure("migrate", "--database", database.url)
    answer = doctor(database, "--json")
    assert (answer.code, answer.json["ok"]) == (0, True), answer
    assert findings(answer, "error") == []
    assert {"tenure", "python", "driver", "version", "schema", "clock"} <= {f["about"] for f in answer.json["findings"]}
    in_words = doctor(database)
    assert in_words.code == 0
    assert "\nok       schema: up to date" in in_words.out
    assert in_words.out.splitlines()[-1].startswith("0 errors, ")


def test_missing_migrations_are_an_error_with_advice(database: Database) -> None:
    answer = doctor(database, "--json")
    assert answer.code == 1
    assert "schema" in findings(answer, "error")
    [schema] = [finding for finding in answer.json["findings"] if finding["about"] == "schema"]
    assert schema["advice"] == "run `tenure migrate`"
    assert "0001_" in schema["message"]


def test_a_file_that_is_not_there_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    answer = tenure("doctor", cwd=tmp_path)
    assert answer.code == 1
    assert "tenure.db does not exist" in answer.out
    assert list(tmp_path.iterdir()) == []


def test_a_migration_that_was_applied_from_another_file_is_an_error(database: Database) -> None:
    tenure("migrate", "--database", database.url)
    database.tamper("update {migrations} set checksum = 'feed' where number = 1")
    answer = doctor(database, "--json")
    assert (answer.code, findings(answer, "error")) == (1, ["schema"])
    assert tenure("verify", "--database", database.url).code == 3


async def test_a_transaction_that_holds_back_vacuum_and_the_tail_is_named(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenure("migrate", "--database", postgres_dsn)
    monkeypatch.setattr(examination, "OLD_TRANSACTION_SECONDS", -1)
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("select pg_current_xact_id()")
        pid = connection.info.backend_pid
        warnings = [finding for finding in await find_problems(postgres_dsn) if finding.level == "warning"]
    [named] = [finding for finding in warnings if f"pid {pid} " in finding.message]
    assert "pg_terminate_backend" in named.advice


async def test_schedules_without_a_running_scheduler_are_reported(database: Database) -> None:
    async with database.opened() as store:
        now = await store.now()
        for name, minutes, paused in (
            ("late", -60, False),
            ("due", 0, False),
            ("soon", 60, False),
            ("held", -60, True),
        ):
            due = now + timedelta(minutes=minutes)
            call = Schedule(name=name, cron="every 1h", kind="report", payload="{}", policy=Policy())
            await store.schedules.put(call, next_at=due, paused=paused, expected_rev=0, actor=OPERATOR)
    named = [finding for finding in await find_problems(database.url) if finding.about == "schedules"]
    since = (now - timedelta(minutes=60)).isoformat(timespec="seconds")
    assert [(finding.level, finding.message) for finding in named] == [
        ("warning", f"schedule 'late' has been due since {since}")
    ]


class Ahead(ModelStore):
    """A database whose clock is not ours, at the end of a slow line."""

    def __init__(self, clock: ManualClock, *, ahead_seconds: float, trips_seconds: list[float]) -> None:
        super().__init__(clock)
        self._own, self._ahead, self._trips = clock, timedelta(seconds=ahead_seconds), trips_seconds

    async def now(self) -> datetime:
        trip = self._trips.pop(0)
        self._own.advance(trip / 2)
        theirs = self._own.now() + self._ahead
        self._own.advance(trip / 2)
        return theirs


@pytest.mark.parametrize(
    ("ahead_seconds", "level", "expected_text"),
    [
        (0.0, "ok", "0.000 s behind this machine's (± 0.100 s)"),
        (0.9, "ok", "0.900 s ahead of this machine's"),
        (5.0, "warning", "5.000 s ahead of this machine's"),
        (-5.0, "warning", "5.000 s behind this machine's"),
    ],
)
async def test_the_skew_of_the_clocks_does_not_count_the_way(
    ahead_seconds: float, level: str, expected_text: str
) -> None:
    clock = ManualClock()
    store = Ahead(clock, ahead_seconds=ahead_seconds, trips_seconds=[3.0, 0.2, 7.0, 1.0, 0.4])
    finding = await clock_skew(store, clock)
    assert finding.level == level
    assert expected_text in finding.message


RUBBISH = ["", "jobs.db", "mysql://localhost/jobs", "sqlite:", "sqlite://", "://", "postgresql://[::1/x"]
RUBBISH += ["postgresql://localhost:port/x", "postgresql://localhost:99999/x", "sqlite://jobs.db"]


@pytest.mark.parametrize("url", RUBBISH)
@pytest.mark.parametrize("command", ["migrate", "verify", "doctor"])
def test_a_url_that_makes_no_sense_is_a_usage_error(command: str, url: str, tmp_path: Path) -> None:
    answer = tenure(command, "--database", url, cwd=tmp_path)
    assert (answer.code, answer.out) == (2, ""), answer
    assert answer.err.startswith("tenure: database: ")
    assert len(answer.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["migrate", "verify", "doctor"])
def test_a_server_that_cannot_be_reached_is_named_without_its_password(command: str) -> None:
    answer = tenure(command, "--json", "--database", "postgresql://ada:secret@127.0.0.1:1/jobs")
    assert (answer.code, answer.out) == (3, ""), answer
    assert "127.0.0.1:1" in answer.err
    assert "cannot be reached" in answer.err
    assert "secret" not in answer.err
    assert len(answer.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["migrate", "verify", "doctor"])
def test_a_database_that_does_not_exist_is_named(command: str, postgres_dsn: str) -> None:
    answer = tenure(command, "--database", f"{postgres_dsn}_not")
    assert answer.code == 3, answer
    assert "does not exist" in answer.err


def test_without_a_schema_the_message_names_migrate(database: Database) -> None:
    answer = tenure("verify", "--database", database.url)
    assert (answer.code, answer.out) == (3, "")
    assert f"run `tenure migrate --database '{shown_url(database.url)}'`" in answer.err


@pytest.mark.parametrize("command", ["migrate", "verify", "doctor"])
def test_a_file_that_is_no_database_is_named(command: str, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Ada, this is not a database, and it is long enough to be read.\n" * 100)
    answer = tenure(command, "--database", f"sqlite:///{path}")
    assert answer.code == 3, answer
    assert "letter.txt" in answer.err
    assert path.read_text().startswith("Dear Ada")


@pytest.mark.parametrize("command", ["migrate", "verify"])
def test_a_folder_that_is_not_there_is_named(command: str, tmp_path: Path) -> None:
    answer = tenure(command, "--database", f"sqlite:///{tmp_path / 'missing' / 'jobs.db'}")
    assert answer.code == 3, answer
    assert "missing" in answer.err


@pytest.mark.parametrize("arguments", [["--nonsense"], ["verify", "--max-problems", "many"], ["fly"]])
def test_a_wrong_command_line_is_reported(arguments: list[str]) -> None:
    answer = tenure(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert "Error" in answer.err


def test_help_and_version_are_quick_to_load() -> None:
    script = (
        "import sys\nfrom tenure.cli.main import run_command\ncode = run_command(['--help'])\n"
        "print([name for name in ('asyncpg', 'rich', 'sqlite3', 'pytest') if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "[]\n"
    for word in ("migrate", "verify", "doctor", "Exit codes", "TENURE_DATABASE"):
        assert word in done.stdout
    assert tenure("--version").out.startswith("tenure 0.")


def test_the_installed_command_is_the_same() -> None:
    installed = Path(sys.executable).with_name("tenure")
    done = subprocess.run([installed, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == tenure("--version").out


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
async def test_a_terminal_gets_a_bar_and_colours_unless_it_wants_none(
    tmp_path: Path, env: dict[str, str], coloured: bool
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with database.opened() as store:
        await Driver(store).add()
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM", "FORCE_COLOR")}
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tenure", "verify", "--database", database.url]
    done = subprocess.run(
        command, stdout=theirs, stderr=theirs, env={**clean, "TERM": "xterm", **env}, timeout=60, check=False
    )
    os.close(theirs)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "1 job and 1 event verified: every record matches its events" in shown
    assert "log: 1 event 0:00:0" in shown.replace("\x1b[33m", "").replace("\x1b[0m", "")
    assert ("\x1b[32m" in shown) is coloured
    assert "━" in shown


def test_json_is_one_document_and_nothing_else_is_on_standard_output(database: Database) -> None:
    for command in (["migrate"], ["verify"], ["doctor"], ["migrate", "sql"]):
        answer = tenure(*command, "--json", "--database", database.url)
        assert answer.code == 0, answer
        assert answer.err == ""
        assert json.loads(answer.out)
