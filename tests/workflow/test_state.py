"""What a run shows of itself while it runs: a small document that others read without a replay."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import tenure
from tenure.lifecycle.statuses import WAITING
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually


class Phase(msgspec.Struct):
    name: str
    pages: int


@pytest.mark.requirement("WC-08")
async def test_the_state_of_a_run_is_read_without_a_replay_and_set_once(app: tenure.App, database: Database) -> None:
    executed: list[int] = []

    @app.workflow()
    async def research(run: tenure.Run) -> None:
        executed.append(run.attempt)
        await run.state(Phase("searching", 1))
        await run.state(Phase("asking", 2))
        await run.wait_for("answer")
        await run.state({"name": "done"})

    async with app, working(app):
        handle = await research.enqueue()

        async def waits() -> bool:
            return (await handle.refresh()).status is WAITING

        await eventually(waits)
        found = await app.get(handle.id)
        assert await found.state(Phase) == Phase("asking", 2)
        assert await found.state() == {"name": "asking", "pages": 2}
        options = ("runs", "show", str(handle.id), "--json", "--database", database.url)
        shown = (await asyncio.to_thread(command, *options)).json
        assert shown["state"] == {"name": "asking", "pages": 2}
        await handle.signal("answer")
        await handle.result(timeout_seconds=60)
        assert await handle.state() == {"name": "done"}
        steps = await (await app.store()).steps(handle.id)
    assert [step.name for step in steps] == ["state", "state", "answer", "state"]
    assert executed == [1, 2]


async def test_a_run_without_a_state_has_none_and_erasure_removes_it(app: tenure.App) -> None:
    @app.workflow()
    async def silent(run: tenure.Run) -> None:
        return None

    @app.workflow()
    async def shows(run: tenure.Run) -> None:
        await run.state("secret")

    async with app, working(app):
        none, shown = await silent.enqueue(), await shows.enqueue()
        await none.result(timeout_seconds=60)
        await shown.result(timeout_seconds=60)
        assert (await none.state(), await shown.state()) == (None, "secret")
        await (await app.store()).erase(shown.id, reason="asked", actor=app.client)
        assert await shown.state() is None


async def test_a_state_that_is_too_large_is_refused_by_name(app: tenure.App) -> None:
    @app.workflow(max_attempts=1)
    async def boastful(run: tenure.Run) -> None:
        await run.state("x" * 17_000)

    async with app, working(app):
        handle = await boastful.enqueue()
        with pytest.raises(tenure.JobFailed, match=r"run\.state"):
            await handle.result(timeout_seconds=60)
