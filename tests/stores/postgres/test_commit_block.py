"""Transactions of the callers' own on PostgreSQL: what only a server can do for them, and to them."""

# ruff: noqa: PT012 - a transaction is one thing, with everything in it

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import asyncpg
import psycopg
import pytest

from tenure.errors import DeadlinePassed, GuardViolated, InvalidInput, StoreUnavailable
from tenure.lifecycle.operations import Cancel, Commit, Heartbeat
from tenure.stores.contract import Applied, Busy, JobFilter, Repeated, worker_wakeup
from tenure.stores.postgres import commit_block as block_module
from tenure.stores.postgres.connections import Address
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.contract.commit_blocks import at_once, until_late
from tenure.testing.driver import CLIENT, Driver
from tests.support.relay import Cut, relay_to
from tests.support.waiting import eventually

PLENTY_SECONDS = 20
LOCKS = "select count(*) from pg_locks where relation = 'paid'::regclass"
WRITER = "select current_setting(concat('tenure', '.', 'writer'), true) as writer"
FROZEN = """
import asyncio, os, signal, sys
from tenure.errors import DeadlinePassed
from tenure.stores import store_for

async def main():
    store = store_for(sys.argv[1])
    await store.open()
    try:
        async with store.transaction(deadline_seconds=3) as tx:
            await tx.execute("update paid set who = 'frozen' where id = 1")
            print("inside", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            await tx.execute("update paid set who = 'thawed' where id = 1")
    except DeadlinePassed:
        print("late", flush=True)
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def shell(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table paid (id integer primary key, who text)")
        connection.execute("insert into paid values (1, 'nobody')")
        yield connection


@pytest.fixture(params=["transaction_timeout", "older"])
def server_limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server that ends whole transactions, and as one that does not know how to."""
    if request.param == "older":
        monkeypatch.setattr(block_module, "TRANSACTION_TIMEOUT_VERSION", 99)


def who(shell: psycopg.Connection) -> list[tuple[object, ...]]:
    return shell.execute("select id, who from paid order by id").fetchall()


# Time


