"""Rows that no code can read: the database refuses them, and those written with the guards off stop nothing else."""

from __future__ import annotations

from uuid import UUID

import pytest

import tenure
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Policy
from tenure.lifecycle.schedules import Schedule
from tenure.seams import SYSTEM
from tenure.stores import Store
from tenure.stores.contract import WorkerRecord
from tenure.testing.clock import START
from tenure.testing.contract.outbox import endpoint, post
from tenure.testing.driver import OPERATOR, Driver
from tenure.workers.maintenance.scheduler import Scheduler
from tests.support.databases import Database, GuardRefused
from tests.support.in_process_worker import working

BEFORE_YEAR_1 = {"sqlite": "-90000000000000000", "postgres": "'4000-01-01 BC'"}
AFTER_YEAR_9999 = {"sqlite": "300000000000000000", "postgres": "'12000-01-01'"}
NEVER = {"sqlite": "'never'", "postgres": "'infinity'"}
NOT_A_NUMBER = {"sqlite": "9e999", "postgres": "'NaN'"}

UNREADABLE = {
    "a queue's usage that is no JSON": "update {queues} set usage = 'poisoned'",
    "a queue's usage that is no object": "update {queues} set usage = '7'",
    "a queue paused before the year 1": "update {queues} set paused_at = BEFORE_YEAR_1",
    "a queue with a rate per no time": "update {queues} set rate_seconds = NOT_A_NUMBER",
    "a partition's usage that is no JSON": "update {rate_usage} set usage = 'poisoned'",
    "a partition's usage until for ever": "update {rate_usage} set until_at = NEVER",
    "a schedule whose grace is no number": "update {schedules} set rev = rev + 1, grace_seconds = NOT_A_NUMBER",
    "a schedule due after the year 9999": "update {schedules} set rev = rev + 1, next_at = AFTER_YEAR_9999",
    "a schedule due for ever": "update {schedules} set rev = rev + 1, next_at = NEVER",
    "a schedule paused before the year 1": "update {schedules} set rev = rev + 1, paused_at = BEFORE_YEAR_1",
    "a schedule whose tags are no JSON": "update {schedules} set rev = rev + 1, tags = 'poisoned'",
    "a worker seen for ever": "update {workers} set seen_at = NEVER",
    "a worker started before the year 1": "update {workers} set started_at = BEFORE_YEAR_1",
    "a worker stopped after the year 9999": "update {workers} set stopped_at = AFTER_YEAR_9999",
    "a worker whose queues are no JSON": "update {workers} set queues = 'poisoned'",
    "a worker whose kinds are no list": "update {workers} set kinds = '7'",
    "an endpoint made before the year 1": "update {endpoints} set created_at = BEFORE_YEAR_1",
    "an endpoint changed after the year 9999": "update {endpoints} set updated_at = AFTER_YEAR_9999",
    "an endpoint seen for ever": "update {endpoints} set seen_at = NEVER",
    "an endpoint failing since before the year 1": "update {endpoints} set failing_since_at = BEFORE_YEAR_1",
    "an endpoint throttled for ever": "update {endpoints} set throttled_until_at = NEVER",
    "an endpoint disabled for ever": "update {endpoints} set disabled_because = 'gone', disabled_at = NEVER",
    "an endpoint whose configuration is no JSON": "update {endpoints} set config = 'poisoned'",
    "a subscription changed before the year 1": "update {subscriptions} set updated_at = BEFORE_YEAR_1",
    "a subscription whose filters are no JSON": "update {subscriptions} set filters = 'poisoned'",
    "a subscription that blocks for no time": "update {subscriptions} set block_seconds = NOT_A_NUMBER",
    "a message due for ever": "update {pending} set due_at = NEVER",
    "a message tried first before the year 1": "update {pending} set head_at = BEFORE_YEAR_1",
    "a stream written for ever": "update {streams} set at = NEVER",
    "a cursor leased for ever": "update {log_cursors} set lease_expires_at = NEVER",
    "a cursor changed after the year 9999": "update {log_cursors} set updated_at = AFTER_YEAR_9999",
}


async def limited(store: Store) -> Driver:
    """A queue with rates and a schedule, and usage of both; a worker, and a message for an endpoint."""
    drive = Driver(store)
    rate = Rate(100, 60.0)
    await store.queues.put("default", QueueLimits(rate=rate, key_rate=rate), actor=OPERATOR)
    await drive.add(partition_key="ada")
    assert len(await drive.claim()) == 1
    schedule = Schedule(name="hourly", cron="@hourly", kind="mail", payload="{}", policy=Policy())
    await store.schedules.put(schedule, next_at=SYSTEM.clock.now(), paused=False, expected_rev=0, actor=OPERATOR)
    await store.register(
        WorkerRecord(
            id="w", host="h", pid=1, version="1", queues=(), kinds=(), concurrency=1, started_at=START, seen_at=START
        )
    )
    await endpoint(store)
    await post(drive, ("paid", "ada"))
    assert await store.log_cursors.lease("events", owner="w", token=UUID(int=1), lease_seconds=30)
    return drive


