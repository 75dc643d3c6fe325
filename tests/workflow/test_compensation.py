"""Compensation: a run that ends without success undoes its steps, newest first, and only then ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal

import pytest

import tenure
from tenure.errors import CheckpointNotSaved, InvalidInput
from tenure.lifecycle.dead_letter import ReasonCode
from tenure.lifecycle.operations import Unwind
from tenure.lifecycle.records import Actor, EventType, Job, Role
from tenure.lifecycle.statuses import CANCELLED, DEAD_LETTERED, FAILED, SUCCEEDED, WAITING
from tenure.lifecycle.steps import NewStep, StepKind
from tenure.stores.contract import Applied, Request
from tenure.workers.checkpointer import Checkpointer
from tenure.workers.leases import Lease
from tenure.workers.maintenance import recovery
from tenure.workers.maintenance.lease_renewer import LeaseRenewer
from tenure.workflow.undo import END_KEY
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

pytestmark = pytest.mark.requirement("SM-21", "WF-18")

AT_ONCE = tenure.Backoff(base_seconds=0.001, max_seconds=0.001)


class Ledger:
    """Records what steps and undo steps have done, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.refusals = 0
        """How many calls of `undo` fail from now on."""

    def book(self, what: str) -> str:
        self.lines.append(f"book {what}")
        return what.upper()

    async def undo(self, booked: str) -> None:
        if self.refusals:
            self.refusals -= 1
            self.lines.append(f"refused {booked}")
            raise ConnectionError("the other side is away")
        self.lines.append(f"undo {booked}")


def refuse() -> None:
    raise tenure.PermanentError("no")


async def ended(handle: tenure.Handle[Any]) -> Job:
    async def is_over() -> bool:
        return not (await handle.refresh()).live

    await eventually(is_over, seconds=60)
    return await handle.refresh()


async def until_waiting(handle: tenure.Handle[Any]) -> None:
    async def waits() -> bool:
        return (await handle.refresh()).status is WAITING

    await eventually(waits, seconds=60)


async def types(handle: tenure.Handle[Any]) -> list[EventType]:
    return [event.type for event in await handle.events()]


def error_of(job: Job) -> str:
    return job.error or job.last_error or ""


@pytest.fixture(autouse=True)
def the_record_is_valid(app: tenure.App, database: Database) -> Iterator[None]:
    yield
    verified = command("verify", "--database", database.url)
    assert verified.code == 0, verified.out


async def test_a_run_that_fails_undoes_its_steps_newest_first_and_then_ends(app: tenure.App) -> None:
    ledger = Ledger()

    @app.workflow()
    async def trip(run: tenure.Run) -> None:
        saga = run.using(compensate=ledger.undo)
        await saga.step(ledger.book, "hotel")
        await run.step(ledger.book, "newspaper")
        await saga.step(ledger.book, "flight")
        await run.step(refuse)

    async with app, working(app):
        handle = await trip.enqueue()
        job = await ended(handle)
        steps = await (await app.store()).steps(handle.id)
        events = await types(handle)
    assert (job.status, job.ends_as, job.compensated) == (DEAD_LETTERED, "dead_lettered", True)
    assert "no" in error_of(job)
    assert ledger.lines == ["book hotel", "book newspaper", "book flight", "undo FLIGHT", "undo HOTEL"]
    assert [(step.key, step.name) for step in steps if step.kind is StepKind.UNDO] == [
        ("2.undo", "undo"),
        ("0.undo", "undo"),
    ]
    assert events[-2:] == [EventType.COMPENSATED, EventType.DEAD_LETTERED]
    assert events.count(EventType.COMPENSATED) == 1


async def test_a_run_that_succeeds_undoes_nothing(app: tenure.App) -> None:
    ledger = Ledger()

    @app.workflow()
    async def trip(run: tenure.Run) -> str:
        return await run.using(compensate=ledger.undo).step(ledger.book, "hotel")

    async with app, working(app):
        handle = await trip.enqueue()
        assert await handle.result(timeout_seconds=60) == "HOTEL"
        assert EventType.COMPENSATED not in await types(handle)
    assert ledger.lines == ["book hotel"]


