"""The deadline of a run: it ends then, whatever it does or waits for, and so do its children. Its steps are undone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import tenure
from tenure.client.job_function import JobFunction
from tenure.errors import InvalidInput
from tenure.lifecycle.deadlines import deadline_of
from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import EventType, Job
from tenure.lifecycle.statuses import CANCELLED, DEAD_LETTERED, FAILED, SUCCEEDED, WAITING
from tenure.stores.base import BaseStore
from tenure.stores.contract import JobFilter
from tenure.workers.execution import runner
from tenure.workers.maintenance import recovery
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

pytestmark = pytest.mark.requirement("WF-15")

SOON = 3.0
"""Seconds to a deadline that a test waits for."""
LATER = 3_600.0


class Ledger:
    """What steps and undo steps have done, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def book(self, what: str) -> str:
        self.lines.append(f"book {what}")
        return what

    def undo(self, what: str) -> None:
        self.lines.append(f"undo {what}")


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


async def ended(handle: tenure.Handle[Any]) -> Job:
    async def is_over() -> bool:
        return not (await handle.refresh()).live

    await eventually(is_over, seconds=60)
    return await handle.refresh()


async def until_past(app: tenure.App, job: Job) -> None:
    """Wait until the deadline of the job has passed by the database's clock."""
    store, deadline_at = await app.store(), deadline_of(job)
    assert deadline_at is not None

    async def has_passed() -> bool:
        return await store.now() > deadline_at

    await eventually(has_passed, seconds=60)


async def children_of(app: tenure.App, handle: tenure.Handle[Any]) -> list[Job]:
    return (await (await app.store()).children(handle.id, limit=1000)).jobs


@asynccontextmanager
async def verified(app: tenure.App, database: Database, **options: Any) -> AsyncIterator[None]:
    """A worker meanwhile. Afterwards the log explains every record."""
    async with app, working(app, **options):
        yield
    result = command("verify", "--database", database.url)
    assert result.code == 0, result.out


async def cause_of(handle: tenure.Handle[Any]) -> str | None:
    return (await handle.events())[-1].cause


WAITS: dict[str, Callable[[tenure.Run], Any]] = {
    "signal": lambda run: run.wait_for("never"),
    "time": lambda run: run.sleep(LATER),
    "an event of its own": lambda run: run.step(asyncio.Event().wait),
}


@pytest.mark.parametrize("waits_for", WAITS)
async def test_a_run_ends_at_its_deadline_and_undoes_its_steps(
    app: tenure.App, database: Database, ledger: Ledger, waits_for: str
) -> None:
    """Suspended runs are ended by recovery, and one that holds a worker by that worker. `on_timeout` is retry."""

    @app.workflow(deadline_seconds=SOON)
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).step(ledger.book, "hotel")
        await WAITS[waits_for](run)

    async with verified(app, database):
        handle = await trip.enqueue()
        job = await ended(handle)
        events = [event.type for event in await handle.events()]
        cause = await cause_of(handle)
    assert (job.status, cause, job.compensated) == (FAILED, "timeout", True)
    assert ledger.lines == ["book hotel", "undo hotel"]
    assert "at its deadline" in load(job.error or "")["message"]
    assert EventType.RETRY_SCHEDULED not in events
    assert deadline_of(job) == job.created_at + timedelta(seconds=SOON)
    assert job.finished_at is not None
    assert job.finished_at >= job.created_at + timedelta(seconds=SOON)


@pytest.mark.parametrize("waits_for", WAITS)
async def test_a_run_without_steps_to_undo_ends_as_on_timeout_says(
    app: tenure.App, database: Database, waits_for: str
) -> None:
    @app.workflow(deadline_seconds=SOON, on_timeout="dead_letter")
    async def trip(run: tenure.Run) -> None:
        await WAITS[waits_for](run)

    async with verified(app, database):
        handle = await trip.enqueue()
        job = await ended(handle)
    assert (job.status, job.reason) == (DEAD_LETTERED, "timeout")


async def test_a_job_reaches_its_deadline_in_a_backoff(app: tenure.App, database: Database) -> None:
    @app.job(deadline_seconds=SOON, backoff=tenure.Backoff(base_seconds=LATER, max_seconds=LATER))
    def fails() -> None:
        raise ValueError("not yet")

    async with verified(app, database):
        handle = await fails.enqueue()
        job = await ended(handle)
        assert (job.status, job.attempt, await cause_of(handle)) == (FAILED, 1, "timeout")


