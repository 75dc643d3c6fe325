"""An import into an empty database. Killed anywhere, it leaves nothing, and the import can be repeated."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tenure.archive.exporter import Exporter
from tenure.lifecycle.operations import Commit, Complete, Fail, Signal
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Job, Policy
from tenure.lifecycle.schedules import Schedule
from tenure.stores.contract import Artifact, NotEmpty, OutboxMessage
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, Driver, runner
from tests.crash.operation_scenarios import DEAD_LETTER
from tests.crash.scenario import LONG, Context, Scenario, job_id, running
from tests.support.archives import check_and_import

LATE = datetime(2999, 1, 1, tzinfo=UTC)


FULL_ARCHIVE = Path(__file__).parent / "full_archive.jsonl"
"""An export with every kind of record. It is a file, so that every process imports the same; the first version of the
format wrote it, so it also shows that this version is still read. No job in it is leased: a token would differ from
process to process."""


async def import_archive(context: Context) -> int:
    """Returns how many jobs were imported: 0 if an earlier run imported them."""
    try:
        seen = await check_and_import(context.store.archive, FULL_ARCHIVE)
    except NotEmpty:
        return 0
    return seen.footer.counts["job"]


ARCHIVE_SCENARIOS: tuple[Scenario, ...] = (Scenario("import", import_archive, empty=True, new_policies=True),)


async def _fill(drive: Driver) -> None:
    store = drive.store
    held = await running(drive, kind="held", queue="default", partition_key="ada")
    held = await _signalled(drive, held)
    async with store.transaction(deadline_seconds=3) as tx:
        await tx.attach(held, [Artifact(name="report", media_type="text/plain", body=b"42")])
        await tx.post([OutboxMessage(id=job_id(99), topic="paid", body="{}", aggregate="ada")], job=held)
        await tx.apply(drive.request(held, Commit("1"), fresh=True))
    await drive.apply(held.id, Complete("1"), actor=runner(held))
    dead = await drive.apply(await running(drive, number=2, kind="dead"), DEAD_LETTER)
    await store.resolve_dead_letters([dead.id], how="discarded", actor=OPERATOR)
    failed = await running(drive, number=3, kind="failed")
    await drive.apply(failed.id, Fail(ERROR), actor=runner(failed))
    await store.erase(failed.id, reason="asked for", actor=OPERATOR)
    await drive.add("twin", id=job_id(4), dedupe_key="x", policy=LONG)
    await drive.add("twin", id=job_id(5), dedupe_key="x", policy=LONG)
    await store.queues.put("slow", QueueLimits(key_rate=Rate(9, 60.0)), actor=OPERATOR)
    await drive.add("keyed", id=job_id(6), queue="slow", partition_key="ada", policy=LONG)
    [keyed] = await drive.claim(queues=("slow",), kinds=("keyed",))
    await drive.apply(keyed, Complete("1"))
    yearly = Schedule(name="yearly", cron="@yearly", kind="mail", payload="{}", policy=Policy())
    await store.schedules.put(yearly, next_at=LATE, paused=False, expected_rev=0, actor=OPERATOR)


async def _signalled(drive: Driver, held: Job) -> Job:
    """The job after a signal, with its owner's token."""
    signalled = await drive.apply(held.id, Signal("approved", "1"), actor=CLIENT)
    return msgspec.structs.replace(signalled, token=held.token)


async def write() -> None:
    """Write the file again: python -m tests.crash.archive_scenarios"""
    store = SqliteStore(":memory:", inline=True)
    await store.migrate()
    await store.open()
    await _fill(Driver(store))
    async with store.archive.snapshot() as snapshot:
        lines = [line async for line in Exporter(snapshot).lines()]
    await store.close()
    FULL_ARCHIVE.write_bytes(b"".join(lines))


if __name__ == "__main__":
    asyncio.run(write())
