"""Sessions that save steps beside each other, and beside an actor that ends the attempt or renews its lease."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import psycopg
import pytest

from tenure.lifecycle.operations import Complete, Heartbeat
from tenure.lifecycle.steps import StepsDigest
from tenure.lifecycle.verify import content_problems
from tenure.stores.contract import Applied, Busy, StepExists, StepSaved
from tenure.testing.contract.step_digests import DEAD_LETTERING
from tenure.testing.contract.steps import recorded, save, save_request
from tenure.testing.driver import RECOVERY, Driver, runner
from tests.stores.postgres.test_contention import waiting
from tests.stores.postgres.test_interleavings import beside
from tests.support.waiting import eventually

LONG_SECONDS = 30.0


class GivenUp(Exception):
    """Ends a transaction without a commit."""


@pytest.mark.requirement("SM-20", "WC-08")
async def test_an_actor_that_ends_an_attempt_counts_the_step_that_was_being_saved(dsn: str, drive: Driver) -> None:
    job = await drive.running()
    bury = drive.request(job.id, DEAD_LETTERING, actor=RECOVERY)
    async with beside(dsn) as other:
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as block:
            assert isinstance(await block.save_step(save_request(job)), StepSaved)
            early = await other.try_apply(bury)
        late = await other.try_apply(bury)
    counted = [event.steps for event in await drive.events_of(job.id) if event.steps is not None]
    stored = (await drive.store.content([job.id]))[job.id]
    problems = content_problems(await drive.job(job.id), await drive.events_of(job.id), stored)
    assert problems == [], "the end of the attempt did not count the step that was being saved"
    assert isinstance(early, Busy)
    assert isinstance(late, Applied)
    assert [StepsDigest.parse(steps).count for steps in counted] == [1]


@pytest.mark.requirement("SM-20", "WC-08")
async def test_no_step_is_saved_while_an_actor_ends_the_attempt(dsn: str, drive: Driver) -> None:
    job, other = await drive.running(), await drive.running()
    with psycopg.connect(dsn, autocommit=True) as watcher, psycopg.connect(dsn) as blocker:
        blocker.execute("select from tenure.jobs where id = %s for update", [job.id])
        outcomes = await drive.store.save_steps([save_request(job), save_request(other)])
        assert [type(outcome) for outcome in outcomes] == [Busy, StepSaved]
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as block:
            saving = asyncio.ensure_future(block.save_step(save_request(job)))
            await eventually(lambda: waiting(watcher) == 1)
            blocker.rollback()
            assert isinstance(await saving, StepSaved)
    assert len(await drive.store.steps(job.id)) == 1


@pytest.mark.requirement("SM-20")
async def test_the_steps_are_counted_as_they_are_after_the_lock_and_not_when_the_statement_began(
    dsn: str, drive: Driver
) -> None:
    job = await drive.running()
    counts = "select tenure.steps_digest(%s) from (select pg_advisory_xact_lock(7) offset 0) waited"
    with psycopg.connect(dsn, autocommit=True) as watcher, psycopg.connect(dsn) as blocker:
        blocker.execute("select pg_advisory_xact_lock(7)")
        async with await psycopg.AsyncConnection.connect(dsn) as counter:
            counting = asyncio.ensure_future(counter.execute(counts, [job.id]))
            await eventually(lambda: waiting(watcher) == 1)
            await save(drive.store, save_request(job))
            blocker.rollback()
            assert await (await counting).fetchone() == (await recorded(drive.store, job),)


@pytest.mark.requirement("WC-08")
@pytest.mark.parametrize("kept", [True, False])
async def test_a_second_writer_of_a_key_waits_for_the_first_and_adopts_what_it_has_committed(
    dsn: str, drive: Driver, kept: bool
) -> None:
    job = await drive.running()
    async with AsyncExitStack() as stack:
        watcher = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        other = await stack.enter_async_context(beside(dsn))
        block = drive.store.transaction(deadline_seconds=LONG_SECONDS)
        first = await (await block.__aenter__()).save_step(save_request(job, result="1"))
        second = asyncio.ensure_future(other.store.save_steps([save_request(job, result="2")]))
        await eventually(lambda: waiting(watcher) == 1)
        error = None if kept else GivenUp()
        await block.__aexit__(None if kept else GivenUp, error, None)
        [outcome] = await second
    assert isinstance(first, StepSaved)
    [step] = await drive.store.steps(job.id)
    assert step.result == ("1" if kept else "2")
    assert outcome == (StepExists(first.step) if kept else StepSaved(step))


@pytest.mark.requirement("WC-02", "WC-08")
async def test_a_lease_is_renewed_while_a_step_is_being_saved_and_a_step_is_saved_while_the_row_changes(
    dsn: str, drive: Driver
) -> None:
    job = await drive.running()
    async with beside(dsn) as other:
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as block:
            await block.save_step(save_request(job, "a"))
            renewed = await other.apply(job, Heartbeat())
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as block:
            assert isinstance(await block.apply(drive.request(renewed, Heartbeat())), Applied)
            await save(other.store, save_request(job, "b"))
        await other.apply(job.id, Complete("1"), actor=runner(job), steps=await recorded(drive.store, job))
