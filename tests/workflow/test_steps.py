"""Steps are recorded, and what is recorded is not executed again."""

from __future__ import annotations

import asyncio
import enum
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import tenure
from tenure.errors import StoreError
from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, SUCCEEDED, WAITING
from tenure.lifecycle.steps import StepKind
from tenure.stores.contract import Failure, StepOutcome
from tenure.workers.checkpointer import Checkpointer
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

AT_ONCE = tenure.Backoff(base_seconds=0.01, max_seconds=0.01)


class Crash(Exception):
    """Raised by a workflow's function, so that its run is retried from the beginning."""


async def keys_of(app: tenure.App, handle: tenure.Handle[Any]) -> list[str]:
    return [step.key for step in await (await app.store()).steps(handle.id)]


@pytest.mark.requirement("WF-01", "WC-08")
async def test_a_recorded_step_is_not_executed_again(app: tenure.App) -> None:
    executed: list[str] = []

    async def search(topic: str) -> list[str]:
        executed.append(f"search {topic}")
        return [topic, "more"]

    def summarise(pages: list[str]) -> str:
        executed.append("summarise")
        return ", ".join(pages)

    @app.workflow(backoff=AT_ONCE)
    async def research(run: tenure.Run, topic: str) -> str:
        pages = await run.step(search, topic)
        if run.attempt == 1:
            raise Crash
        text = await run.step(summarise, pages)
        if run.attempt == 2:
            raise Crash
        return text

    async with app, working(app):
        handle = await research.enqueue("cats")
        assert await handle.result(timeout_seconds=60) == "cats, more"
        job = await handle.refresh()
    assert executed == ["search cats", "summarise"]
    assert (job.attempt, job.failures) == (3, 2)
    async with app:
        steps = await (await app.store()).steps(handle.id)
    assert [(one.key, one.kind, one.name, one.attempt, one.code_version) for one in steps] == [
        ("0", StepKind.STEP, "search", 1, "1"),
        ("1", StepKind.STEP, "summarise", 2, "1"),
    ]
    assert all(one.started_at <= one.finished_at for one in steps)


@pytest.mark.requirement("WF-06", "WC-08")
async def test_the_failure_of_a_step_is_recorded_and_ends_the_run(app: tenure.App) -> None:
    executed: list[int] = []

    async def charge() -> None:
        executed.append(1)
        raise ValueError("card refused")

    @app.workflow(backoff=AT_ONCE, on_exhausted="fail")
    async def pay(run: tenure.Run) -> None:
        await run.step(charge)

    async with app, working(app):
        handle = await pay.enqueue()
        job = await handle.wait(60)
    assert (job.status, job.attempt, executed) == (FAILED, 1, [1])
    assert job.error is not None
    assert "StepFailed" in job.error
    assert "card refused" in job.error


@pytest.mark.requirement("WF-05", "WF-06")
async def test_live_code_and_a_replay_see_the_same_error(app: tenure.App) -> None:
    seen: list[str] = []

    class Refused(Exception):
        pass

    def charge() -> None:
        raise Refused("no funds", 7)

    def book() -> None:
        raise KeyError("shelf")

    @app.workflow(backoff=AT_ONCE, errors=[Refused])
    async def pay(run: tenure.Run) -> str:
        try:
            await run.step(charge)
        except Refused as error:
            seen.append(repr(error))
        try:
            await run.step(book)
        except tenure.StepFailed as error:
            seen.append(f"{error.error_type}: {error.error_message}")
        if run.attempt == 1:
            raise Crash
        return "done"

    async with app, working(app):
        assert await (await pay.enqueue()).result(timeout_seconds=60) == "done"
    assert seen == ["Refused('no funds', 7)", "KeyError: 'shelf'"] * 2


class Colour(enum.Enum):
    RED = "red"


class Page(msgspec.Struct):
    title: str
    at: datetime
    colour: Colour
    numbers: dict[int, tuple[int, ...]]


@pytest.mark.requirement("WF-05")
async def test_live_code_and_a_replay_see_the_same_result(app: tenure.App) -> None:
    seen: list[Any] = []
    page = Page("a", datetime(2026, 1, 1, tzinfo=UTC), Colour.RED, {1: (2, 3)})

    def typed() -> Page:
        return page

    def untyped():  # type: ignore[no-untyped-def]
        return {"pair": (1, 2), 3: {Colour.RED}}

    @app.workflow(backoff=AT_ONCE)
    async def collect(run: tenure.Run) -> None:
        seen.append(await run.step(typed))
        seen.append(await run.step(untyped))
        if run.attempt == 1:
            raise Crash

    async with app, working(app):
        await (await collect.enqueue()).result(timeout_seconds=60)
    assert seen == [page, {"pair": [1, 2], "3": ["red"]}] * 2


