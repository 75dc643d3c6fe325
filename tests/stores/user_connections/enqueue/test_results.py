"""A commit in the user's transaction has the same outcome as one of the store, in every situation of the job."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tenure.lifecycle.operations import Commit
from tenure.lifecycle.records import Actor, Job, Role
from tenure.seams import SYSTEM, Seams
from tenure.stores import store_for
from tenure.stores.contract import Failure, Outcome, Request
from tenure.stores.sqlite.store import SqliteStore
from tenure.stores.user_connections import UserTransaction
from tenure.testing.clock import ManualClock
from tenure.testing.driver import Driver
from tests.support.manual_postgres import PostgresClock, copied_database, prepared_database
from tests.support.postgres import Postgres
from tests.support.situations import SITUATIONS, Setup, Situation
from tests.support.user_connections import run_without_loop


@dataclass(frozen=True, slots=True)
class Place:
    """A database with a manual clock, its store, and a user's connection to it."""

    url: str
    clock: Any
    seams: Seams
    store: Any
    connection: Any

    def apply(self, request: Request) -> Outcome:
        """Apply in the user's transaction, and roll it back."""
        transaction = UserTransaction(self.connection, self.url, seams=self.seams)
        outcome = run_without_loop(transaction, transaction.apply(request))
        self.connection.rollback()
        return outcome


@pytest.fixture(scope="module")
def manual_postgres(postgres_server: Postgres) -> Iterator[str]:
    """One database for all situations, each of which has a job of its own."""
    with prepared_database(postgres_server) as name, copied_database(postgres_server, name) as dsn:
        yield dsn


@pytest.fixture
async def on_postgres(manual_postgres: str) -> AsyncIterator[Place]:
    store = store_for(manual_postgres)
    await store.open()
    with closing(PostgresClock(manual_postgres)) as clock, closing(psycopg.connect(manual_postgres)) as connection:
        yield Place(manual_postgres, clock, SYSTEM, store, connection)
    await store.close()


@pytest.fixture
async def on_sqlite(tmp_path: Path) -> AsyncIterator[Place]:
    path, clock = tmp_path / "jobs.db", ManualClock()
    store = SqliteStore(path, database_clock=clock.now)
    await store.migrate()
    await store.open()
    with closing(sqlite3.connect(path)) as connection:
        yield Place(f"sqlite:///{path}", clock, Seams(clock=clock), store, connection)
    await store.close()


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
async def test_a_users_transaction_on_sqlite_has_the_outcome_of_the_store(
    situation: Situation, on_sqlite: Place
) -> None:
    await check_same_outcomes(situation, on_sqlite)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
async def test_a_users_transaction_on_postgres_has_the_outcome_of_the_store(
    situation: Situation, on_postgres: Place
) -> None:
    await check_same_outcomes(situation, on_postgres)


async def check_same_outcomes(situation: Situation, place: Place) -> None:
    setup = Setup(Driver(place.store, random=SYSTEM.random), place.clock)
    # Kinds of one situation must not be met by the next, where they share a database.
    setup.count = SYSTEM.random.job_id().int
    tokens = await situation.recipe(setup)
    [job] = (await place.store.read([tokens.id])).values()
    for request in requests(job, tokens=(tokens.former, None, tokens.owner)):
        answer = place.apply(request)
        [expected] = await place.store.apply([request])
        assert comparable(answer) == comparable(expected)


def requests(job: Job, *, tokens: tuple[UUID | None, ...]) -> Iterator[Request]:
    """A commit by the id alone, upon a revision that is gone, and upon the record; each by every actor that may try."""
    asked: list[Callable[[Actor, str], Request]] = [
        lambda actor, name: Request(
            job=job.id, operations=(Commit("[1]"),), actor=actor, request_id=name, expected_rev=job.rev - 1
        ),
        lambda actor, name: Request(job=job, operations=(Commit("[1]"),), actor=actor, request_id=name),
        lambda actor, name: Request(job=job, operations=(Commit("[1]"),), actor=actor, request_id=name, fresh=True),
        lambda actor, name: Request(job=job.id, operations=(Commit("[1]"),), actor=actor, request_id=name),
    ]
    for token in tokens:
        for role in (Role.CLIENT, Role.RECOVERY, Role.RUNNER):
            for number, ask in enumerate(asked):
                yield ask(Actor(role, "worker-1", token), f"{job.id}-{token}-{role}-{number}")


def comparable(outcome: Outcome) -> tuple[Any, ...]:
    if isinstance(outcome, Failure):
        return type(outcome.error), str(outcome.error), getattr(outcome.error, "current", None)
    return type(outcome), outcome.job
