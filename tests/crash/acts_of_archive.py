"""An import into an empty database: what dies anywhere in it leaves nothing, and can be imported again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tenure.archive.exporter import Exporter
from tenure.archive.importer import import_file
from tenure.lifecycle.limits import QueueLimits, Rate
from tenure.lifecycle.operations import Commit, Complete, Fail, Signal
from tenure.lifecycle.records import Job, Policy
from tenure.lifecycle.schedules import Schedule
from tenure.stores.contract import Artifact, NotEmpty, OutboxMessage
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, Driver, runner
from tests.crash.acts import LONG, Act, Scene, job_id, running
from tests.crash.acts_of_change import BURIAL

LATE = datetime(2999, 1, 1, tzinfo=UTC)


EVERYTHING = Path(__file__).parent / "everything.jsonl"
"""An export in which every kind of line stands. It is kept in a file, so that every process imports the same; written
by the first version of the format, it also shows that this is still read. Nobody holds a job in it: the token of one
would be another in every process."""


async def import_everything(scene: Scene) -> int:
    """How many jobs came in: none where an earlier try has brought them."""
    try:
        seen = await import_file(scene.store.archive, EVERYTHING)
    except NotEmpty:
        return 0
    return seen.footer.counts["job"]


OF_ARCHIVE: tuple[Act, ...] = (Act("import", import_everything, empty=True, new_policies=True),)


async def _live(drive: Driver) -> None:
    store = drive.store
    held = await running(drive, kind="held", queue="default", partition_key="ada")
    held = await _told(drive, held)
    async with store.transaction(deadline_seconds=3) as tx:
        await tx.attach(held, [Artifact(name="report", media_type="text/plain", body=b"42")])
        await tx.post([OutboxMessage(id=job_id(99), topic="paid", body="{}", aggregate="ada")], job=held)
        await tx.apply(drive.request(held, Commit("1"), fresh=True))
    await drive.apply(held.id, Complete("1"), actor=runner(held))
    buried = await drive.apply(await running(drive, number=2, kind="buried"), BURIAL)
    await store.resolve_dead_letters([buried.id], how="discarded", actor=OPERATOR)
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


async def _told(drive: Driver, held: Job) -> Job:
    """The job after a signal, with the token that its owner has."""
    told = await drive.apply(held.id, Signal("approved", "1"), actor=CLIENT)
    return msgspec.structs.replace(told, token=held.token)


async def write() -> None:
    """Make the file anew: python -m tests.crash.acts_of_archive"""
    store = SqliteStore(":memory:", inline=True)
    await store.migrate()
    await store.open()
    await _live(Driver(store))
    async with store.archive.snapshot() as snapshot:
        lines = [line async for line in Exporter(snapshot).lines()]
    await store.close()
    EVERYTHING.write_bytes(b"".join(lines))


if __name__ == "__main__":
    asyncio.run(write())
