"""A worker process is killed in a run with steps to undo, or while it undoes them. Another one undoes the rest."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import tenure
from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED
from tests.support.command import tenure as command
from tests.support.databases import POSTGRES_IN_DEPTH, SQLITE_IN_DEPTH, Database
from tests.support.waiting import eventually
from tests.workflow.order_workflow import BOOKED, UNDONE, declare_trip
from tests.workflow.test_killed_workers import executed, kill, worker

pytestmark = pytest.mark.requirement("SM-21", "WF-18")


async def run_with_kill(
    app: tenure.App, database: Database, folder: Path, *, hangs_in: str
) -> tuple[tenure.Handle[None], list[EventType]]:
    """The ended run. Its first worker was killed in this step, and a second one has ended the run."""
    handle = await declare_trip(app).enqueue(str(folder))
    with worker(database, folder, hangs_in=hangs_in) as victim:

        async def hangs() -> bool:
            return executed(folder)[hangs_in] == 1

        await eventually(hangs, seconds=60)
        kill(victim)
    with worker(database, folder):

        async def is_over() -> bool:
            return not (await handle.refresh()).live

        await eventually(is_over, seconds=90)
    verified = command("verify", "--database", database.url)
    assert verified.code == 0, verified.out
    return handle, [event.type for event in await handle.events()]


@POSTGRES_IN_DEPTH
async def test_a_run_that_recovery_ends_undoes_its_steps_first(
    app: tenure.App, database: Database, tmp_path: Path
) -> None:
    """Its policy is to fail when its worker is lost. What it had begun is not executed again."""
    async with app:
        handle, events = await run_with_kill(app, database, tmp_path, hangs_in="board")
        job = handle.job
    assert (job.status, job.compensated, job.attempt) == (FAILED, True, 2)
    assert executed(tmp_path) == Counter([*BOOKED, "board", *UNDONE])
    assert events.count(EventType.UNWINDING) == events.count(EventType.COMPENSATED) == 1


@SQLITE_IN_DEPTH
@pytest.mark.parametrize("undo", UNDONE)
async def test_a_worker_killed_in_an_undo_leaves_only_that_undo_to_be_executed_again(
    app: tenure.App, database: Database, tmp_path: Path, undo: str
) -> None:
    async with app:
        handle, events = await run_with_kill(app, database, tmp_path, hangs_in=undo)
        job = handle.job
    assert job.status in (FAILED, DEAD_LETTERED)
    assert job.compensated
    assert executed(tmp_path) == Counter([*BOOKED, "board", *UNDONE, undo])
    assert events.count(EventType.COMPENSATED) == 1
