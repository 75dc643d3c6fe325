"""A database on which tenure has no superuser: its owner migrates and works, and writes past the store stay refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import tenure
from tenure.errors import InvalidInput, LeaseLost, RequestIdReused
from tenure.lifecycle.operations import Commit, Complete
from tenure.lifecycle.records import Actor, Role
from tenure.stores.contract import Applied, Artifact, Failure, OutboxMessage, Request
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.user_connections import UserTransaction
from tenure.testing.driver import Driver
from tests.support.command import tenure as command
from tests.support.postgres import Postgres

BY_HAND = (
    "delete from tenure.events",
    "insert into tenure.signals (job_id, rev, name, at) values (gen_random_uuid(), 1, 's', now())",
    "insert into tenure.policies (body, lease_ms, heartbeat_ms) values ('{}', 1, 1)",
    "insert into tenure.claims (request_id, body, at, job_ids) values ('r', '', now(), '{}')",
)


@pytest.fixture
def owned(postgres_server: Postgres) -> Iterator[str]:
    with postgres_server.owned_database() as dsn:
        yield dsn


@pytest.fixture
async def drive(owned: str) -> AsyncIterator[Driver]:
    store = PostgresStore.from_url(owned)
    await store.migrate()
    await store.open()
    yield Driver(store)
    await store.close()


@pytest.fixture
async def user(owned: str, drive: Driver) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(owned) as connection:
        yield connection


async def assert_still_guarded(user: psycopg.AsyncConnection[Any]) -> None:
    """The transaction is still that of the user: what only the store may write is refused in it."""
    for statement in BY_HAND:
        await user.execute("savepoint by_hand")
        with pytest.raises(psycopg.Error) as refused:
            await user.execute(statement.encode())
        assert refused.value.sqlstate == "TN002"
        await user.execute("rollback to savepoint by_hand")


def pay(dsn: str) -> Any:
    app = tenure.App(dsn)

    @app.job()
    async def pay(amount: int) -> int:
        return amount

    return pay


def commit_mark(job: Any, **facts: Any) -> Request:
    actor = Actor(Role.RUNNER, "worker-1", facts.pop("token", job.token))
    return Request(job=job, operations=(Commit("1"),), actor=actor, **{"request_id": "mark", **facts})


def test_the_owner_of_a_database_migrates_and_examines_it(owned: str) -> None:
    assert command("migrate", "--database", owned).code == 0
    assert "is up to date" in command("migrate", "--database", owned).out
    assert command("verify", "--database", owned).code == 0
    assert command("doctor", "--database", owned).code == 0


async def test_the_owner_of_a_database_enqueues_claims_commits_and_completes(drive: Driver) -> None:
    job = await drive.running()
    committed = await drive.apply(job, Commit("1"))
    ended = await drive.apply(committed, Complete("1"))
    assert ended.status == "succeeded"
    queued = await drive.add(dedupe_key="key")
    again = await drive.add(dedupe_key="key")
    assert again.id == queued.id


async def test_an_enqueue_in_a_users_transaction_leaves_it_guarded(
    owned: str, user: psycopg.AsyncConnection[Any]
) -> None:
    send = pay(owned)
    first = await send.options(dedupe_key="k").within(user).enqueue(1)
    await assert_still_guarded(user)
    again = await send.options(dedupe_key="k").within(user).enqueue(1)
    assert again.id == first.id
    await assert_still_guarded(user)
    await send.options(request_id="r").within(user).enqueue(1)
    with pytest.raises(RequestIdReused):
        await send.options(request_id="r").within(user).enqueue(2)
    await assert_still_guarded(user)
    await user.commit()


async def test_a_commit_mark_in_a_users_transaction_leaves_it_guarded(
    owned: str, drive: Driver, user: psycopg.AsyncConnection[Any]
) -> None:
    job = await drive.running()
    transaction = UserTransaction(user, owned)
    lost = await transaction.apply(commit_mark(job, token=uuid4(), fresh=True))
    assert isinstance(lost, Failure)
    assert isinstance(lost.error, LeaseLost)
    await assert_still_guarded(user)
    await transaction.post([OutboxMessage(id=uuid4(), aggregate="a", topic="t", body="1")])
    await transaction.attach(job, [Artifact(name="receipt", media_type="text/plain", body=b"1")])
    assert isinstance(await transaction.apply(commit_mark(job, fresh=True)), Applied)
    await assert_still_guarded(user)
    other = await drive.running()
    with pytest.raises(InvalidInput):
        await transaction.apply(commit_mark(other, request_id="other", fresh=True))
    await assert_still_guarded(user)


@pytest.mark.parametrize("call", ["enqueue_within", "commit_within"])
async def test_a_call_that_fails_leaves_the_transaction_after_it_guarded(
    drive: Driver, user: psycopg.AsyncConnection[Any], call: str
) -> None:
    job = await drive.running()
    request = {
        # The row of the job is written, but has no queue.
        "enqueue_within": {"policies": [], "jobs": {"ids": [str(uuid4())], "request_ids": []}},
        # The event is written; then the body of the artifact cannot be decoded.
        "commit_within": {
            "id": str(job.id),
            "rev": job.rev,
            "token": str(job.token),
            "version": 1,
            "actor": "runner:worker-1",
            "request_id": "r",
            "result": "1",
            "artifacts": [{"name": "a", "media_type": "t", "body": "%"}],
        },
    }[call]
    await user.execute("savepoint users_own")
    with pytest.raises(psycopg.Error):
        await user.execute(f"select tenure.{call}(%s)".encode(), [json.dumps(request)])
    await user.execute("rollback to savepoint users_own")
    await assert_still_guarded(user)


async def test_an_enqueue_among_other_statements_of_the_store_leaves_the_writer_as_it_was(
    drive: Driver, user: psycopg.AsyncConnection[Any]
) -> None:
    await user.execute("select set_config('tenure.writer', 'retention', true)")
    await user.execute(
        "select tenure.policy_number(%s)", [json.dumps({"body": "{}", "lease_ms": 1, "heartbeat_ms": 1})]
    )
    row = await (await user.execute("select tenure.writer()")).fetchone()
    assert row == ("retention",)


def test_no_object_of_the_schema_needs_a_superuser(owned: str) -> None:
    """A parameter that no extension defines is refused to plain roles in the SET clause of a function."""

    async def migrate() -> None:
        store = PostgresStore.from_url(owned)
        await store.migrate()
        await store.close()

    asyncio.run(migrate())
    with psycopg.connect(owned) as connection:
        found = connection.execute(
            "select proname from pg_proc where pronamespace = 'tenure'::regnamespace"
            " and exists (select from unnest(proconfig) setting where split_part(setting, '=', 1) like '%.%')"
        ).fetchall()
    assert found == []
