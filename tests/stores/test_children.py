"""Wakes of parents that are lost, repeated, or due many children at once: on both stores."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import StoreUnavailable
from tenure.lifecycle.operations import Complete, Suspend
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import WAITING
from tenure.seams import SYSTEM
from tenure.stores.contract import Applied, Request
from tenure.testing.driver import Driver
from tenure.workers.maintenance.recovery import RecoveryWorker
from tests.support.databases import Database

ALL_ENDED = Suspend(waiting_for="children", children_max=0)


async def child_of(drive: Driver, parent: Job) -> Job:
    return await drive.running(kind="child", parent_id=parent.id, awaited=True)


async def is_woken(drive: Driver, parent: Job) -> bool:
    job = await drive.job(parent.id)
    assert job.status is WAITING
    return job.due_at is not None


async def recovered(drive: Driver) -> int:
    return await RecoveryWorker(drive.store, SYSTEM, name="mender").scan()


@pytest.mark.requirement("WC-10")
@pytest.mark.parametrize("dies", ["after the last child's end", "after the suspend"])
async def test_recovery_wakes_a_parent_when_the_process_died_before_the_wake(database: Database, dies: str) -> None:
    async with database.opened() as store:
        drive, divided = Driver(store), _divided(store)
        parent = await drive.running()
        child = await child_of(drive, parent)
        suspend, end = drive.request(parent, ALL_ENDED), drive.request(child, Complete("1"))
        first, last = (end, suspend) if dies == "after the suspend" else (suspend, end)
        await store.apply([first])
        assert await recovered(drive) == 0, "the suspend or the end is still missing"
        [outcome] = await divided.apply_only([last])
        assert isinstance(outcome, Applied)
        assert not await is_woken(drive, parent)
        assert await recovered(drive) == 1
        assert await is_woken(drive, parent)
        assert (await drive.events_of(parent.id))[-1].actor == "recovery:mender"
        assert await recovered(drive) == 0, "it is due"


async def test_a_lost_wake_does_not_concern_the_end_of_the_child(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with database.opened() as store:
        drive = Driver(store)
        parent = await drive.running()
        child = await child_of(drive, parent)
        await drive.apply(parent, ALL_ENDED)

        async def unavailable(job_ids: Sequence[UUID]) -> list[Job]:
            raise StoreUnavailable("the database did not answer")

        monkeypatch.setattr(store, "wakeable", unavailable)
        with caplog.at_level(logging.WARNING, "tenure.stores"):
            await drive.apply(child, Complete("1"))
        assert "recovery wakes them: the database did not answer" in caplog.text
        assert not await is_woken(drive, parent)
        assert await recovered(drive) == 1
        assert await is_woken(drive, parent)


async def test_a_thousand_children_that_end_in_batches_cause_few_statements(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database.opened() as store:
        drive, divided = Driver(store), _divided(store)
        parent = await drive.running()
        await store.enqueue([drive.enqueue("child", parent_id=parent.id, awaited=True) for _ in range(1000)])
        children = await drive.claim(kinds=("child",), limit=1000)
        await drive.apply(parent, ALL_ENDED)
        reads: list[Sequence[UUID]] = []
        read = divided.wakeable

        async def counted(job_ids: Sequence[UUID]) -> list[Job]:
            reads.append(job_ids)
            found: list[Job] = await read(job_ids)
            return found

        monkeypatch.setattr(store, "wakeable", counted)
        for first in range(0, 1000, 100):
            await store.apply([_completion(drive, child) for child in children[first : first + 100]])
            assert await is_woken(drive, parent) == (first == 900)
        assert reads == [[parent.id]] * 10
        assert (await drive.types_of(parent.id)).count("woken") == 1


def _completion(drive: Driver, child: Job) -> Request:
    return drive.request(child, Complete("1"), fresh=True)


def _divided(store: Any) -> Any:
    """The store, of which the steps of `apply` are used one by one."""
    return store
