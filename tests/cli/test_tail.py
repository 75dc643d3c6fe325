"""`tenure jobs tail` and `tenure events` in a process of its own, on real databases, while jobs come and go."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tenure.lifecycle.operations import Complete, RequestCancel
from tenure.observe.event_stream import PAGE_EVENTS
from tenure.testing.driver import CLIENT, Driver
from tenure.testing.store_check import whole_tail
from tests.support.command import Answer, tenure
from tests.support.databases import Database
from tests.support.server_process import wait_until
from tests.support.terminal import terminal

UNKNOWN = "01890a5d-ac96-774b-bcce-b302099a8057"


def jobs(database: Database, *arguments: str) -> Answer:
    return tenure("jobs", *arguments, "--database", database.url)


class Following:
    """`tenure jobs tail` or `tenure events`, whose lines are read as they come."""

    def __init__(self, database: Database, folder: Path, *arguments: str, command: Sequence[str]) -> None:
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tenure", *command, "--json", "--database", database.url, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def events(self) -> list[dict[str, Any]]:
        """All whole lines so far."""
        return [json.loads(line) for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    @property
    def keys(self) -> list[tuple[str, int]]:
        return [(event["job_id"], event["rev"]) for event in self.events]

    def wait_for(self, count: int) -> None:
        found = wait_until(lambda: len(self.events) >= count or self._process.poll() is not None, seconds=60)
        assert found, self.keys
        assert len(self.events) >= count, (self.keys, self._err.read_text())

    def interrupt(self) -> tuple[int, str]:
        """Its exit code and standard error."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(timeout=60), self._err.read_text()

    def end(self) -> int:
        return self._process.wait(timeout=60)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(timeout=60)


@contextmanager
def following(
    database: Database, folder: Path, *arguments: str, command: Sequence[str] = ("jobs", "tail")
) -> Iterator[Following]:
    folder.mkdir(exist_ok=True)
    tail = Following(database, folder, *arguments, command=command)
    try:
        yield tail
    finally:
        tail.close()


@pytest.mark.requirement("EH-09")
async def test_the_log_is_followed_without_gap_or_repetition_and_from_where_it_was_left(
    database: Database, tmp_path: Path
) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        expected: list[tuple[str, int]] = []

        async def work() -> None:
            job = await driver.apply(await driver.running(), Complete("1"))
            expected.extend((str(job.id), rev) for rev in range(1, job.rev + 1))

        await work()
        with following(database, tmp_path / "first", "--from", "start") as tail:
            tail.wait_for(4)
            for _ in range(3):
                await work()
            tail.wait_for(16)
            assert tail.keys == expected
            position = tail.events[9]["position"]
            code, errors = tail.interrupt()
            assert code == 130
            assert errors == f"tenure: interrupted; resume with: --from {tail.events[-1]['position']}\n"
        with following(database, tmp_path / "second", "--from", position) as tail:
            tail.wait_for(6)
            await work()
            tail.wait_for(10)
            assert tail.keys == expected[10:]


def events(database: Database, *arguments: str) -> Answer:
    return tenure("events", *arguments, "--database", database.url)