async def test_a_run_that_ends_in_time_is_not_touched(app: tenure.App, database: Database) -> None:
    @app.workflow(deadline_seconds=LATER)
    async def trip(run: tenure.Run) -> str:
        return await run.wait_for("go", str)

    async with verified(app, database):
        handle = await trip.enqueue()
        await app.signal(handle.id, "go", "now")
        assert await handle.result(timeout_seconds=60) == "now"
        assert (await handle.refresh()).status is SUCCEEDED


async def test_nothing_is_called_once_the_deadline_has_passed(app: tenure.App, database: Database) -> None:
    """Also where recovery does not find the job first: its worker ends it."""
    called: list[str] = []

    @app.job(deadline_seconds=0.001)
    def plain() -> None:
        called.append("plain")

    @app.workflow(deadline_seconds=0.001)
    async def run_of_steps(run: tenure.Run) -> None:
        called.append("run")

    began, goes_on = asyncio.Event(), asyncio.Event()

    @app.job()
    async def blocker() -> None:
        began.set()
        await goes_on.wait()

    async with verified(app, database, scan_seconds=LATER, concurrency=1):
        await blocker.enqueue()
        await asyncio.wait_for(began.wait(), 60)
        handles = [await plain.enqueue(), await run_of_steps.enqueue()]
        await until_past(app, await handles[-1].refresh())
        goes_on.set()
        jobs = [await ended(handle) for handle in handles]
        causes = [await cause_of(handle) for handle in handles]
    assert {job.status for job in jobs} == {FAILED}
    assert causes == ["timeout", "timeout"]
    assert called == []


async def test_a_worker_that_claims_a_run_after_its_deadline_undoes_its_steps(
    app: tenure.App, database: Database, ledger: Ledger
) -> None:
    @app.workflow(deadline_seconds=SOON)
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).step(ledger.book, "hotel")
        await run.wait_for("go")
        await run.step(ledger.book, "too late")

    async with verified(app, database, scan_seconds=LATER):
        handle = await trip.enqueue()
        await until_past(app, await handle.refresh())
        await eventually(lambda: bool(ledger.lines), seconds=60)

        async def waits() -> bool:
            return (await handle.refresh()).status is WAITING

        await eventually(waits, seconds=60)
        await app.signal(handle.id, "go")
        job = await ended(handle)
        assert (job.status, job.compensated, await cause_of(handle)) == (FAILED, True, "timeout")
    assert ledger.lines == ["book hotel", "undo hotel"]


@pytest.mark.requirement("WF-18")
async def test_a_run_that_reaches_its_deadline_while_its_steps_are_read_undoes_them(
    app: tenure.App, database: Database, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, began = BaseStore.steps, asyncio.Event()

    async def read_never(store: BaseStore, job_id: UUID, **options: Any) -> Any:
        """The first read has no reply."""
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()
        return await read(store, job_id, **options)

    @app.workflow(deadline_seconds=SOON)
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).step(ledger.book, "hotel")
        monkeypatch.setattr(BaseStore, "steps", read_never)
        await run.sleep(0.01)
        await run.step(ledger.book, "too late")

    async with verified(app, database):
        handle = await trip.enqueue()
        job = await ended(handle)
    assert began.is_set()
    assert (job.status, job.compensated, await cause_of(handle)) == (FAILED, True, "timeout")
    assert ledger.lines == ["book hotel", "undo hotel"]


@pytest.mark.requirement("WF-18")
@pytest.mark.parametrize("limit", ["deadline", "running time"])
async def test_a_run_whose_code_does_not_stop_at_its_last_timeout_undoes_its_steps(
    app: tenure.App, database: Database, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(runner, "STOP_SECONDS_MAX", 0.05)
    monkeypatch.setattr(recovery, "OWNER_TIME", timedelta(0))
    options: dict[str, Any] = (
        {"deadline_seconds": SOON}
        if limit == "deadline"
        else {"timeouts": tenure.Timeouts(running_seconds=SOON), "on_timeout": "fail"}
    )
    stops = asyncio.Event()

    async def swallow() -> None:
        while not stops.is_set():
            with suppress(asyncio.CancelledError):
                await stops.wait()

    @app.workflow(**options)
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).step(ledger.book, "hotel")
        await run.step(swallow)

    async with verified(app, database):
        handle = await trip.enqueue()
        job = await ended(handle)
        stops.set()
    assert (job.status, job.compensated, await cause_of(handle)) == (FAILED, True, "timeout")
    assert ledger.lines == ["book hotel", "undo hotel"]


