from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import tenure
from tests.support.databases import Database


@pytest.fixture
async def app(database: Database) -> AsyncIterator[tenure.App]:
    """An app on a migrated database of each kind."""
    async with database.opened(), tenure.App(database.url) as app:
        yield app
