"""Workflows in the test harness: time is skipped, signals are sent by the test."""

from __future__ import annotations

import pytest

import tenure
from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import SUCCEEDED, WAITING


@pytest.mark.requirement("WF-08")
async def test_a_run_is_suspended_between_two_attempts_of_a_step() -> None:
    app = tenure.App("sqlite:///unused.db")
    tries: list[int] = []

    async def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("busy")
        return "ok"

    @app.workflow()
    async def patient(run: tenure.Run) -> str:
        return await run.using(on_error="retry", backoff=tenure.Backoff(base_seconds=60)).step(flaky)

    async with app.testing() as harness:
        handle = await patient.enqueue()
        await harness.drain()
        assert ((await handle.refresh()).status, len(tries)) == (WAITING, 1)
        await harness.run_all()
        job = await handle.refresh()
        types = [event.type for event in await handle.events()]
    assert (job.status, job.failures, len(tries)) == (SUCCEEDED, 0, 3)
    assert types.count(EventType.SUSPENDED) == 2


async def test_time_is_skipped_and_signals_are_sent_by_the_test() -> None:
    app = tenure.App("sqlite:///unused.db")

    @app.workflow()
    async def remind(run: tenure.Run) -> list[str]:
        began_at = run.now()
        await run.sleep(days=3)
        slept = run.now() - began_at
        try:
            answer: str = await run.wait_for("answer", str, timeout_seconds=3600)
        except TimeoutError:
            answer = "none"
        return [str(slept.days), answer]

    async with app.testing() as harness:
        answered, silent = await remind.enqueue(), await remind.enqueue()
        await harness.drain()
        await harness.advance(3 * 86_400 + 1)
        await answered.signal("answer", "yes")
        await harness.run_all()
        assert await answered.result() == ["3", "yes"]
        assert await silent.result() == ["3", "none"]


async def test_a_suspended_run_is_no_error_and_a_failed_step_is() -> None:
    app = tenure.App("sqlite:///unused.db")

    def fails() -> None:
        raise ValueError("no")

    @app.workflow
    async def ask(run: tenure.Run) -> None:
        await run.wait_for("answer")
        await run.step(fails)

    async with app.testing() as harness:
        handle = await ask.enqueue()
        await harness.drain(raise_errors=True)
        await handle.signal("answer")
        with pytest.raises(tenure.StepFailed, match="ValueError: no"):
            await harness.drain(raise_errors=True)


async def test_functions_of_steps_are_replaced_by_stubs() -> None:
    app = tenure.App("sqlite:///unused.db")

    async def search(topic: str) -> list[str]:
        raise AssertionError("costs money")

    def summarise(page: str) -> str:
        raise AssertionError("costs money")

    async def book(tx: tenure.StepTransaction, page: str) -> int:
        raise AssertionError("books a flight")

    @app.workflow
    async def research(run: tenure.Run, topic: str) -> list[str]:
        pages = await run.step(search, topic)
        booked = await run.transaction(book, pages[0])
        return [*await run.map(summarise, pages), str(booked)]

    @app.job
    async def plain(ctx: tenure.Context) -> list[str]:
        return await ctx.step("pages", search, "cats")

    async def found(topic: str) -> tuple[str, ...]:
        return f"{topic} 1", f"{tenure.current_step().attempt}"

    async with app.testing() as harness:
        harness.stub(search, found)
        harness.stub(summarise, str.upper)
        harness.stub(book, lambda tx, page: 7)
        handle = await research.enqueue("otters")
        await harness.drain(raise_errors=True)
        assert await handle.result() == ["OTTERS 1", "1", "7"]
        names = [step.name for step in await (await app.store()).steps(handle.id)]
        harness.stub(search, lambda topic: [topic])
        job = await plain.enqueue()
        await harness.drain(raise_errors=True)
        assert await job.result() == ["cats"]
    assert names == ["search", "book", "summarise", "summarise"]
