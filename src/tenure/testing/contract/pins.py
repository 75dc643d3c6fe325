"""Jobs that only workers with one version of the code may claim."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.lifecycle.operations import Complete, Retry, Suspend, Wake
from tenure.lifecycle.queue_limits import QueueLimits
from tenure.lifecycle.records import Job
from tenure.stores.contract import PinnedJobs
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.workers import warned, worker
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, Driver

PIN = Suspend(0, waiting_for="code", pinned_version="1")


async def pinned(drive: Driver, **facts: Any) -> Job:
    """A job that waits for code of version 1."""
    return await drive.apply(await drive.running(**facts), PIN)


async def claimed(drive: Driver, version: str | None, **facts: Any) -> list[Job]:
    return await drive.claim(code_version=version, limit=10, **facts)


class PinContract:
    """`suspend` with a version, and `wake` that unpins."""

    @pytest.mark.requirement("WF-17")
    async def test_a_pinned_job_is_claimed_by_workers_with_its_version_only(self, drive: Driver) -> None:
        job = await pinned(drive)
        assert (job.pinned_version, job.due_at) == ("1", job.updated_at)
        assert (await drive.job(job.id)) == job
        assert (await claimed(drive, "2"), await claimed(drive, None)) == ([], [])
        [again] = await claimed(drive, "1")
        assert (again.id, again.pinned_version, again.failures) == (job.id, "1", 0)

    @pytest.mark.requirement("WF-17")
    async def test_the_pin_stays_over_waits_and_retries_until_the_end(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await pinned(drive)
        for operation in (Suspend(5), Retry(ERROR, delay_seconds=5), Suspend(0, waiting_for="code")):
            [running] = await claimed(drive, "1")
            await drive.apply(running, operation)
            clock.advance(5)
            assert await claimed(drive, "2") == []
        [running] = await claimed(drive, "1")
        assert (await drive.apply(running, Complete("1"))).pinned_version == "1"
        assert (await drive.job(job.id)).pinned_version == "1"

    @pytest.mark.requirement("WF-17")
    async def test_an_unpinned_job_is_due_for_every_version(self, drive: Driver) -> None:
        job = await pinned(drive)
        unpinned = await drive.apply(job.id, Wake(unpins=True), actor=CLIENT)
        assert (unpinned.pinned_version, unpinned.due_at) == (None, job.due_at)
        event = (await drive.events_of(job.id))[-1]
        assert (event.type.value, event.cause) == ("woken", "unpinned")
        assert [one.id for one in await claimed(drive, "2")] == [job.id]

    async def test_a_wake_by_a_child_does_not_unpin(self, drive: Driver) -> None:
        job = await pinned(drive)
        assert (await drive.apply(job.id, Wake(), actor=CLIENT)).pinned_version == "1"

    async def test_pinned_and_other_jobs_are_claimed_together(self, drive: Driver) -> None:
        job, other = await pinned(drive), await drive.add()
        won = {one.id for _ in range(2) for one in await claimed(drive, "1")}
        assert won == {job.id, other.id}

    @pytest.mark.parametrize(
        "limits",
        [QueueLimits(concurrency_max=1), QueueLimits(key_concurrency_max=1), QueueLimits(fair=True, concurrency_max=1)],
        ids=["queue", "partition", "fair"],
    )
    async def test_the_limits_of_a_queue_hold_for_pinned_jobs(self, drive: Driver, limits: QueueLimits) -> None:
        jobs = [await pinned(drive, partition_key="a") for _ in range(2)]
        await drive.store.queues.put("default", limits, actor=OPERATOR)
        assert await claimed(drive, "2") == []
        [first] = await claimed(drive, "1")
        assert await claimed(drive, "1") == []
        await drive.apply(first, Complete("1"))
        [second] = await claimed(drive, "1")
        assert {first.id, second.id} == {job.id for job in jobs}

    async def test_a_paused_queue_keeps_its_pinned_jobs(self, drive: Driver) -> None:
        await pinned(drive)
        await drive.store.queues.pause("default", actor=OPERATOR)
        assert await claimed(drive, "1") == []

    async def test_a_repeated_claim_returns_the_same_pinned_jobs(self, drive: Driver) -> None:
        job = await pinned(drive)
        request = drive.claim_request(code_version="1")
        won = [await drive.store.claim(request) for _ in range(2)]
        assert [[one.id for one in jobs] for jobs in won] == [[job.id], [job.id]]

    @pytest.mark.requirement("WF-17")
    async def test_statistics_and_doctor_count_jobs_pinned_to_a_version_without_workers(self, drive: Driver) -> None:
        for kind in ("mail", "mail", "post"):
            await pinned(drive, kind=kind)
        await drive.running()
        stats = await drive.store.stats()
        assert stats.pinned == [PinnedJobs("1", "default", "mail", 2), PinnedJobs("1", "default", "post", 1)]
        message = "3 runs pinned to version '1' of the code, and no worker with that version serves them"
        assert await warned(drive) == [message]
        await drive.store.register(worker(version="2", kinds=("mail", "post")))
        assert await warned(drive) == [message]
        await drive.store.register(worker("old", version="1", kinds=("mail", "post")))
        assert await warned(drive) == []