@pytest.mark.requirement("EH-09")
async def test_the_log_is_printed_once_up_to_its_end_and_on_from_a_position(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        job = await driver.apply(await driver.running(), Complete("1"))
        await store.enqueue([driver.enqueue() for _ in range(PAGE_EVENTS)])
        assert len(await whole_tail(store, expected=PAGE_EVENTS + 4)) == PAGE_EVENTS + 4, "no transaction holds it back"
    whole = [json.loads(line) for line in events(database, "--json").out.splitlines()]
    assert [(event["job_id"], event["rev"]) for event in whole[:4]] == [(str(job.id), rev) for rev in range(1, 5)]
    assert len({(event["job_id"], event["rev"]) for event in whole}) == len(whole) == PAGE_EVENTS + 4
    rest = events(database, "--json", "--from", whole[3]["position"]).out.splitlines()
    assert [json.loads(line) for line in rest] == whole[4:]
    assert events(database, "--from", whole[-1]["position"]).out == ""
    wrong = events(database, "--from", "rubbish")
    assert (wrong.code, wrong.out) == (2, "")


@pytest.mark.requirement("EH-09")
async def test_the_log_can_be_followed_from_its_beginning_over_a_restart(database: Database, tmp_path: Path) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        await driver.add()
        with following(database, tmp_path / "first", "--follow", command=("events",)) as log:
            log.wait_for(1)
            await driver.add()
            log.wait_for(2)
            position = log.events[-1]["position"]
            assert log.interrupt()[0] == 130
        later = await driver.add()
        with following(database, tmp_path / "second", "--follow", "--from", position, command=("events",)) as log:
            log.wait_for(1)
            assert log.keys == [(str(later.id), 1)]


async def test_a_log_of_many_pages_is_printed_completely(database: Database, tmp_path: Path) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        for count in (PAGE_EVENTS + 1, PAGE_EVENTS - 1):
            await store.enqueue([driver.enqueue() for _ in range(count)])
        with following(database, tmp_path / "all", "--from", "start") as tail:
            tail.wait_for(2 * PAGE_EVENTS)
            last = await driver.add()
            tail.wait_for(2 * PAGE_EVENTS + 1)
            assert len({job_id for job_id, _ in tail.keys}) == len(tail.keys) == 2 * PAGE_EVENTS + 1
            assert tail.keys[-1] == (str(last.id), 1)


@pytest.mark.requirement("EH-09")
async def test_without_a_position_only_later_events_are_printed(database: Database, tmp_path: Path) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        before = {
            str(added.job.id) for added in await store.enqueue([driver.enqueue() for _ in range(2 * PAGE_EVENTS + 1)])
        }
        assert len(await whole_tail(store, expected=len(before))) == len(before), "no transaction holds it back"
        with following(database, tmp_path / "now") as tail:
            later: list[str] = []
            # When it has begun to listen cannot be seen from outside, so jobs are added until one is printed.
            for _ in range(600):
                later.append(str((await driver.add()).id))
                if wait_until(lambda: bool(tail.events), seconds=0.1):
                    break
            assert tail.events, "nothing was printed"
            received = [job_id for job_id, _ in tail.keys]
            assert not before & {*received}
            first = later.index(received[0])
            assert later[first : first + len(received)] == received


async def test_a_job_is_followed_to_its_end(database: Database, tmp_path: Path) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        other, job = await driver.add("other"), await driver.running()
        with following(database, tmp_path / "tail", str(job.id)) as tail:
            tail.wait_for(3)
            await driver.apply(other.id, RequestCancel(), actor=CLIENT)
            await driver.apply(job, Complete("1"))
            assert tail.end() == 0
            assert tail.keys == [(str(job.id), rev) for rev in range(1, 5)]
    ended = jobs(database, "tail", str(job.id))
    assert (ended.code, ended.err) == (0, "")
    assert [line.split()[3] for line in ended.out.splitlines()] == ["enqueued", "claimed", "started", "succeeded"]
    assert str(job.token) not in ended.out


async def test_a_position_that_is_none_is_refused(database: Database) -> None:
    async with database.opened():
        pass
    wrong = jobs(database, "tail", "--from", "rubbish")
    assert (wrong.code, wrong.out) == (2, "")
    assert "'rubbish' is not a position of this log" in wrong.err
    both = jobs(database, "tail", UNKNOWN, "--from", "start")
    assert (both.code, both.out) == (2, "")
    assert "--from cannot be used with ID" in both.err


def test_an_interrupt_before_the_first_line_is_clean(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    assert tenure("migrate", "--database", database.url).code == 0
    with terminal("jobs", "tail", "--from", "start", "--database", database.url) as shown:
        assert wait_until((tmp_path / "jobs.db-wal").exists, seconds=30)
        shown.interrupt()
        assert shown.end() == 130
        assert "interrupted" in shown.text
        assert "Traceback" not in shown.text