@pytest.mark.requirement("EL-04")
def test_a_process_that_is_frozen_inside_does_not_keep_its_locks(dsn: str, shell: psycopg.Connection) -> None:
    with subprocess.Popen([sys.executable, "-c", FROZEN, dsn], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "inside\n"
            shell.execute("set lock_timeout = '20s'")
            shell.execute("update paid set who = 'free' where id = 1")
            os.kill(child.pid, signal.SIGCONT)
            assert child.stdout.readline() == "late\n"
            assert child.wait(PLENTY_SECONDS) == 0
        finally:
            child.kill()
    assert who(shell) == [(1, "free")]


@pytest.mark.usefixtures("server_limits")
async def test_the_server_knows_how_long_a_transaction_may_be_open(store: PostgresStore) -> None:
    async with store.transaction(deadline_seconds=2) as tx:
        for setting in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            [row] = await tx.fetch(f"select setting::integer as ms from pg_settings where name = '{setting}'")
            assert 0 < row["ms"] <= 2250
    async with store._connections.session() as connection:
        assert await connection.fetchval("show statement_timeout") == "0", "it ends with the transaction"


async def test_an_older_server_gets_a_shorter_timeout_as_time_passes(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_module, "TRANSACTION_TIMEOUT_VERSION", 99)
    sql = "select setting::integer as ms from pg_settings where name = 'idle_in_transaction_session_timeout'"
    async with store.transaction(deadline_seconds=30) as tx:
        [before] = await tx.fetch(sql)

        async def shorter() -> bool:
            [row] = await tx.fetch(sql)
            return bool(row["ms"] < before["ms"] - 150)

        await eventually(shorter)
        assert await shorter(), "it only gets shorter"


@pytest.mark.usefixtures("server_limits")
async def test_a_statement_that_runs_for_too_long_is_broken_off(
    store: PostgresStore, shell: psycopg.Connection
) -> None:
    with pytest.raises(DeadlinePassed):
        async with store.transaction(deadline_seconds=0.2) as tx:
            await tx.execute("update paid set who = 'me'")
            await tx.fetch("select pg_sleep(60)")
    shell.execute("set lock_timeout = '20s'")
    shell.execute("update paid set who = 'free'")
    assert who(shell) == [(1, "free")]


async def test_a_lock_that_another_holds_is_not_waited_for_beyond_the_deadline(
    store: PostgresStore, shell: psycopg.Connection
) -> None:
    with shell.transaction():
        shell.execute("update paid set who = 'theirs'")
        with pytest.raises(DeadlinePassed):
            async with store.transaction(deadline_seconds=0.2) as tx:
                await tx.execute("update paid set who = 'mine'")
    assert who(shell) == [(1, "theirs")]


async def test_a_job_that_another_holds_is_not_waited_for_beyond_the_deadline(
    store: PostgresStore, drive: Driver, dsn: str
) -> None:
    job = await drive.running()
    with psycopg.connect(dsn) as other:
        other.execute("select from tenure.jobs where id = %s for update", (job.id,))
        with pytest.raises(DeadlinePassed):
            async with store.transaction(deadline_seconds=0.2) as tx:
                await tx.apply(drive.request(job, Commit("1"), fresh=True))
    assert not (await drive.job(job.id)).committed


async def test_after_a_deadline_the_pool_uses_new_connections(store: PostgresStore, drive: Driver) -> None:
    for _ in range(12):
        with pytest.raises(DeadlinePassed):
            async with store.transaction(deadline_seconds=0.01) as tx:
                await until_late(tx)
    async with store.transaction(deadline_seconds=PLENTY_SECONDS) as tx:
        await tx.enqueue([drive.enqueue()])


# Statements


@pytest.mark.parametrize(
    "statement",
    [
        "/* a /* nested */ one */ commit",
        "\n\t;; -- x\n /**/ COMMIT AND CHAIN",
        "prepare transaction 'mine'",
        "abort",
        "start transaction",
        "set search_path = public",
        "set session characteristics as transaction read only",
        "reset all",
        "discard all",
        "listen mine",
        "select set_config('tenure.writer', 'store', true)",
        "set local tenure.writer = 'store'",
    ],
)
async def test_what_would_end_or_outlive_the_transaction_is_refused(
    store: PostgresStore, shell: psycopg.Connection, statement: str
) -> None:
    with pytest.raises(InvalidInput):
        async with store.transaction(deadline_seconds=2) as tx:
            await tx.execute("update paid set who = 'me'")
            await tx.execute(statement)
    assert who(shell) == [(1, "nobody")]


@pytest.mark.parametrize("statement", ["do $$ begin commit; end $$", "call ends()", "do $$ begin rollback; end $$"])
async def test_a_procedure_cannot_end_the_transaction(
    store: PostgresStore, shell: psycopg.Connection, statement: str
) -> None:
    shell.execute("create procedure ends() language plpgsql as $$ begin commit; end $$")
    with pytest.raises(asyncpg.InvalidTransactionTerminationError):
        async with store.transaction(deadline_seconds=2) as tx:
            await tx.execute("update paid set who = 'me'")
            await tx.execute(statement)
    assert who(shell) == [(1, "nobody")]


async def test_the_user_may_change_settings_of_the_transaction(store: PostgresStore) -> None:
    async with store.transaction(deadline_seconds=2) as tx:
        await tx.execute("set local work_mem = '8MB'")
        assert await tx.fetch("show work_mem") == [{"work_mem": "8MB"}]
    async with store.transaction(deadline_seconds=2) as tx:
        assert await tx.fetch("show work_mem") != [{"work_mem": "8MB"}]


async def test_after_a_write_of_the_store_a_user_statement_is_not_the_stores_writer(
    store: PostgresStore, drive: Driver
) -> None:
    job = await drive.running()
    async with store.transaction(deadline_seconds=2) as tx:
        await tx.apply(drive.request(job, Heartbeat(), fresh=True))
        assert await tx.fetch(WRITER) == [{"writer": ""}]
        await tx.enqueue([drive.enqueue()])
        assert await tx.fetch(WRITER) == [{"writer": ""}]
    with pytest.raises(GuardViolated):
        async with store.transaction(deadline_seconds=2) as tx:
            await tx.enqueue([drive.enqueue()])
            await tx.execute("insert into tenure.claims values ('mine', '', now(), '{}')")


async def test_a_constraint_that_is_checked_at_the_end_is_the_drivers_error(
    store: PostgresStore, shell: psycopg.Connection
) -> None:
    shell.execute("create table line (paid integer references paid deferrable initially deferred)")
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        async with store.transaction(deadline_seconds=2) as tx:
            await tx.execute("update paid set who = 'me'")
            await tx.execute("insert into line values ($1)", 7)
    assert who(shell) == [(1, "nobody")]


async def test_a_deadlock_of_user_statements_is_the_drivers_error_for_one_of_them(
    store: PostgresStore, shell: psycopg.Connection
) -> None:
    shell.execute("insert into paid values (2, 'nobody')")
    barrier = asyncio.Barrier(2)

    async def cross(first: int, second: int) -> bool:
        try:
            async with store.transaction(deadline_seconds=10) as tx:
                await tx.execute("update paid set who = $1 where id = $2", f"{first}", first)
                await barrier.wait()
                await tx.execute("update paid set who = $1 where id = $2", f"{first}", second)
        except asyncpg.DeadlockDetectedError:
            return False
        return True

    assert sorted(await at_once(cross(1, 2), cross(2, 1))) == [False, True]
    assert len({name for _, name in who(shell)}) == 1, "one of them was applied whole, the other not at all"


# Connections


@pytest.mark.requirement("LC-07")
@pytest.mark.parametrize(("cut", "then"), [(Cut.REPLY, Repeated), (Cut.REQUEST, Applied)])
async def test_when_the_connection_is_cut_at_the_commit_asking_again_gives_the_answer(
    dsn: str, shell: psycopg.Connection, drive: Driver, cut: Cut, then: type
) -> None:
    job = await drive.running()
    request = drive.request(job, Commit("1"), fresh=True)
    async with relay_to(dsn) as (relay, through):
        store = PostgresStore.from_url(through)
        await store.open()
        with pytest.raises(StoreUnavailable):
            async with store.transaction(deadline_seconds=5) as tx:
                await tx.execute("update paid set who = 'me'")
                await tx.apply(request)
                relay.cut = cut
        await eventually(lambda: shell.execute(LOCKS).fetchone() == (0,))
        assert who(shell) == [(1, "me" if cut is Cut.REPLY else "nobody")]
        async with store.transaction(deadline_seconds=5) as tx:
            assert isinstance(await tx.apply(request), then)
        assert (await drive.types_of(job.id)).count("committed") == 1
        await store.close()


async def test_a_backend_that_is_terminated_takes_the_transaction_with_it(
    store: PostgresStore, shell: psycopg.Connection, drive: Driver
) -> None:
    with pytest.raises(StoreUnavailable):
        async with store.transaction(deadline_seconds=5) as tx:
            await tx.execute("update paid set who = 'me'")
            [row] = await tx.fetch("select pg_backend_pid() as pid")
            shell.execute("select pg_terminate_backend(%s, 20000)", (row["pid"],))
            await tx.execute("update paid set who = 'me again'")
    assert who(shell) == [(1, "nobody")]
    await drive.add()


async def test_an_error_of_the_body_that_looks_like_a_lost_connection_stays_what_it_is(store: PostgresStore) -> None:
    with pytest.raises(ConnectionResetError, match="elsewhere"):
        async with store.transaction(deadline_seconds=5) as tx:
            await tx.fetch("select 1")
            raise ConnectionResetError("elsewhere")


@pytest.fixture
async def narrow(dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(Address.from_url(dsn), connections=2)
    await store.open()
    yield store
    await store.close()


async def test_more_blocks_than_connections_wait_for_each_other_and_for_nothing_else(narrow: PostgresStore) -> None:
    drive = Driver(narrow)

    async def add(number: int) -> None:
        async with narrow.transaction(deadline_seconds=10) as tx:
            await tx.enqueue([drive.enqueue(policy={"max_attempts": number + 1})])

    await asyncio.wait_for(at_once(*(add(number) for number in range(12))), PLENTY_SECONDS)
    assert len((await narrow.find(JobFilter())).jobs) == 12


async def test_a_heartbeat_does_not_wait_for_a_block_that_has_the_job(store: PostgresStore, drive: Driver) -> None:
    job = await drive.running()
    inside, leave = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with store.transaction(deadline_seconds=10) as tx:
            await tx.apply(drive.request(job, Commit("1"), fresh=True))
            inside.set()
            await leave.wait()

    holding = asyncio.create_task(hold())
    await asyncio.wait_for(inside.wait(), PLENTY_SECONDS)
    outcome = await asyncio.wait_for(drive.try_apply(drive.request(job, Heartbeat(), fresh=True)), PLENTY_SECONDS)
    leave.set()
    await holding
    assert isinstance(outcome, Busy)


async def test_wakeups_are_sent_after_the_commit_and_not_after_a_rollback(dsn: str, drive: Driver) -> None:
    job = await drive.running()
    other = PostgresStore.from_url(dsn)
    await other.open()
    async with other.wakeups(["mail"]) as queue, other.wakeups([worker_wakeup("worker-1")]) as worker:
        assert await queue.wait(10), "a new listener is woken once"
        assert await worker.wait(10)
        with pytest.raises(KeyError):
            async with drive.store.transaction(deadline_seconds=5) as tx:
                await tx.enqueue([drive.enqueue(queue="mail")])
                raise KeyError
        assert not await queue.wait(0.05)
        async with drive.store.transaction(deadline_seconds=5) as tx:
            await tx.enqueue([drive.enqueue(queue="mail")])
            await tx.apply(drive.request(job.id, Cancel(), actor=CLIENT))
        assert await queue.wait(10)
        assert await worker.wait(10)
    await other.close()
