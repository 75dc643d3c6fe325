"""Schedules of an app: declared in code, administered at run time, and fired by the workers' schedulers."""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure import App
from tenure.errors import InvalidInput, PayloadRefused, StoreUnavailable
from tenure.lifecycle.records import Policy
from tenure.lifecycle.schedules import DUE_TAG, SCHEDULE_TAG, Firing, Schedule, ScheduleRecord
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.seams import Seams
from tenure.stores import Store
from tenure.stores.contract import EnqueueRequest, EnqueueResult, JobFilter
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import START, ManualClock
from tenure.testing.driver import OPERATOR
from tenure.workers.maintenance.scheduler import BATCH, Scheduler
from tests.support.command import tenure
from tests.support.databases import Database
from tests.support.running_command import started
from tests.support.server_process import wait_until
from tests.support.waiting import eventually
from tools.generated import DOCS

MINUTE = timedelta(minutes=1)


def schedule(name: str = "tick", **facts: Any) -> Schedule:
    defaults: dict[str, Any] = {"cron": "every 1m", "kind": "mail", "payload": "{}", "policy": Policy()}
    return Schedule(name=name, **{**defaults, **facts})


class Hurried(ManualClock):
    """A sleep moves the clock, and yields to the other tasks."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        await asyncio.sleep(0)


class Place:
    """A store whose clock the test moves, and schedulers that work on it."""

    def __init__(self, store: SqliteStore, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.seams = Seams(clock=clock)

    def scheduler(self, store: Any = None, *declared: Schedule) -> Scheduler:
        return Scheduler(store or self.store, self.seams, name="worker-1", declared=declared)

    async def put(self, one: Schedule, *, next_at: datetime | None = START + MINUTE) -> None:
        written = await self.store.schedules.put(one, next_at=next_at, paused=False, expected_rev=0, actor=OPERATOR)
        assert written is not None

    async def get(self, name: str = "tick") -> ScheduleRecord:
        record = await self.store.schedules.get(name)
        assert record is not None
        return record

    async def fired(self, name: str = "tick") -> list[str]:
        page = await self.store.find(JobFilter(tags={SCHEDULE_TAG: name}), limit=1000)
        return sorted((job.origin.tags or {})[DUE_TAG][14:19] for job in page.jobs)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    clock = Hurried()
    store = SqliteStore(":memory:", seams=Seams(clock=clock), database_clock=clock.now, inline=True)
    await store.migrate()
    await store.open()
    yield Place(store, clock)
    await store.close()


# The scheduler.


async def test_what_is_due_is_fired_and_the_wait_is_until_the_next(place: Place) -> None:
    await place.put(schedule())
    scheduler = place.scheduler()
    place.clock.advance(57)
    assert await scheduler.scan(scan_seconds=10) == 3.0
    assert await place.fired() == []
    place.clock.advance(4)
    assert await scheduler.scan(scan_seconds=100) == 59.0
    assert await scheduler.scan(scan_seconds=10) == 10.0
    assert await place.fired() == ["01:00"]


async def test_where_nothing_is_scheduled_it_looks_more_seldom(place: Place) -> None:
    assert await place.scheduler().scan(scan_seconds=10) == 60.0


async def test_a_clock_that_jumps_ahead_leaves_no_gap_and_one_that_is_set_back_brings_nothing_again(
    place: Place,
) -> None:
    await place.put(schedule(missed="all"))
    scheduler = place.scheduler()
    for jump in (61, 200, -3000, 10, 2900, -40, 100, 30):
        place.clock.advance(jump)
        await scheduler.scan()
    minutes = int((place.clock.now() - START) / MINUTE)
    last = (await place.get()).last_at
    assert last is not None
    assert await place.fired() == [f"{minute:02}:00" for minute in range(1, int((last - START) / MINUTE) + 1)]
    assert minutes <= len(await place.fired())


async def test_missed_times_are_skipped_joined_or_made_up_for(place: Place) -> None:
    await place.put(schedule("one", missed="one"))
    await place.put(schedule("all", missed="all"))
    await place.put(schedule("skip", missed="skip", grace_seconds=10.0))
    place.clock.advance(225)
    await place.scheduler().scan()
    assert await place.fired("one") == ["03:00"]
    assert await place.fired("all") == ["01:00", "02:00", "03:00"]
    assert await place.fired("skip") == []
    place.clock.advance(20)
    await place.scheduler().scan()
    assert await place.fired("skip") == ["04:00"]


async def test_a_long_outage_is_made_up_for_in_several_steps(place: Place) -> None:
    await place.put(schedule(missed="all", cron="every 1s"), next_at=START + timedelta(seconds=1))
    place.clock.advance(250)
    waits = [await place.scheduler().scan() for _ in range(4)]
    assert waits == [0.0, 0.0, 1.0, 1.0]
    assert len(await place.fired()) == 250


async def test_many_schedules_that_are_due_together_are_all_fired(place: Place) -> None:
    count = 2 * BATCH + 7
    for number in range(count):
        await place.put(schedule(f"n{number:03}"))
    place.clock.advance(60)
    await place.scheduler().scan()
    page = await place.store.find(JobFilter(), limit=1000)
    assert len({(job.origin.tags or {})[SCHEDULE_TAG] for job in page.jobs}) == len(page.jobs) == count


class LostReplies:
    """A store's schedules whose replies to firings get lost after the commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store.schedules, name)

    @property
    def schedules(self) -> LostReplies:
        return self

    async def fire(self, firing: Firing, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult] | None:
        self.asked += 1
        await self._store.schedules.fire(firing, requests)
        raise StoreUnavailable("the answer is lost")