async def test_undoing_has_the_time_that_the_policy_gives_to_an_attempt(
    app: tenure.App, database: Database, ledger: Ledger
) -> None:
    """The deadline has passed by then, also for the worker that undoes without recovery having unwound the run."""
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def undo(what: str) -> None:
        began.set()
        await goes_on.wait()
        ledger.undo(what)

    @app.workflow(deadline_seconds=SOON)
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=undo).step(ledger.book, "hotel")
        await run.step(asyncio.Event().wait)

    async with verified(app, database, scan_seconds=LATER):
        handle = await trip.enqueue()
        await asyncio.wait_for(began.wait(), 60)
        await until_past(app, await handle.refresh())
        goes_on.set()
        job = await ended(handle)
        assert (job.status, await cause_of(handle)) == (FAILED, "timeout")
    assert ledger.lines == ["book hotel", "undo hotel"]


@pytest.mark.parametrize("own_seconds", [None, LATER, 60.0])
@pytest.mark.parametrize("kind", ["job", "workflow"])
async def test_a_child_has_the_earlier_of_its_own_deadline_and_that_of_its_parent(
    app: tenure.App, database: Database, kind: str, own_seconds: float | None
) -> None:
    parent_seconds = 600.0

    @app.job(deadline_seconds=own_seconds)
    def job() -> int:
        return 1

    @app.workflow(deadline_seconds=own_seconds)
    async def workflow(run: tenure.Run) -> int:
        return 1

    children: dict[str, Any] = {"job": job, "workflow": workflow}

    @app.workflow()
    async def parent(run: tenure.Run) -> int:
        result: int = await (await run.spawn(children[kind])).result()
        return result

    async with verified(app, database):
        handle = await parent.options(deadline_seconds=parent_seconds).enqueue()
        assert await handle.result(timeout_seconds=60) == 1
        [child] = await children_of(app, handle)
        of_parent = deadline_of(await handle.refresh())
    assert of_parent is not None
    own = None if own_seconds is None else child.created_at + timedelta(seconds=own_seconds)
    assert deadline_of(child) == (of_parent if own is None else min(of_parent, own))


async def test_a_tree_of_runs_ends_at_the_deadline_of_its_root(
    app: tenure.App, database: Database, ledger: Ledger
) -> None:
    @app.workflow()
    async def leaf(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).step(ledger.book, "leaf")
        await run.wait_for("never")

    @app.workflow(deadline_seconds=LATER)
    async def middle(run: tenure.Run) -> None:
        await (await run.using(on_parent_end="leave").spawn(leaf)).result()

    @app.workflow(deadline_seconds=2 * SOON)
    async def root(run: tenure.Run) -> None:
        await (await run.using(on_parent_end="leave").spawn(middle)).result()

    async with verified(app, database):
        top = await root.enqueue()
        job = await ended(top)
        [inner] = await children_of(app, top)
        within = await app.get(inner.id)
        [last] = await children_of(app, within)
        jobs = [job, await ended(within), await ended(await app.get(last.id))]
    assert {deadline_of(one) for one in jobs} == {deadline_of(job)}
    assert {one.status for one in jobs} == {FAILED}
    assert ledger.lines == ["book leaf", "undo leaf"]


async def test_children_that_end_with_their_parent_are_cancelled_or_time_out_too(
    app: tenure.App, database: Database
) -> None:
    @app.workflow()
    async def child(run: tenure.Run) -> None:
        await run.wait_for("never")

    @app.workflow(deadline_seconds=SOON)
    async def parent(run: tenure.Run) -> None:
        await run.spawn(child)
        await run.wait_for("never")

    async with verified(app, database):
        handle = await parent.enqueue()
        await ended(handle)
        [job] = await children_of(app, handle)
        assert (await ended(await app.get(job.id))).status in (FAILED, CANCELLED)


