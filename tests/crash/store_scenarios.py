"""Scenarios besides single operations: enqueues, claims, workers, dead letters, retention, the schema and the WAL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

from tenure.lifecycle.operations import Fail, Progress, Signal
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import FAILED
from tenure.stores import Store
from tenure.stores.contract import (
    EnqueueResult,
    ExpiredRateUsage,
    FinishedJobs,
    MigrationRecord,
    WorkerRecord,
)
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.postgres.watermarks import Scan
from tenure.stores.queue_groups import GROUP_QUEUES_MAX
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, Driver, blank_verbose, runner
from tests.crash.archive_scenarios import ARCHIVE_SCENARIOS
from tests.crash.budget_scenarios import BUDGET_SCENARIOS
from tests.crash.contention_scenarios import CONTENTION_SCENARIOS, four_queued
from tests.crash.log_cursor_scenarios import LOG_CURSOR_SCENARIOS
from tests.crash.operation_scenarios import DEAD_LETTER, OPERATION_SCENARIOS
from tests.crash.queue_scenarios import QUEUE_SCENARIOS
from tests.crash.scenario import LONG, TOKEN, Context, Scenario, job_id, running
from tests.crash.schedule_scenarios import SCHEDULE_SCENARIOS
from tests.crash.transaction_scenarios import TRANSACTION_SCENARIOS
from tests.support.waiting import eventually

_SOMETIME = datetime(2026, 1, 1, tzinfo=UTC)
WORKER = WorkerRecord(
    id="worker-7",
    host="here",
    pid=7,
    version="1",
    queues=("default",),
    kinds=("mail",),
    concurrency=2,
    started_at=_SOMETIME,
    seen_at=_SOMETIME,
)


async def enqueue_many(context: Context) -> Sequence[EnqueueResult]:
    """Six rows are three statements each on SQLite. Neither of the two policies is stored yet."""
    policies: list[dict[str, float]] = [{**LONG}, {**LONG, "lease_seconds": 1800.0}]
    requests = [context.drive.enqueue(id=job_id(10 + n), policy=policies[n % 2], priority=n) for n in range(6)]
    return await context.store.enqueue(requests)


async def enqueue_homogeneous(context: Context) -> Sequence[EnqueueResult]:
    """Jobs that differ only in their ids, for which PostgreSQL has its own statement."""
    return await context.store.enqueue([context.drive.enqueue(id=job_id(10 + n), policy=LONG) for n in range(3)])


async def enqueue_one(context: Context) -> Sequence[EnqueueResult]:
    """A single job, for which PostgreSQL has its own statement too."""
    return await context.store.enqueue([context.drive.enqueue(id=job_id(10), policy=LONG, tags={"customer": "ada"})])


async def enqueue_one_now(context: Context) -> Sequence[EnqueueResult]:
    """A single job that is due at once and has no tags, for which PostgreSQL has a shorter statement."""
    return await context.store.enqueue([context.drive.enqueue(id=job_id(10), policy=LONG)])


async def one_with_a_dedupe_key(drive: Driver) -> list[Job]:
    return [await drive.add(id=job_id(1), dedupe_key="ada")]


async def enqueue_duplicate(context: Context) -> Sequence[EnqueueResult]:
    return await context.store.enqueue([context.drive.enqueue(id=job_id(2), dedupe_key="ada")])


async def claim_three(context: Context) -> list[Job]:
    return await context.store.claim(context.drive.claim_request(limit=3, token=TOKEN, request_id="the-claim"))


async def claim_one(context: Context) -> list[Job]:
    request = context.drive.claim_request(limit=1, token=TOKEN, request_id="the-claim", start=False)
    return await context.store.claim(request)


async def four_in_one_lane(drive: Driver) -> list[Job]:
    return [await drive.add(id=job_id(number), policy=LONG) for number in range(1, 5)]


async def claim_from_a_lane(context: Context) -> list[Job]:
    """The store has learnt, as from earlier claims, that there is one lane."""
    request = context.drive.claim_request(limit=3, token=TOKEN, request_id="the-claim")
    store = cast(PostgresStore, context.store)
    claimer = store._claims._watermarks.of(request.queues, request.kinds)
    row = {"id": TOKEN, "queue": "default", "priority": 0}
    claimer.learn([row], Scan(0, 0, _SOMETIME, []), began_seconds=0.0, now_seconds=0.0)
    return await store.claim(request)


async def claim_from_many_queues(context: Context) -> list[Job]:
    """The claim names more queues than one group has."""
    queues = ("default", *(f"other-{number}" for number in range(GROUP_QUEUES_MAX)))
    return await context.store.claim(
        context.drive.claim_request(limit=3, token=TOKEN, request_id="the-claim", queues=queues)
    )


async def register(context: Context) -> None:
    await context.store.register(WORKER)


async def a_worker(drive: Driver) -> list[Job]:
    await drive.store.register(WORKER)
    return []


async def unregister(context: Context) -> None:
    await context.store.unregister(WORKER.id)


async def two_dead_letters(drive: Driver) -> list[Job]:
    return [await drive.apply(await running(drive, number=number), DEAD_LETTER) for number in (1, 2)]


async def resolve_dead_letters(context: Context) -> int:
    return await context.store.resolve_dead_letters([job.id for job in context.jobs], how="discarded", actor=OPERATOR)


async def ended(drive: Driver) -> list[Job]:
    """A failed and a dead job with every kind of record that a job can have, and a live job."""
    held = await running(drive, correlation_id="order-7", tags={"tenant": "x"})
    await drive.apply(held.id, Signal("approved", "1"), actor=CLIENT)
    for percent in (10, 90):
        await drive.apply(held.id, Progress(percent, "so far"), actor=runner(held))
    failed = await drive.apply(held.id, Fail(ERROR), actor=runner(held))
    dead = await drive.apply(await running(drive, number=2), DEAD_LETTER)
    await drive.add(id=job_id(3), policy=LONG)
    return [failed, dead]


async def prune(context: Context) -> int:
    """Only the failed job: each status is pruned in its own transaction."""
    jobs = FinishedJobs(status=FAILED, kind=context.job.kind, older_than_seconds=0)
    return (await context.store.prune(jobs, actor=OPERATOR)).removed


async def expired_usage(drive: Driver) -> list[Job]:
    """A job that was claimed under a rate limit whose period has passed."""
    await drive.store.queues.put("default", QueueLimits(key_rate=Rate(1, 0.1)), actor=OPERATOR)
    await drive.add(id=job_id(1), policy=LONG, partition_key="a")

    async def has_expired() -> bool:
        return await drive.store.count_prunable(ExpiredRateUsage()) > 0

    claimed = await drive.claim()
    await eventually(has_expired)
    return claimed


async def prune_usage(context: Context) -> int:
    return (await context.store.prune(ExpiredRateUsage(), actor=OPERATOR)).removed


async def blank(context: Context) -> int:
    return await blank_verbose(context.store, older_than_seconds=0)


async def erase(context: Context) -> Job:
    return await context.store.erase(context.job.id, reason="asked for", actor=OPERATOR)


async def migrate(context: Context) -> list[MigrationRecord]:
    return await context.store.migrate()


async def enqueue_and_close(context: Context) -> Sequence[EnqueueResult]:
    """Closing copies the WAL into the file."""
    added = await enqueue_many(context)
    await context.store.close()
    return added


def checkpointing_store(url: str) -> Store:
    """A store that copies its WAL into the file after every write."""
    return SqliteStore(url.removeprefix("sqlite:///"), wal_bytes_max=0)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("enqueue many", enqueue_many, new_policies=True),
    Scenario("enqueue a homogeneous batch", enqueue_homogeneous, new_policies=True),
    Scenario("enqueue one", enqueue_one, new_policies=True),
    Scenario("enqueue one that is due at once", enqueue_one_now, new_policies=True),
    Scenario("enqueue a duplicate", enqueue_duplicate, one_with_a_dedupe_key),
    Scenario("claim and start three", claim_three, four_queued),
    Scenario("claim one", claim_one, four_queued),
    Scenario("claim from a lane", claim_from_a_lane, four_in_one_lane, only="postgres"),
    Scenario("claim from many queues", claim_from_many_queues, four_queued, only="postgres"),
    *CONTENTION_SCENARIOS,
    *OPERATION_SCENARIOS,
    *TRANSACTION_SCENARIOS,
    *LOG_CURSOR_SCENARIOS,
    *SCHEDULE_SCENARIOS,
    *ARCHIVE_SCENARIOS,
    *BUDGET_SCENARIOS,
    *QUEUE_SCENARIOS,
    Scenario("register", register),
    Scenario("unregister", unregister, a_worker),
    Scenario("resolve dead letters", resolve_dead_letters, two_dead_letters),
    Scenario("prune", prune, ended),
    Scenario("prune rate usage", prune_usage, expired_usage),
    Scenario("blank", blank, ended),
    Scenario("erase", erase, ended),
    Scenario("migrate", migrate, migrated=False),
    Scenario("enqueue and checkpoint", enqueue_many, store=checkpointing_store, only="sqlite"),
    Scenario("enqueue and close", enqueue_and_close, leaves_open=False, only="sqlite"),
)
