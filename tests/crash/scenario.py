"""A scenario is one write to a store with fixed ids: `prepare` leads to its initial state, and `run` can be
repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenure.lifecycle.operation_types import OperationType
from tenure.lifecycle.records import Job
from tenure.stores import Store, store_for
from tenure.testing.driver import Driver
from tests.support.waiting import eventually

LONG = {"lease_seconds": 3600.0, "heartbeat_seconds": 1200.0}
ABANDONED = {"lease_seconds": 3600.0, "heartbeat_seconds": 0.01}
"""Under this policy recovery finds the job almost at once, while its owner may still write, so no test depends on
speed."""
TOKEN = UUID("0c1a57e1-0000-4000-8000-000000000001")
EFFECTS = "create table effects (name text primary key)"


@dataclass(frozen=True, slots=True)
class Context:
    """An open store, its address, and the jobs of the scenario."""

    store: Store
    url: str
    jobs: list[Job]

    @property
    def job(self) -> Job:
        return self.jobs[0]

    @property
    def drive(self) -> Driver:
        return Driver(self.store)


Prepare = Callable[[Driver], Awaitable[list[Job]]]
Run = Callable[[Context], Awaitable[Any]]


def open_store(url: str) -> Store:
    return store_for(url)


async def nothing(_drive: Driver) -> list[Job]:
    return []


@dataclass(frozen=True, slots=True)
class Scenario:
    """One write to a store."""

    name: str
    run: Run
    prepare: Prepare = nothing
    store: Callable[[str], Store] = open_store
    verbs: tuple[OperationType, ...] = ()
    migrated: bool = True
    leaves_open: bool = True
    """Whether the store can be used afterwards."""
    new_policies: bool = False
    """Whether it inserts policies: a store that stays open would have them in its cache after the state was
    restored."""
    empty: bool = False
    """Whether it needs an empty database."""
    only: str | None = None
    """The one kind of database that it applies to."""


def job_id(number: int) -> UUID:
    """The same id in every process."""
    return UUID(f"0199c0de-0000-7000-8000-{number:012x}")


async def running(drive: Driver, *, start: bool = True, number: int = 1, **facts: Any) -> Job:
    """A job that is leased under `TOKEN`."""
    policy = {**LONG, **facts.pop("policy", {})}
    added = await drive.add(id=job_id(number), policy=policy, priority=number, **facts)
    [job] = await drive.claim(start=start, token=TOKEN, request_id=f"held-{number}", kinds=(added.kind,))
    assert job.id == added.id, "another job was ahead in the queue"
    return job


async def orphan(drive: Driver, **facts: Any) -> Job:
    """A job whose owner has missed its heartbeats, as recovery reads it."""
    policy = {**ABANDONED, **facts.pop("policy", {})}
    held = await running(drive, policy=policy, **facts)
    await wait_until_recoverable(drive, held.id)
    return await drive.job(held.id)


async def wait_until_recoverable(drive: Driver, wanted: UUID) -> None:
    """Wait until recovery would find the job."""

    async def found() -> bool:
        return wanted in {job.id for job in await drive.store.recoverable(limit=100)}

    await eventually(found)