def spelt(database: Database, statement: str) -> str:
    kind = "sqlite" if database.is_sqlite else "postgres"
    words = {"BEFORE_YEAR_1": BEFORE_YEAR_1, "AFTER_YEAR_9999": AFTER_YEAR_9999, "NEVER": NEVER}
    for word, values in {**words, "NOT_A_NUMBER": NOT_A_NUMBER}.items():
        statement = statement.replace(word, values[kind])
    return statement


@pytest.mark.requirement("LC-02")
@pytest.mark.parametrize("what", UNREADABLE)
async def test_a_row_that_no_code_can_read_is_refused(database: Database, what: str) -> None:
    async with database.opened() as store:
        await limited(store)
        for writer in (None, "store"):
            with pytest.raises(GuardRefused):
                database.write_as(writer, spelt(database, UNREADABLE[what]))


@pytest.mark.requirement("LC-02")
@pytest.mark.parametrize("at", [BEFORE_YEAR_1, AFTER_YEAR_9999, NEVER])
@pytest.mark.parametrize("column", ["due_at", "lease_expires_at", "heartbeat_deadline_at", "timeout_at"])
async def test_a_job_whose_times_no_code_can_read_is_refused(
    database: Database, at: dict[str, str], column: str
) -> None:
    async with database.opened() as store:
        job = await Driver(store).running()
    kind = "sqlite" if database.is_sqlite else "postgres"
    false = "0" if database.is_sqlite else "false"
    event = (
        "insert into {events} (job_id, rev, type, from_status, to_status, at, attempt, actor, request_id, commits,"
        f" version) select id, 4, 'heartbeat', 'running', 'running', updated_at, 1, 'runner:me', 'x', {false}, 1"
        " from {jobs}"
    )
    change = f"update {{jobs}} set rev = 4, transition_count = 1, previous_status = status, {column} = "
    with pytest.raises(GuardRefused):
        database.write_as("store", event, f"{change}{at[kind]}")
    database.write_as("store", event, f"{change}{column}")
    assert database.rows("select rev from {jobs}") == [(job.rev + 1,)]


@pytest.mark.parametrize("column", ["kind", "queue", "payload", "owner", "correlation_id"])
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_blob_in_a_text_column_is_refused(database: Database, column: str) -> None:
    """PostgreSQL has typed columns."""
    async with database.opened() as store:
        await Driver(store).running()
    database.tamper()  # Without its triggers, so that the constraint of the column is what refuses it.
    with pytest.raises(GuardRefused):
        database.write_as("store", f"update {{jobs}} set {column} = x'ff'")


@pytest.mark.requirement("LC-02")
@pytest.mark.parametrize("usage", ["poisoned", "7", '{"slices": "none"}'])
async def test_a_queue_whose_usage_cannot_be_read_is_claimed_from_and_its_usage_is_counted_anew(
    database: Database, usage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with database.opened() as store:
        drive = await limited(store)
        database.tamper(f"update {{queues}} set usage = '{usage}'", f"update {{rate_usage}} set usage = '{usage}'")
        for key in (None, "ada"):
            await drive.add(partition_key=key)
        assert len(await drive.claim(limit=2)) == 2
        assert "rate usage of queue 'default' cannot be decoded, counting anew" in caplog.text
        caplog.clear()
        await drive.add(partition_key="ada")
        assert len(await drive.claim()) == 1
        assert caplog.text == ""


@pytest.mark.parametrize("poisoned", ["usage = 'poisoned'", "usage = '7'"])
async def test_a_worker_runs_jobs_of_a_queue_whose_usage_cannot_be_read(database: Database, poisoned: str) -> None:
    async with database.opened() as store:
        await limited(store)
    database.tamper(f"update {{queues}} set {poisoned}", f"update {{rate_usage}} set {poisoned}")
    app = tenure.App(database.url)

    @app.job(kind="greet")
    async def greet() -> str:
        return "hello"

    async with app, working(app):
        assert await (await greet.enqueue()).result(timeout_seconds=30) == "hello"


@pytest.mark.parametrize("poisoned", ["grace_seconds = NOT_A_NUMBER", "tags = 'poisoned'", "policy_id = 7"])
async def test_a_schedule_that_cannot_be_read_is_named_and_the_others_fire(
    database: Database, poisoned: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with database.opened() as store:
        drive = await limited(store)
        for name in ("daily", "weekly"):
            schedule = Schedule(name=name, cron="@daily", kind=name, payload="{}", policy=Policy(), missed="skip")
            now = await store.now()
            await store.schedules.put(schedule, next_at=now, paused=False, expected_rev=0, actor=OPERATOR)
        database.tamper(spelt(database, f"update {{schedules}} set {poisoned} where name = 'daily'"))
        await Scheduler(store, SYSTEM, name="test").scan()
        assert [len(await drive.claim(kinds=(kind,))) for kind in ("daily", "weekly")] == [0, 1]
        assert "schedule 'daily' cannot be decoded" in caplog.text
