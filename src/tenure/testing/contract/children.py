"""Jobs that wait for children, and which changes wake them when enough of these have ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import msgspec
import pytest

from tenure.errors import InvalidInput
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Cancel,
    Commit,
    Complete,
    DeadLetter,
    Fail,
    GiveUp,
    Halt,
    Operation,
    Reconcile,
    Release,
    RequestCancel,
    Retry,
    Signal,
    Stall,
    Suspend,
    TimeOut,
    Wake,
)
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import SUCCEEDED, WAITING
from tenure.lifecycle.timeouts import Timeouts
from tenure.stores.contract import Applied
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver, runner

ALL_ENDED = Suspend(waiting_for="children", children_max=0)
LETTER = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR)
POLICY = {"lease_seconds": 30, "on_lost": "fail", "on_timeout": "fail", "timeouts": Timeouts(running_seconds=20)}


async def child_of(drive: Driver, parent: Job, *, awaited: bool = True) -> Job:
    """A running child."""
    return await drive.running(kind="child", parent_id=parent.id, awaited=awaited, policy=POLICY)


async def completed(drive: Driver, clock: DatabaseClock, child: Job) -> None:
    await drive.apply(child, Complete("1"))


async def completed_by_a_fresh_request(drive: Driver, clock: DatabaseClock, child: Job) -> None:
    await drive.apply(child, Complete("1"), fresh=True)


async def completed_after_a_commit(drive: Driver, clock: DatabaseClock, child: Job) -> None:
    await drive.apply(await drive.apply(child, Commit("1")), Complete("1"))


async def completed_in_a_transaction(drive: Driver, clock: DatabaseClock, child: Job) -> None:
    async with drive.store.transaction(deadline_seconds=30) as tx:
        assert isinstance(await tx.apply(drive.request(child, Complete("1"))), Applied)


async def failed(drive: Driver, clock: DatabaseClock, child: Job) -> None:
    await drive.apply(child, Fail(ERROR))


async def halted(drive: Driver, clock: DatabaseClock, child: Job) -> None:
    await drive.apply(child, Halt("limit", "1"))


async def cancelled_by_its_owner(drive: Driver, clock: DatabaseClock, child: Job) -> None:
    await drive.apply(child.id, RequestCancel(), actor=CLIENT)
    await drive.apply(child.id, Cancel(), actor=runner(child))


async def cancelled_by_a_client(drive: Driver, clock: DatabaseClock, child: Job) -> None:
    await drive.apply(child.id, Cancel(), actor=CLIENT)


async def dead_lettered_by_a_client(drive: Driver, clock: DatabaseClock, child: Job) -> None:
    await drive.apply(child.id, LETTER, actor=CLIENT)


async def dead_lettered_by_recovery(drive: Driver, clock: DatabaseClock, child: Job) -> None:
    await drive.apply(child.id, LETTER, actor=RECOVERY)


async def given_up_in_one_change(drive: Driver, clock: DatabaseClock, child: Job) -> None:
    clock.advance(30)
    await drive.apply(child.id, Stall(), GiveUp(ERROR), actor=RECOVERY)


async def reconciled(drive: Driver, clock: DatabaseClock, child: Job) -> None:
    await drive.apply(child, Commit("1"))
    clock.advance(30)
    await drive.apply(child.id, Stall(), Reconcile(), actor=RECOVERY)


async def timed_out(drive: Driver, clock: DatabaseClock, child: Job) -> None:
    clock.advance(20)
    await drive.apply(child.id, TimeOut(ERROR), actor=RECOVERY)


End = Callable[[Driver, DatabaseClock, Job], Awaitable[None]]
OWNERS = (
    completed,
    completed_by_a_fresh_request,
    completed_after_a_commit,
    completed_in_a_transaction,
    failed,
    halted,
    cancelled_by_its_owner,
)
ENDS: dict[End, str] = {
    **dict.fromkeys(OWNERS, "runner:worker-1"),
    cancelled_by_a_client: str(CLIENT),
    dead_lettered_by_a_client: str(CLIENT),
    dead_lettered_by_recovery: str(RECOVERY),
    given_up_in_one_change: str(RECOVERY),
    reconciled: str(RECOVERY),
    timed_out: str(RECOVERY),
}
"""Every way in which a child ends, and the actor that ends it."""


class ChildrenContract:
    """`Origin.awaited`, `Suspend.children_max`, the wakes that follow, and `children`."""

    async def test_a_job_keeps_whether_it_is_awaited(self, drive: Driver) -> None:
        parent = await drive.add("parent")
        plain = drive.enqueue("child", parent_id=parent.id)
        awaited = drive.enqueue("child", parent_id=parent.id, awaited=True)
        several = [drive.enqueue("child", payload=text, parent_id=parent.id, awaited=True) for text in ("1", "2")]
        keyed = drive.enqueue("child", parent_id=parent.id, awaited=True, request_id="order 7")
        results = [*await drive.store.enqueue([plain, awaited]), *await drive.store.enqueue(several)]
        results += await drive.store.enqueue([keyed])
        for result, expected in zip(results, (False, True, True, True, True), strict=True):
            assert result.job.origin.awaited is (await drive.job(result.job.id)).origin.awaited is expected
        claimed = await drive.claim(kinds=("child",), limit=5)
        assert {job.origin for job in claimed} == {result.job.origin for result in results}
        [again] = await drive.store.enqueue([keyed])
        assert (again.created, again.job.origin.awaited) == (False, True)

    async def test_a_child_that_is_enqueued_in_a_transaction_is_awaited(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        parent = await drive.running()
        async with drive.store.transaction(deadline_seconds=30) as tx:
            [added] = await tx.enqueue([drive.enqueue("child", parent_id=parent.id, awaited=True)])
        waiting = await drive.apply(parent, ALL_ENDED)
        assert waiting.due_at is None
        await drive.apply(added.job.id, Cancel(), actor=CLIENT)
        assert [job.id for job in await drive.claim()] == [parent.id]

    async def test_only_a_job_with_a_parent_can_be_awaited(self, drive: Driver) -> None:
        with pytest.raises(InvalidInput, match="parent_id"):
            await drive.add(awaited=True)

    async def test_a_waiting_job_shows_the_number_of_children_that_it_waits_for_until_it_is_claimed(
        self, drive: Driver
    ) -> None:
        parent = await drive.running()
        for _ in range(3):
            await child_of(drive, parent)
        waiting = await drive.apply(parent, Suspend(waiting_for="children", children_max=2))
        assert waiting.children_max == (await drive.job(waiting.id)).children_max == 2
        assert msgspec.json.decode((await drive.events_of(waiting.id))[-1].detail or "")["children_max"] == 2
        await drive.apply(waiting.id, Signal("go"), actor=CLIENT)
        assert [(job.id, job.children_max) for job in await drive.claim()] == [(waiting.id, None)]
        assert (await drive.job(waiting.id)).children_max is None

    async def test_a_waiting_job_that_ends_has_no_number_of_children_any_more(self, drive: Driver) -> None:
        parent = await drive.running()
        await child_of(drive, parent)
        waiting = await drive.apply(parent, ALL_ENDED)
        assert (await drive.apply(waiting.id, Cancel(), actor=CLIENT)).children_max is None

    @pytest.mark.requirement("WC-01")
    @pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
    async def test_the_end_of_the_last_child_wakes_its_parent_whoever_ends_it(
        self, drive: Driver, clock: DatabaseClock, end: End
    ) -> None:
        parent = await drive.running()
        first, last = await child_of(drive, parent), await child_of(drive, parent)
        waiting = await drive.apply(parent, ALL_ENDED)
        await drive.apply(first, Complete("1"))
        assert (await drive.job(parent.id)).rev == waiting.rev, "a child is live"
        await end(drive, clock, last)
        woken = await drive.job(parent.id)
        assert (woken.status, woken.due_at, woken.signal_rev) == (WAITING, woken.updated_at, waiting.rev + 1)
        event = (await drive.events_of(parent.id))[-1]
        assert (event.type.value, event.cause, event.actor) == ("woken", "children_ended", ENDS[end])
        assert [job.id for job in await drive.claim()] == [parent.id]

    @pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
    async def test_a_job_whose_children_have_ended_before_it_suspends_does_not_wait(
        self, drive: Driver, clock: DatabaseClock, end: End
    ) -> None:
        parent = await drive.running(policy={"lease_seconds": 600})
        child = await child_of(drive, parent)
        await end(drive, clock, child)
        assert (await drive.job(parent.id)).rev == parent.rev, "a running job reads its children itself"
        await drive.apply(parent, Suspend(waiting_for="children", children_max=0, seen_rev=parent.rev))
        woken = await drive.job(parent.id)
        assert (woken.status, woken.due_at) == (WAITING, woken.updated_at)
        assert (await drive.types_of(parent.id))[-2:] == ["suspended", "woken"]

    async def test_a_suspend_in_a_transaction_is_tested_after_its_commit(self, drive: Driver) -> None:
        parent = await drive.running()
        await drive.apply(await child_of(drive, parent), Complete("1"))
        async with drive.store.transaction(deadline_seconds=30) as tx:
            assert isinstance(await tx.apply(drive.request(parent, ALL_ENDED)), Applied)
        assert [job.id for job in await drive.claim()] == [parent.id]

    async def test_nobody_is_woken_by_a_transaction_that_is_rolled_back(self, drive: Driver) -> None:
        parent = await drive.running()
        child = await child_of(drive, parent)
        waiting = await drive.apply(parent, ALL_ENDED)

        async def end_and_fail() -> None:
            async with drive.store.transaction(deadline_seconds=30) as tx:
                await tx.apply(drive.request(child, Complete("1")))
                raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            await end_and_fail()
        assert (await drive.job(parent.id)).rev == waiting.rev

    @pytest.mark.parametrize("children_max", [0, 1, 3])
    async def test_a_job_is_woken_once_when_so_many_children_are_left(self, drive: Driver, children_max: int) -> None:
        parent = await drive.running()
        children = [await child_of(drive, parent) for _ in range(4)]
        suspend = Suspend(waiting_for="children", children_max=children_max)
        waiting = await drive.apply(parent, suspend)
        woken = []
        for child in children:
            await drive.apply(child, Complete("1"))
            woken.append((await drive.job(parent.id)).rev > waiting.rev)
        assert woken == [False] * (3 - children_max) + [True] * (children_max + 1)
        assert (await drive.types_of(parent.id)).count("woken") == 1, "it was due already"

    async def test_a_child_that_is_not_awaited_neither_keeps_its_parent_waiting_nor_wakes_it(
        self, drive: Driver
    ) -> None:
        parent = await drive.running()
        plain, awaited = await child_of(drive, parent, awaited=False), await child_of(drive, parent)
        still_running = await child_of(drive, parent, awaited=False)
        waiting = await drive.apply(parent, ALL_ENDED)
        await drive.apply(plain, Complete("1"))
        assert (await drive.job(parent.id)).rev == waiting.rev
        await drive.apply(awaited, Complete("1"))
        assert (await drive.types_of(parent.id))[-1] == "woken"
        await drive.apply(still_running, Complete("1"))
        assert (await drive.types_of(parent.id)).count("woken") == 1

    async def test_children_of_another_job_are_not_waited_for(self, drive: Driver) -> None:
        parent, stranger = await drive.running(), await drive.running()
        child = await child_of(drive, parent)
        await child_of(drive, stranger)
        await drive.apply(parent, ALL_ENDED)
        await drive.apply(child, Complete("1"))
        assert [job.id for job in await drive.claim()] == [parent.id]

    async def test_a_child_that_goes_on_is_still_waited_for(self, drive: Driver, clock: DatabaseClock) -> None:
        parent = await drive.running()
        child = await child_of(drive, parent)
        waiting = await drive.apply(parent, ALL_ENDED)
        for operation in (Retry(ERROR, delay_seconds=0), Suspend(delay_seconds=0), Release()):
            await drive.apply(child, operation)
            assert (await drive.job(parent.id)).rev == waiting.rev
            [child] = await drive.claim(kinds=("child",))

    async def test_a_job_that_waits_for_something_else_is_not_woken_by_a_child(self, drive: Driver) -> None:
        for suspend in (Suspend(), Suspend(60), Suspend(waiting_for="children"), Suspend(waiting_for="code")):
            parent = await drive.running()
            child = await child_of(drive, parent)
            waiting = await drive.apply(parent, suspend)
            await drive.apply(child, Complete("1"))
            assert (await drive.job(parent.id)).rev == waiting.rev

    async def test_a_job_with_a_deadline_is_woken_before_it(self, drive: Driver) -> None:
        parent = await drive.running()
        child = await child_of(drive, parent)
        waiting = await drive.apply(parent, Suspend(60, waiting_for="children", children_max=0))
        assert waiting.due_at == waiting.updated_at + timedelta(seconds=60)
        await drive.apply(child, Complete("1"))
        assert [job.id for job in await drive.claim()] == [parent.id]

    @pytest.mark.parametrize("end", [Commit("1"), Complete("1"), Fail(ERROR)], ids=lambda end: end.type.value)
    async def test_the_end_of_a_child_does_nothing_to_a_parent_that_has_committed_or_ended(
        self, drive: Driver, end: Operation
    ) -> None:
        parent = await drive.running()
        child = await child_of(drive, parent)
        done = await drive.apply(parent, end)
        await drive.apply(child, Complete("1"))
        assert (await drive.job(parent.id)).rev == done.rev

    async def test_the_end_of_a_child_whose_parent_does_not_exist_is_accepted(self, drive: Driver) -> None:
        child = await drive.running(kind="child", parent_id=UUID(int=7), awaited=True)
        assert (await drive.apply(child, Complete("1"))).status is SUCCEEDED

    async def test_a_batch_of_children_wakes_each_parent_once(self, drive: Driver) -> None:
        parents = [await drive.running() for _ in range(3)]
        children = [await child_of(drive, parent) for parent in parents for _ in range(4)]
        for parent in parents:
            await drive.apply(parent, ALL_ENDED)
        outcomes = await drive.store.apply([drive.request(child, Complete("1")) for child in children])
        assert all(isinstance(outcome, Applied) for outcome in outcomes)
        for parent in parents:
            assert (await drive.types_of(parent.id))[-2:] == ["suspended", "woken"]

    async def test_a_parent_and_its_last_child_that_end_in_one_batch_are_both_done(self, drive: Driver) -> None:
        grandparent = await drive.running()
        parent = await child_of(drive, grandparent)
        child = await child_of(drive, parent)
        await drive.apply(grandparent, ALL_ENDED)
        await drive.store.apply([drive.request(child, Complete("1")), drive.request(parent, ALL_ENDED)])
        assert (await drive.types_of(parent.id))[-2:] == ["suspended", "woken"]
        [again] = await drive.claim(kinds=("child",))
        await drive.apply(again, Complete("1"))
        assert [job.id for job in await drive.claim()] == [grandparent.id]

    @pytest.mark.requirement("LC-07")
    async def test_a_repeated_end_or_suspend_wakes_nobody_again(self, drive: Driver, clock: DatabaseClock) -> None:
        parent = await drive.running()
        child = await child_of(drive, parent)
        completed = drive.request(child, Complete("1"))
        await drive.try_apply(completed)
        suspended = drive.request(parent, ALL_ENDED)
        await drive.try_apply(suspended)
        for request in (completed, suspended):
            await drive.repeat(request)
        assert (await drive.types_of(parent.id)).count("woken") == 1

    async def test_recovery_finds_a_job_that_waits_although_enough_children_have_ended(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        """As after a lost wake. Here the clock was set back, so that the woken job is not due."""
        parent = await drive.running()
        first, second = await child_of(drive, parent), await child_of(drive, parent)
        await drive.apply(parent, Suspend(60, waiting_for="children", children_max=1))
        assert await drive.store.recoverable(limit=10) == []
        clock.advance(10)
        await drive.apply(first, Complete("1"))
        assert await drive.store.recoverable(limit=10) == [], "it is due"
        clock.advance(-5)
        assert [job.id for job in await drive.store.recoverable(limit=10)] == [parent.id]
        assert await drive.store.recoverable(limit=10, after=parent.id) == []
        await drive.apply(parent.id, Wake(), actor=RECOVERY)
        clock.advance(5)
        assert await drive.store.recoverable(limit=10) == []
        await drive.apply(second, Complete("1"))
        assert [job.id for job in await drive.claim()] == [parent.id]

    async def test_the_children_of_a_job_are_listed_in_pages(self, drive: Driver) -> None:
        parent, stranger = await drive.add("parent"), await drive.add("parent")
        awaited = [await child_of(drive, parent) for _ in range(3)]
        plain = [await child_of(drive, parent, awaited=False) for _ in range(2)]
        await child_of(drive, stranger)
        await drive.apply(awaited[1], Complete("1"))
        ids = sorted(job.id for job in awaited + plain)
        first = await drive.store.children(parent.id, limit=3)
        assert [job.id for job in first.jobs] == ids[:3]
        assert first.after == ids[2]
        rest = await drive.store.children(parent.id, after=first.after, limit=3)
        assert ([job.id for job in rest.jobs], rest.after) == (ids[3:], None)
        assert all(job.token is None for job in (*first.jobs, *rest.jobs))
        live = await drive.store.children(parent.id, live_only=True)
        assert [job.id for job in live.jobs] == [job_id for job_id in ids if job_id != awaited[1].id]
        assert (await drive.store.children(UUID(int=7))).jobs == []
