"""Lost connections, lost answers, forks, and databases that do not fit: nothing is lost, doubled or silent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from tenure.errors import SchemaMismatch, StoreError, StoreUnavailable
from tenure.lifecycle.operations import Complete, Heartbeat
from tenure.stores.contract import Applied, Repeated
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.driver import Driver
from tests.support.relay import Cut, relay_to


@pytest.mark.requirement("LC-07")
@pytest.mark.parametrize(("cut", "then"), [(Cut.REPLY, Repeated), (Cut.REQUEST, Applied)])
async def test_a_change_whose_answer_was_lost_is_asked_again_and_happens_once(
    dsn: str, drive: Driver, cut: Cut, then: type
) -> None:
    async with relay_to(dsn) as (relay, through):
        store = PostgresStore.from_url(through)
        await store.open()
        warm = await drive.running()
        await store.apply([drive.request(warm, Complete("1"), fresh=True)])
        job = await drive.running()
        request = drive.request(job, Complete("1"), fresh=True)
        relay.cut = cut
        with pytest.raises(StoreUnavailable):
            await store.apply([request])
        [outcome] = await store.apply([request])
        assert isinstance(outcome, then)
        history = (await store.history([job.id]))[job.id]
        assert [event.type for event in history] == ["enqueued", "claimed", "started", "succeeded"]
        await store.close()


@pytest.mark.requirement("LC-07", "SM-13")
async def test_a_claim_whose_reply_was_lost_returns_its_jobs_when_repeated(dsn: str, drive: Driver) -> None:
    async with relay_to(dsn) as (relay, through):
        store = PostgresStore.from_url(through)
        await store.open()
        for _ in range(2):  # so that the statements are prepared, the general one and that of a single lane
            await drive.add()
            await store.claim(drive.claim_request())
        waiting = [await drive.add() for _ in range(3)]
        request = drive.claim_request(limit=2)
        relay.cut = Cut.REPLY
        with pytest.raises(StoreUnavailable):
            await store.claim(request)
        won = await store.claim(request)
        assert [job.id for job in won] == [job.id for job in waiting[:2]]
        assert all(job.attempt == 1 and job.token == request.token for job in won)
        await store.close()


@pytest.mark.requirement("LC-07")
async def test_an_enqueue_whose_answer_was_lost_adds_one_job(dsn: str) -> None:
    async with relay_to(dsn) as (relay, through):
        store = PostgresStore.from_url(through)
        await store.open()
        drive = Driver(store)
        await drive.add()
        await store.quiet()  # or the wake-up that the first enqueue rang for would be cut in its place
        request = drive.enqueue()
        relay.cut = Cut.REPLY
        with pytest.raises(StoreUnavailable):
            await store.enqueue([request])
        [added] = await store.enqueue([request])
        assert not added.created
        assert added.job.id == request.origin.id
        await store.close()


async def test_terminated_backends_are_replaced_without_reopening_the_store(dsn: str, drive: Driver) -> None:
    job = await drive.running()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    outcome = await _until_it_answers(lambda: drive.try_apply(drive.request(job, Heartbeat())))
    assert isinstance(outcome, Applied)


async def _until_it_answers(call: Callable[[], Awaitable[object]]) -> object:
    for _ in range(20):
        try:
            return await call()
        except StoreUnavailable:
            continue
    raise AssertionError("the store never came back")


@pytest.mark.parametrize(
    ("url", "expected_text"),
    [
        ("postgresql://127.0.0.1:1/nowhere", "cannot be reached"),
        ("{dsn}_that_is_not_there", "does not exist"),
        ("{dsn}?pooler=session", "pooler"),
    ],
)
async def test_an_unreachable_address_is_an_error_with_advice(dsn: str, url: str, expected_text: str) -> None:
    with pytest.raises((StoreError, ValueError), match=expected_text):
        await PostgresStore.from_url(url.format(dsn=dsn)).open()


async def test_an_empty_database_asks_to_be_migrated(postgres_dsn: str) -> None:
    store = PostgresStore.from_url(postgres_dsn)
    with pytest.raises(SchemaMismatch, match="tenure migrate"):
        await store.open()
    await store.close()


async def test_a_schema_of_a_newer_version_is_refused_with_advice(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("update tenure.meta set value = '99' where name = 'min_code_version'")
    store = PostgresStore.from_url(dsn)
    with pytest.raises(SchemaMismatch, match="upgrade tenure"):
        await store.open()
    with pytest.raises(SchemaMismatch, match="upgrade tenure"):
        await store.migrate()
    await store.close()


async def test_a_newer_database_that_still_admits_this_code_is_opened(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("insert into tenure.migrations (number, name, checksum) values (99, 'later', 'x')")
    store = PostgresStore.from_url(dsn)
    await store.open()
    assert (await store.schema()).unknown == [99]
    await store.close()


async def test_several_processes_migrate_at_once_and_each_step_is_applied_once(postgres_dsn: str) -> None:
    stores = [PostgresStore.from_url(postgres_dsn) for _ in range(4)]
    applied = await asyncio.gather(*(store.migrate() for store in stores))
    assert sorted(len(steps) for steps in applied) == [0, 0, 0, 1]
    for store in stores:
        await store.close()


FORK = """
import asyncio, os, sys
from tenure.errors import UsedAfterFork
from tenure.stores import store_for

async def main():
    store = store_for(sys.argv[1])
    await store.open()
    child = os.fork()
    if child == 0:
        try:
            await store.now()
        except UsedAfterFork as refusal:
            print(refusal, flush=True)
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    await store.now()
    await store.close()
    raise SystemExit(os.waitstatus_to_exitcode(status))

asyncio.run(main())
"""


def test_a_store_used_after_a_fork_is_an_error(dsn: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, dsn], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert "open a new one in the child process" in done.stdout
