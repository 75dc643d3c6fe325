"""A claimer that serves many queues: the order is that of all their jobs together, and only what goes is read."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from tenure.lifecycle.claim_order import claim_order
from tenure.lifecycle.records import Job
from tenure.seams import SYSTEM
from tenure.stores.contract import ClaimRequest
from tenure.stores.quarantine import Quarantine
from tenure.stores.sqlite.claim import claim
from tenure.stores.sqlite.connect import connect
from tenure.stores.sqlite.policies import SqlitePolicies
from tenure.stores.sqlite.session import Session, set_writer
from tenure.stores.sqlite.statements import sql
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.driver import Driver

QUEUES = tuple(f"queue-{number}" for number in range(40))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, database_clock=clock.now)
    await store.migrate()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def drive(store: SqliteStore) -> Driver:
    return Driver(store)


async def add_many(drive: Driver, count: int, *, seed: int) -> list[Job]:
    """In a few queues and in all of them, at some priorities, due at once and later, of two kinds."""
    choice = random.Random(seed)
    requests = [
        drive.enqueue(
            choice.choice(["mail", "mail", "mail", "other"]),
            queue=choice.choice([choice.choice(QUEUES), choice.choice(QUEUES[:3])]),
            priority=choice.choice([0, 0, 0, 5, -7]),
            delay_ms=choice.choice([0, 0, choice.randrange(20_000)]),
        )
        for _ in range(count)
    ]
    choice.shuffle(requests)
    return [added.job for added in await drive.store.enqueue(requests)]


@pytest.mark.requirement("WC-02")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limit", [1, 7, 60])
async def test_the_order_across_queues_is_that_of_all_their_jobs_together(
    drive: Driver, clock: ManualClock, seed: int, limit: int
) -> None:
    jobs = await add_many(drive, 300, seed=seed)
    clock.advance(10)
    due = [job for job in jobs if job.kind == "mail" and job.due_at is not None and job.due_at <= clock.now()]
    assert 100 < len(due) < 250
    won: list[Job] = []
    while claimed := await drive.claim(queues=QUEUES, limit=limit):
        won += claimed
    assert [job.id for job in won] == [job.id for job in sorted(due, key=claim_order)]


@pytest.mark.requirement("WC-02")
async def test_only_the_queues_that_are_asked_for_are_claimed_from(drive: Driver) -> None:
    jobs = await add_many(drive, 200, seed=0)
    asked = QUEUES[1:20:2]
    won = await drive.claim(queues=(*asked, *asked, "nothing-is-here"), limit=200)
    due = [job for job in jobs if job.queue in asked and job.kind == "mail" and job.due_at == job.created_at]
    assert [job.id for job in won] == [job.id for job in sorted(due, key=claim_order)]


async def test_unreadable_rows_of_several_queues_are_passed_by(path: Path, drive: Driver) -> None:
    jobs = [await drive.add(queue=QUEUES[number % 3]) for number in range(12)]
    poisoned = [0, 1, 2, 3, 6, 7]
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("drop trigger tenure_jobs_payload")
        shell.execute("drop trigger tenure_jobs_change")
        bad = [(str(jobs[number].id),) for number in poisoned]
        shell.executemany("update tenure_jobs set tags = 'no json' where id = ?", bad)
    sound = [job.id for number, job in enumerate(jobs) if number not in poisoned]
    assert [job.id for job in await drive.claim(queues=QUEUES, limit=2)] == sound[:2]
    assert [job.id for job in await drive.claim(queues=QUEUES, limit=9)] == sound[2:]


# Cost


async def steps_of_a_claim(drive: Driver, path: Path, *, limit: int) -> int:
    """How many steps SQLite's machine makes for a claim, which is undone."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    request: ClaimRequest = drive.claim_request(queues=QUEUES, limit=limit)
    now = await drive.store.now()
    with closing(connect(str(path))) as connection:
        connection.execute("begin immediate")
        set_writer(connection, "store")
        connection.set_progress_handler(step, 1)
        won = claim(Session(connection, now, SqlitePolicies()), request, Quarantine(SYSTEM.clock), lambda: 0.0)
        connection.set_progress_handler(None, 0)
        connection.execute("rollback")
    assert len(won.jobs) == limit
    return steps


async def test_what_queues_hold_behind_their_heads_is_not_read(path: Path, drive: Driver) -> None:
    await drive.store.enqueue([drive.enqueue(queue=queue) for queue in QUEUES])
    shallow = await steps_of_a_claim(drive, path, limit=5)
    await drive.store.enqueue([drive.enqueue(queue=queue) for _ in range(100) for queue in QUEUES])
    assert await steps_of_a_claim(drive, path, limit=5) < 1.1 * shallow


async def test_jobs_with_the_same_due_time_are_not_read_again_for_each(path: Path, drive: Driver) -> None:
    await drive.store.enqueue([drive.enqueue(queue=QUEUES[number % 2]) for number in range(500)])
    few, many = [await steps_of_a_claim(drive, path, limit=limit) for limit in (100, 400)]
    assert many < 4.4 * few


async def test_lower_priorities_are_not_looked_for_when_there_is_enough_above(path: Path, drive: Driver) -> None:
    await drive.store.enqueue([drive.enqueue(queue=queue, priority=9) for queue in QUEUES])
    alone = await steps_of_a_claim(drive, path, limit=5)
    await drive.store.enqueue([drive.enqueue(queue=queue, priority=low) for low in range(5) for queue in QUEUES])
    assert await steps_of_a_claim(drive, path, limit=5) == alone


@pytest.mark.requirement("WC-02")
async def test_a_claim_across_queues_steps_along_the_index(path: Path, store: SqliteStore) -> None:
    parameters = {"queues": '["a"]', "priority": 0, "now": 1, "kinds": '["mail"]', "quarantined": "[]", "limit": 5}
    with closing(sqlite3.connect(path)) as shell:
        rows = shell.execute(f"explain query plan {sql('jobs/select_due_across_queues')}", parameters).fetchall()
    plan = "\n".join(row[3] for row in rows)
    assert "USING INDEX tenure_jobs_ready (queue=? AND priority=? AND due_at<?)" in plan
    assert "USING INDEX tenure_jobs_ready (queue=? AND priority=? AND (due_at,id)>(?,?) AND due_at<?)" in plan
    assert "TEMP B-TREE" not in plan
    assert "SCAN job" not in plan
