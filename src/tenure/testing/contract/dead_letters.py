"""Dead letters: listed, resolved once, and never lost."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from tenure.errors import InvalidInput
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import Cancel, DeadLetter, Halt
from tenure.lifecycle.records import Job
from tenure.stores.contract import DeadLetterFilter, JobFilter
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, Driver, prune_finished


async def dead_lettered(
    drive: Driver, reason: ReasonCode = ReasonCode.TIMEOUT, stage: Stage = Stage.EXEC, **facts: Any
) -> Job:
    return await drive.apply(await drive.running(**facts), DeadLetter(reason, stage, ERROR))


class DeadLetterContract:
    """`dead_letters`, `resolve_dead_letters`, and finding jobs by their reason."""

    async def listed(self, drive: Driver, **wanted: Any) -> list[UUID]:
        page = await drive.store.dead_letters(DeadLetterFilter(**wanted), limit=100)
        assert page.after is None
        return [letter.job_id for letter in page.letters]

    async def test_a_listed_dead_letter_equals_the_one_read_by_id(self, drive: Driver) -> None:
        job = await dead_lettered(drive, correlation_id="order-1")
        await drive.apply(await drive.running(), Halt("cost", "1"))
        page = await drive.store.dead_letters(DeadLetterFilter())
        assert page.letters == [await drive.store.dead_letter(job.id)]
        [letter] = page.letters
        assert (letter.handled_at, letter.handled_as, letter.correlation_id) == (None, None, "order-1")

    @pytest.mark.requirement("SM-11")
    async def test_every_filter_must_match(self, drive: Driver, clock: DatabaseClock) -> None:
        first = await dead_lettered(drive, ReasonCode.PARSE_ERROR, Stage.INPUT, correlation_id="order-1")
        clock.advance(10)
        middle: datetime = await drive.store.now()
        second = await dead_lettered(drive, kind="post", queue="slow")
        for wanted, found in (
            ({"reason_codes": (ReasonCode.PARSE_ERROR,)}, [first]),
            ({"reason_codes": (ReasonCode.PARSE_ERROR, ReasonCode.TIMEOUT)}, [first, second]),
            ({"reason_codes": (ReasonCode.POLICY_VIOLATION,)}, []),
            ({"stages": (Stage.EXEC, Stage.COMMIT)}, [second]),
            ({"kinds": ("mail",)}, [first]),
            ({"queues": ("slow",)}, [second]),
            ({"correlation_id": "order-1"}, [first]),
            ({"correlation_id": "order-2"}, []),
            ({"dead_from": middle}, [second]),
            ({"dead_until": middle}, [first]),
            ({"kinds": ("mail",), "queues": ("slow",)}, []),
        ):
            assert await self.listed(drive, **wanted) == [job.id for job in found], wanted

    @pytest.mark.parametrize("newest_first", [False, True])
    async def test_pages_are_in_the_order_of_ids(self, drive: Driver, newest_first: bool) -> None:
        ids = [(await dead_lettered(drive)).id for _ in range(5)]
        jobs = sorted(ids, key=lambda job_id: job_id.bytes, reverse=newest_first)
        seen: list[UUID] = []
        after: UUID | None = None
        while True:
            page = await drive.store.dead_letters(DeadLetterFilter(), after=after, limit=2, newest_first=newest_first)
            seen += [letter.job_id for letter in page.letters]
            if (after := page.after) is None:
                break
        assert seen == jobs
        assert (await drive.store.dead_letters(DeadLetterFilter(), limit=5)).after is None

    @pytest.mark.requirement("SM-11")
    @pytest.mark.parametrize("how", ["redriven", "discarded"])
    async def test_a_dead_letter_is_resolved_once(self, drive: Driver, clock: DatabaseClock, how: Any) -> None:
        job, other = await dead_lettered(drive), await dead_lettered(drive)
        clock.advance(5)
        handled_at = await drive.store.now()
        before = await drive.seen(job.id)
        assert (
            await drive.store.resolve_dead_letters([job.id, job.id, drive.random.job_id()], how=how, actor=OPERATOR)
            == 1
        )
        clock.advance(5)
        assert await drive.store.resolve_dead_letters([job.id], how="discarded", actor=OPERATOR) == 0
        letter = await drive.store.dead_letter(job.id)
        assert letter is not None
        assert (letter.handled_at, letter.handled_as) == (handled_at, how)
        assert await drive.seen(job.id) == before, "the job itself does not change"
        assert await self.listed(drive) == [other.id]
        assert set(await self.listed(drive, handled=True)) == {job.id, other.id}

    async def test_a_job_without_a_dead_letter_is_not_resolved(self, drive: Driver) -> None:
        job = await drive.running()
        assert await drive.store.resolve_dead_letters([job.id], how="discarded", actor=OPERATOR) == 0
        assert await drive.store.resolve_dead_letters([], how="discarded", actor=OPERATOR) == 0

    async def test_a_resolved_dead_letter_is_erased_and_pruned_like_any(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job, erased_first = await dead_lettered(drive), await dead_lettered(drive)
        await drive.store.resolve_dead_letters([job.id], how="discarded", actor=OPERATOR)
        for one in (job, erased_first):
            await drive.store.erase(one.id, reason="asked", actor=OPERATOR)
        assert await drive.store.resolve_dead_letters([erased_first.id], how="redriven", actor=OPERATOR) == 1
        letter = await drive.store.dead_letter(job.id)
        assert letter is not None
        assert (letter.last_error, letter.handled_as) == ("null", "discarded")
        clock.advance(10)
        assert await prune_finished(drive.store, older_than_seconds=5) == 2
        assert await self.listed(drive, handled=True) == []

    @pytest.mark.parametrize("wrong", [{"how": "forgotten"}, {"how": None}, {"job_ids": ["x"]}])
    async def test_an_invalid_resolution_is_refused(self, drive: Driver, wrong: dict[str, Any]) -> None:
        job = await dead_lettered(drive)
        with pytest.raises(InvalidInput):
            await drive.store.resolve_dead_letters(
                **{"job_ids": [job.id], "how": "discarded", "actor": OPERATOR, **wrong}
            )
        assert await self.listed(drive) == [job.id]

    @pytest.mark.parametrize(
        "wrong", [{"limit": 0}, {"after": "x"}, {"wanted": DeadLetterFilter(correlation_id="a\x00")}]
    )
    async def test_an_invalid_page_is_refused(self, drive: Driver, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            await drive.store.dead_letters(**{"wanted": DeadLetterFilter(), **wrong})

    async def test_jobs_are_found_by_the_reason_of_their_end(self, drive: Driver) -> None:
        dead = await dead_lettered(drive, correlation_id="order-1")
        halted = await drive.apply(await drive.running(), Halt("cost", "1"))
        await drive.apply((await drive.add()).id, Cancel("enough"), actor=CLIENT)
        await drive.add()
        for wanted, found in (
            (JobFilter(reasons=("cost",)), [halted.id]),
            (JobFilter(reasons=("cost", "timeout")), [dead.id, halted.id]),
            (JobFilter(reasons=("timeout",), correlation_id="order-1"), [dead.id]),
            (JobFilter(reasons=("cost",), correlation_id="order-1"), []),
            (JobFilter(reasons=("other",)), []),
        ):
            assert {job.id for job in (await drive.store.find(wanted)).jobs} == set(found), wanted
        with pytest.raises(InvalidInput):
            await drive.store.find(JobFilter(reasons=("",)))
