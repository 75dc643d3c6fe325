"""Fixtures of the tests with real processes: a database of each kind with a table for effects, and worker processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tenure.stores.contract import Store
from tests.chaos.checks import prepare_effects
from tests.chaos.processes import WorkerProcesses
from tests.support.databases import Database


@pytest.fixture
async def store(database: Database) -> AsyncIterator[Store]:
    """The test's own view of the database."""
    async with database.opened() as store:
        prepare_effects(database)
        yield store


@pytest.fixture
def processes(database: Database, tmp_path: Path) -> Iterator[WorkerProcesses]:
    """Worker processes that end with the test. Their logs are printed if it fails."""
    folder = tmp_path / "processes"
    folder.mkdir()
    processes = WorkerProcesses(database, folder)
    try:
        yield processes
    finally:
        processes.close()
        print(processes.report())
