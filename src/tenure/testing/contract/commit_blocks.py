"""Transactions of the user: everything in one takes effect together, or nothing does."""

# ruff: noqa: PT012 - a transaction is one thing, with everything in it

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.errors import (
    DeadlinePassed,
    DedupeKeyConflict,
    InvalidInput,
    LeaseLost,
    RequestIdReused,
    RevisionConflict,
    StoreError,
)
from tenure.lifecycle.operations import Cancel, Commit, Complete, Heartbeat, Progress
from tenure.lifecycle.records import Actor, Role
from tenure.lifecycle.statuses import QUEUED, RUNNING, SUCCEEDED
from tenure.seams import SYSTEM
from tenure.stores.contract import (
    Applied,
    Failure,
    FinishedJobs,
    JobFilter,
    Repeated,
    Store,
    Transaction,
    VerboseEvents,
    without_token,
)
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.outbox_and_artifacts import artifact, message
from tenure.testing.driver import CLIENT, OPERATOR, Driver

LONG_SECONDS = 3.0
SHORT_SECONDS = 0.05
PATIENCE_SECONDS = 10.0


class RolledBack(Exception):
    """Raised by the user's code to roll a transaction back."""


async def until_late(tx: Transaction) -> None:
    """Wait until the transaction's deadline has passed."""
    ends_at = SYSTEM.clock.monotonic_seconds() + PATIENCE_SECONDS
    while SYSTEM.clock.monotonic_seconds() < ends_at:
        try:
            await tx.enqueue([])
        except DeadlinePassed:
            return
        await SYSTEM.clock.sleep(0.01)
    raise AssertionError("the deadline never came")


OLD_JOBS = FinishedJobs(status=SUCCEEDED, kind="mail", older_than_seconds=1)
WRITES: dict[str, Callable[[Store, Driver], Awaitable[Any]]] = {
    "enqueue": lambda store, drive: store.enqueue([drive.enqueue()]),
    "claim": lambda store, drive: store.claim(drive.claim_request()),
    "apply": lambda store, drive: store.apply([drive.request(drive.random.job_id(), Cancel(), actor=CLIENT)]),
    "prune": lambda store, _: store.prune(OLD_JOBS),
    "blank": lambda store, _: store.prune(VerboseEvents(older_than_seconds=1)),
    "erase": lambda store, drive: store.erase(drive.random.job_id(), reason="asked", actor=OPERATOR),
    "resolve_dead_letters": lambda store, drive: store.resolve_dead_letters(
        [drive.random.job_id()], how="discarded", actor=OPERATOR
    ),
    "unregister": lambda store, _: store.unregister("worker-1"),
    "transaction": lambda store, _: store.transaction(deadline_seconds=1).__aenter__(),
}


