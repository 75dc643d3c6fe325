"""Runs whose code changes: they are parked, pinned to the version that fits, and go on with it or are unpinned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import tenure
from tenure.errors import IllegalTransition
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import SUCCEEDED, WAITING
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

Apps = Callable[[str], tenure.App]


@pytest.fixture
async def versions(database: Database) -> AsyncIterator[Apps]:
    async with database.opened():
        pass
    apps: list[tenure.App] = []

    def app(version: str) -> tenure.App:
        apps.append(tenure.App(database.url, version=version))
        return apps[-1]

    yield app
    for one in apps:
        await one.close()


def declared(app: tenure.App, *, fee: str, executed: list[str], is_patched: bool = False) -> Any:
    """An order that books, waits for its approval, and sends. The fee differs between versions of the code."""

    def book(fee: str) -> str:
        executed.append(f"book {fee} in {app.version}")
        return fee

    def send(fee: str) -> str:
        executed.append(f"send {fee} in {app.version}")
        return fee

    @app.workflow(kind="order")
    async def order(run: tenure.Run) -> str:
        new = not is_patched or await run.patched("fee")
        booked = await run.step(book, fee if new else "old fee")
        await run.wait_for("approved")
        return await run.step(send, booked)

    return order


async def suspended(handle: tenure.Handle[Any], waiting_for: str) -> Job:
    async def is_waiting() -> bool:
        job = await handle.refresh()
        return job.status is WAITING and job.waiting_for == waiting_for

    await eventually(is_waiting, seconds=60)
    return await handle.refresh()


async def parked(versions: Apps, executed: list[str]) -> tuple[tenure.App, Any]:
    """A run that version 1 has begun and that version 2 has parked."""
    old, new = versions("1"), versions("2")
    order = declared(old, fee="old fee", executed=executed)
    declared(new, fee="new fee", executed=executed)
    async with working(old):
        handle = await order.enqueue()
        await suspended(handle, "signal")
    await handle.signal("approved")
    async with working(new):
        await suspended(handle, "code")
    return old, handle


@pytest.mark.requirement("WF-17")
async def test_a_parked_run_goes_on_with_the_code_that_wrote_its_record(versions: Apps, database: Database) -> None:
    executed: list[str] = []
    old, handle = await parked(versions, executed)
    job = await handle.refresh()
    assert (job.pinned_version, job.failures, executed) == ("1", 0, ["book old fee in 1"])
    note = (await handle.events())[-1].detail or ""
    assert "the code does not fit what is recorded at 0" in note
    shown = command("runs", "show", str(handle.id), "--json", "--database", database.url).json
    assert shown["waits_for"].startswith("code of version 1; the code does not fit")
    claims = job.attempt
    async with working(old):
        assert await handle.result(timeout_seconds=60) == "old fee"
    job = await handle.refresh()
    assert (job.status, job.attempt, job.failures) == (SUCCEEDED, claims + 1, 0)
    assert executed == ["book old fee in 1", "send old fee in 1"]


@pytest.mark.requirement("WF-17", "WF-16")
@pytest.mark.parametrize("by", ["app", "command"])
async def test_an_unpinned_run_goes_on_with_code_that_fits(versions: Apps, database: Database, by: str) -> None:
    executed: list[str] = []
    _old, handle = await parked(versions, executed)
    fixed = versions("3")
    declared(fixed, fee="new fee", executed=executed, is_patched=True)
    if by == "app":
        await fixed.unpin(handle.id)
    else:
        answer = command("runs", "unpin", str(handle.id), "--database", database.url)
        assert (answer.code, answer.out) == (0, f"{handle.id} is unpinned\n")
    async with working(fixed):
        assert await handle.result(timeout_seconds=60) == "old fee"
    assert executed == ["book old fee in 1", "send old fee in 3"]


@pytest.mark.requirement("WF-17")
async def test_a_run_that_its_own_version_does_not_fit_waits_and_is_not_claimed_again(versions: Apps) -> None:
    executed: list[str] = []
    app = versions("1")
    fees = iter(["first", "second", "third"])

    def book(fee: str) -> str:
        executed.append(fee)
        return fee

    @app.workflow()
    async def order(run: tenure.Run) -> str:
        fee = await run.step(book, next(fees))
        await run.wait_for("approved")
        return fee

    async with working(app):
        handle = await order.enqueue()
        await suspended(handle, "signal")
        await handle.signal("approved")
        job = await suspended(handle, "code")
    assert (job.pinned_version, job.due_at, executed) == ("1", None, ["first"])


@pytest.mark.requirement("WF-17", "WF-16")
async def test_a_patch_that_does_not_help_leaves_the_run_to_the_code_that_wrote_its_record(versions: Apps) -> None:
    """The patch is recorded before the code comes to the call that does not fit."""
    executed: list[str] = []
    old, patched = versions("1"), versions("2")
    order = declared(old, fee="1 EUR", executed=executed)
    declared(patched, fee="2 EUR", executed=executed, is_patched=True)
    async with working(old):
        handle = await order.enqueue()
        await suspended(handle, "signal")
    await handle.signal("approved")
    async with working(patched):
        job = await suspended(handle, "code")
    assert (job.pinned_version, executed) == ("1", ["book 1 EUR in 1"])
    async with working(old):
        assert await handle.result(timeout_seconds=60) == "1 EUR"
    assert executed == ["book 1 EUR in 1", "send 1 EUR in 1"]


async def test_a_run_that_is_not_pinned_cannot_be_unpinned(versions: Apps) -> None:
    app = versions("1")
    order = declared(app, fee="fee", executed=[])
    handle = await order.enqueue()
    before = await handle.refresh()
    with pytest.raises(IllegalTransition, match="not pinned"):
        await app.unpin(handle.id)
    assert await handle.refresh() == before


@pytest.mark.requirement("WF-16")
async def test_the_versions_of_live_runs_show_when_a_patch_can_be_removed(versions: Apps, database: Database) -> None:
    def counted() -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        printed = command("runs", "versions", "--json", "--database", database.url).json
        found = [(one["version"], one["runs"], one["pinned"]) for one in printed["versions"]]
        names = ("patch", "new", "old", "undecided", "removable")
        return found, [tuple(one[name] for name in names) for one in printed["patches"]]

    executed: list[str] = []
    _old, first = await parked(versions, executed)
    assert counted() == ([("1", 1, 1)], [])
    fixed = versions("3")
    order = declared(fixed, fee="new fee", executed=executed, is_patched=True)
    async with working(fixed):
        second = await order.enqueue()
        await suspended(second, "signal")
    assert counted() == ([("1", 1, 1), ("3", 1, 0)], [("fee", 1, 0, 1, False)])
    assert "undecided" in command("runs", "versions", "--database", database.url).out
    listed = command("runs", "ls", "--json", "--database", database.url).json["runs"]
    assert [(one["id"], one["pinned_version"]) for one in listed] == [(str(second.id), None), (str(first.id), "1")]
    page = command("runs", "ls", "--limit", "1", "--database", database.url).out
    assert f"more runs: --after {second.id}" in page
    await fixed.unpin(first.id)
    async with working(fixed):
        await first.result(timeout_seconds=60)
    assert counted() == ([("3", 1, 0)], [("fee", 1, 0, 0, True)])
