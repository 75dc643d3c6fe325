"""The caller's transaction and the store answer the same commit alike, whatever situation the job is in."""

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
from tenure.stores.user_connections import caller_for
from tenure.testing.clock import ManualClock
from tenure.testing.driver import Driver
from tests.support.manual_postgres import PostgresClock, copied_database, prepared_database
from tests.support.postgres import Postgres
from tests.support.situations import SITUATIONS, Scene, Situation


@dataclass(frozen=True, slots=True)
class Place:
    """A database whose clock the test moves, its store, and a connection of somebody else to it."""

    url: str
    clock: Any
    seams: Seams
    store: Any
    connection: Any

    def tried(self, request: Request) -> Outcome:
        """What a caller is answered, whose transaction is then rolled back."""
        outcome = caller_for(self.connection, self.url, seams=self.seams).apply_sync(request)
        self.connection.rollback()
        return outcome


@pytest.fixture(scope="module")
def manual_postgres(postgres_server: Postgres) -> Iterator[str]:
    """One database for all: each situation makes a job of its own, and none looks at another's."""
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
async def test_sqlite_answers_a_caller_as_its_store_does(situation: Situation, on_sqlite: Place) -> None:
    await compare(situation, on_sqlite)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
async def test_postgres_answers_a_caller_as_its_store_does(situation: Situation, on_postgres: Place) -> None:
    await compare(situation, on_postgres)


async def compare(situation: Situation, place: Place) -> None:
    scene = Scene(Driver(place.store, random=SYSTEM.random), place.clock)
    # Kinds of one situation must not be met by the next, where they share a database.
    scene.count = SYSTEM.random.job_id().int
    stand = await situation.recipe(scene)
    [job] = (await place.store.read([stand.id])).values()
    for request in requests(job, tokens=(stand.former, None, stand.owner)):
        answer = place.tried(request)
        [expected] = await place.store.apply([request])
        assert told(answer) == told(expected)


def requests(job: Job, *, tokens: tuple[UUID | None, ...]) -> Iterator[Request]:
    """A commit by the id alone, upon a revision that is gone, and upon the record; each by everyone who might try."""
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


def told(outcome: Outcome) -> tuple[Any, ...]:
    if isinstance(outcome, Failure):
        return type(outcome.error), str(outcome.error), getattr(outcome.error, "current", None)
    return type(outcome), outcome.job
