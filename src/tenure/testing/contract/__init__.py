"""The contract kit: what every store must do, as tests.

A store is tested by a class with two fixtures: the store, open and empty, and a clock that sets the time of its
*database*. pytest and pytest-asyncio are needed.

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

A store whose transactions accept the user's SQL also sets the prefix of its tables, as in `sql_prefix = "tenure_"`.
Without it the tests of statements are skipped.

After each test the whole log is replayed and compared with the rows, so that a test only checks its own subject.
The kit grows with the contract: a new version of tenure may require more of a store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tenure.stores.contract import Store
from tenure.testing.contract.archive import ArchiveContract
from tenure.testing.contract.batches import BatchContract
from tenure.testing.contract.budgets import BudgetContract
from tenure.testing.contract.children import ChildrenContract
from tenure.testing.contract.claim import ClaimContract
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.commit import CommitContract
from tenure.testing.contract.commit_blocks import TransactionContract
from tenure.testing.contract.compensation import CompensationContract
from tenure.testing.contract.dead_letters import DeadLetterContract
from tenure.testing.contract.deadlines import DeadlineContract
from tenure.testing.contract.deduplication import DeduplicationContract
from tenure.testing.contract.endings import EndingContract
from tenure.testing.contract.enqueue import EnqueueContract
from tenure.testing.contract.events import EventContract
from tenure.testing.contract.leases import LeaseContract
from tenure.testing.contract.log_cursors import LogCursorContract
from tenure.testing.contract.outbox import OutboxContract
from tenure.testing.contract.outbox_and_artifacts import OutboxAndArtifactsContract
from tenure.testing.contract.pins import PinContract
from tenure.testing.contract.queues import QueueContract
from tenure.testing.contract.reads import ReadingContract
from tenure.testing.contract.requests import RequestContract
from tenure.testing.contract.retention import RetentionContract
from tenure.testing.contract.schedulers import SchedulerContract
from tenure.testing.contract.schedules import ScheduleContract
from tenure.testing.contract.signals import SignalContract
from tenure.testing.contract.step_digests import StepDigestContract
from tenure.testing.contract.step_transactions import StepTransactionContract
from tenure.testing.contract.steps import StepContract
from tenure.testing.contract.timeouts import TimeoutContract
from tenure.testing.contract.user_sql import StatementContract
from tenure.testing.contract.validation import InputContract
from tenure.testing.contract.waiting import WaitingContract
from tenure.testing.contract.workers import WorkerContract
from tenure.testing.driver import Driver
from tenure.testing.store_check import check_store

__all__ = ["DatabaseClock", "StoreContract"]


class StoreContract(
    EnqueueContract,
    DeduplicationContract,
    ClaimContract,
    LeaseContract,
    CommitContract,
    EndingContract,
    TimeoutContract,
    DeadlineContract,
    WaitingContract,
    ChildrenContract,
    CompensationContract,
    PinContract,
    RequestContract,
    BatchContract,
    QueueContract,
    ReadingContract,
    EventContract,
    RetentionContract,
    InputContract,
    TransactionContract,
    OutboxAndArtifactsContract,
    LogCursorContract,
    OutboxContract,
    StepContract,
    StepDigestContract,
    StepTransactionContract,
    SignalContract,
    BudgetContract,
    StatementContract,
    DeadLetterContract,
    WorkerContract,
    ArchiveContract,
    ScheduleContract,
    SchedulerContract,
):
    """Everything that a store must do. Provide the fixtures `store` and `clock`; see the module's docstring."""

    @pytest.fixture
    def clock(self) -> Any:
        raise NotImplementedError("give the class a fixture `clock` with advance(seconds)")

    @pytest.fixture
    def store(self) -> Any:
        raise NotImplementedError("give the class a fixture `store`: an opened, empty store")

    @pytest_asyncio.fixture
    async def drive(self, store: Store) -> AsyncIterator[Driver]:
        """A driver of the store. After the test, the store's log must explain every row."""
        yield Driver(store)
        await check_store(store)
