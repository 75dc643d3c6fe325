"""The contract kit: what every store must do, as tests that it enters through one door.

A store proves itself by a class with two fixtures: the store, opened and empty, and a clock that moves the time by
which the *database* decides. pytest and pytest-asyncio are needed.

    import pytest_asyncio
    from tenure.testing.contract import StoreContract

    class TestMyStore(StoreContract):
        @pytest_asyncio.fixture
        async def clock(self):
            return MyDatabaseClock()             # advance(seconds) moves it, also back

        @pytest_asyncio.fixture
        async def store(self, clock):
            store = MyStore(clock=clock)
            await store.migrate()
            await store.open()
            yield store
            await store.close()

A store on which callers can run SQL in a transaction also says what stands before the names of its own tables, as in
`sql_prefix = "tenure_"`; without it the tests of statements are skipped.

After each test the whole log is replayed and compared with the rows, so that a test only has to say what it is about.
The tests of the kit grow with the contract; a new version of tenure may ask more of a store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tenure.stores.contract import Store
from tenure.testing.contract.archive import ArchiveContract
from tenure.testing.contract.batches import BatchContract
from tenure.testing.contract.claim import ClaimContract
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.commit import CommitContract
from tenure.testing.contract.commit_blocks import TransactionContract
from tenure.testing.contract.dead_letters import DeadLetterContract
from tenure.testing.contract.endings import EndingContract
from tenure.testing.contract.enqueue import AddingContract
from tenure.testing.contract.leases import LeaseContract
from tenure.testing.contract.outbox_and_artifacts import BelongingsContract
from tenure.testing.contract.queues import QueueContract
from tenure.testing.contract.reads import ReadingContract
from tenure.testing.contract.requests import RequestContract
from tenure.testing.contract.retention import ForgettingContract
from tenure.testing.contract.schedulers import SchedulerContract
from tenure.testing.contract.schedules import ScheduleContract
from tenure.testing.contract.user_sql import StatementContract
from tenure.testing.contract.validation import InputContract
from tenure.testing.contract.waiting import WaitingContract
from tenure.testing.contract.workers import WorkerContract
from tenure.testing.driver import Driver
from tenure.testing.store_check import check_store

__all__ = ["DatabaseClock", "StoreContract"]


class StoreContract(
    AddingContract,
    ClaimContract,
    LeaseContract,
    CommitContract,
    EndingContract,
    WaitingContract,
    RequestContract,
    BatchContract,
    QueueContract,
    ReadingContract,
    ForgettingContract,
    InputContract,
    TransactionContract,
    BelongingsContract,
    StatementContract,
    DeadLetterContract,
    WorkerContract,
    ArchiveContract,
    ScheduleContract,
    SchedulerContract,
):
    """Everything that is asked of a store. Give it the fixtures `store` and `clock`; see the module's text."""

    @pytest.fixture
    def clock(self) -> Any:
        raise NotImplementedError("give the class a fixture `clock` with advance(seconds)")

    @pytest.fixture
    def store(self) -> Any:
        raise NotImplementedError("give the class a fixture `store`: an opened, empty store")

    @pytest_asyncio.fixture
    async def drive(self, store: Store) -> AsyncIterator[Driver]:
        """The store in the hands of a driver. When the test is over, its log must explain every row."""
        yield Driver(store)
        await check_store(store)
