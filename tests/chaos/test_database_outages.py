"""PostgreSQL is killed, terminates all sessions, or refuses connections. The workers stay up, and continue when it is
back.

Each test has its own server. Throughput is read from the log: jobs sleep for a fixed time, so that it depends on the
number of slots and not on the machine. The best rate over `CYCLES` times all slots is compared before and after the
outage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import TypeVar
from uuid import UUID

import psycopg
import pytest

from tenure.errors import StoreUnavailable
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import LIVE
from tenure.stores.contract import EventFilter, JobFilter, Store
from tenure.testing.driver import Driver
from tests.chaos.checks import check_applied_once, check_everything, ended, queue
from tests.chaos.processes import WorkerProcess, WorkerProcesses, until
from tests.support.databases import Database
from tests.support.postgres import OTHERS, PostgresServer, database_of

pytestmark = [pytest.mark.requirement("WC-05"), pytest.mark.timeout(180)]

T = TypeVar("T")

WORKERS, PLACES = 2, 8
POLICY: dict[str, object] = {"lease_seconds": 10.0, "max_attempts": 50, "on_exhausted": "fail"}
NAP_SECONDS = 1.0
CYCLES = 3
BACK = 0.75
"""Of the rate before: more than one of two workers could reach, and less than the variation of the machine."""
BACK_SECONDS = 40.0
REFUSED = "too many clients already"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"max_connections": "60", "shared_buffers": "64MB"}) as server:
        yield server


@pytest.fixture
def database(server: PostgresServer) -> Database:
    return Database(server.create_database())


async def staffed(processes: WorkerProcesses) -> list[WorkerProcess]:
    workers = [processes.start(f"worker-{number}", concurrency=PLACES) for number in range(WORKERS)]
    await processes.up(*workers)
    return workers


async def retry_while_busy(ask: Callable[[], Awaitable[T]]) -> T:
    """The result, from a database that is unavailable for a while."""
    for _ in range(600):
        try:
            return await ask()
        except StoreUnavailable:
            await asyncio.sleep(0.05)
    return await ask()


async def completions(store: Store, *, since: datetime | None = None) -> list[datetime]:
    """When jobs were completed, in order."""
    times: list[datetime] = []
    position: str | None = None
    wanted = EventFilter(types=(EventType.SUCCEEDED,), since=since)
    while True:
        page = await store.events(wanted, after=position, limit=1000)
        times += [event.at for event in page.events]
        position = page.position
        if len(page.events) < 1000:
            return times


def rate(times: list[datetime]) -> float:
    """The best rate over a fixed number of completions; 0 where there were not as many."""
    count = CYCLES * WORKERS * PLACES
    spans = [(last - first).total_seconds() for first, last in zip(times, times[count:], strict=False)]
    return count / min(spans) if spans else 0.0


class Enqueuer:
    """A client that enqueues jobs all the time, and repeats a request until it is acknowledged."""

    def __init__(self, store: Store) -> None:
        self._store, self._drive = store, Driver(store)
        self.acknowledged: list[UUID] = []
        self._stop = asyncio.Event()

    async def live(self) -> None:
        while not self._stop.is_set():
            payload = encode({"seconds": 0.05})
            batch = [self._drive.enqueue("pay", policy=POLICY, payload=payload) for _ in range(3)]
            added = await retry_while_busy(lambda batch=batch: self._store.enqueue(batch))  # type: ignore[misc]
            self.acknowledged += [one.job.id for one in added]
            await asyncio.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()

    async def more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= wanted, f"{wanted} jobs are acknowledged")


@pytest.mark.requirement("EL-05", "EL-08", "SM-02", "SM-03")
async def test_a_server_that_is_killed_under_load_loses_no_acknowledged_job_and_doubles_none(
    server: PostgresServer, database: Database, store: Store, processes: WorkerProcesses
) -> None:
    workers = await staffed(processes)
    client = Enqueuer(store)
    enqueuing = asyncio.create_task(client.live())
    try:
        await client.more(60)
        await until(lambda: _completed(store, 20), "work is under way")
        await asyncio.to_thread(server.kill9)
        before = len(client.acknowledged)
        for worker in workers:
            await worker.wait_for_log("cannot be reached")
        await asyncio.to_thread(server.start)
        await client.more(60)
    finally:
        client.stop()
        await asyncio.wait_for(enqueuing, 60)
    assert len(client.acknowledged) > before >= 60
    await retry_while_busy(lambda: ended(store, client.acknowledged))
    await check_applied_once(store, database, client.acknowledged)
    assert (await store.find(JobFilter(statuses=tuple(LIVE)))).jobs == []
    assert [worker.exit_code for worker in workers] == [None, None]


async def _completed(store: Store, count: int) -> bool:
    return len(await completions(store)) >= count


async def check_back(store: Store, before: float) -> None:
    """Jobs are completed by all workers again, about as fast as before."""
    since = await retry_while_busy(store.now)
    seen: list[float] = []

    async def as_fast_as_before() -> bool:
        seen.append(rate(await completions(store, since=since)))
        return seen[-1] >= BACK * before

    try:
        await until(as_fast_as_before, f"{BACK} of {before:.2f} jobs per second", seconds=BACK_SECONDS)
    finally:
        print(f"before {before:.2f} per second, after it {max(seen):.2f}")


async def check_all_well(store: Store, processes: WorkerProcesses) -> None:
    """No worker was restarted, and the log is valid. It is read after the last session has ended: the server may still
    execute what a killed worker had sent."""
    assert [worker.exit_code for worker in processes.workers] == [None] * WORKERS
    processes.close()
    await store.close()
    await until(lambda: processes.database.rows(OTHERS) == [(0,)], "no other session is connected any more")
    await store.open()
    await check_everything(store)


async def busy_as_ever(store: Store) -> float:
    """The rate of undisturbed workers."""
    await queue(
        store, "nap", int(WORKERS * PLACES * (BACK_SECONDS + 20) / NAP_SECONDS), policy=POLICY, seconds=NAP_SECONDS
    )
    await until(lambda: _completed(store, (CYCLES + 2) * WORKERS * PLACES), "all are busy")
    found = rate(await completions(store))
    assert found <= WORKERS * PLACES / NAP_SECONDS, "faster than the places allow"
    return found


@pytest.mark.deep
async def test_workers_continue_after_all_backends_were_terminated(
    server: PostgresServer, database: Database, store: Store, processes: WorkerProcesses
) -> None:
    await staffed(processes)
    before = await busy_as_ever(store)
    with psycopg.connect(server.dsn(), autocommit=True) as administrator:
        assert _terminate_all(administrator, database) > WORKERS
    await check_back(store, before)
    await check_all_well(store, processes)


@pytest.mark.deep
async def test_workers_continue_after_all_connections_were_refused(
    server: PostgresServer, database: Database, store: Store, processes: WorkerProcesses
) -> None:
    workers = await staffed(processes)
    before = await busy_as_ever(store)
    with ExitStack() as grabbed:
        administrator = grabbed.enter_context(psycopg.connect(server.dsn(), autocommit=True))

        def all_slots_are_taken() -> bool:
            return _grab(server, database, administrator, grabbed)

        await until(all_slots_are_taken, "all slots are taken by others", pause_seconds=0.0)
        refused = server.count_in_log(REFUSED)
        for worker in workers:
            await worker.wait_for_log("database unavailable")
        # A worker logs its first failure only, which may be the end of a session: the server logs what it refuses.
        await until(lambda: server.count_in_log(REFUSED) >= refused + 3 * WORKERS, "the workers are refused")
    await check_back(store, before)
    await check_all_well(store, processes)


def _terminate_all(administrator: psycopg.Connection, database: Database) -> int:
    """How many sessions the database had, all of which are terminated now."""
    ours = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"
    return len(administrator.execute(ours, [database_of(database.url)]).fetchall())


def _grab(server: PostgresServer, database: Database, administrator: psycopg.Connection, grabbed: ExitStack) -> bool:
    """Terminate all sessions and take the free slots; returns whether no session came back since the last time."""
    had = _terminate_all(administrator, database)
    try:
        while True:
            grabbed.enter_context(psycopg.connect(server.dsn(), autocommit=True))
    except psycopg.OperationalError:
        return had == 0
