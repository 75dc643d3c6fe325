"""The log of `tenure worker`: what it shows at the start, as text and as JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.workers.concurrency import BLOCKING, TASKS
from tests.support.running_command import started

SHOP = """
import tenure

app = tenure.App("sqlite:///shop.db")


@app.job(queue="mail")
async def send(to: str) -> str:
    return to


@app.job(lease_seconds=30, max_attempts=1)
def pay(cents: int) -> None:
    raise ValueError("no money")
"""
TASKS_ONLY = """
import tenure

app, mixed = tenure.App("sqlite:///tasks.db"), tenure.App("sqlite:///tasks.db")


async def send(to: str) -> str:
    return to


def pay(cents: int) -> None: ...


app.job(send)
mixed.job(send)
mixed.job(pay)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    enqueue = "from shop import pay, send; send.enqueue_sync('ada'); pay.enqueue_sync(5)"
    subprocess.run([sys.executable, "-c", enqueue], cwd=tmp_path, check=True, timeout=60)
    return tmp_path


def test_the_first_lines_describe_the_worker(folder: Path) -> None:
    with started("worker", "shop:app", "--concurrency", "3", folder=folder) as worker:
        worker.wait_for_log(r"\(send\) succeeded in \d+\.\d\d s, attempt 1")
        worker.wait_for_log(r"\(pay\) attempt 1 failed in \d+\.\d\d s \(ValueError: no money\), not retrying")
        worker.wait_for_log("  ValueError: no money")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    lines = worker.log.splitlines()
    start = next(number for number, line in enumerate(lines) if "started, pid" in line)
    assert [line.split(None, 1) for line in lines[start + 1 : start + 7]] == [
        ["version:", "tenure 0.1.0"],
        ["database:", "sqlite:///shop.db"],
        ["queues:", "default, mail"],
        ["kinds:", "pay, send"],
        ["concurrency:", "3"],
        ["lease:", "60 s; pay 30 s"],
    ]


def test_without_a_number_the_concurrency_is_the_default_for_the_jobs(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS_ONLY)
    for target, concurrency in (("tasks:app", TASKS), ("tasks:mixed", BLOCKING)):
        with started("worker", target, "--log-format", "json", folder=tmp_path) as worker:
            worker.wait_for_log("started, pid")
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0
        records = [json.loads(line) for line in worker.log.splitlines()]
        [start] = [one for one in records if "started, pid" in one["message"]]
        assert start["details"]["concurrency"] == concurrency


def test_as_json_each_record_is_one_line_with_its_fields(folder: Path) -> None:
    with started("worker", "shop:app", "--log-format", "json", folder=folder) as worker:
        worker.wait_for_log(r"\(send\) succeeded")
        worker.wait_for_log(r"\(pay\) attempt 1 failed")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    records = [json.loads(line) for line in worker.log.splitlines()]
    [start] = [one for one in records if "started, pid" in one["message"]]
    assert start["details"]["kinds"] == ["pay", "send"]
    assert (start["details"]["queues"], start["details"]["concurrency"]) == (["default", "mail"], 10)
    [sent] = [one for one in records if "(send) succeeded" in one["message"]]
    assert (sent["job_kind"], sent["job_attempt"]) == ("send", 1)
    assert sent["seconds"] >= 0
    [failed] = [one for one in records if "(pay) attempt 1 failed" in one["message"]]
    frames = [line for line in failed["traceback"].splitlines() if line.startswith("  File ")]
    assert [frame.endswith("in pay") for frame in frames] == [True], "frames of tenure are of no use to the reader"
    assert failed["traceback"].endswith("ValueError: no money\n")


def test_a_queue_that_no_job_is_declared_in_is_named_in_a_warning(folder: Path) -> None:
    """A wrong name would claim nothing, silently. Beside `*` a queue is named on purpose."""
    for queues, named in (("mail,mial", "queue mial"), ("mial,male", "queues mial, male"), ("*,mial", None)):
        with started("worker", "shop:app", "--queues", queues, folder=folder) as worker:
            worker.wait_for_log("lease: ")
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0
        details, _, after = worker.log.partition("  lease: ")
        warning = f"no job of the app is declared in the {named}; its queues are: default, mail"
        assert (warning in after) == (named is not None), worker.log
        assert "is declared in" not in details, "the first line says which worker this is"


def test_of_several_processes_one_describes_them(folder: Path) -> None:
    with started("worker", "shop:app", "--processes", "2", folder=folder) as worker:
        worker.wait_for_log(r"worker \d is up", times=2)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    assert worker.log.count("  database: ") == 1
    assert worker.log.count("started, pid") == 3


def test_a_password_is_not_shown(folder: Path) -> None:
    """The database cannot be reached, and neither the start nor the error shows the password."""
    url = "postgresql://ada:secret@127.0.0.1:1/shop"
    with started("worker", "shop:app", "--database", url, folder=folder) as worker:
        assert worker.ended() == 3
    assert "secret" not in worker.log