async def test_a_parent_is_woken_by_the_deadline_of_its_child(app: tenure.App, database: Database) -> None:
    @app.workflow(deadline_seconds=SOON)
    async def child(run: tenure.Run) -> None:
        await run.wait_for("never")

    @app.workflow()
    async def parent(run: tenure.Run) -> str:
        try:
            await (await run.spawn(child)).result()
        except tenure.StepFailed as error:
            return f"{error.error_type}: {error.error_message}"
        return "none"

    async with verified(app, database):
        result = await (await parent.enqueue()).result(timeout_seconds=60)
    assert result.startswith("Timeout: it was waiting at its deadline")


async def test_the_command_line_shows_the_deadline(app: tenure.App, database: Database) -> None:
    @app.workflow(deadline_seconds=LATER)
    async def trip(run: tenure.Run) -> None:
        return None

    async with app:
        handle = await trip.enqueue()
        deadline_at = deadline_of(await handle.refresh())
    assert deadline_at is not None
    for group in ("runs", "jobs"):
        shown = command(group, "show", str(handle.id), "--database", database.url)
        assert "deadline at" in shown.out, shown.err
        job = json.loads(command(group, "show", str(handle.id), "--json", "--database", database.url).out)["job"]
        assert datetime.fromisoformat(job["deadline_at"]) == deadline_at


async def test_a_run_that_goes_on_as_another_keeps_its_deadline(app: tenure.App, database: Database) -> None:
    @app.workflow(deadline_seconds=600)
    async def count(run: tenure.Run, number: int) -> int:
        if number < 2:
            await run.continue_as(JobFunction(app, app.kinds["count"]), number + 1)
        return number

    async with verified(app, database):
        handle = await count.enqueue(0)
        assert await handle.result(timeout_seconds=60) == 2
        jobs = (await (await app.store()).find(JobFilter(), limit=10)).jobs
    assert len(jobs) == 3
    assert {deadline_of(job) for job in jobs} == {min(job.created_at for job in jobs) + timedelta(seconds=600)}


async def test_a_fork_and_a_redrive_have_a_deadline_of_their_own(app: tenure.App, database: Database) -> None:
    @app.workflow()
    async def child(run: tenure.Run, fails: bool = True) -> str:
        if fails:
            raise tenure.PermanentError("no")
        return "done"

    @app.workflow(deadline_seconds=600)
    async def parent(run: tenure.Run) -> str:
        try:
            return await (await run.spawn(child)).result()
        except tenure.StepFailed:
            raise tenure.PermanentError("the child has failed") from None

    async with verified(app, database):
        handle = await parent.enqueue()
        first = await ended(handle)
        [failed] = await children_of(app, handle)
        fork = await ended(await app.fork(handle.id))
        again = (await (await app.admin()).redrive(failed.id)).job
    assert deadline_of(first) == first.created_at + timedelta(seconds=600) == deadline_of(failed)
    assert deadline_of(fork) == fork.created_at + timedelta(seconds=600)
    assert (again.origin.redrive_of, deadline_of(again)) == (failed.id, None)


def test_the_tag_of_an_inherited_deadline_is_not_the_users(app: tenure.App) -> None:
    @app.workflow()
    async def trip(run: tenure.Run) -> None:
        return None

    with pytest.raises(InvalidInput, match="use deadline_seconds"):
        trip.options(tags={"tenure.deadline": "2030-01-01T00:00:00.000000Z"}).request()


async def test_the_harness_skips_time_to_a_deadline(ledger: Ledger) -> None:
    app = tenure.App("sqlite:///unused.db")

    @app.workflow(deadline_seconds=LATER)
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).step(ledger.book, "hotel")
        await run.sleep(2 * LATER)

    async with app.testing() as harness:
        handle = await trip.options(delay_seconds=1).enqueue()
        await harness.advance(seconds=LATER - 1)
        assert (await handle.refresh()).status is WAITING
        await harness.advance(seconds=1)
        assert ((await handle.refresh()).status, await cause_of(handle)) == (FAILED, "timeout")
    assert ledger.lines == ["book hotel", "undo hotel"]