class TransactionContract:
    """`transaction` and its operations, except SQL."""

    @pytest.mark.requirement("EL-04")
    async def test_everything_in_a_transaction_takes_effect_together(self, drive: Driver) -> None:
        job = await drive.running()
        request = drive.enqueue("next")
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            [added] = await tx.enqueue([request])
            await tx.attach(job, [artifact()])
            await tx.post([message(drive)], job=job)
            outcome = await tx.apply(drive.request(job, Commit("7"), fresh=True))
            assert (added.created, added.job.status) == (True, QUEUED)
            assert isinstance(outcome, Applied)
            assert (await drive.job(job.id)).rev == job.rev, "it shows before it is committed"
            assert await drive.store.read([request.origin.id]) == {}
        assert await drive.job(job.id) == without_token(outcome.job)
        assert (await drive.job(job.id)).committed_result == "7"
        assert await drive.job(request.origin.id) == added.job
        assert [made.name for made in await drive.store.artifacts(job.id)] == ["report.txt"]

    @pytest.mark.requirement("EL-04")
    async def test_an_error_inside_rolls_everything_back(self, drive: Driver) -> None:
        job = await drive.running()
        before, request = await drive.seen(job.id), drive.enqueue()
        with pytest.raises(RolledBack):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.enqueue([request])
                await tx.attach(job, [artifact()])
                await tx.post([message(drive)], job=job)
                await tx.apply(drive.request(job, Commit("7"), fresh=True))
                raise RolledBack
        assert await drive.seen(job.id) == before
        assert await drive.seen(request.origin.id) == (None, [])
        assert await drive.store.artifacts(job.id) == []
        assert (await drive.apply(job, Complete("8"))).status is SUCCEEDED

    async def test_a_transaction_without_statements_commits(self, drive: Driver) -> None:
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            assert await tx.enqueue([]) == []
        with pytest.raises(StoreError, match="has ended"):
            await tx.enqueue([])

    # Changes of jobs.

    async def test_several_changes_apply_in_order(self, drive: Driver) -> None:
        job = await drive.running()
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            for operation in (Progress(50), Heartbeat(), Commit("1")):
                outcome = await tx.apply(drive.request(job, operation, fresh=True))
                assert isinstance(outcome, Applied)
                job = outcome.job
            outcome = await tx.apply(drive.request(job.id, Cancel(), actor=CLIENT))
            assert isinstance(outcome, Failure)
        assert await drive.types_of(job.id) == ["enqueued", "claimed", "started", "progress", "heartbeat", "committed"]

    @pytest.mark.requirement("SM-05")
    async def test_a_heartbeat_inside_renews_the_lease_only_once_half_of_it_has_passed(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 100, "heartbeat_seconds": 60})
        for seconds, renewed in ((40, False), (20, True)):
            clock.advance(seconds)
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                outcome = await tx.apply(drive.request(job, Heartbeat()))
            assert isinstance(outcome, Applied)
            before, job = job, outcome.job
            assert (outcome.renewed, job.lease_expires_at != before.lease_expires_at) == (renewed, renewed)
            assert (await drive.job(job.id)).lease_expires_at == job.lease_expires_at
            assert (await drive.events_of(job.id))[-1].until_at == (job.lease_expires_at if renewed else None)

    @pytest.mark.requirement("LC-07")
    async def test_a_request_that_was_applied_before_is_a_repetition(self, drive: Driver) -> None:
        job = await drive.running()
        request = drive.request(job, Commit("1"), fresh=True)
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            assert isinstance(await tx.apply(request), Applied)
            assert isinstance(await tx.apply(request), Repeated)
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            assert isinstance(await tx.apply(request), Repeated)
        assert (await drive.types_of(job.id)).count("committed") == 1

    @pytest.mark.requirement("LC-04")
    async def test_a_conflict_returns_the_current_record_to_decide_on(self, drive: Driver) -> None:
        job = await drive.running()
        await drive.apply(job, Heartbeat())
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            outcome = await tx.apply(drive.request(job, Commit("1"), fresh=True))
            assert isinstance(outcome, Failure)
            assert isinstance(outcome.error, RevisionConflict)
            current = outcome.error.current
            assert current is not None
            assert isinstance(await tx.apply(drive.request(current, Commit("1"), fresh=True)), Applied)
        assert (await drive.job(job.id)).committed

    @pytest.mark.requirement("EL-04", "LC-05")
    async def test_under_a_lease_that_has_ended_nothing_is_applied(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        request = drive.enqueue()
        clock.advance(10)
        with pytest.raises(LeaseLost):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.enqueue([request])
                outcome = await tx.apply(drive.request(job, Commit("1"), fresh=True))
                assert isinstance(outcome, Failure)
                raise outcome.error
        assert (await drive.job(job.id)).committed is False
        assert await drive.seen(request.origin.id) == (None, [])

    @pytest.mark.requirement("LC-05")
    async def test_the_lease_of_another_worker_is_refused(self, drive: Driver) -> None:
        job = await drive.running()
        stranger = drive.request(job.id, Commit("1"), actor=Actor(Role.RUNNER, "worker-1", drive.random.token()))
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            outcome = await tx.apply(stranger)
            assert isinstance(outcome, Failure)
            assert isinstance(outcome.error, LeaseLost)
        assert (await drive.job(job.id)).rev == job.rev

    @pytest.mark.requirement("EL-03")
    async def test_of_two_transactions_that_commit_one_job_one_does(self, drive: Driver) -> None:
        job = await drive.running()

        async def commit(number: int) -> bool:
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                outcome = await tx.apply(drive.request(job, Commit(str(number)), fresh=True))
                return isinstance(outcome, Applied)

        assert sum(await at_once(commit(1), commit(2), commit(3))) == 1
        assert (await drive.types_of(job.id)).count("committed") == 1

    # New jobs.

    async def test_an_existing_job_is_found_by_its_dedupe_key(self, drive: Driver) -> None:
        there = await drive.add(dedupe_key="ada")
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            first, second = await tx.enqueue([drive.enqueue(dedupe_key="ada"), drive.enqueue(dedupe_key="bob")])
            [third] = await tx.enqueue([drive.enqueue(dedupe_key="bob")])
        assert (first.created, first.job.id) == (False, there.id)
        assert (second.created, third.created, third.job.id) == (True, False, second.job.id)

    @pytest.mark.requirement("LC-11")
    async def test_a_dedupe_key_of_another_kind_aborts_the_transaction(self, drive: Driver) -> None:
        there = await drive.add(dedupe_key="ada")
        with pytest.raises(DedupeKeyConflict) as conflict:
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.enqueue([drive.enqueue()])
                await tx.enqueue([drive.enqueue("report", dedupe_key="ada")])
        assert (conflict.value.job_id, conflict.value.kind) == (there.id, "mail")
        assert len((await drive.store.find(JobFilter())).jobs) == 1

    async def test_a_job_that_was_rolled_back_leaves_its_dedupe_key_free(self, drive: Driver) -> None:
        with pytest.raises(RolledBack):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.enqueue([drive.enqueue(dedupe_key="ada")])
                raise RolledBack
        [added] = await drive.store.enqueue([drive.enqueue(dedupe_key="ada")])
        assert added.created

    async def test_a_policy_of_a_rolled_back_transaction_is_stored_by_the_next(self, drive: Driver) -> None:
        policy = {"max_attempts": 3, "lease_seconds": 12.5}
        with pytest.raises(RolledBack):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.enqueue([drive.enqueue(policy=policy)])
                raise RolledBack
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            [added] = await tx.enqueue([drive.enqueue(policy=policy)])
        again = await drive.add(policy=policy)
        assert (await drive.job(added.job.id)).policy == again.policy == added.job.policy

    @pytest.mark.requirement("WC-12")
    async def test_of_several_transactions_with_one_dedupe_key_one_creates_the_job(self, drive: Driver) -> None:
        async def add() -> bool:
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                [added] = await tx.enqueue([drive.enqueue(dedupe_key="ada")])
                return added.created

        assert sum(await at_once(add(), add(), add())) == 1
        assert len((await drive.store.find(JobFilter(dedupe_key="ada"))).jobs) == 1

    async def test_a_request_id_of_another_job_aborts_the_transaction(self, drive: Driver) -> None:
        await drive.add(request_id="mine", payload="1")
        request = drive.enqueue()
        with pytest.raises(RequestIdReused):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.enqueue([request])
                await tx.enqueue([drive.enqueue(request_id="mine", payload="2")])
        assert await drive.seen(request.origin.id) == (None, [])

    # Failures.

    async def test_an_error_caught_inside_still_aborts_the_transaction(self, drive: Driver) -> None:
        job = await drive.running()
        before = await drive.seen(job.id)
        with pytest.raises(StoreError, match="nothing of this transaction is kept"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.apply(drive.request(job, Commit("1"), fresh=True))
                with pytest.raises(InvalidInput):
                    await tx.enqueue([drive.enqueue("")])
                with pytest.raises(StoreError, match="nothing of this transaction is kept"):
                    await tx.enqueue([drive.enqueue()])
        assert await drive.seen(job.id) == before

    @pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "1", None])
    async def test_an_invalid_deadline_is_refused(self, drive: Driver, seconds: Any) -> None:
        with pytest.raises(InvalidInput, match="deadline_seconds"):
            async with drive.store.transaction(deadline_seconds=seconds):
                pass

    @pytest.mark.parametrize("write", WRITES)
    async def test_inside_a_transaction_the_store_refuses_and_names_the_transaction(
        self, drive: Driver, write: str
    ) -> None:
        request = drive.enqueue()
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.enqueue([request])
            with pytest.raises(StoreError, match="use tx"):
                await WRITES[write](drive.store, drive)
        assert (await drive.job(request.origin.id)).status is QUEUED
        await drive.add()

    # The deadline.

    @pytest.mark.requirement("EL-04")
    async def test_a_transaction_that_exceeds_its_deadline_is_rolled_back(self, drive: Driver) -> None:
        job = await drive.running()
        request = drive.enqueue()
        with pytest.raises(DeadlinePassed, match=r"deadline passed.*rolled back"):
            async with drive.store.transaction(deadline_seconds=SHORT_SECONDS) as tx:
                await tx.enqueue([request])
                await tx.apply(drive.request(job, Commit("1"), fresh=True))
                await until_late(tx)
                with pytest.raises(DeadlinePassed):
                    await tx.apply(drive.request(job, Commit("1")))
        assert (await drive.job(job.id)).status is RUNNING
        assert not (await drive.job(job.id)).committed
        assert await drive.seen(request.origin.id) == (None, [])
        assert (await drive.apply(job, Complete("2"))).result == "2"

    async def test_an_expired_transaction_that_was_not_left_does_not_block_others(self, drive: Driver) -> None:
        job = await drive.running()
        late, done = asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            try:
                async with drive.store.transaction(deadline_seconds=SHORT_SECONDS) as tx:
                    await tx.apply(drive.request(job, Commit("1"), fresh=True))
                    await until_late(tx)
                    late.set()
                    await done.wait()
            finally:
                # On a slow machine the deadline may pass before the change; then the others are not blocked either.
                late.set()

        async def go_on() -> None:
            await late.wait()
            try:
                async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                    await tx.enqueue([drive.enqueue(dedupe_key="second")])
                await drive.apply(job, Complete("2"))
            finally:
                done.set()

        hung, _ = await at_once(refused_late(hang()), go_on())
        assert hung
        assert (await drive.job(job.id)).result == "2"

    async def test_when_its_task_is_cancelled_a_transaction_is_rolled_back(self, drive: Driver) -> None:
        job = await drive.running()
        inside = asyncio.Event()

        async def hang() -> None:
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.apply(drive.request(job, Commit("1"), fresh=True))
                inside.set()
                await asyncio.Event().wait()

        task = SYSTEM.spawn.task(hang(), name="hang")
        await asyncio.wait_for(inside.wait(), PATIENCE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await drive.apply(job, Complete("2"))).result == "2"


async def at_once(*bodies: Any) -> list[Any]:
    async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
        tasks = [group.create_task(body) for body in bodies]
    return [task.result() for task in tasks]


async def refused_late(body: Any) -> bool:
    try:
        await body
    except DeadlinePassed:
        return True
    return False
