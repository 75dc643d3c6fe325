"""What the command line shows, and what it must not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.cli.output import Exit, ProgressLines, counted, exit_code_for
from tenure.errors import GuardViolated, InvalidInput, JobNotFound, SchemaMismatch, StoreUnavailable, TenureError
from tenure.stores.database_url import shown_url
from tenure.testing.driver import Driver
from tests.support.databases import Database


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("sqlite:////srv/jobs.db", "sqlite:////srv/jobs.db"),
        ("sqlite://:memory:", "sqlite://:memory:"),
        ("postgresql://ada@db/jobs", "postgresql://ada@db/jobs"),
        ("postgresql://ada:s3cret@db:5432/jobs", "postgresql://ada:***@db:5432/jobs"),
        ("postgresql://ada:s3:c@ret@db/jobs", "postgresql://…"),
        ("postgresql://db/jobs?user=ada&password=s3cret", "postgresql://db/jobs?user=ada&password=***"),
        (
            "postgresql://db/jobs?sslpassword=s3cret&sslmode=require",
            "postgresql://db/jobs?sslpassword=***&sslmode=require",
        ),
        ("postgresql://db/jobs?listen=postgresql%3A%2F%2Fada%3As3cret%40db", "postgresql://db/jobs?listen=***"),
        ("postgresql://ada:s3cret@[::1/jobs", "postgresql://…"),
    ],
)
def test_no_url_is_shown_with_its_password(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("database", "is rubbish"), Exit.USAGE),
        (StoreUnavailable("gone"), Exit.DATABASE),
        (SchemaMismatch("old"), Exit.DATABASE),
        (GuardViolated("no"), Exit.DATABASE),
        (JobNotFound("x"), Exit.PROBLEMS),
    ],
)
def test_every_error_has_its_exit_code(error: TenureError, code: Exit) -> None:
    assert exit_code_for(error) is code


def test_a_log_gets_a_line_at_each_tenth_of_the_way_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ProgressLines()
    for hundredth in range(101):
        lines.show(f"{hundredth}", hundredth / 100)
    assert capsys.readouterr().err.split() == ["10", "20", "30", "40", "50", "60", "70", "80", "90", "100"]


def test_numbers_have_their_nouns() -> None:
    assert [counted(number, "job") for number in (0, 1, 2, 1200)] == ["0 jobs", "1 job", "2 jobs", "1,200 jobs"]


async def test_what_the_encoding_of_the_output_lacks_is_escaped(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with database.opened() as store:
        await Driver(store).add("naïve—kind")
    command = [sys.executable, "-m", "tenure", "jobs", "ls", "--database", database.url]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "naïve\\u2014kind".encode("latin-1") in done.stdout
