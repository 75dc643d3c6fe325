"""A full disk: by a limit on the size of files, and by one on the number of pages."""

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
from tests.crash.crash_checks import check_after_crash, check_store_works, record_baseline
from tests.crash.crash_processes import CrashProcesses
from tests.crash.databases import SqliteDatabase
from tests.crash.store_scenarios import SCENARIOS

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
STEP_BYTES = 4096
STEPS_MAX = 100
FREE_PAGES = 20
LARGE = '"' + "x" * 4000 + '"'


@pytest.mark.requirement("LC-10")
@pytest.mark.parametrize(
    "name",
    [
        "enqueue many",
        pytest.param("commit block", marks=pytest.mark.deep),
        pytest.param("enqueue and checkpoint", marks=pytest.mark.deep),
    ],
)
async def test_a_file_that_cannot_grow_is_reported_and_loses_nothing(
    name: str, tmp_path: Path, processes: CrashProcesses
) -> None:
    """The limit is reached at each page. The scenario is refused as a whole; without the limit the same process
    completes it."""
    database = SqliteDatabase(tmp_path)
    baseline = await record_baseline(BY_NAME[name], database, processes)
    refused = 0
    for number in count():
        database.restore()
        report = processes.run_to_end(baseline.command(file_bytes_max=number * STEP_BYTES, again=True))
        assert await check_after_crash(baseline), "acknowledged without the limit, and not there"
        assert report.acknowledged
        assert report.refused_again is None, report.refused_again
        if report.refused is None:
            break
        refused += 1
        assert report.refused.startswith("StoreUnavailable"), report.refused
        assert number < STEPS_MAX, "refused at every limit"
    assert refused > 3, f"refused only {refused} times"


async def test_a_full_database_refuses_new_jobs_and_keeps_acknowledged_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Concurrent enqueues share transactions, and the pages run out. Acknowledged jobs are there; refused ones can be
    enqueued again under the same id once there are pages."""
    opened = capture_connections(monkeypatch)
    store = SqliteStore(tmp_path / "jobs.db")
    await store.migrate()
    await store.open()
    drive = Driver(store)
    pages = opened[0].execute("pragma page_count").fetchone()[0]
    set_pages_max(opened, pages + FREE_PAGES)
    requests = [drive.enqueue(payload=LARGE) for _ in range(3 * FREE_PAGES)]
    results: list[Sequence[EnqueueResult] | BaseException] = []
    for first in range(0, len(requests), 6):
        together = [store.enqueue([request]) for request in requests[first : first + 6]]
        results += await asyncio.gather(*together, return_exceptions=True)
    refused = [request for request, answer in zip(requests, results, strict=True) if isinstance(answer, BaseException)]
    assert 0 < len(refused) < len(requests)
    assert {type(answer) for answer in results if isinstance(answer, BaseException)} == {StoreUnavailable}
    wanted = {request.origin.id for request in requests}
    assert set(await store.read(list(wanted))) == wanted - {request.origin.id for request in refused}
    await check_store(store)
    set_pages_max(opened, pages + 20 * FREE_PAGES)
    assert all(added.created for added in await store.enqueue(refused))
    assert set(await store.read(list(wanted))) == wanted
    await check_store_works(store)
    await store.close()


def capture_connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The connections that the store opens from now on, the writer's first."""
    opened: list[sqlite3.Connection] = []

    def connecting(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        opened.append(connection)
        return connection

    monkeypatch.setattr(connections, "connect", connecting)
    return opened


def set_pages_max(opened: list[sqlite3.Connection], pages: int) -> None:
    """SQLite enforces the limit and reports a full disk."""
    opened[0].execute(f"pragma max_page_count = {pages}")
