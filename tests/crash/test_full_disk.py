"""A disk without room, as every machine can have one: a limit on the size of files, and one on the number of pages."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import StoreUnavailable
from tenure.stores.contract import EnqueueResult
from tenure.stores.sqlite import connections
from tenure.stores.sqlite.connect import connect
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.driver import Driver
from tenure.testing.store_check import check_store
from tests.crash.acts_of_store import ACTS
from tests.crash.afterwards import check_after_crash, check_works, plan
from tests.crash.mortals import Mortals
from tests.crash.places import SqlitePlace

BY_NAME = {act.name: act for act in ACTS}
STEP_BYTES = 4096
STEPS_MAX = 100
ROOM_PAGES = 20
LARGE = '"' + "x" * 4000 + '"'


@pytest.mark.requirement("LC-10")
@pytest.mark.parametrize(
    "name",
    [
        "add many",
        pytest.param("commit block", marks=pytest.mark.deep),
        pytest.param("add and checkpoint", marks=pytest.mark.deep),
    ],
)
async def test_a_file_that_may_not_grow_is_reported_and_loses_nothing(
    name: str, tmp_path: Path, mortals: Mortals
) -> None:
    """The room ends at each page in turn. The act is refused as a whole; with room again the same process does it."""
    place = SqlitePlace(tmp_path)
    made = await plan(BY_NAME[name], place, mortals)
    refused = 0
    for number in count():
        place.put_back()
        report = mortals.survived(made.order(file_bytes_max=number * STEP_BYTES, again=True))
        assert await check_after_crash(made), "with room again it was acknowledged, and it is not there"
        assert report.acknowledged
        assert report.refused_again is None, report.refused_again
        if report.refused is None:
            break
        refused += 1
        assert report.refused.startswith("StoreUnavailable"), report.refused
        assert number < STEPS_MAX, "it never has enough room"
    assert refused > 3, f"it was refused only {refused} times, so the room hardly ever ended in its middle"


async def test_a_full_database_refuses_what_is_new_and_keeps_what_it_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many write at once, in one transaction, and the room ends somewhere: whoever was told yes finds their job, and
    whoever was told no can ask again under the same id once there is room."""
    opened = limited(monkeypatch)
    store = SqliteStore(tmp_path / "jobs.db")
    await store.migrate()
    await store.open()
    drive = Driver(store)
    pages = opened[0].execute("pragma page_count").fetchone()[0]
    set_room(opened, pages + ROOM_PAGES)
    requests = [drive.enqueue(payload=LARGE) for _ in range(3 * ROOM_PAGES)]
    answers: list[Sequence[EnqueueResult] | BaseException] = []
    for first in range(0, len(requests), 6):
        together = [store.enqueue([request]) for request in requests[first : first + 6]]
        answers += await asyncio.gather(*together, return_exceptions=True)
    refused = [request for request, answer in zip(requests, answers, strict=True) if isinstance(answer, BaseException)]
    assert 0 < len(refused) < len(requests)
    assert {type(answer) for answer in answers if isinstance(answer, BaseException)} == {StoreUnavailable}
    wanted = {request.origin.id for request in requests}
    assert set(await store.read(list(wanted))) == wanted - {request.origin.id for request in refused}
    await check_store(store)
    set_room(opened, pages + 20 * ROOM_PAGES)
    assert all(added.created for added in await store.enqueue(refused))
    assert set(await store.read(list(wanted))) == wanted
    await check_works(store)
    await store.close()


def limited(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The connections that the store opens from now on, the writer's first."""
    opened: list[sqlite3.Connection] = []

    def connecting(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        opened.append(connection)
        return connection

    monkeypatch.setattr(connections, "connect", connecting)
    return opened


def set_room(opened: list[sqlite3.Connection], pages: int) -> None:
    """SQLite itself keeps the limit, and says what it says of a full disk."""
    opened[0].execute(f"pragma max_page_count = {pages}")
