"""`tenure stats` in a process of its own, on real databases."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.cli.stats import _sections
from tenure.lifecycle.operations import Complete, Fail
from tenure.lifecycle.statuses import QUEUED, RUNNING, SUCCEEDED
from tenure.stores import Store
from tenure.stores.contract import Stats, Tally, WorkerRecord
from tenure.stores.findings import SEEN_SECONDS
from tenure.testing.clock import ManualClock
from tenure.testing.driver import ERROR, Driver
from tenure.views.workers import SILENT_SECONDS, UnservedKind, live_workers, silent_seconds, unserved_kinds
from tests.support.command import Answer, tenure
from tests.support.databases import Database
from tests.support.sample_jobs import DEAD_LETTER
from tests.support.server_process import wait_until
from tests.support.terminal import terminal


def stats(database: Database, *options: str) -> Answer:
    return tenure("stats", "--database", database.url, *options)


async def worker(store: Store, name: str, **facts: Any) -> WorkerRecord:
    at = await store.now()
    given = {"host": "h", "pid": 7, "version": "1.2", "queues": ("default",), "kinds": ("mail",), "concurrency": 4}
    record = WorkerRecord(id=name, started_at=at, seen_at=at, **{**given, **facts})
    await store.register(record)
    return record


async def populate(store: Store) -> None:
    driver = Driver(store)
    for _ in range(2):
        await driver.add("mail")
    await driver.add("mail", delay_ms=3_600_000)
    await driver.add("bill", queue="cash")
    await driver.running(kind="mail")
    await driver.apply(await driver.running(kind="done"), Complete("1"))
    await driver.apply(await driver.running(kind="mail"), Fail(ERROR))
    await driver.apply(await driver.running(kind="mail"), DEAD_LETTER)
    await worker(store, "worker-1")
    await worker(store, "worker-2", queues=("cash",), kinds=("mail", "other"))
    await worker(store, "worker-3", queues=("cash",), kinds=("bill",))
    await store.unregister("worker-3")


async def test_stats_count_jobs_and_workers_and_list_unserved_kinds(
    database: Database,
) -> None:
    async with database.opened() as store:
        await populate(store)
    answer = stats(database, "--json")
    assert answer.code == 0, answer
    counted = {(row["queue"], row["kind"], row["status"]): (row["jobs"], row["due"]) for row in answer.json["jobs"]}
    assert counted == {
        ("default", "mail", "queued"): (3, 2),
        ("default", "mail", "running"): (1, 0),
        ("default", "mail", "failed"): (1, 0),
        ("default", "mail", "dead_lettered"): (1, 0),
        ("default", "done", "succeeded"): (1, 0),
        ("cash", "bill", "queued"): (1, 1),
    }
    ages = {row["kind"]: row["oldest_due_seconds"] for row in answer.json["jobs"] if row["status"] == "queued"}
    assert all(0 <= age < 600 for age in ages.values())
    assert [one["id"] for one in answer.json["workers"]] == ["worker-1", "worker-2"]
    assert answer.json["unserved"] == [{"queue": "cash", "kind": "bill", "jobs": 1}]
    assert answer.json["unserved_queues"] == []
    assert answer.json["dead_letters"] == 1


async def test_the_same_in_words(database: Database) -> None:
    async with database.opened() as store:
        await populate(store)
    answer = stats(database)
    assert (answer.code, answer.err) == (0, "")
    for words in (
        "8 jobs",
        "2 live workers",
        "kinds with jobs that no live worker serves",
        "1 open dead letter",
    ):
        assert words in answer.out
    assert any(line.split()[:5] == ["default", "mail", "queued", "3", "2"] for line in answer.out.splitlines())
    assert any(line.split() == ["cash", "bill", "1"] for line in answer.out.splitlines())


async def test_queues_with_due_jobs_that_no_worker_serves_are_named(database: Database) -> None:
    async with database.opened() as store:
        await worker(store, "worker-1")
        await Driver(store).add("mail", queue="urgent")
        await Driver(store).add("bill", queue="urgent")
        await Driver(store).add("mail", queue="later", delay_ms=3_600_000)
    assert stats(database, "--json").json["unserved_queues"] == [{"queue": "urgent", "due": 2}]
    lines = stats(database).out.splitlines()
    named = lines.index("queues with due jobs that no live worker serves")
    assert lines[named + 2].split() == ["urgent", "2"]


async def test_an_empty_database_has_nothing_to_count(database: Database) -> None:
    async with database.opened():
        pass
    answer = stats(database)
    assert answer.code == 0
    assert answer.out == "0 jobs\n0 live workers\n0 open dead letters\n"
    assert stats(database, "--json").json["jobs"] == []


async def test_watching_redraws_on_a_terminal_until_interrupted(database: Database) -> None:
    async with database.opened() as store:
        await populate(store)
        with terminal("stats", "--watch", "0.1", "--database", database.url) as shown:
            shown.read_until("8 jobs")
            await Driver(store).add("mail")
            shown.read_until("9 jobs")
            shown.interrupt()
            assert shown.end() == 130
            assert "Traceback" not in shown.text


async def test_watching_without_a_terminal_prints_the_lines_again(database: Database, tmp_path: Path) -> None:
    async with database.opened() as store:
        await Driver(store).add()
    lines = tmp_path / "lines"
    with lines.open("wb") as out:
        command = [sys.executable, "-m", "tenure", "stats", "--watch", "0.1", "--database", database.url]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True)
    try:
        assert wait_until(lambda: lines.read_text().count("1 job\n") >= 2, seconds=60)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1].strip() == "tenure: interrupted"
        assert process.returncode == 130
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_watching_makes_no_one_document_and_no_pause_of_nothing() -> None:
    for options, expected_text in (
        (("--json", "--watch", "1"), "--json and --watch cannot be combined"),
        (("--watch", "0"), "not in the range"),
    ):
        answer = tenure("stats", *options)
        assert (answer.code, answer.out) == (2, "")
        assert expected_text in answer.err


async def test_a_database_without_schema_is_not_fit(database: Database) -> None:
    answer = stats(database)
    assert (answer.code, answer.out) == (3, "")
    assert "tenure migrate" in answer.err


def seen(clock: ManualClock, *workers: WorkerRecord, tallies: list[Tally]) -> Stats:
    return Stats(at=clock.now(), tallies=tallies, workers=list(workers), dead_letters=0)


@pytest.mark.parametrize("not_seen_seconds", [0.0, SEEN_SECONDS, SEEN_SECONDS + 1])
def test_a_worker_that_was_not_seen_for_long_serves_no_queue(not_seen_seconds: float) -> None:
    clock = ManualClock()
    at = clock.now()
    facts: dict[str, Any] = {"host": "h", "pid": 7, "version": "1", "concurrency": 1, "started_at": at, "seen_at": at}
    record = WorkerRecord(id="worker-1", queues=("default",), kinds=("mail",), **facts)
    clock.advance(not_seen_seconds)
    tallies = [
        Tally(queue="default", kind="mail", status=QUEUED, jobs=2),
        Tally(queue="default", kind="mail", status=RUNNING, jobs=1),
        Tally(queue="default", kind="mail", status=SUCCEEDED, jobs=9),
        Tally(queue="post", kind="mail", status=QUEUED, jobs=1),
    ]
    there = not_seen_seconds <= SEEN_SECONDS
    now = seen(clock, record, tallies=tallies)
    assert live_workers(now) == ([record] if there else [])
    assert unserved_kinds(now) == ([] if there else [UnservedKind("default", "mail", 3)]) + [
        UnservedKind("post", "mail", 1)
    ]
    assert silent_seconds(now, record) == (not_seen_seconds or None)


def test_a_worker_that_was_killed_is_counted_as_silent_before_it_is_left_out() -> None:
    clock = ManualClock()
    at = clock.now()
    clock.advance(SEEN_SECONDS + 1)
    facts: dict[str, Any] = {"host": "h", "pid": 7, "version": "1", "concurrency": 1, "started_at": at}
    workers = [
        WorkerRecord(id=name, queues=("default",), kinds=("mail",), seen_at=at + timedelta(seconds=seconds), **facts)
        for name, seconds in (("lost", 0), ("killed", SEEN_SECONDS - SILENT_SECONDS), ("works", SEEN_SECONDS))
    ]
    sections = list(_sections(seen(clock, *workers, tallies=[]), []))
    [(title, _, rows)] = [section for section in sections if "worker" in section[0]]
    assert title == "1 live worker, 1 silent"
    assert [(row[0], row[-1]) for row in rows] == [("killed", "silent for 16 s"), ("works", "1 s ago")]
