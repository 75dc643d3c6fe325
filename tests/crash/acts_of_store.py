"""The acts besides single changes: new jobs, claims, workers, dead letters, retention, the schema and the WAL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

from tenure.lifecycle.operations import Fail, Progress, Signal
from tenure.lifecycle.records import Job
from tenure.stores import Store
from tenure.stores.contract import EnqueueResult, MigrationRecord, WorkerRecord
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.postgres.watermarks import Scan
from tenure.stores.queue_groups import GROUP_QUEUES_MAX
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, Driver, runner
from tests.crash.acts import LONG, TOKEN, Act, Scene, job_id, running
from tests.crash.acts_of_archive import OF_ARCHIVE
from tests.crash.acts_of_callers import OF_CALLERS
from tests.crash.acts_of_change import BURIAL, CHANGES
from tests.crash.acts_of_queues import OF_QUEUES
from tests.crash.acts_of_schedules import OF_SCHEDULES

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


async def add_many(scene: Scene) -> Sequence[EnqueueResult]:
    """Six rows are three statements each on SQLite. Of the two policies neither is known."""
    policies: list[dict[str, float]] = [{**LONG}, {**LONG, "lease_seconds": 1800.0}]
    requests = [scene.drive.enqueue(id=job_id(10 + n), policy=policies[n % 2], priority=n) for n in range(6)]
    return await scene.store.enqueue(requests)


async def enqueue_homogeneous(scene: Scene) -> Sequence[EnqueueResult]:
    """Jobs that differ in nothing but their ids, which PostgreSQL takes by a statement of its own."""
    return await scene.store.enqueue([scene.drive.enqueue(id=job_id(10 + n), policy=LONG) for n in range(3)])


async def one_with_a_dedupe_key(drive: Driver) -> list[Job]:
    return [await drive.add(id=job_id(1), dedupe_key="ada")]


async def add_duplicate(scene: Scene) -> Sequence[EnqueueResult]:
    return await scene.store.enqueue([scene.drive.enqueue(id=job_id(2), dedupe_key="ada")])


async def four_queued(drive: Driver) -> list[Job]:
    return [await drive.add(id=job_id(number), policy=LONG, priority=number) for number in range(1, 5)]


async def claim_three(scene: Scene) -> list[Job]:
    return await scene.store.claim(scene.drive.claim_request(limit=3, token=TOKEN, request_id="the-claim"))


async def claim_one(scene: Scene) -> list[Job]:
    request = scene.drive.claim_request(limit=1, token=TOKEN, request_id="the-claim", start=False)
    return await scene.store.claim(request)


async def four_alike(drive: Driver) -> list[Job]:
    return [await drive.add(id=job_id(number), policy=LONG) for number in range(1, 5)]


async def claim_from_a_lane(scene: Scene) -> list[Job]:
    """By a store that knows, as if from earlier claims, that there is one lane."""
    request = scene.drive.claim_request(limit=3, token=TOKEN, request_id="the-claim")
    store = cast(PostgresStore, scene.store)
    claimer = store._claims._watermarks.of(request.queues, request.kinds)
    row = {"id": TOKEN, "queue": "default", "priority": 0}
    claimer.learn([row], Scan(0, 0, _SOMETIME, []), began_seconds=0.0, now_seconds=0.0)
    return await store.claim(request)


async def claim_of_many(scene: Scene) -> list[Job]:
    """By a claimer of so many queues that they are more than one group."""
    queues = ("default", *(f"other-{number}" for number in range(GROUP_QUEUES_MAX)))
    return await scene.store.claim(
        scene.drive.claim_request(limit=3, token=TOKEN, request_id="the-claim", queues=queues)
    )


async def register(scene: Scene) -> None:
    await scene.store.register(WORKER)


async def a_worker(drive: Driver) -> list[Job]:
    await drive.store.register(WORKER)
    return []


async def unregister(scene: Scene) -> None:
    await scene.store.unregister(WORKER.id)


async def two_dead_letters(drive: Driver) -> list[Job]:
    return [await drive.apply(await running(drive, number=number), BURIAL) for number in (1, 2)]


async def resolve_dead_letters(scene: Scene) -> int:
    return await scene.store.resolve_dead_letters([job.id for job in scene.jobs], how="discarded", actor=OPERATOR)


async def ended(drive: Driver) -> list[Job]:
    """A failed job and a buried one that have everything that a job leaves behind, and one that lives on."""
    held = await running(drive, correlation_id="order-7", tags={"tenant": "x"})
    await drive.apply(held.id, Signal("approved", "1"), actor=CLIENT)
    for percent in (10, 90):
        await drive.apply(held.id, Progress(percent, "so far"), actor=runner(held))
    failed = await drive.apply(held.id, Fail(ERROR), actor=runner(held))
    buried = await drive.apply(await running(drive, number=2), BURIAL)
    await drive.add(id=job_id(3), policy=LONG)
    return [failed, buried]


async def prune(scene: Scene) -> int:
    return await scene.store.prune(older_than_seconds=0, actor=OPERATOR)


async def blank(scene: Scene) -> int:
    return await scene.store.blank(older_than_seconds=0, actor=OPERATOR)


async def erase(scene: Scene) -> Job:
    return await scene.store.erase(scene.job.id, reason="asked for", actor=OPERATOR)


async def migrate(scene: Scene) -> list[MigrationRecord]:
    return await scene.store.migrate()


async def add_and_close(scene: Scene) -> Sequence[EnqueueResult]:
    """Closing empties the WAL into the file."""
    added = await add_many(scene)
    await scene.store.close()
    return added


def a_store_that_checkpoints(url: str) -> Store:
    """One that empties its WAL after every write."""
    return SqliteStore(url.removeprefix("sqlite:///"), wal_bytes_max=0)


ACTS: tuple[Act, ...] = (
    Act("add many", add_many, new_policies=True),
    Act("add alike", enqueue_homogeneous, new_policies=True),
    Act("add a duplicate", add_duplicate, one_with_a_dedupe_key),
    Act("claim and start three", claim_three, four_queued),
    Act("claim one", claim_one, four_queued),
    Act("claim from a lane", claim_from_a_lane, four_alike, only="postgres"),
    Act("claim of many", claim_of_many, four_queued, only="postgres"),
    *CHANGES,
    *OF_CALLERS,
    *OF_SCHEDULES,
    *OF_ARCHIVE,
    *OF_QUEUES,
    Act("register", register),
    Act("unregister", unregister, a_worker),
    Act("deal with", resolve_dead_letters, two_dead_letters),
    Act("prune", prune, ended),
    Act("blank", blank, ended),
    Act("erase", erase, ended),
    Act("migrate", migrate, migrated=False),
    Act("add and checkpoint", add_many, store=a_store_that_checkpoints, only="sqlite"),
    Act("add and close", add_and_close, leaves_open=False, only="sqlite"),
)
