"""A worker process is killed while a run executes a step, sleeps or waits. Another worker process finishes the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tenure
from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import WAITING
from tests.support.command import tenure as command
from tests.support.databases import POSTGRES_IN_DEPTH, Database
from tests.support.running_command import Started, started
from tests.support.waiting import eventually
from tests.workflow import order_workflow
from tests.workflow.order_workflow import HANGS_IN, RESULT, STEPS, declare

pytestmark = pytest.mark.requirement("WC-08", "EL-04", "WF-13")

Order = tenure.Handle[list[str]]
QUICK = ("--poll-seconds", "0.1", "--scan-seconds", "0.3")
SLEEP_SECONDS = 6.0
"""Long enough for a worker to be killed meanwhile."""
RECORDED_BEFORE = {"price": 1, "pack b": 4, "book": 7}
"""How many calls are recorded when each of these steps is the only one that runs. The sleep and the wait are calls
too."""


@contextmanager
def worker(database: Database, folder: Path, *, hangs_in: str = "") -> Iterator[Started]:
    target = f"{order_workflow.__file__}:app"
    with started(
        "worker", target, "--database", database.url, *QUICK, folder=folder, env={HANGS_IN: hangs_in}
    ) as running:
        yield running


def kill(running: Started) -> None:
    assert running.running, running.log
    running.process.kill()
    running.process.wait(10)


def executed(folder: Path) -> Counter[str]:
    noted = folder / "executed"
    return Counter(noted.read_text().splitlines() if noted.exists() else ())


async def enqueue(app: tenure.App, database: Database, folder: Path, *, sleep_seconds: float = 0.01) -> Order:
    database.write_as(None, "create table bookings (name text)")
    return await declare(app).enqueue(str(folder), sleep_seconds)


async def until_suspended(handle: Order, cause: str) -> None:
    async def waits() -> bool:
        return await suspended_by(handle) == cause

    await eventually(waits, seconds=60)


async def suspended_by(handle: Order) -> str | None:
    """The cause for which the run waits now, if it does."""
    if (await handle.refresh()).status is not WAITING:
        return None
    return [event.cause for event in await handle.events() if event.type is EventType.SUSPENDED][-1]


async def finish_with_another_worker(handle: Order, database: Database, folder: Path) -> None:
    """The result is the same as without a kill, and so are the rows of the transactional step."""
    with worker(database, folder):
        assert await handle.result(timeout_seconds=60) == RESULT
    assert database.rows("select name from bookings") == [("book",)]
    verified = command("verify", "--database", database.url)
    assert verified.code == 0, verified.out


@pytest.mark.parametrize(
    "step", ["pack b", *(pytest.param(step, marks=pytest.mark.deep) for step in ("price", "book"))]
)
async def test_a_worker_killed_in_a_step_leaves_only_that_step_to_be_executed_again(
    app: tenure.App, database: Database, tmp_path: Path, step: str
) -> None:
    async with app:
        handle = await enqueue(app, database, tmp_path)
        await handle.signal("approved", "ada")
        store = await app.store()

        async def only_that_step_runs() -> bool:
            recorded = await store.steps(handle.id)
            return executed(tmp_path)[step] == 1 and len(recorded) == RECORDED_BEFORE[step]

        with worker(database, tmp_path, hangs_in=step) as victim:
            await eventually(only_that_step_runs, seconds=60)
            kill(victim)
        await finish_with_another_worker(handle, database, tmp_path)
    assert executed(tmp_path) == Counter(STEPS) + Counter([step])


@POSTGRES_IN_DEPTH
async def test_a_run_whose_worker_is_killed_while_it_sleeps_is_continued_by_another(
    app: tenure.App, database: Database, tmp_path: Path
) -> None:
    async with app:
        handle = await enqueue(app, database, tmp_path, sleep_seconds=SLEEP_SECONDS)
        await handle.signal("approved", "ada")
        with worker(database, tmp_path) as victim:
            await until_suspended(handle, "awaits_time")
            kill(victim)
        assert await suspended_by(handle) == "awaits_time"
        await finish_with_another_worker(handle, database, tmp_path)
        assert (await handle.refresh()).failures == 0
    assert executed(tmp_path) == Counter(STEPS)


async def test_a_run_whose_worker_is_killed_while_it_waits_is_continued_by_another(
    app: tenure.App, database: Database, tmp_path: Path
) -> None:
    async with app:
        handle = await enqueue(app, database, tmp_path)
        with worker(database, tmp_path) as victim:
            await until_suspended(handle, "awaits_signal")
            kill(victim)
        await handle.signal("approved", "ada")
        await finish_with_another_worker(handle, database, tmp_path)
        assert (await handle.refresh()).failures == 0
    assert executed(tmp_path) == Counter(STEPS)
