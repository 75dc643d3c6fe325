"""Retention as the maintenance of a worker carries it out, on every store."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from tenure import App, Retention
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import Complete, DeadLetter, Fail, Progress
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, SUCCEEDED
from tenure.seams import SYSTEM
from tenure.stores import findings
from tenure.stores.contract import (
    DeliveredMessages,
    ExpiredRateUsage,
    FinishedJobs,
    FinishedKind,
    OutboxMessage,
    StoppedWorkers,
    Store,
    VerboseEvents,
)
from tenure.testing.contract.outbox import claim, endpoint, settlement
from tenure.testing.contract.workers import worker
from tenure.testing.driver import ERROR, OPERATOR, Driver
from tenure.testing.store_check import all_jobs
from tenure.workers.maintenance.retention import Pruner, PruneReport, RetentionWorker, prunables
from tests.support.databases import Database

NOW = Retention(finished_days=0, dead_lettered_days=0, verbose_days=0, delivered_days=0, workers_days=0)


async def finished(drive: Driver, kind: str, operation: Any) -> None:
    await drive.add(kind)
    [job] = await drive.claim(kinds=(kind,))
    await drive.apply(job, operation)


async def ended_and_live(drive: Driver) -> None:
    for kind in ("mail", "post"):
        for _ in range(3):
            await finished(drive, kind, Complete("1"))
        await finished(drive, kind, Fail(ERROR))
        await finished(drive, kind, DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR))
    await drive.add("mail")


async def kinds_left(store: Store) -> list[tuple[str, str]]:
    return sorted((job.status.value, job.kind) for job in await all_jobs(store))


@pytest.mark.requirement("SM-12")
async def test_a_worker_removes_what_its_retention_no_longer_keeps(database: Database) -> None:
    async with database.opened() as store:
        await ended_and_live(Driver(store))
        retention = Retention(succeeded_days=0, kinds={"post": 30})
        report = await RetentionWorker(store, SYSTEM, retention=retention).prune()
        assert report.jobs == {"succeeded": 3}
        left = await kinds_left(store)
        assert ("succeeded", "mail") not in left
        assert left.count(("succeeded", "post")) == 3
        assert left.count(("failed", "mail")) == left.count(("queued", "mail")) == 1


@pytest.mark.requirement("SM-12")
async def test_without_a_retention_nothing_is_removed(database: Database) -> None:
    async with database.opened() as store:
        await ended_and_live(Driver(store))
        before = await kinds_left(store)
        assert (await RetentionWorker(store, SYSTEM, retention=Retention()).prune()).total == 0
        assert await kinds_left(store) == before


@pytest.mark.requirement("SM-12")
async def test_many_workers_prune_at_once_and_each_job_is_removed_once(database: Database) -> None:
    async with database.opened() as store:
        drive = Driver(store)
        for _ in range(60):
            await drive.add("mail")
        for job in await drive.claim(limit=60):
            await drive.apply(job, Complete("1"))
        await drive.add("mail")
        pruners = [Pruner(store, NOW) for _ in range(4)]
        reports = await asyncio.gather(*(pruner.prune(limit=7) for pruner in pruners))
        assert sum(report.jobs.get("succeeded", 0) for report in reports) == 60
        # Rows that another worker had locked were skipped, and are found by the next pass.
        assert await kinds_left(store) == [("queued", "mail")]
        assert (await store.stats()).tallies[0].jobs == 1


@pytest.mark.requirement("SM-12")
async def test_by_hand_a_dry_run_counts_what_is_then_removed(database: Database) -> None:
    async with database.opened() as store:
        drive = Driver(store)
        await ended_and_live(drive)
        job = await drive.running()
        for percent in (1, 2, 3):
            job = await drive.apply(job, Progress(percent))
    async with App(database.url, environment={}, retention=NOW) as app:
        planned = await app.prune(dry_run=True)
        assert planned == PruneReport(jobs={"dead_lettered": 2, "failed": 2, "succeeded": 6}, details=2, dry_run=True)
        done = await app.prune()
        assert (done.jobs, done.details, done.dry_run) == (planned.jobs, planned.details, False)
        assert (await app.prune(dry_run=True)).total == 0
        assert sorted({status for status, _ in await kinds_left(await app.store())}) == ["queued", "running"]


async def test_delivered_messages_and_expired_rate_usage_are_removed(database: Database) -> None:
    async with database.opened() as store:
        drive = Driver(store)
        await store.queues.put("default", QueueLimits(key_rate=Rate(5, 0.1)), actor=OPERATOR)
        await drive.add(partition_key="ada")
        assert len(await drive.claim()) == 1
        sent, unsent = [OutboxMessage(id=drive.random.job_id(), topic="t", body="1", aggregate="a") for _ in range(2)]
        await endpoint(store, "crm")
        async with store.transaction(deadline_seconds=10) as tx:
            await tx.post([sent, unsent])
        [stream] = await claim(store, messages_max=1)
        assert await store.outbox.settle([settlement(stream)]) == [True]
        await SYSTEM.clock.sleep(0.11)
        report = await Pruner(store, NOW).prune()
        assert (report.messages, report.rate_usage) == (1, 1)
    assert [str(message_id) for (message_id,) in database.rows("select id from {outbox}")] == [str(unsent.id)]


def test_only_what_is_due_is_asked_for() -> None:
    now = datetime.fromisoformat("2030-01-31T00:00:00Z")
    found = [
        FinishedKind(FAILED, "mail", datetime.fromisoformat("2030-01-01T00:00:00Z")),
        FinishedKind(SUCCEEDED, "mail", datetime.fromisoformat("2030-01-30T00:00:00Z")),
        FinishedKind(DEAD_LETTERED, "mail", datetime.fromisoformat("2020-01-01T00:00:00Z")),
    ]
    month = 30 * 86_400.0
    assert prunables(Retention(finished_days=30), found, now) == [
        FinishedJobs(status=FAILED, kind="mail", older_than_seconds=month),
        VerboseEvents(older_than_seconds=7 * 86_400.0),
        DeliveredMessages(older_than_seconds=7 * 86_400.0),
        StoppedWorkers(older_than_seconds=7 * 86_400.0),
        ExpiredRateUsage(),
    ]
    kept = Retention(finished_days=31, verbose_days=None, delivered_days=None, workers_days=None)
    assert prunables(kept, found, now) == [ExpiredRateUsage()]


async def test_doctor_warns_of_many_finished_jobs_only_without_a_worker_that_prunes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "FINISHED_MANY", 3)

    async def warned(store: Store) -> bool:
        database.rows("analyze" if database.is_sqlite else "vacuum analyze {jobs}")
        return any(finding.about == "retention" for finding in await store.doctor())

    async with database.opened() as store:
        drive = Driver(store)
        for _ in range(2):
            await finished(drive, "mail", Complete("1"))
        for _ in range(3):
            await drive.add()
        assert not await warned(store)
        await finished(drive, "mail", Complete("1"))
        assert await warned(store)
        await store.register(worker("keeps"))
        assert await warned(store)
        await store.register(worker("prunes", prunes=True))
        assert not await warned(store)
        [one] = await store.workers(["prunes"])
        assert one.prunes
