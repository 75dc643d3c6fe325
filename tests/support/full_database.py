"""A database with every kind of record, for tests that export and import whole databases."""

from __future__ import annotations

from datetime import UTC, datetime

from tenure.lifecycle.operations import Commit, Complete, Fail, Progress, Retry, Signal
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Job, Policy
from tenure.lifecycle.schedules import Schedule
from tenure.stores import Store
from tenure.stores.contract import Artifact, OutboxMessage
from tenure.testing.contract.steps import recorded, save, save_request
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, Driver, blank_verbose, runner
from tests.support.sample_jobs import DEAD_LETTER, one_of_each

BIG = '"' + "ä" * 120_000 + '"'
LATE = datetime(2999, 1, 1, tzinfo=UTC)


async def fill_database(store: Store) -> list[Job]:
    """Jobs in every status, erased and blanked ones, resolved dead letters, queues, schedules and workers."""
    drive = Driver(store)
    jobs = await one_of_each(drive)
    jobs += [await _retried(drive), await _erased(drive), await _with_all_content(drive)]
    for how in ("redriven", "discarded"):
        buried = await drive.apply(await drive.running(correlation_id="order-7"), DEAD_LETTER)
        await store.resolve_dead_letters([buried.id], how=how, actor=OPERATOR)
        jobs.append(buried)
    await _queues_and_schedules(store)
    await _deduplicated(drive)
    assert await blank_verbose(store, older_than_seconds=0) > 0
    return jobs


async def _retried(drive: Driver) -> Job:
    """Failures of which only the last error is kept: of the others only the digest is."""
    job = await drive.running(kind="again", payload=BIG, tags={"tenant": "x", "area": "ö"}, trace="00-ab-cd-01")
    for number in range(3):
        await drive.apply(job, Progress(10, "a word"), Progress(20 + number), Retry(f'"{number}"', delay_seconds=0))
        [job] = await drive.claim(kinds=("again",))
    return await drive.apply(job, Complete(BIG))


async def _erased(drive: Driver) -> Job:
    job = await drive.running(kind="erased", payload='{"name":"ada"}', tags={"name": "ada"}, correlation_id="c")
    await drive.apply(job.id, Signal("approved", '"by ada"'), actor=CLIENT)
    for operation in (Progress(5, "ada"), Fail(ERROR)):
        await drive.apply(job.id, operation, actor=runner(job))
    return await drive.store.erase(job.id, reason="asked for", actor=OPERATOR)


async def _with_all_content(drive: Driver) -> Job:
    job = await drive.running(kind="made", partition_key="ada", submitted_by="ada")
    await save(drive.store, save_request(job, "b", result=BIG), save_request(job, "a", status="failed"))
    steps = await recorded(drive.store, job)
    async with drive.store.transaction(deadline_seconds=3) as tx:
        made = [("report", b"\x00\xff" * 50_000), ("log", b"")]
        await tx.attach(job, [Artifact(name=name, media_type="text/plain", body=body) for name, body in made])
        for aggregate in ("b", "a", "b"):
            message = OutboxMessage(
                id=drive.random.job_id(), topic="paid", body="{}", aggregate=aggregate, headers="{}"
            )
            await tx.post([message], job=job)
        await tx.apply(drive.request(job, Commit("1"), fresh=True, steps=steps))
    return await drive.job(job.id)


async def _queues_and_schedules(store: Store) -> None:
    await store.queues.put("slow", QueueLimits(concurrency_max=3, key_rate=Rate(9, 60.0)), actor=OPERATOR)
    await store.queues.pause("slower", actor=OPERATOR)
    tags = {"b": "2", "a": "1"}
    schedule = Schedule(name="yearly", cron="@yearly", kind="mail", payload="{}", policy=Policy(), tags=tags)
    await store.schedules.put(schedule, next_at=LATE, paused=True, expected_rev=0, actor=OPERATOR)
    drive = Driver(store)
    await drive.add(queue="slow", partition_key="ada", kind="keyed")
    assert len(await drive.claim(queues=("slow",), kinds=("keyed",))) == 1


async def _deduplicated(drive: Driver) -> None:
    """A request that was deduplicated to another job."""
    await drive.add("twin", dedupe_key="x", delay_ms=3_600_000)
    await drive.add("twin", dedupe_key="x", request_id="order-9")
