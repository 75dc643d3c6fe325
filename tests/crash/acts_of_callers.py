"""Acts inside transactions: a worker's commit block, and transactions on the user's own connections."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any
from uuid import UUID

import asyncpg

from tenure.errors import InvalidInput
from tenure.lifecycle.operations import Commit
from tenure.lifecycle.records import Job
from tenure.stores.contract import Applied, Artifact, EnqueueResult, OutboxMessage, Outcome, Request
from tenure.stores.user_connections import UserTransaction
from tenure.testing.driver import Driver, runner
from tests.crash.acts import LONG, Act, Scene, job_id, running

BLOCK_SECONDS = 4.0
EFFECT = "insert into effects (name) values ('charged') on conflict do nothing"
ARTIFACTS = [Artifact(name="invoice", media_type="text/plain", body=b"42")]
MESSAGES = [
    OutboxMessage(id=UUID(int=number), topic="order.paid", body="{}", aggregate=aggregate)
    for number, aggregate in enumerate(("order-1", "order-2", "order-1"), 1)
]


class Undone(Exception):
    """Leaves a transaction without keeping anything."""


async def one_running(drive: Driver) -> list[Job]:
    return [await running(drive)]


def mark(job: Job) -> Request:
    return Request(job=job, operations=(Commit('"paid"'),), actor=runner(job), request_id="the-commit", fresh=True)


async def commit_block(scene: Scene) -> Outcome:
    """What a worker's commit block does, in its order. Repeated, it is refused for the artifact's name that is taken;
    then the mark alone is asked for, which tells whether it was this very commit."""
    try:
        async with scene.store.transaction(deadline_seconds=BLOCK_SECONDS) as tx:
            await tx.execute(EFFECT)
            assert await tx.fetch("select name from effects") == [{"name": "charged"}]
            await tx.enqueue([scene.drive.enqueue(id=job_id(20), policy=LONG)])
            await tx.attach(scene.job, ARTIFACTS)
            await tx.post(MESSAGES, job=scene.job)
            return await tx.apply(mark(scene.job))
    except InvalidInput:
        return await _marked_before(scene)


async def _marked_before(scene: Scene) -> Outcome:
    found: list[Outcome] = []
    try:
        async with scene.store.transaction(deadline_seconds=BLOCK_SECONDS) as tx:
            found.append(await tx.apply(mark(scene.job)))
            raise Undone
    except Undone:
        [outcome] = found
        assert not isinstance(outcome, Applied), "the artifact is there, and the commit that it came with is not"
        return outcome


@asynccontextmanager
async def users_transaction(url: str) -> AsyncIterator[tuple[UserTransaction, Callable[[str], Awaitable[Any]]]]:
    """A transaction on a user's connection, committed at the end."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as plain:

            async def execute(sql: str) -> None:
                plain.execute(sql)

            transaction = UserTransaction(plain, url)
            await transaction.begin()
            yield transaction, execute
            await transaction.connection.commit()
        return
    connection = await asyncpg.connect(url)
    try:
        transaction = UserTransaction(connection, url)
        await transaction.begin()
        yield transaction, connection.execute
        await transaction.connection.commit()
    finally:
        await connection.close()


async def enqueue_within(scene: Scene) -> list[EnqueueResult]:
    async with users_transaction(scene.url) as (transaction, execute):
        await execute(EFFECT)
        return await transaction.enqueue([scene.drive.enqueue(id=job_id(21), policy=LONG)])


async def commit_within(scene: Scene) -> Outcome:
    async with users_transaction(scene.url) as (transaction, execute):
        await execute(EFFECT)
        await transaction.post(MESSAGES)
        await transaction.attach(scene.job, ARTIFACTS)
        return await transaction.apply(mark(scene.job))


OF_CALLERS: tuple[Act, ...] = (
    Act("commit block", commit_block, one_running),
    Act("enqueue within", enqueue_within),
    Act("commit within", commit_within, one_running),
)