@pytest.mark.requirement("WF-05")
async def test_a_result_that_no_longer_fits_its_type_is_its_own_error(app: tenure.App) -> None:
    executed: list[int] = []

    def old() -> str:
        executed.append(1)
        return "seven"

    def new() -> int:
        raise AssertionError("it is recorded")

    new.__name__ = "old"

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def change(run: tenure.Run) -> Any:
        value = await run.step(old if run.attempt == 1 else new)
        if run.attempt == 1:
            raise Crash
        return value

    async with app, working(app):
        job = await (await change.enqueue()).wait(60)
    assert (job.status, executed) == (DEAD_LETTERED, [1])
    assert job.last_error is not None
    assert "StepUnreadable" in job.last_error


@pytest.mark.requirement("WF-08")
async def test_retries_of_a_step_are_no_failures_of_the_run(app: tenure.App) -> None:
    tries: list[str] = []

    async def flaky() -> str:
        tries.append(tenure.current_step().key)
        if len(tries) < 3:
            raise ConnectionError("busy")
        return "ok"

    @app.workflow()
    async def patient(run: tenure.Run) -> str:
        backoff = tenure.Backoff(base_seconds=0.05, max_seconds=0.05)
        return await run.using(on_error="retry", max_attempts=5, backoff=backoff).step(flaky)

    async with app, working(app):
        handle = await patient.enqueue()
        assert await handle.result(timeout_seconds=60) == "ok"
        job = await handle.refresh()
    assert tries == [f"{handle.id}/0"] * 3
    assert job.failures == 0


@pytest.mark.requirement("WF-08", "WF-17")
async def test_a_run_whose_step_was_retried_is_not_parked_at_its_end(app: tenure.App) -> None:
    tries: list[int] = []

    def flaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("busy")
        return "ok"

    @app.workflow(backoff=AT_ONCE)
    async def patient(run: tenure.Run) -> str:
        value = await run.using(on_error="retry", backoff=AT_ONCE).step(flaky)
        if not crashed:
            crashed.append(1)
            raise Crash
        return value

    crashed: list[int] = []
    async with app, working(app):
        handle = await patient.enqueue()
        assert await handle.result(timeout_seconds=60) == "ok"
        assert await keys_of(app, handle) == ["0.retry.1", "0"]


@pytest.mark.requirement("WF-08")
async def test_a_changed_retry_policy_does_not_change_a_steps_identity(app: tenure.App) -> None:
    def work() -> int:
        return 1

    @app.workflow(backoff=AT_ONCE)
    async def change(run: tenure.Run) -> int:
        options: dict[str, Any] = {} if run.attempt == 1 else {"on_error": "retry", "timeout_seconds": 5.0}
        value = await run.using(**options).step(work)
        if run.attempt == 1:
            raise Crash
        return value

    async with app, working(app):
        assert await (await change.enqueue()).result(timeout_seconds=60) == 1


async def test_a_step_with_on_error_continue_returns_none(app: tenure.App) -> None:
    def fails() -> int:
        raise ValueError("no")

    @app.workflow(backoff=AT_ONCE)
    async def lenient(run: tenure.Run) -> list[int | None]:
        values: list[int | None] = [await run.using(on_error="continue").step(fails)]
        if run.attempt == 1:
            raise Crash
        return values

    async with app, working(app):
        assert await (await lenient.enqueue()).result(timeout_seconds=60) == [None]


async def test_a_permanent_error_of_a_step_is_not_retried(app: tenure.App) -> None:
    tries: list[int] = []

    def fails() -> None:
        tries.append(1)
        raise tenure.PermanentError("never")

    @app.workflow(on_exhausted="fail")
    async def strict(run: tenure.Run) -> None:
        await run.using(on_error="retry", backoff=AT_ONCE).step(fails)

    async with app, working(app):
        job = await (await strict.enqueue()).wait(60)
    assert (job.status, tries) == (FAILED, [1])


async def test_a_step_that_exceeds_its_timeout_fails(app: tenure.App) -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    @app.workflow(on_exhausted="fail")
    async def impatient(run: tenure.Run) -> None:
        await run.using(timeout_seconds=0.05).step(hangs)

    async with app, working(app):
        job = await (await impatient.enqueue()).wait(60)
    assert job.status is FAILED
    assert "TimeoutError" in (job.error or "")