async def test_a_run_that_is_retried_undoes_nothing_until_its_last_failure(app: tenure.App) -> None:
    ledger = Ledger()

    @app.workflow(max_attempts=3, backoff=AT_ONCE, on_exhausted="fail")
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).step(ledger.book, "hotel")
        ledger.lines.append(f"attempt {run.attempt}")
        raise RuntimeError("broken")

    async with app, working(app):
        handle = await trip.enqueue()
        job = await ended(handle)
    assert (job.status, job.ends_because) == (FAILED, "exhausted_retries")
    assert "broken" in error_of(job)
    assert ledger.lines == ["book hotel", "attempt 1", "attempt 2", "attempt 3", "undo HOTEL"]


async def test_steps_of_parallel_branches_are_undone_in_reverse_order_of_completion(app: tenure.App) -> None:
    ledger = Ledger()
    first_is_recorded = asyncio.Event()

    @app.workflow()
    async def trip(run: tenure.Run) -> None:
        saga = run.using(compensate=ledger.undo)

        async def late() -> None:
            await first_is_recorded.wait()
            await saga.step(ledger.book, "late")

        async def early() -> None:
            await saga.step(ledger.book, "early")
            first_is_recorded.set()

        await run.gather(late(), early())
        await run.step(refuse)

    async with app, working(app):
        await ended(await trip.enqueue())
    assert ledger.lines == ["book early", "book late", "undo LATE", "undo EARLY"]


async def test_each_step_of_a_map_is_undone(app: tenure.App) -> None:
    ledger = Ledger()

    @app.workflow()
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).map(ledger.book, ["a", "b", "c"], concurrency=1)
        await run.step(refuse)

    async with app, working(app):
        await ended(await trip.enqueue())
    assert ledger.lines[3:] == ["undo C", "undo B", "undo A"]


async def test_a_request_to_cancel_a_waiting_run_undoes_its_steps(app: tenure.App) -> None:
    ledger = Ledger()

    @app.workflow()
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).step(ledger.book, "hotel")
        await run.wait_for("approved", str)
        await run.step(ledger.book, "flight")

    async with app, working(app):
        handle = await trip.enqueue()
        await until_waiting(handle)
        await handle.cancel(reason="the customer is ill")
        job = await ended(handle)
        assert (await types(handle))[-2:] == [EventType.COMPENSATED, EventType.CANCELLED]
    assert (job.status, job.reason) == (CANCELLED, "the customer is ill")
    assert ledger.lines == ["book hotel", "undo HOTEL"]


async def test_a_request_to_cancel_during_the_undo_waits_for_it(app: tenure.App) -> None:
    ledger = Ledger()
    undoing, may_end = asyncio.Event(), asyncio.Event()

    async def undo(booked: str) -> None:
        undoing.set()
        await may_end.wait()
        await ledger.undo(booked)

    @app.workflow(on_exhausted="fail")
    async def trip(run: tenure.Run) -> None:
        saga = run.using(compensate=undo)
        await saga.step(ledger.book, "hotel")
        await saga.step(ledger.book, "flight")
        await run.step(refuse)

    async with app, working(app):
        handle = await trip.enqueue()
        await asyncio.wait_for(undoing.wait(), 60)
        await handle.cancel(reason="too late")
        may_end.set()
        job = await ended(handle)
    assert (job.status, job.cancel_reason) == (FAILED, "too late")
    assert ledger.lines[2:] == ["undo FLIGHT", "undo HOTEL"]


async def test_an_undo_that_fails_is_retried_without_a_worker(app: tenure.App) -> None:
    ledger = Ledger()
    ledger.refusals = 2

    @app.workflow(backoff=AT_ONCE)
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).step(ledger.book, "hotel")
        await run.step(refuse)

    async with app, working(app):
        handle = await trip.enqueue()
        job = await ended(handle)
    assert job.compensated
    assert ledger.lines == ["book hotel", "refused HOTEL", "refused HOTEL", "undo HOTEL"]


