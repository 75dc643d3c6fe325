"""Rows that no code can read, written with the guards off: they are named, and everything else goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

import tenure
from tenure.cli.doctor import find_problems
from tenure.lifecycle.operations import Complete
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Job, Policy
from tenure.lifecycle.schedules import Schedule
from tenure.lifecycle.statuses import QUEUED
from tenure.outbox.processor import OutboxProcessor, ProcessorOptions
from tenure.outbox.retry import RetrySchedule
from tenure.outbox.sinks import CallableSink, Delivery
from tenure.seams import SYSTEM
from tenure.stores import JobFilter, Store
from tenure.stores.contract import WorkerRecord
from tenure.testing.clock import START
from tenure.testing.contract.outbox import endpoint, post
from tenure.testing.driver import OPERATOR, Driver
from tenure.workers.maintenance.recovery import RecoveryWorker
from tests.support.command import Answer
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

UNREADABLE_JOBS: Mapping[str, Mapping[str, str]] = {
    "sqlite": {
        "due before the year 1": "due_at = -90000000000000000",
        "due after the year 9999": "due_at = 300000000000000000",
        "due for ever": "due_at = 'infinity'",
        "created before the year 1": "created_at = -90000000000000000",
        "a kind that is no UTF-8": "kind = cast(x'ff6d61696c' as text)",
        "a payload that is no UTF-8": "payload = cast(x'22ff22' as text)",
        "tags that are no JSON": "tags = 'poisoned'",
        "a policy that is missing": "policy_id = 7",
        "a status that is unknown": "status = 'lost in thought'",
    },
    "postgres": {
        "due before the year 1": "due_at = '4000-01-01 BC'",
        "due after the year 9999": "due_at = '12000-01-01'",
        "due for ever": "due_at = 'infinity'",
        "due since ever": "due_at = '-infinity'",
        "created before the year 1": "created_at = '4000-01-01 BC'",
        "created at no time": "created_at = '-infinity'",
        "tags that are no JSON": "tags = 'poisoned'",
        "a policy that is missing": "policy_id = 7777777",
        "a status that is unknown": "status = 'lost in thought'",
    },
}
UNREADABLE_EVENTS: Mapping[str, Mapping[str, str]] = {
    "sqlite": {
        "at before the year 1": "at = -90000000000000000",
        "a cause that is no UTF-8": "cause = cast(x'ff' as text)",
        "a status that is unknown": "to_status = 'lost in thought'",
    },
    "postgres": {
        "at before the year 1": "at = '4000-01-01 BC'",
        "at no time": "at = 'infinity'",
        "a status that is unknown": "to_status = 'lost in thought'",
    },
}
PLACES = [(kind, what) for kind, changes in UNREADABLE_JOBS.items() for what in changes]
EVENT_PLACES = [(kind, what) for kind, changes in UNREADABLE_EVENTS.items() for what in changes]
each_job = pytest.mark.parametrize(("database", "what"), PLACES, indirect=["database"])
each_event = pytest.mark.parametrize(("database", "what"), EVENT_PLACES, indirect=["database"])


def kind_of(database: Database) -> str:
    return "sqlite" if database.is_sqlite else "postgres"


async def three_jobs(store: Store) -> list[Job]:
    drive = Driver(store)
    return [await drive.add("mail") for _ in range(3)]


def poison(database: Database, job: Job, what: str) -> None:
    database.tamper(f"update {{jobs}} set {UNREADABLE_JOBS[kind_of(database)][what]} where id = '{job.id}'")


def poison_event(database: Database, job: Job, what: str) -> None:
    change = UNREADABLE_EVENTS[kind_of(database)][what]
    database.tamper(f"update {{events}} set {change} where job_id = '{job.id}' and rev = 1")


def cli(database: Database, *words: str) -> Answer:
    return command(*words, "--database", database.url)


def ids(answer: Answer) -> list[UUID]:
    return [UUID(job["id"]) for job in answer.json["jobs"]]


@pytest.mark.requirement("LC-02")
@each_job
async def test_a_job_that_cannot_be_read_is_named_and_the_others_are_listed(database: Database, what: str) -> None:
    async with database.opened() as store:
        first, bad, last = await three_jobs(store)
        poison(database, bad, what)
        page = await store.find(JobFilter())
        assert [job.id for job in page.jobs] == [first.id, last.id]
        [unreadable] = page.unreadable
        assert unreadable.job_id == bad.id
        assert str(bad.id) in unreadable.what
        pages = [await store.find(JobFilter(), limit=1)]
        while (after := pages[-1].after) is not None:
            pages.append(await store.find(JobFilter(), after=after, limit=1))
        assert [job.id for one in pages for job in one.jobs] == [first.id, last.id]
    answer = cli(database, "jobs", "ls", "--json", "--oldest")
    assert (answer.code, ids(answer)) == (0, [first.id, last.id])
    assert str(bad.id) in answer.err


@pytest.mark.requirement("LC-02")
@each_job
async def test_verify_and_doctor_name_it_and_stats_count(database: Database, what: str) -> None:
    async with database.opened() as store:
        _, bad, last = await three_jobs(store)
    poison(database, bad, what)
    database.tamper(f"update {{jobs}} set attempt = 3 where id = '{last.id}'")
    verified = cli(database, "verify", "--json")
    assert verified.code == 1, verified
    problems = {UUID(problem["job_id"]): problem["type"] for problem in verified.json["problems"]}
    assert problems[bad.id] == "unreadable"
    assert last.id in problems, "the jobs after it are verified"
    stats = cli(database, "stats", "--json")
    assert (stats.code, sum(row["jobs"] for row in stats.json["jobs"])) == (0, 3), stats
    findings = [one for one in await find_problems(database.url) if one.about == "unreadable row"]
    if "status" in what:
        # A job of no known status is in no list of live jobs, which is what `doctor` looks at.
        return
    assert [str(bad.id) in one.message for one in findings] == [True]


@pytest.mark.requirement("LC-02")
@each_job
@pytest.mark.parametrize("limited", [False, pytest.param(True, marks=pytest.mark.deep)])
async def test_the_other_jobs_are_claimed_run_and_recovered(database: Database, what: str, limited: bool) -> None:
    app = tenure.App(database.url)
    ran: list[UUID] = []

    @app.job(kind="mail")
    async def mail(ctx: tenure.Context) -> None:
        ran.append(ctx.id)

    async with database.opened() as store:
        jobs = await three_jobs(store)
        if limited:
            await store.queues.put("default", QueueLimits(rate=Rate(1000, 60.0)), actor=OPERATOR)
        [lost] = await Driver(store).claim(limit=1)
        past = "0" if database.is_sqlite else "'2000-01-01'"
        database.tamper(
            f"update {{jobs}} set lease_expires_at = {past}, heartbeat_deadline_at = {past} where id = '{lost.id}'"
        )
        poison(database, jobs[1], what)
        await RecoveryWorker(store, SYSTEM, name="test").scan()
        recovered = (await store.read([lost.id]))[lost.id]
        assert (lost.id, recovered.status, recovered.owner) == (jobs[0].id, QUEUED, None)
    async with app, working(app):
        later = await mail.enqueue()
        await eventually(lambda: {jobs[0].id, jobs[2].id, later.id} <= {*ran}, seconds=60)


@pytest.mark.requirement("LC-02")
@each_job
async def test_export_leaves_it_out_names_it_and_the_rest_is_imported(
    database: Database, what: str, tmp_path: Path
) -> None:
    async with database.opened() as store:
        first, bad, last = await three_jobs(store)
        await Driver(store).apply(await Driver(store).running(kind="done"), Complete("1"))
    poison(database, bad, what)
    file = tmp_path / "all.jsonl"
    answer = cli(database, "export", str(file))
    assert answer.code == 1, answer
    assert str(bad.id) in answer.err
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(str(bad.id) not in json.dumps(line) for line in lines)
    copy = Database(f"sqlite:///{tmp_path / 'copy.db'}")
    async with copy.opened():
        pass
    assert cli(copy, "import", str(file)).code == 0
    async with copy.opened() as store:
        assert {job.id for job in (await store.find(JobFilter(statuses=(QUEUED,)))).jobs} == {first.id, last.id}


@pytest.mark.requirement("LC-02")
@each_event
async def test_an_event_that_cannot_be_read_is_named_and_the_log_goes_on(
    database: Database, what: str, tmp_path: Path
) -> None:
    async with database.opened() as store:
        first, bad, last = await three_jobs(store)
        poison_event(database, bad, what)
    verified = cli(database, "verify", "--json")
    assert verified.code == 1, verified
    assert {problem["job_id"] for problem in verified.json["problems"]} == {str(bad.id)}
    assert all("nor any that follow" not in problem["message"] for problem in verified.json["problems"])
    file = tmp_path / "all.jsonl"
    exported = cli(database, "export", str(file))
    assert (exported.code, str(bad.id) in exported.err) == (1, True), exported
    assert str(last.id) in file.read_text()
    assert str(bad.id) not in file.read_text()
    log = cli(database, "events")
    assert (log.code, str(first.id) in log.out, str(last.id) in log.out) == (0, True, True), log
    assert str(bad.id) in log.err


async def test_an_export_to_a_pipe_says_that_it_cannot_leave_a_row_out(database: Database) -> None:
    async with database.opened() as store:
        _, bad, _ = await three_jobs(store)
    poison(database, bad, "due before the year 1")
    answer = cli(database, "export")
    assert answer.code != 0
    assert str(bad.id) in answer.err
    assert "to a file" in answer.err


@pytest.mark.requirement("LC-02")
async def test_doctor_and_verify_name_rate_usage_and_schedules_that_cannot_be_read(
    database: Database, tmp_path: Path
) -> None:
    async with database.opened() as store:
        drive = Driver(store)
        rate = Rate(100, 60.0)
        await store.queues.put("default", QueueLimits(rate=rate, key_rate=rate), actor=OPERATOR)
        await drive.add(partition_key="ada")
        await drive.claim()
        for name in ("daily", "hourly"):
            schedule = Schedule(name=name, cron=f"@{name}", kind="mail", payload="{}", policy=Policy())
            await store.schedules.put(
                schedule, next_at=SYSTEM.clock.now(), paused=False, expected_rev=0, actor=OPERATOR
            )
    database.tamper(
        "update {queues} set usage = 'poisoned'",
        "update {rate_usage} set usage = '7'",
        "update {schedules} set tags = 'poisoned' where name = 'daily'",
    )
    findings = [one.message for one in await find_problems(database.url) if one.about == "unreadable row"]
    expected = ("rate usage of partition 'ada'", "queue 'default'", "schedule 'daily'")
    for words in expected:
        assert any(words in message for message in findings), (words, findings)
    verified = cli(database, "verify", "--json")
    messages = [problem["message"] for problem in verified.json["problems"]]
    assert verified.code == 1
    for words in expected:
        assert any(words in message for message in messages), (words, messages)
    file = tmp_path / "all.jsonl"
    exported = cli(database, "export", str(file))
    assert exported.code == 1
    for words in expected:
        assert words in exported.err
    assert '"hourly"' in file.read_text()


@pytest.mark.requirement("WC-07")
async def test_a_worker_and_an_endpoint_that_cannot_be_read_are_named_and_the_others_are_served(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with database.opened() as store:
        worker = WorkerRecord(
            id="w", host="h", pid=1, version="1", queues=(), kinds=(), concurrency=1, started_at=START, seen_at=START
        )
        await store.register(worker)
        await store.register(msgspec.structs.replace(worker, id="v"))
        await endpoint(store, "old")
        await endpoint(store, "new")
        await post(Driver(store), ("paid", "ada"))
    never = "'-infinity'" if kind_of(database) == "postgres" else "-90000000000000000"
    database.tamper(
        "update {workers} set queues = 'damaged' where id = 'w'",
        f"update {{endpoints}} set throttled_until_at = {never} where name = 'old'",
    )
    app = tenure.App(database.url)
    received = list[str]()

    @app.job()
    async def work() -> None: ...

    @app.endpoint("new", topics=["*"])
    async def new(message: Delivery) -> None:
        received.append(message.topic)

    async with app, working(app):
        await (await work.enqueue()).result(60)
        await eventually(lambda: received == ["paid"], seconds=60)
    async with database.opened() as store:
        assert [one.id for one in (await store.stats()).workers] == ["v"]
        assert [one.name for one in await store.outbox.endpoints()] == ["new"]
    assert "endpoint 'old' cannot be read" in caplog.text
    findings = [one.message for one in await find_problems(database.url) if one.about == "unreadable row"]
    for name in ("worker 'w'", "endpoint 'old'"):
        assert any(message.startswith(f"{name} cannot be read") for message in findings), (name, findings)


@pytest.mark.requirement("WC-07")
async def test_a_message_that_cannot_be_read_is_listed_and_becomes_a_dead_letter_and_the_others_are_delivered(
    database: Database,
) -> None:
    async with database.opened() as store:
        await endpoint(store)
        ids = await post(Driver(store), ("paid", "ada"), ("paid", "ada"), ("paid", "bob"))
    never = "'-infinity'" if kind_of(database) == "postgres" else "-90000000000000000"
    database.tamper(f"update {{outbox}} set at = {never} where id = '{ids[0]}'")
    listed = command("outbox", "ls", "--json", "--database", database.url)
    assert listed.code == 0, listed.err
    messages = listed.json["messages"]
    assert [one["at"] == "cannot be read" for one in messages] == [True, False, False]
    shown = command("outbox", "show", str(ids[0]), "--database", database.url)
    assert (shown.code, "at: cannot be read" in shown.out) == (0, True)
    received = list[UUID]()

    async def receive(message: Delivery) -> None:
        received.append(message.id)

    async with database.opened() as store:
        options = ProcessorOptions(retry=RetrySchedule(delays_seconds=()))
        processor = OutboxProcessor(store.outbox, lambda _: CallableSink(receive), SYSTEM, name="p", options=options)
        await processor.drain()
        assert set(received) == set(ids[1:])
        [made] = await store.outbox.deliveries(messages[0]["sequence"])
        assert (made.outcome, "cannot be read" in str(made.error)) == ("dead", True)
        [known] = await store.outbox.endpoints()
        assert known.failing_since_at is None