async def test_a_result_that_is_too_large_fails_the_step_by_name(app: tenure.App) -> None:
    def huge() -> str:
        return "x" * (3 * 1024 * 1024)

    @app.workflow(on_exhausted="fail")
    async def grow(run: tenure.Run) -> None:
        await run.step(huge)

    async with app, working(app):
        job = await (await grow.enqueue()).wait(60)
    assert job.status is FAILED
    assert "result of step huge" in (job.error or "")


async def test_a_large_result_is_kept(app: tenure.App) -> None:
    def large() -> str:
        return "x" * (1024 * 1024)

    @app.workflow(backoff=AT_ONCE)
    async def grow(run: tenure.Run) -> int:
        text = await run.step(large)
        if run.attempt == 1:
            raise Crash
        return len(text)

    async with app, working(app):
        assert await (await grow.enqueue()).result(timeout_seconds=60) == 1024 * 1024


@pytest.mark.requirement("WF-01")
async def test_a_duplicate_explicit_key_is_an_error_at_once(app: tenure.App) -> None:
    def work() -> int:
        return 1

    @app.workflow(max_attempts=1, on_exhausted="fail")
    async def twice(run: tenure.Run) -> None:
        await run.using(key="one").step(work)
        await run.using(key="one").step(work)

    async with app, working(app):
        job = await (await twice.enqueue()).wait(60)
    assert job.status is FAILED
    assert "was used before in this run" in (job.error or "")


@pytest.mark.requirement("WF-01")
@pytest.mark.parametrize("key", ["0", "1.2/3", "", "0.deadline", "3.retry.1"])
def test_an_explicit_key_that_looks_like_an_automatic_one_is_refused(key: str) -> None:
    from tenure.workflow.step_call import StepOptions

    with pytest.raises(tenure.InvalidInput, match="key"):
        StepOptions(key=key)


@pytest.mark.requirement("WF-17", "WF-01")
@pytest.mark.parametrize("change", ["name", "arguments", "removed", "kind"])
async def test_code_that_does_not_fit_the_record_is_parked_and_executes_nothing(app: tenure.App, change: str) -> None:
    executed: list[str] = []

    def first(number: int) -> int:
        executed.append("first")
        return number

    def other(number: int) -> int:
        executed.append("other")
        return number

    @app.workflow(backoff=AT_ONCE)
    async def change_code(run: tenure.Run) -> str:
        if run.attempt == 1:
            await run.step(first, 1)
            await run.step(first, 2)
            raise Crash
        if change == "name":
            await run.step(other, 1)
        elif change == "arguments":
            await run.step(first, 5)
        elif change == "kind":
            await run.sleep(1)
        else:
            await run.step(first, 1)
        return "never"

    async with app, working(app):
        handle = await change_code.enqueue()

        async def parked() -> bool:
            return (await handle.refresh()).status is WAITING

        await eventually(parked, seconds=60)
        job = await handle.refresh()
        event = (await handle.events())[-1]
    assert executed == ["first", "first"]
    assert (job.waiting_for, job.due_at, job.failures, event.cause) == ("code", None, 1, "code_mismatch")
    assert "the code does not fit what is recorded" in (event.detail or "")


@pytest.mark.requirement("WF-07")
async def test_an_error_of_the_function_in_a_replay_is_reported_as_itself(app: tenure.App) -> None:
    def work() -> int:
        return 1

    @app.workflow(max_attempts=2, backoff=AT_ONCE, on_exhausted="fail")
    async def broken(run: tenure.Run) -> None:
        await run.step(work)
        raise LookupError(f"attempt {run.attempt}")

    async with app, working(app):
        job = await (await broken.enqueue()).wait(60)
    assert job.status is FAILED
    assert "LookupError" in (job.error or "")
    assert "does not fit" not in (job.error or "")


@pytest.mark.requirement("WF-16")
async def test_a_patch_separates_runs_that_had_passed_it_from_new_ones(app: tenure.App) -> None:
    ways: list[str] = []
    changed = False

    def work(way: str) -> str:
        ways.append(way)
        return way

    @app.workflow(backoff=AT_ONCE)
    async def fees(run: tenure.Run) -> list[str]:
        values = []
        for _ in range(2):
            if changed and await run.patched("new fee"):
                values.append(await run.step(work, "new"))
            else:
                values.append(await run.step(work, "old"))
        if run.attempt == 1:
            await run.wait_for("go on")
        return values

    async with app, working(app):
        old = await fees.enqueue()

        async def waits() -> bool:
            return (await old.refresh()).status is WAITING

        await eventually(waits, seconds=60)
        changed = True
        await old.signal("go on")
        assert await old.result(timeout_seconds=60) == ["old", "old"]
        new = await fees.enqueue()
        await new.signal("go on")
        assert await new.result(timeout_seconds=60) == ["new", "new"]
    assert ways == ["old", "old", "new", "new"]


