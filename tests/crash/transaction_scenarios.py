"""Scenarios inside transactions: a worker's commit block, and transactions on user connections."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any
from uuid import UUID

import asyncpg

from tenure.errors import InvalidInput
from tenure.lifecycle.content import ContentDigests
from tenure.lifecycle.operations import Commit
from tenure.lifecycle.records import Job
from tenure.stores.contract import (
    Applied,
    Artifact,
    EnqueueResult,
    OutboxMessage,
    Outcome,
    Request,
    StepOutcome,
    StepSaved,
    digest_artifacts,
    digest_messages,
)
from tenure.stores.user_connections import UserTransaction
from tenure.testing.contract.steps import save_request
from tenure.testing.driver import Driver, runner
from tests.crash.scenario import LONG, Context, Scenario, job_id, running

BLOCK_SECONDS = 4.0
EFFECT = "insert into effects (name) values ('charged') on conflict do nothing"
ARTIFACTS = [Artifact(name="invoice", media_type="text/plain", body=b"42")]
MESSAGES = [
    OutboxMessage(id=UUID(int=number), topic="order.paid", body="{}", aggregate=aggregate)
    for number, aggregate in enumerate(("order-1", "order-2", "order-1"), 1)
]


class Undone(Exception):
    """Rolls a transaction back."""


async def one_running(drive: Driver) -> list[Job]:
    return [await running(drive)]


def mark(job: Job) -> Request:
    digests = ContentDigests(
        artifacts=digest_artifacts(ARTIFACTS, attempt=job.attempt), messages=digest_messages(MESSAGES)
    )
    commit = Commit('"paid"', written=digests.detail())
    return Request(job=job, operations=(commit,), actor=runner(job), request_id="the-commit", fresh=True)


async def commit_block(context: Context) -> Outcome:
    """What a worker's commit block writes, in its order. A repetition is refused because the artifact's name exists;
    then only the mark is applied, which shows whether it was this commit."""
    try:
        async with context.store.transaction(deadline_seconds=BLOCK_SECONDS) as tx:
            await tx.execute(EFFECT)
            assert await tx.fetch("select name from effects") == [{"name": "charged"}]
            await tx.enqueue([context.drive.enqueue(id=job_id(20), policy=LONG)])
            await tx.attach(context.job, ARTIFACTS)
            await tx.post(MESSAGES, job=context.job)
            return await tx.apply(mark(context.job))
    except InvalidInput:
        return await _marked_before(context)


async def save_steps(context: Context) -> list[StepOutcome]:
    """A repetition finds what was saved, and adopts it."""
    return await context.store.save_steps([save_request(context.job, f"main/{number}") for number in range(3)])


async def save_step_with_users_rows(context: Context) -> StepOutcome:
    """A transactional step. A repetition finds its key recorded, and is rolled back."""
    found: list[StepOutcome] = []
    try:
        async with context.store.transaction(deadline_seconds=BLOCK_SECONDS) as tx:
            await tx.execute(EFFECT)
            found.append(await tx.save_step(save_request(context.job)))
            if not isinstance(found[0], StepSaved):
                raise Undone
    except Undone:
        pass
    return found[0]


async def _marked_before(context: Context) -> Outcome:
    found: list[Outcome] = []
    try:
        async with context.store.transaction(deadline_seconds=BLOCK_SECONDS) as tx:
            found.append(await tx.apply(mark(context.job)))
            raise Undone
    except Undone:
        [outcome] = found
        assert not isinstance(outcome, Applied), "the artifact is there without its commit"
        return outcome


@asynccontextmanager
async def users_transaction(url: str) -> AsyncIterator[tuple[UserTransaction, Callable[[str], Awaitable[Any]]]]:
    """A transaction on a user connection, committed at the end."""
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


async def enqueue_within(context: Context) -> list[EnqueueResult]:
    async with users_transaction(context.url) as (transaction, execute):
        await execute(EFFECT)
        return await transaction.enqueue([context.drive.enqueue(id=job_id(21), policy=LONG)])


async def commit_within(context: Context) -> Outcome:
    async with users_transaction(context.url) as (transaction, execute):
        await execute(EFFECT)
        await transaction.post(MESSAGES)
        await transaction.attach(context.job, ARTIFACTS)
        return await transaction.apply(mark(context.job))


async def write_messages_within(context: Context) -> int:
    """Messages of no job; how many were written. A repetition is refused because their ids exist, and rolled back."""
    try:
        async with users_transaction(context.url) as (transaction, execute):
            await execute(EFFECT)
            await transaction.write_messages(MESSAGES)
    except InvalidInput:
        return 0
    return len(MESSAGES)


TRANSACTION_SCENARIOS: tuple[Scenario, ...] = (
    Scenario("commit block", commit_block, one_running),
    Scenario("enqueue within", enqueue_within),
    Scenario("commit within", commit_within, one_running),
    Scenario("messages within", write_messages_within),
    Scenario("save steps", save_steps, one_running),
    Scenario("save a step with the user's rows", save_step_with_users_rows, one_running),
)