async def test_a_firing_whose_answer_is_lost_is_not_repeated(place: Place) -> None:
    await place.put(schedule(missed="all"))
    place.clock.advance(130)
    lossy = LostReplies(place.store)
    with pytest.raises(StoreUnavailable):
        await place.scheduler(lossy).scan()
    await place.scheduler().scan()
    assert lossy.asked == 1
    assert await place.fired() == ["01:00", "02:00"]


async def test_a_due_time_of_a_schedule_that_was_made_anew_gets_no_second_job(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """It was removed and written again with other arguments, while the clock was set back."""
    await place.put(schedule(missed="all"))
    place.clock.advance(125)
    await place.scheduler().scan()
    await place.store.schedules.remove("tick", actor=OPERATOR)
    place.clock.advance(-120)
    await place.put(schedule(missed="all", payload='{"to":"bob"}'))
    place.clock.advance(180)
    with caplog.at_level(logging.WARNING):
        await place.scheduler().scan()
    assert await place.fired() == ["01:00", "02:00", "03:00"]
    assert caplog.text.count("already has its job") == 2
    assert (await place.get()).last_at == START + 3 * MINUTE


async def test_a_schedule_in_a_zone_this_machine_lacks_blocks_no_other(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await place.put(schedule("a", timezone="Mars/Olympus"))
    await place.put(schedule("b"))
    place.clock.advance(60)
    scheduler = place.scheduler()
    with caplog.at_level(logging.ERROR):
        assert await scheduler.scan(scan_seconds=7) == 7.0
        await scheduler.scan()
    assert await place.fired("b") == ["01:00"]
    assert (await place.get("a")).rev == 1
    assert caplog.text.count("schedule 'a' not fired: timezone: 'Mars/Olympus' is not an IANA name") == 1


async def test_a_scheduler_rides_out_an_outage(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    await place.put(schedule())

    class Away:
        def __init__(self, store: Store) -> None:
            self.store, self.tries = store, 0

        @property
        def schedules(self) -> Any:
            self.tries += 1
            if self.tries < 4:
                raise StoreUnavailable("away")
            return self.store.schedules

        async def now(self) -> datetime:
            return await self.store.now()

    living = asyncio.create_task(place.scheduler(Away(place.store)).run(scan_seconds=30))
    try:

        async def has_fired() -> bool:
            return await place.fired() != []

        await eventually(has_fired)
    finally:
        living.cancel()
        await asyncio.wait({living})
    assert caplog.text.count("database unavailable, retrying: away") == 1


# Declaring.


async def test_what_the_code_declares_is_written_down_once(place: Place) -> None:
    place.clock.advance(30)
    for _ in range(2):
        await place.scheduler(None, schedule(source="code")).declare()
    record = await place.get()
    assert (record.rev, record.next_at, record.schedule) == (1, START + MINUTE, schedule(source="code"))


async def test_new_code_changes_what_old_code_declared_and_keeps_a_pause(place: Place) -> None:
    await place.scheduler(None, schedule(source="code")).declare()
    first = await place.get()
    await place.store.schedules.put(
        first.schedule, next_at=first.next_at, paused=True, expected_rev=first.rev, actor=OPERATOR
    )
    place.clock.advance(90)
    await place.scheduler(None, schedule(source="code", payload='{"to":"ada"}')).declare()
    changed = await place.get()
    assert (changed.rev, changed.schedule.payload, changed.next_at) == (3, '{"to":"ada"}', first.next_at)
    assert changed.paused_at is not None
    await place.scheduler(None, schedule(source="code", cron="every 1h")).declare()
    assert (await place.get()).next_at == START + 60 * MINUTE


async def test_a_schedule_that_was_changed_at_run_time_is_not_overwritten_by_a_restart(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await place.scheduler(None, schedule(source="code")).declare()
    record = await place.get()
    edited = schedule(source="operator", cron="every 5m")
    await place.store.schedules.put(
        edited, next_at=START + 5 * MINUTE, paused=False, expected_rev=record.rev, actor=OPERATOR
    )
    with caplog.at_level(logging.INFO):
        await place.scheduler(None, schedule(source="code", cron="every 2m")).declare()
    assert (await place.get()).schedule == edited
    assert "schedule 'tick' kept as it was changed at run time" in caplog.text


async def test_a_declaration_that_cannot_be_written_holds_no_other_up(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await place.scheduler(None, schedule("a", timezone="Mars/Olympus"), schedule("b")).declare()
    assert await place.store.schedules.get("a") is None
    assert await place.store.schedules.get("b") is not None
    assert "schedule 'a' not stored: timezone" in caplog.text


# The app.


@asynccontextmanager
async def an_app(database: Database) -> AsyncIterator[tuple[App, Any]]:
    async with database.opened():
        pass
    app = App(database.url, environment={})

    @app.job(queue="mail", priority=3, max_attempts=2, on_exhausted="fail")
    async def send(to: str) -> str:
        return to

    async with app:
        yield app, send


async def test_a_schedule_can_be_put_paused_resumed_edited_triggered_and_removed(database: Database) -> None:
    async with an_app(database) as (app, send):
        record = await app.schedules.put(send.request("ada"), "0 9 * * 1-5", name="morning", timezone="Europe/Berlin")
        assert (record.rev, record.schedule.queue, record.schedule.priority) == (1, "mail", 3)
        assert record.schedule.policy.max_attempts == 2
        assert record.next_at is not None
        assert record.next_at > await (await app.store()).now()
        assert await app.schedules.get("morning") == record
        assert list(await app.schedules.list()) == [record]
        again = await app.schedules.put(send.request("ada"), "0 9 * * 1-5", name="morning", timezone="Europe/Berlin")
        assert again == record, "the same declaration again changes nothing"
        paused = await app.schedules.pause("morning")
        assert paused.paused_at is not None
        assert await app.schedules.pause("morning") == paused
        edited = await app.schedules.edit("morning", cron="0 10 * * *", missed="all")
        assert (edited.schedule.cron, edited.schedule.missed, edited.paused_at) == (
            "0 10 * * *",
            "all",
            paused.paused_at,
        )
        assert (await app.schedules.resume("morning")).paused_at is None
        extra = await app.schedules.trigger("morning")
        assert extra.created
        assert extra.job.origin.tags == {"tenure.schedule": "morning", "tenure.triggered": "yes"}
        assert (extra.job.queue, extra.job.origin.payload) == ("mail", '{"to":"ada"}')
        other = await app.schedules.trigger("morning")
        assert other.job.id != extra.job.id
        await app.schedules.remove("morning")
        assert list(await app.schedules.list()) == []


async def test_a_resumed_schedule_continues_from_now(database: Database) -> None:
    async with an_app(database) as (app, send):
        await app.schedules.put(send.request("ada"), "every 1s", name="fast")
        paused = await app.schedules.pause("fast")
        assert paused.next_at is not None
        store = await app.store()

        async def is_over() -> bool:
            assert paused.next_at is not None
            return await store.now() > paused.next_at + timedelta(seconds=1)

        await eventually(is_over)
        before = await store.now()
        resumed = await app.schedules.resume("fast")
        assert resumed.next_at is not None
        assert resumed.next_at > before


@pytest.mark.parametrize("name", ["get", "pause", "resume", "remove", "trigger", "edit"])
async def test_what_is_asked_of_a_schedule_that_is_not_there_is_refused(name: str, tmp_path: Any) -> None:
    async with an_app(Database(f"sqlite:///{tmp_path / 'jobs.db'}")) as (app, _):
        with pytest.raises(
            InvalidInput, match="'nobody' does not exist; a schedule that the code declares is written when"
        ):
            await getattr(app.schedules, name)("nobody")


async def test_a_wrong_schedule_is_refused_where_it_is_written(tmp_path: Any) -> None:
    async with an_app(Database(f"sqlite:///{tmp_path / 'jobs.db'}")) as (app, send):
        refused: list[tuple[Any, str, dict[str, Any], str]] = [
            (send.request("ada"), "0 25 * * *", {}, "cron: hour: '25' must lie between 0 and 23"),
            (send.request("ada"), "@daily", {"timezone": "Mars/Olympus"}, "timezone: 'Mars/Olympus'"),
            (send.request("ada"), "@daily", {"missed": "some"}, "missed: is 'some', and must be one of skip, one, all"),
            (send.request("ada"), "@daily", {"grace_seconds": -1}, "grace_seconds"),
            (send.request("ada"), "@daily", {"name": ""}, "name: must not be empty"),
            (send.options(delay_seconds=5).request("ada"), "@daily", {}, "delay_seconds: cannot be set on a schedule"),
            (send.options(at=START).request("ada"), "@daily", {}, "at: cannot be set on a schedule"),
            (send.options(request_id="r").request("ada"), "@daily", {}, "request_id: cannot be set on a schedule"),
            (send.request("ada"), "0 0 30 2 *", {}, "cron: day of month: '30' comes in none of the months"),
        ]
        for call, cron, facts, expected_text in refused:
            with pytest.raises(InvalidInput, match=expected_text.replace("'", ".")):
                app.schedule(call, cron, **facts)
            with pytest.raises(InvalidInput, match=expected_text.replace("'", ".")):
                await app.schedules.put(call, cron, **facts)
        with pytest.raises(PayloadRefused):
            app.schedule(send, "@daily")
        assert app.declared_schedules == {}
        assert list(await app.schedules.list()) == []


async def test_an_edit_that_makes_no_sense_leaves_the_schedule_as_it_was(tmp_path: Any) -> None:
    async with an_app(Database(f"sqlite:///{tmp_path / 'jobs.db'}")) as (app, send):
        record = await app.schedules.put(send.request("ada"), "@daily", name="morning")
        wrong: list[dict[str, Any]] = [{"cron": "x"}, {"timezone": "Mars/Olympus"}, {"missed": "some"}]
        wrong += [{"payload": "{"}, {"queue": ""}, {"priority": 99_999}, {"grace_seconds": float("inf")}]
        for facts in wrong:
            with pytest.raises(InvalidInput, match=next(iter(facts))):
                await app.schedules.edit("morning", **facts)
        assert await app.schedules.get("morning") == record


async def test_a_name_is_declared_once(tmp_path: Any) -> None:
    async with an_app(Database(f"sqlite:///{tmp_path / 'jobs.db'}")) as (app, send):
        first = app.schedule(send.request("ada"), "@daily")
        assert (first.name, first.source) == ("send", "code")
        with pytest.raises(InvalidInput, match="schedule 'send' is declared already; use another name"):
            app.schedule(send.request("bob"), "@hourly")
        app.schedule(send.options(tags={"a": "b"}).request("bob"), "@hourly", name="hourly", missed="skip")
        assert set(app.declared_schedules) == {"send", "hourly"}


async def test_a_worker_writes_down_what_its_code_declares_fires_it_and_runs_it(database: Database) -> None:
    async with an_app(database) as (app, send):
        app.schedule(send.request("ada"), "every 1s", name="fast", missed="all")
        worker = app.worker(queues=("mail",), scan_seconds=0.2, poll_seconds=0.1)
        working = asyncio.create_task(worker.run())
        try:
            store = await app.store()

            async def ran(name: str) -> int:
                page = await store.find(JobFilter(tags={SCHEDULE_TAG: name}, statuses=(SUCCEEDED,)), limit=100)
                return len({(job.origin.tags or {})[DUE_TAG] for job in page.jobs})

            async def fast() -> bool:
                return await ran("fast") >= 2

            async def late() -> bool:
                return await ran("late") >= 1

            await eventually(fast)
            await app.schedules.put(send.request("bob"), "every 1s", name="late")
            await eventually(late)
        finally:
            worker.stop()
            await asyncio.wait_for(working, 30)
        assert {record.name: record.schedule.source for record in await app.schedules.list()} == {
            "fast": "code",
            "late": "operator",
        }


# By hand.


@pytest.mark.parametrize(
    "change",
    [
        "next_at = next_at",
        "rev = rev + 2",
        "rev = rev + 1, last_at = null",
        "rev = rev + 1, name = 'other'",
        "rev = rev + 1, next_at = last_at",
        "rev = rev + 1, missed = 'some'",
    ],
)
async def test_the_database_itself_keeps_a_schedule_from_going_back(database: Database, change: str) -> None:
    async with database.opened() as store:
        due = (await store.now()).replace(microsecond=0) - timedelta(minutes=1)
        await store.schedules.put(schedule(), next_at=due, paused=False, expected_rev=0, actor=OPERATOR)
        await Scheduler(store, Seams(), name="worker-1").scan()
        before = await store.schedules.get("tick")
        assert before is not None
        assert before.last_at is not None
        with pytest.raises((sqlite3.IntegrityError, psycopg.Error)):
            by_hand(database, f"update {{schedules}} set {change} where name = 'tick'")
        assert await store.schedules.get("tick") == before


def by_hand(database: Database, statement: str) -> None:
    if database.is_sqlite:
        with closing(sqlite3.connect(database.path)) as connection, connection:
            connection.execute(statement.format(schedules="tenure_schedules"))
    else:
        with psycopg.connect(database.url) as server:
            server.execute(statement.format(schedules="tenure.schedules").encode())


@pytest.mark.parametrize("damage", ["kind = ''", "cron = 'x'", "policy_id = 123456"])
async def test_a_schedule_that_was_corrupted_by_hand_blocks_no_other(
    database: Database, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with database.opened() as store:
        due = (await store.now()).replace(microsecond=0) - timedelta(minutes=1)
        for name in ("a", "b"):
            await store.schedules.put(schedule(name), next_at=due, paused=False, expected_rev=0, actor=OPERATOR)
        by_hand(database, f"update {{schedules}} set rev = rev + 1, {damage} where name = 'a'")
        scheduler = Scheduler(store, Seams(), name="worker-1")
        with caplog.at_level(logging.ERROR):
            await scheduler.scan()
        [job] = (await store.find(JobFilter())).jobs
        assert (job.origin.tags or {})[SCHEDULE_TAG] == "b"
        assert re.search("schedule 'a' (not fired|cannot be)", caplog.text)


# The page.


def test_the_examples_of_the_page_on_schedules_work(tmp_path: Path) -> None:
    text = (DOCS / "guides" / "schedules.md").read_text(encoding="utf-8")
    shop, program = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.py").write_text(shop)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "evening 30 18 * * * paused",
        "now, besides its due times: report queued",
        "['evening']",
    ]
    with started("worker", "shop:app", folder=tmp_path) as worker:
        database = Database(f"sqlite:///{tmp_path / 'shop.db'}")
        assert wait_until(lambda: "schedule 'tidy' stored" in worker.log, seconds=30), worker.log
        listed = tenure("schedules", "ls", "--database", database.url, "--json").json["schedules"]
        assert {one["name"]: one["cron"] for one in listed} == {"morning": "0 9 * * 1-5", "tidy": "every 30s"}
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.log


def test_every_command_on_the_page_can_be_called(tmp_path: Path) -> None:
    text = (DOCS / "guides" / "schedules.md").read_text(encoding="utf-8")
    shop, _ = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.py").write_text(shop)
    morning = 'put morning --app shop:app --kind report --payload {"to":"ada"} --cron @daily'
    place = ("--database", "sqlite:///shop.db")
    assert tenure("migrate", *place, cwd=tmp_path).code == 0
    assert tenure("schedules", *morning.split(), *place, cwd=tmp_path).code == 0
    commands = re.findall(r"^\$ tenure (.*)$", text, re.MULTILINE)
    assert len(commands) == 9
    for command in commands:
        answer = tenure(*shlex.split(command), *place, cwd=tmp_path)
        assert answer.code == 0, (command, answer.err)
