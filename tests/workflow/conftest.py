"""An app on each store, for tests of workflows."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import tenure
from tests.support.databases import Database


@pytest.fixture
async def app(database: Database) -> AsyncIterator[tenure.App]:
    async with database.opened():
        pass
    app = tenure.App(database.url, version="1")
    yield app
    await app.close()
