"""Ends of children and suspends of their parent in every order, in sessions beside each other: no wake is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tenure.lifecycle.operations import Complete, Suspend
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import WAITING
from tenure.seams import SYSTEM
from tenure.stores.contract import Applied, Repeated
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.driver import Driver
from tenure.workers.maintenance.recovery import RecoveryWorker
from tests.stores.postgres.test_interleavings import beside

ROUNDS = 15


async def child_of(drive: Driver, parent: Job) -> Job:
    return await drive.running(kind="child", parent_id=parent.id, awaited=True)


def all_ended(parent: Job) -> Suspend:
    return Suspend(waiting_for="children", children_max=0, seen_rev=parent.rev)


async def wakes(drive: Driver, parent: Job) -> int:
    """How often it was woken. It must be due by now."""
    job = await drive.job(parent.id)
    assert (job.status, job.due_at) == (WAITING, job.updated_at), "it waits for ever"
    return (await drive.types_of(parent.id)).count("woken")


def before_the_read(store: Any, work: Callable[[], Awaitable[object]]) -> None:
    """Do this between the commit of the store's next change and the read that follows it."""
    read = store.wakeable

    async def wakeable(job_ids: Sequence[UUID]) -> list[Job]:
        store.wakeable = read
        await work()
        found: list[Job] = await read(job_ids)
        return found

    store.wakeable = wakeable


def before_the_write(store: Any, work: Callable[[], Awaitable[object]]) -> None:
    """Do this when the store has decided its next change and has not sent it."""
    connections = store._connections
    fetch = connections.fetch

    async def late(name: str, values: Mapping[str, Any]) -> list[Any]:
        if name == "jobs/apply":
            connections.fetch = fetch
            await work()
        found: list[Any] = await fetch(name, values)
        return found

    connections.fetch = late
    store._applier._batches._fetches = connections


async def test_of_two_last_children_that_commit_before_either_reads_both_wake_and_one_counts(
    dsn: str, drive: Driver
) -> None:
    async with beside(dsn) as other:
        parent = await drive.running()
        one, two = await child_of(drive, parent), await child_of(drive, parent)
        await drive.apply(parent, all_ended(parent))
        ended, read = asyncio.Event(), asyncio.Event()
        before_the_read(drive.store, lambda: _signal_and_wait(ended, read))
        first = asyncio.ensure_future(drive.apply(one, Complete("1")))
        async with asyncio.timeout(30):
            await ended.wait()
        await other.apply(two, Complete("1"))
        read.set()
        await first
        assert await wakes(drive, parent) == 1


async def test_the_last_child_wakes_when_the_one_before_it_still_saw_it_live(dsn: str, drive: Driver) -> None:
    async with beside(dsn) as other:
        parent = await drive.running()
        one, two = await child_of(drive, parent), await child_of(drive, parent)
        waiting = await drive.apply(parent, all_ended(parent))
        async with other.store.transaction(deadline_seconds=30) as tx:
            assert isinstance(await tx.apply(other.request(two, Complete("1"))), Applied)
            await drive.apply(one, Complete("1"))
            assert (await drive.job(parent.id)).rev == waiting.rev, "the other child has not committed"
        assert await wakes(drive, parent) == 1


async def test_two_last_children_at_the_same_instant_never_leave_their_parent_waiting(dsn: str, drive: Driver) -> None:
    async with beside(dsn) as other:
        for number in range(ROUNDS):
            parent = await drive.running(kind=f"parent-{number}")
            one, two = await child_of(drive, parent), await child_of(drive, parent)
            await drive.apply(parent, all_ended(parent))
            await asyncio.gather(drive.apply(one, Complete("1")), other.apply(two, Complete("1")))
            assert await wakes(drive, parent) >= 1


async def test_a_child_that_ends_before_the_suspend_is_decided(dsn: str, drive: Driver) -> None:
    async with beside(dsn) as other:
        parent = await drive.running()
        child = await child_of(drive, parent)
        await other.apply(child, Complete("1"))
        await drive.apply(parent, all_ended(parent))
        assert await wakes(drive, parent) == 1


async def test_a_child_that_ends_between_the_decision_and_the_write_of_the_suspend(dsn: str, drive: Driver) -> None:
    async with beside(dsn) as other:
        parent = await drive.running()
        child = await child_of(drive, parent)
        before_the_write(drive.store, lambda: other.apply(child, Complete("1")))
        await drive.apply(parent, all_ended(parent), fresh=True)
        assert (await drive.job(child.id)).status == "succeeded"
        assert await wakes(drive, parent) == 1


async def test_a_child_that_ends_between_the_commit_of_the_suspend_and_its_read(dsn: str, drive: Driver) -> None:
    async with beside(dsn) as other:
        parent = await drive.running()
        child = await child_of(drive, parent)
        before_the_read(drive.store, lambda: other.apply(child, Complete("1")))
        await drive.apply(parent, all_ended(parent))
        assert await wakes(drive, parent) == 1, "the child's end has woken it, so that it is due"


async def test_a_child_that_ends_after_the_suspend(dsn: str, drive: Driver) -> None:
    async with beside(dsn) as other:
        parent = await drive.running()
        child = await child_of(drive, parent)
        await drive.apply(parent, all_ended(parent))
        await other.apply(child, Complete("1"))
        assert await wakes(drive, parent) == 1


async def test_a_suspend_and_the_last_end_at_the_same_instant_never_leave_the_job_waiting(
    dsn: str, drive: Driver
) -> None:
    async with beside(dsn) as other:
        for number in range(ROUNDS):
            parent = await drive.running(kind=f"parent-{number}")
            child = await child_of(drive, parent)
            await asyncio.gather(drive.apply(parent, all_ended(parent)), other.apply(child, Complete("1")))
            assert await wakes(drive, parent) >= 1


async def test_a_repeated_end_wakes_the_parent_that_the_first_did_not(dsn: str, drive: Driver) -> None:
    parent = await drive.running()
    child = await child_of(drive, parent)
    await drive.apply(parent, all_ended(parent))
    request = drive.request(child, Complete("1"))
    store: Any = drive.store
    await store.apply_only([request])
    assert isinstance(await drive.try_apply(request), Repeated)
    assert await wakes(drive, parent) == 1


async def test_a_repeated_suspend_is_tested_again(dsn: str, drive: Driver) -> None:
    parent = await drive.running()
    await drive.apply(await child_of(drive, parent), Complete("1"))
    request = drive.request(parent, all_ended(parent))
    store: Any = drive.store
    await store.apply_only([request])
    assert isinstance(await drive.try_apply(request), Repeated)
    assert await wakes(drive, parent) == 1


@pytest.mark.requirement("WC-10")
async def test_a_parent_whose_row_is_locked_delays_nobody_and_is_woken_by_recovery(dsn: str, drive: Driver) -> None:
    parent = await drive.running()
    child = await child_of(drive, parent)
    waiting = await drive.apply(parent, all_ended(parent))
    with psycopg.connect(dsn) as blocker:
        blocker.execute("select from tenure.jobs where id = %s for update", [parent.id])
        async with asyncio.timeout(30):
            await drive.apply(child, Complete("1"))
        assert (await drive.job(parent.id)).rev == waiting.rev
    assert isinstance(drive.store, PostgresStore)
    assert await RecoveryWorker(drive.store, SYSTEM, name="mender").scan() == 1
    assert await wakes(drive, parent) == 1


async def _signal_and_wait(reached: asyncio.Event, go_on: asyncio.Event) -> None:
    reached.set()
    async with asyncio.timeout(30):
        await go_on.wait()
