"""Paused queues and queue limits: which jobs a claim returns under them."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import InvalidInput
from tenure.lifecycle.operations import Complete, Release, Requeue, Stall
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Job
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import OPERATOR, RECOVERY, Driver


class QueueContract:
    """`queues`, and `claim` under limits."""

    async def rule(self, drive: Driver, queue: str = "default", **rules: object) -> None:
        await drive.store.queues.put(queue, QueueLimits(**rules), actor=OPERATOR)  # type: ignore[arg-type]

    async def fill(self, drive: Driver, *keys: str | None, **facts: Any) -> list[Job]:
        return [await drive.add(partition_key=key, **facts) for key in keys]

    async def claim_at_once(self, drive: Driver) -> list[Job]:
        async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
            claims = [group.create_task(drive.claim(limit=2, worker=f"worker-{number}")) for number in range(12)]
        return [job for claim in claims for job in claim.result()]

    async def test_a_queue_has_no_record_until_it_is_configured(self, drive: Driver, clock: DatabaseClock) -> None:
        queues = drive.store.queues
        assert await queues.known() == []
        assert await queues.resume("mail", actor=OPERATOR) is None
        assert not await queues.forget("mail", actor=OPERATOR)
        rules = QueueLimits(concurrency_max=3, key_rate=Rate(10, 1), fair=True)
        put = await queues.put("mail", rules, actor=OPERATOR)
        assert (put.name, put.limits, put.paused_at, put.leased) == ("mail", rules, None, 0)
        clock.advance(5)
        paused = await queues.pause("mail", actor=OPERATOR)
        assert (paused.limits, paused.paused_at) == (rules, await drive.store.now())
        await queues.pause("audit", actor=OPERATOR)
        assert [queue.name for queue in await queues.known()] == ["audit", "mail"]
        assert await queues.forget("mail", actor=OPERATOR)
        assert [queue.name for queue in await queues.known()] == ["audit"]

    async def test_limits_are_replaced_as_a_whole_and_a_pause_is_kept(self, drive: Driver) -> None:
        queues = drive.store.queues
        paused = await queues.pause("mail", actor=OPERATOR)
        assert (await queues.pause("mail", actor=OPERATOR)).paused_at == paused.paused_at
        await self.rule(drive, "mail", concurrency_max=3, rate=Rate(10, 60))
        put = await queues.put("mail", QueueLimits(key_concurrency_max=2), actor=OPERATOR)
        assert put.limits == QueueLimits(key_concurrency_max=2)
        assert put.paused_at == paused.paused_at
        resumed = await queues.resume("mail", actor=OPERATOR)
        assert resumed is not None
        assert (resumed.paused_at, resumed.limits) == (None, QueueLimits(key_concurrency_max=2))

    @pytest.mark.parametrize("name", ["", " mail", "a\x00b", "a" * 300])
    async def test_an_invalid_queue_is_refused(self, drive: Driver, name: str) -> None:
        with pytest.raises(InvalidInput, match="queue"):
            await drive.store.queues.put(name, QueueLimits(concurrency_max=1), actor=OPERATOR)
        with pytest.raises(InvalidInput, match="queue"):
            await drive.store.queues.pause(name, actor=OPERATOR)
        assert await drive.store.queues.known() == []

    async def test_nothing_is_claimed_from_a_paused_queue_until_it_is_resumed(self, drive: Driver) -> None:
        waiting, other = await drive.add(), await drive.add(queue="other")
        await drive.store.queues.pause("default", actor=OPERATOR)
        assert ids(await drive.claim(queues=("default", "other"), limit=10)) == [other.id]
        assert await drive.claim(limit=10) == []
        later = await drive.add()
        await drive.store.queues.resume("default", actor=OPERATOR)
        assert ids(await drive.claim(limit=10)) == [waiting.id, later.id]

    async def test_the_doctor_names_a_paused_queue(self, drive: Driver) -> None:
        await self.rule(drive, "open", concurrency_max=1)
        await drive.store.queues.pause("shut", actor=OPERATOR)
        found = [finding for finding in await drive.store.doctor() if finding.about == "queues"]
        assert [(finding.level, "'shut' is paused" in finding.message) for finding in found] == [("warning", True)]

    async def test_running_jobs_continue_while_their_queue_is_paused(self, drive: Driver) -> None:
        job = await drive.running()
        await drive.store.queues.pause("default", actor=OPERATOR)
        assert (await drive.apply(job, Complete("null"))).status == "succeeded"

    @pytest.mark.requirement("WC-02")
    async def test_no_more_jobs_are_leased_than_the_concurrency_limit(self, drive: Driver) -> None:
        await self.rule(drive, concurrency_max=3)
        added = [await drive.add() for _ in range(6)]
        claimed = await drive.claim(limit=2) + await drive.claim(limit=10)
        assert ids(claimed) == ids(added[:3])
        assert await drive.claim(limit=10) == []
        [known] = await drive.store.queues.known()
        assert known.leased == 3
        await drive.apply(claimed[1], Complete("null"))
        assert ids(await drive.claim(limit=10)) == [added[3].id]
        await drive.apply(claimed[0], Release())
        assert ids(await drive.claim(limit=10)) == [added[0].id]

    async def test_a_limit_counts_jobs_claimed_before_it_was_set(self, drive: Driver) -> None:
        for _ in range(5):
            await drive.add()
        claimed = await drive.claim(limit=3)
        await self.rule(drive, concurrency_max=2)
        assert await drive.claim(limit=10) == []
        await drive.apply(claimed[0], Complete("null"))
        assert await drive.claim(limit=10) == []
        await drive.apply(claimed[1], Complete("null"))
        assert len(await drive.claim(limit=10)) == 1

    async def test_a_job_that_lost_its_worker_no_longer_counts_against_the_limit(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        await self.rule(drive, concurrency_max=2)
        lost = await drive.add(policy={"lease_seconds": 30})
        added = [await drive.add() for _ in range(2)]
        await drive.claim(limit=2)
        clock.advance(31)
        assert await drive.claim(limit=10) == []
        await drive.apply(lost.id, Stall("lease_expired"), Requeue(), actor=RECOVERY)
        # It was lost while it ran, so it is claimed alone, and it is the oldest.
        assert ids(await drive.claim(limit=10)) == [lost.id]
        assert (await drive.job(added[1].id)).status == "queued"

    @pytest.mark.requirement("WC-02")
    async def test_a_key_at_its_limit_does_not_block_other_keys(self, drive: Driver) -> None:
        await self.rule(drive, key_concurrency_max=1)
        a1, _, b1, _, free, free_too = await self.fill(drive, "a", "a", "b", "b", None, None)
        claimed = await drive.claim(limit=10)
        assert ids(claimed) == ids([a1, b1, free, free_too])
        await drive.apply(claimed[1], Complete("null"))
        assert keys(await drive.claim(limit=10)) == ["b"]

    async def test_queue_limits_and_key_limits_apply_together(self, drive: Driver) -> None:
        await self.rule(drive, key_concurrency_max=2, concurrency_max=3)
        added = await self.fill(drive, "a", "a", "a", "b", "b")
        assert ids(await drive.claim(limit=10)) == ids([added[0], added[1], added[3]])

    async def test_limits_apply_to_one_queue(self, drive: Driver) -> None:
        await self.rule(drive, "a", concurrency_max=1)
        await self.rule(drive, "b", concurrency_max=2)
        for queue in "aaabbbc":
            await drive.add(queue=queue)
        claimed = await drive.claim(queues=("a", "b", "c"), limit=10)
        assert Counter(job.queue for job in claimed) == {"a": 1, "b": 2, "c": 1}

    @pytest.mark.requirement("WC-02")
    async def test_claim_order_holds_over_queues_with_and_without_limits(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        await self.rule(drive, "ruled", concurrency_max=10)
        first = await drive.add(queue="plain")
        clock.advance(1)
        second = await drive.add(queue="ruled")
        clock.advance(1)
        third = await drive.add(queue="plain")
        urgent = await drive.add(queue="ruled", priority=5)
        clock.advance(1)
        claimed = await drive.claim(queues=("plain", "ruled"), limit=3)
        assert ids(claimed) == ids([urgent, first, second])
        assert ids(await drive.claim(queues=("plain", "ruled"), limit=3)) == [third.id]

    async def test_no_more_jobs_start_in_a_period_than_the_rate_limit(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        await self.rule(drive, rate=Rate(3, 60))
        for _ in range(10):
            await drive.add()
        jobs = await drive.claim(limit=2) + await drive.claim(limit=10)
        assert len(jobs) == 3
        for job in jobs:
            await drive.apply(job, Complete("null"))
        clock.advance(59)
        assert await drive.claim(limit=10) == [], "a start that has ended still counts"
        clock.advance(60 * 0.1 + 2)
        assert len(await drive.claim(limit=10)) == 3

    async def test_each_key_has_its_own_rate(self, drive: Driver, clock: DatabaseClock) -> None:
        await self.rule(drive, key_rate=Rate(1, 10))
        added = await self.fill(drive, "a", "a", "b", None, None)
        assert ids(await drive.claim(limit=10)) == ids([added[0], added[2], added[3], added[4]])
        assert await drive.claim(limit=10) == []
        clock.advance(12)
        assert ids(await drive.claim(limit=10)) == [added[1].id]

    async def test_a_clock_that_is_set_back_neither_resets_a_rate_limit_nor_blocks_it_for_ever(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        await self.rule(drive, rate=Rate(2, 10))
        for _ in range(5):
            await drive.add(policy={"lease_seconds": 60})
        assert len(await drive.claim(limit=5)) == 2
        clock.advance(-5)
        assert await drive.claim(limit=5) == []
        clock.advance(18)
        assert len(await drive.claim(limit=5)) == 2

    async def test_a_fair_queue_rotates_between_keys(self, drive: Driver) -> None:
        await self.rule(drive, fair=True)
        added = await self.fill(drive, "a", "a", "a", "a", "b", "b", "c", None)
        claimed = await drive.claim(limit=4)
        assert keys(claimed) == ["a", "b", "c", None]
        assert ids(claimed) == ids([added[0], added[4], added[6], added[7]])
        assert keys(await drive.claim(limit=10)) == ["a", "b", "a", "a"]

    async def test_the_rotation_continues_after_the_key_of_the_last_claim(self, drive: Driver) -> None:
        await self.rule(drive, fair=True)
        await self.fill(drive, *"aaabbbccc")
        turns = [key for _ in range(9) for key in keys(await drive.claim(limit=1))]
        assert turns == ["a", "b", "c"] * 3

    async def test_within_a_key_claim_order_holds(self, drive: Driver) -> None:
        await self.rule(drive, fair=True)
        [old] = await self.fill(drive, "a")
        [urgent] = await self.fill(drive, "a", priority=5)
        [other] = await self.fill(drive, "b")
        assert ids(await drive.claim(limit=3)) == ids([urgent, other, old])

    async def test_a_fair_queue_may_have_limits_too(self, drive: Driver) -> None:
        await self.rule(drive, fair=True, key_concurrency_max=2, concurrency_max=5)
        await self.fill(drive, *"aaaabbbbcccc")
        assert keys(await drive.claim(limit=10)) == ["a", "b", "c", "a", "b"]

    async def test_jobs_that_are_not_due_or_of_other_kinds_do_not_count_in_the_rotation(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        await self.rule(drive, fair=True)
        await self.fill(drive, "a", "b", delay_ms=5000)
        await self.fill(drive, "c", kind="other")
        [due] = await self.fill(drive, "d")
        assert ids(await drive.claim(limit=10)) == [due.id]
        clock.advance(10)
        assert keys(await drive.claim(limit=10)) == ["a", "b"]

    @pytest.mark.parametrize("rules", [{"fair": True}, {"fair": True, "key_rate": Rate(5, 60)}])
    async def test_keys_without_due_jobs_are_skipped_in_the_rotation(
        self, drive: Driver, rules: dict[str, Any]
    ) -> None:
        await self.rule(drive, **rules)
        await self.fill(drive, *"abcdefgh", delay_ms=3_600_000)
        await self.fill(drive, *"ijklmnop", kind="other")
        last = await self.fill(drive, "y", "z")
        assert ids(await drive.claim(limit=1)) == [last[0].id]
        assert ids(await drive.claim(limit=1)) == [last[1].id]
        assert await drive.claim(limit=1) == []

    async def test_a_key_with_many_jobs_fills_the_rest_of_the_limit(self, drive: Driver) -> None:
        await self.rule(drive, fair=True)
        await self.fill(drive, *"abcdefgh", delay_ms=3_600_000)
        await self.fill(drive, *"iiiiiii", "j")
        assert keys(await drive.claim(limit=6)) == ["i", "j", "i", "i", "i", "i"]

    async def test_a_key_behind_many_blocked_jobs_is_found(self, drive: Driver) -> None:
        await self.rule(drive, key_concurrency_max=1)
        crowd = [drive.enqueue(partition_key="crowd") for _ in range(1100)]
        await drive.store.enqueue(crowd)
        lonely = await drive.add(partition_key="lonely")
        assert keys(await drive.claim(limit=10)) == ["crowd", "lonely"]
        assert await drive.claim(limit=10) == []
        assert (await drive.job(lonely.id)).leased

    async def test_a_job_that_was_lost_while_it_ran_is_claimed_alone_also_under_limits(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        await self.rule(drive, concurrency_max=10)
        lost = await drive.add(policy={"lease_seconds": 30})
        await drive.claim()
        clock.advance(31)
        await drive.apply(lost.id, Stall("lease_expired"), Requeue(), actor=RECOVERY)
        others = [await drive.add() for _ in range(2)]
        assert ids(await drive.claim(limit=10)) == [lost.id]
        assert ids(await drive.claim(limit=10)) == ids(others)

    async def test_a_repeated_claim_under_limits_uses_no_more_of_the_rate(self, drive: Driver) -> None:
        await self.rule(drive, rate=Rate(2, 60), concurrency_max=3)
        for _ in range(5):
            await drive.add()
        request = drive.claim_request(limit=1)
        first = await drive.store.claim(request)
        assert await drive.store.claim(request) == first
        assert len(await drive.claim(limit=5)) == 1
        assert await drive.claim(limit=5) == []

    async def test_a_queue_whose_limits_were_removed_is_unlimited(self, drive: Driver) -> None:
        await self.rule(drive, concurrency_max=1, rate=Rate(1, 60))
        added = [await drive.add() for _ in range(4)]
        assert len(await drive.claim(limit=10)) == 1
        await drive.store.queues.forget("default", actor=OPERATOR)
        assert ids(await drive.claim(limit=10)) == ids(added[1:])

    async def test_concurrent_claims_never_exceed_a_limit(self, drive: Driver) -> None:
        await self.rule(drive, concurrency_max=7, key_concurrency_max=3, rate=Rate(9, 3600))
        await drive.store.enqueue([drive.enqueue(partition_key="abc"[number % 3]) for number in range(30)])
        won = await self.claim_at_once(drive)
        assert len(ids(won)) == len(set(ids(won))) == 7
        assert max(Counter(keys(won)).values()) <= 3
        for job in won:
            await drive.apply(job, Complete("null"))
        assert len(await self.claim_at_once(drive)) == 2, "the rate allows nine in all"

    async def test_a_queues_record_is_dated_by_the_database(self, drive: Driver, clock: DatabaseClock) -> None:
        before = await drive.store.now()
        clock.advance(100)
        put = await drive.store.queues.put("mail", QueueLimits(concurrency_max=1), actor=OPERATOR)
        assert put.updated_at == before + timedelta(seconds=100)


def ids(jobs: list[Job]) -> list[object]:
    return [job.id for job in jobs]


def keys(jobs: list[Job]) -> list[str | None]:
    return [job.origin.partition_key for job in jobs]