@pytest.mark.requirement("EL-04", "WC-08")
async def test_the_sql_of_a_transactional_step_is_committed_with_its_record(app: tenure.App) -> None:
    async def create(tx: tenure.StepTransaction) -> None:
        await tx.execute("create table bookings (name text)")

    async def book(tx: tenure.StepTransaction, name: str) -> int:
        return await tx.execute("insert into bookings values ($1)", name)

    async def fails(tx: tenure.StepTransaction) -> None:
        await tx.execute("insert into bookings values ('lost')")
        raise ValueError("no")

    async def rows(tx: tenure.StepTransaction) -> list[str]:
        return [row["name"] for row in await tx.fetch("select name from bookings order by name")]

    @app.workflow(backoff=AT_ONCE)
    async def order(run: tenure.Run) -> list[str]:
        await run.transaction(create)
        assert await run.transaction(book, "a") == 1
        with pytest.raises(tenure.StepFailed, match="ValueError: no"):
            await run.transaction(fails)
        if run.attempt == 1:
            raise Crash
        await run.transaction(book, "b")
        return await run.transaction(rows)

    async with app, working(app):
        handle = await order.enqueue()
        assert await handle.result(timeout_seconds=60) == ["a", "b"]
        assert await keys_of(app, handle) == ["0", "1", "2", "3", "4"]


@pytest.mark.requirement("WC-08")
async def test_a_checkpoint_that_cannot_be_saved_ends_the_attempt(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[int] = []
    save = Checkpointer._save

    async def refuse_once(checkpointer: Checkpointer, batch: list[Any]) -> list[StepOutcome]:
        if [one.step.key for one in batch] == ["1"] and executed.count(1) == 1:
            return [Failure(StoreError("the row is refused"))]
        return await save(checkpointer, batch)

    monkeypatch.setattr(Checkpointer, "_save", refuse_once)

    def work(number: int) -> int:
        executed.append(number)
        return number

    @app.workflow(backoff=AT_ONCE)
    async def counts(run: tenure.Run) -> int:
        try:
            return sum([await run.step(work, 0), await run.step(work, 1), await run.step(work, 2)])
        except Exception:
            executed.append(99)
            raise

    async with app, working(app):
        handle = await counts.enqueue()
        assert await handle.result(timeout_seconds=60) == 3
        [retried] = [event for event in await handle.events() if event.type is EventType.RETRY_SCHEDULED]
    assert "checkpoint-save-failed" in (retried.detail or "")
    assert "the row is refused" in (retried.detail or "")
    assert executed == [0, 1, 1, 2]


async def test_a_run_may_end_with_a_commit_block(app: tenure.App) -> None:
    def work() -> int:
        return 7

    @app.workflow()
    async def order(run: tenure.Run) -> int:
        number = await run.step(work)
        async with run.commit(result=number) as tx:
            await tx.execute("create table orders (number integer)")
        return number

    async with app, working(app):
        handle = await order.enqueue()
        assert await handle.result(timeout_seconds=60) == 7
        assert (await handle.refresh()).committed


async def test_the_log_has_the_digest_of_the_steps_and_verify_accepts_it(app: tenure.App) -> None:
    def work(number: int) -> int:
        return number

    @app.workflow(backoff=AT_ONCE)
    async def count(run: tenure.Run) -> int:
        total = sum(await run.map(work, range(20)))
        if run.attempt == 1:
            raise Crash
        return total

    async with app, working(app):
        handle = await count.enqueue()
        assert await handle.result(timeout_seconds=60) == 190
        events = await handle.events()
    ends = [event for event in events if event.type in (EventType.RETRY_SCHEDULED, EventType.SUCCEEDED)]
    assert [str(event.steps).partition(":")[0] for event in ends] == ["20", "20"]
    assert (await handle_status(app, handle)) is SUCCEEDED


async def handle_status(app: tenure.App, handle: tenure.Handle[Any]) -> Any:
    async with app:
        return (await handle.refresh()).status


def test_a_workflow_is_an_async_function_whose_first_parameter_is_the_run() -> None:
    app = tenure.App("sqlite:///unused.db")
    with pytest.raises(tenure.InvalidInput, match="async function"):

        @app.workflow(kind="plain")  # type: ignore[arg-type]
        def plain(run: tenure.Run) -> None: ...

    with pytest.raises(tenure.InvalidInput, match="annotate it"):

        @app.workflow(kind="bare")  # type: ignore[arg-type]
        async def bare(number: int) -> None: ...