async def test_a_run_that_cannot_be_undone_is_a_dead_letter(app: tenure.App) -> None:
    ledger = Ledger()
    ledger.refusals = 100

    @app.workflow(max_attempts=3, backoff=AT_ONCE, on_exhausted="fail")
    async def trip(run: tenure.Run) -> None:
        saga = run.using(compensate=ledger.undo)
        await saga.step(ledger.book, "hotel")
        await saga.step(ledger.book, "flight")
        await run.step(refuse)

    async with app, working(app):
        handle = await trip.enqueue()
        job = await ended(handle)
        events = await handle.events()
    assert (job.status, job.compensated) == (DEAD_LETTERED, False)
    assert events[-1].cause == ReasonCode.COMPENSATION_FAILED.value
    assert "the other side is away" in error_of(job)
    assert ledger.lines[2:] == ["refused FLIGHT"] * 3


async def test_recovery_lets_a_lost_run_undo_its_steps_before_it_fails(app: tenure.App) -> None:
    """The run is ended by recovery's `unwind`: its attempt replays the function and executes none of its steps."""
    ledger = Ledger()

    @app.workflow(on_exhausted="fail")
    async def trip(run: tenure.Run) -> None:
        saga = run.using(compensate=ledger.undo)
        await saga.step(ledger.book, "hotel")
        await run.gather(saga.step(ledger.book, "a"), run.wait_for("approved", str))
        await run.step(ledger.book, "flight")

    async with app:
        handle = await trip.enqueue()
        async with working(app):
            await until_waiting(handle)
        store = await app.store()
        unwind = Unwind("failed", "timeout", '{"type":"Timeout","message":"it took too long"}')
        [unwound] = await store.apply(
            [Request(job=handle.id, operations=(unwind,), actor=Actor(Role.RECOVERY, "recovery"), request_id="unwind")]
        )
        assert isinstance(unwound, Applied)
        async with working(app):
            job = await ended(handle)
    assert (job.status, job.compensated, job.ends_because) == (FAILED, True, "timeout")
    assert "it took too long" in error_of(job)
    assert ledger.lines == ["book hotel", "book a", "undo A", "undo HOTEL"]


async def test_a_run_that_times_out_undoes_its_steps_in_its_next_attempt(app: tenure.App) -> None:
    ledger = Ledger()

    @app.workflow(on_timeout="fail", timeouts=tenure.Timeouts(running_seconds=1.0))
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).step(ledger.book, "hotel")
        await run.step(asyncio.Event().wait)

    async with app, working(app):
        handle = await trip.enqueue()
        job = await ended(handle)
    assert (job.status, job.compensated, job.ends_because, job.attempt) == (FAILED, True, "timeout", 2)
    assert ledger.lines == ["book hotel", "undo HOTEL"]


@pytest.mark.parametrize("on_timeout", ["fail", "dead_letter"])
async def test_a_run_that_times_out_undoes_its_steps_although_its_owner_does_not_end_it(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch, on_timeout: Literal["fail", "dead_letter"]
) -> None:
    """Its owner renews the lease and does not end the attempt, as when the event loop is blocked: recovery does."""
    monkeypatch.setattr(LeaseRenewer, "expire_locally", lambda renewer: None)
    monkeypatch.setattr(recovery, "OWNER_TIME", timedelta(0))
    ledger = Ledger()

    @app.workflow(on_timeout=on_timeout, timeouts=tenure.Timeouts(running_seconds=1.0), lease_seconds=120)
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).step(ledger.book, "hotel")
        await run.step(asyncio.Event().wait)

    async with app, working(app):
        handle = await trip.enqueue()
        job = await ended(handle)
        happened = await types(handle)
    assert (job.status, job.compensated, job.ends_because, job.attempt, job.losses) == (
        FAILED if on_timeout == "fail" else DEAD_LETTERED,
        True,
        "timeout",
        2,
        0,
    )
    assert ledger.lines == ["book hotel", "undo HOTEL"]
    assert happened.count(EventType.STALLED) == happened.count(EventType.UNWINDING) == 1


