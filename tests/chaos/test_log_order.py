"""The tail of the log compared with a job's own history, with a heartbeat during an open commit block."""

from __future__ import annotations

import pytest

from tenure.lifecycle.operations import Commit, Heartbeat
from tenure.stores import store_for
from tenure.stores.contract import Applied, Store
from tenure.testing.driver import Driver
from tenure.testing.store_check import whole_tail
from tests.support.databases import Database

POLICY = {"lease_seconds": 60.0}


@pytest.mark.requirement("SM-04")
async def test_the_tail_of_the_log_has_a_jobs_events_in_the_order_of_its_revisions(
    postgres_dsn: str,
) -> None:
    """The block's transaction has its number from its first statement on, and the heartbeat a later one."""
    async with Database(postgres_dsn).opened() as store:
        drive = Driver(store)
        job = await drive.running(policy=POLICY)
        other = await _another(postgres_dsn)
        async with store.transaction(deadline_seconds=30) as block:
            await block.execute("create table effects (job_id text)")
            beaten = await Driver(other).apply(job, Heartbeat())
            assert isinstance(await block.apply(drive.request(beaten, Commit("1"))), Applied)
        await other.close()
        tail = [event.rev for event in await whole_tail(store, expected=5)]
        assert tail == [event.rev for event in await drive.events_of(job.id)]


async def _another(dsn: str) -> Store:
    store = store_for(dsn)
    await store.open()
    return store