@pytest.mark.parametrize("fails", ["read at start", "record of the end"])
async def test_recovery_lets_a_run_undo_its_steps_if_its_worker_cannot_find_out_or_record_that(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    ledger, has_failed = Ledger(), asyncio.Event()
    load_at_start, save = Checkpointer.load_at_start, Checkpointer.save

    async def hang_in_second_attempt(checkpointer: Checkpointer, lease: Lease) -> Any:
        if fails == "read at start" and lease.job.attempt == 2:
            has_failed.set()
            await asyncio.Event().wait()
        return await load_at_start(checkpointer, lease)

    async def refuse_the_end(checkpointer: Checkpointer, lease: Lease, step: NewStep, *more: Any) -> Any:
        if fails == "record of the end" and step.key == END_KEY and lease.job.attempt == 2:
            has_failed.set()
            raise CheckpointNotSaved(step.key, "the test refuses it")
        return await save(checkpointer, lease, step, *more)

    monkeypatch.setattr(Checkpointer, "load_at_start", hang_in_second_attempt)
    monkeypatch.setattr(Checkpointer, "save", refuse_the_end)

    @app.workflow(on_timeout="fail", timeouts=tenure.Timeouts(running_seconds=3.0), lease_seconds=2)
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).step(ledger.book, "hotel")
        await run.wait_for("go")
        await run.step(asyncio.Event().wait)

    async with app, working(app):
        handle = await trip.enqueue()
        await until_waiting(handle)
        await handle.signal("go")
        job = await ended(handle)
    assert has_failed.is_set()
    assert (job.status, job.compensated, job.ends_because) == (FAILED, True, "timeout")
    assert ledger.lines == ["book hotel", "undo HOTEL"]


async def test_code_that_cannot_undo_a_recorded_step_parks_the_run(app: tenure.App) -> None:
    ledger = Ledger()
    can_undo = False

    @app.workflow()
    async def trip(run: tenure.Run) -> None:
        saga = run.using(compensate=ledger.undo) if run.attempt == 1 or can_undo else run
        await saga.step(ledger.book, "hotel")
        await run.wait_for("approved", str)

    async with app, working(app):
        handle = await trip.enqueue()
        await until_waiting(handle)
        await handle.cancel()

        async def is_parked() -> bool:
            return (await handle.refresh()).waiting_for == "code"

        await eventually(is_parked, seconds=60)
    assert ledger.lines == ["book hotel"]


@pytest.mark.parametrize("how", ["step", "transaction"])
async def test_the_commit_ends_the_duty_to_undo(app: tenure.App, how: str) -> None:
    ledger = Ledger()

    async def book(tx: tenure.StepTransaction, what: str) -> str:
        return ledger.book(what)

    @app.workflow()
    async def trip(run: tenure.Run) -> str:
        saga = run.using(compensate=ledger.undo)
        await (saga.step(ledger.book, "hotel") if how == "step" else saga.transaction(book, "hotel"))
        async with run.commit(result="booked"):
            pass
        raise RuntimeError("after the commit")

    async with app, working(app):
        handle = await trip.enqueue()
        job = await ended(handle)
    assert job.status is SUCCEEDED
    assert ledger.lines == ["book hotel"]


async def test_a_transactional_step_is_undone(app: tenure.App) -> None:
    ledger = Ledger()

    async def book(tx: tenure.StepTransaction, what: str) -> str:
        return ledger.book(what)

    @app.workflow()
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=ledger.undo).transaction(book, "hotel")
        await run.step(refuse)

    async with app, working(app):
        await ended(await trip.enqueue())
    assert ledger.lines == ["book hotel", "undo HOTEL"]


async def test_a_child_is_not_undone_by_its_parent(app: tenure.App) -> None:
    seen: list[str] = []

    @app.job()
    def child() -> None: ...

    @app.workflow()
    async def parent(run: tenure.Run) -> None:
        try:
            run.using(compensate=print).spawn(child)
        except InvalidInput as error:
            seen.append(str(error))

    async with app, working(app):
        await (await parent.enqueue()).result(timeout_seconds=60)
    assert "a child undoes its own steps" in seen[0]
