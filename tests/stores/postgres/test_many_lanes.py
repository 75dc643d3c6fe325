"""Claimers of many queues: each claim asks a few lanes, and they come in the order of all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest

from tenure.errors import StoreError
from tenure.lifecycle.limits import QueueLimits
from tenure.lifecycle.operations import Stall
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import QUEUED
from tenure.seams import SYSTEM, SystemClock
from tenure.stores.contract import JobFilter
from tenure.stores.postgres import lanes, many_lanes
from tenure.stores.postgres.many_lanes import Ask, ManyLanes
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.driver import OPERATOR, RECOVERY, Driver
from tests.stores.postgres.test_plans import CLAIM, nodes, plan_after_warm_up
from tests.support.waiting import eventually

LIMIT = 20
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def named(count: int) -> tuple[str, ...]:
    return tuple(f"queue-{number:04d}" for number in range(count))


def place(number: int) -> tuple[datetime, UUID]:
    """So many seconds from noon."""
    return NOON + timedelta(seconds=number), UUID(int=abs(number))


class Told:
    """What is known of some lanes, all of priority 0, to which claims are told what they have seen."""

    def __init__(self, **heads: int) -> None:
        self.took = 1000.0
        """How long a pass over all queues takes: so long that it is not made again."""
        self.walked = 0
        self.lanes = ManyLanes([*heads])
        self.learn(self.ask(), (), 1, **heads)

    def ask(self, reach: int = 2, *, everything: bool = False) -> Ask:
        return self.lanes.ask(reach, everything=everything, now_seconds=0.0)

    def learn(self, ask: Ask, took: Sequence[tuple[str, int]] = (), limit: int = 1, **heads: int | None) -> None:
        """A claim at noon got jobs with these places, and saw these first ones: what is after noon is still to come."""
        places = [(None, None) if head is None else place(head) for head in heads.values()]
        seen = {
            "head_queues": [*heads],
            "head_priorities": [0] * len(heads),
            "head_dues": [due_at for due_at, _ in places],
            "head_ids": [job_id for _, job_id in places],
        }
        rows = [
            {"queue": queue, "priority": 0, "due_at": place(number)[0], "id": place(number)[1]}
            for queue, number in took
        ] or [{"id": None}]
        facts = {"at": NOON, "walked": self.walked, "turned": 0, **seen}
        answers = [{**row, **facts} for row in rows]
        self.lanes.learn(ask, answers, limit=limit, began_seconds=0.0, now_seconds=self.took if ask.full else 0.0)

    def order(self) -> list[tuple[str, int]]:
        """The lanes that the next claim could ask, and the seconds from noon of their bounds."""
        ask = self.ask(1000)
        found = [(lane.queue, lane.bound) for lane in ask.lanes]
        return [(queue, int((bound[0] - NOON).total_seconds())) for queue, bound in found if bound is not None]


class TestWhatIsAsked:
    def test_claimers_of_few_queues_ask_all_of_them(self) -> None:
        assert many_lanes.many_lanes(named(many_lanes.QUEUES_FEW)) is None
        assert many_lanes.many_lanes(named(many_lanes.QUEUES_FEW + 1)) is not None

    def test_the_lanes_that_come_first_up_to_the_bound_of_the_next(self) -> None:
        told = Told(a=-10, b=-40, c=-30, d=-20)
        ask = told.ask(2)
        assert [lane.queue for lane in ask.lanes] == ["b", "c"]
        assert ask.ceiling == (0, place(-20))
        assert ask.leaves_some_out

    def test_a_lane_that_was_taken_from_goes_on_where_that_ended(self) -> None:
        told = Told(a=-10, b=-40, c=-30)
        told.learn(told.ask(2), took=[("b", -40), ("b", -25)], b=-40, c=-30)
        assert told.order() == [("c", -30), ("b", -25), ("a", -10)]

    def test_a_first_job_that_was_passed_over_keeps_its_place(self) -> None:
        told = Told(a=-10, b=-40)
        told.learn(told.ask(2), took=[("b", -30)], a=-10, b=-40)
        assert told.order() == [("b", -40), ("a", -10)]

    def test_lanes_with_nothing_due_are_not_asked_until_they_have(self) -> None:
        told = Told(a=-10, b=-40, c=30)
        told.learn(told.ask(2), a=-10, b=None)
        assert told.order() == [("a", -10)]
        later = told.lanes.ask(9, everything=False, now_seconds=29.0)
        assert [lane.queue for lane in later.lanes] == ["a"]
        due = told.lanes.ask(9, everything=False, now_seconds=30.0)
        assert [lane.queue for lane in due.lanes] == ["a", "c"]

    def test_who_asked_last_knows_best(self) -> None:
        told = Told(a=-10, b=-40)
        early, late = told.ask(2), told.ask(2)
        told.learn(late, a=-10, b=-35)
        told.learn(early, a=None, b=None)
        assert told.order() == [("b", -35), ("a", -10)]

    def test_a_pass_over_all_queues_leaves_what_was_seen_by_those_who_asked_after_it(self) -> None:
        told = Told(a=-10, b=-40)
        full = told.ask(everything=True)
        assert full.full
        told.lanes.hear(["b"])
        told.learn(told.ask(2), a=-10, b=-5)
        told.learn(full, a=-10, b=None)
        assert told.order() == [("a", -10), ("b", -5)]

    def test_claims_that_come_back_short_make_the_next_ones_ask_more_for_a_while(self) -> None:
        told = Told(a=-10, b=-40, c=-30, d=-20)
        usual = told.lanes.reach(LIMIT)
        told.learn(told.ask(2), b=-39, c=-29, limit=LIMIT)
        assert told.lanes.reach(LIMIT) == 2 * usual
        for _ in range(20):
            told.learn(told.ask(2), took=[("b", -39)], b=-39, c=-29)
        assert told.lanes.reach(LIMIT) == usual

    def test_a_hint_is_kept_until_somebody_was_answered(self) -> None:
        told = Told(a=-10, b=-40)
        told.lanes.hear(["b", "stranger"])
        ask = told.ask(2)
        assert ask.news == ["b"]
        told.lanes.take_back(ask)
        assert told.ask(2).news == ["b"]
        assert told.ask(2).news == []

    def test_until_it_is_answered_other_claims_still_know_the_lanes_of_a_queue_with_news(self) -> None:
        told = Told(a=-10, b=-40, c=-30)
        told.lanes.hear(["b"])
        looking = told.ask(1)
        assert ([lane.queue for lane in looking.lanes], looking.ceiling) == (["c"], (0, place(-10)))
        assert told.order() == [("b", -40), ("c", -30), ("a", -10)]
        told.lanes.hear(["b"])
        told.learn(told.ask(1), c=-30)
        assert told.order() == [("c", -30), ("a", -10)], "it was looked through, and has nothing any more"

    def test_where_hints_may_have_been_missed_all_queues_are_looked_through(self) -> None:
        told = Told(a=-10, b=-40)
        told.lanes.hear(None)
        ask = told.ask(2)
        assert ask.full
        told.lanes.take_back(ask)
        assert told.ask(2).full

    def test_queues_have_their_turns_so_that_a_pass_over_all_takes_a_small_share_of_the_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lanes, "PASS_EVERY", 30)
        told = Told(**{f"queue_{number}": -number for number in range(1, 11)})
        told.took = 2.0
        told.learn(told.ask(everything=True), (), 1, **{f"queue_{number}": -number for number in range(1, 11)})
        turns = [told.lanes.ask(2, everything=False, now_seconds=2.0 + at).anew for at in (1.0, 6.5, 12.5, 60.5)]
        assert [len(one) for one in turns] == [0, 1, 1, 8]
        assert len(set().union(*turns)) == 10
        assert told.lanes.ask(2, everything=False, now_seconds=2.0 + 120.0).full, "nobody asked for so long"

    def test_where_a_turn_was_a_far_walk_there_are_none_until_a_pass_has_shown_that_they_are_not(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lanes, "PASS_EVERY", 30)
        told = Told(a=-10, b=-40, c=-30)
        told.took, told.walked = 2.0, 1_000_000
        told.learn(told.ask(everything=True), a=-10, b=-40, c=-30)
        assert not told.lanes.ask(2, everything=False, now_seconds=2.0 + 50.0).anew
        told.walked = 0
        full = told.lanes.ask(2, everything=False, now_seconds=2.0 + 61.0)
        assert full.full
        told.learn(full, a=-10, b=-40, c=-30)
        turn = told.lanes.ask(2, everything=False, now_seconds=2.0 + 21.0)
        assert turn.anew == {"a"}
        told.walked = 1_000_000
        told.learn(turn, a=-10, b=-40, c=-30)
        told.lanes.hear(["b"])
        again = told.lanes.ask(2, everything=False, now_seconds=2.0 + 50.0)
        assert (again.anew, again.gaps) == (set(), [("b", lanes.LOWEST, 0), ("b", 0, lanes.HIGHEST)])

    def test_not_more_than_so_many_queues_with_hints_are_looked_through_at_once(self) -> None:
        told = Told(**{f"queue_{number}": -number for number in range(1, 2 * many_lanes.NEWS_MAX)})
        told.lanes.hear(f"queue_{number}" for number in range(1, 2 * many_lanes.NEWS_MAX))
        assert len(told.ask(2).gaps) == many_lanes.NEWS_MAX
        assert len(told.ask(2).gaps) == many_lanes.NEWS_MAX - 1
        assert not told.ask(2).gaps


class SlowClock(SystemClock):
    """Each look at it takes a second, so that every claim does."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def monotonic_seconds(self) -> float:
        self._seconds += 1.0
        return self._seconds


class Watched:
    """A store that writes down what its claims have asked and how many pages of the index they have looked at."""

    def __init__(self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.drive = store, Driver(store)
        self.pages: list[int] = []
        """For each claim."""
        self.asked: list[int] = []
        """For each statement, how many lanes and gaps."""
        fetch = store._connections.fetch

        async def watched(name: str, values: Mapping[str, Any]) -> list[asyncpg.Record]:
            answers = await fetch(name, values)
            if name == "claim_of_many":
                self.pages[-1] += answers[0]["turned"] or 0
                self.asked.append(len(values["lane_queues"]) + len(values["gap_queues"]))
            return answers

        monkeypatch.setattr(store._connections, "fetch", watched)

    async def claim(self, queues: Sequence[str], limit: int = LIMIT) -> list[Job]:
        self.pages.append(0)
        return await self.drive.claim(queues=tuple(queues), limit=limit)

    def knows(self, queues: Sequence[str]) -> ManyLanes:
        known = self.store._claiming._floors.of(self.drive.claim_request(queues=tuple(queues))).many
        assert known is not None
        return known


@pytest.fixture
def watched(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(store, monkeypatch)


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[Driver]:
    """Another process, of whose hints nobody hears."""
    async with opened(dsn) as store:
        yield Driver(store)


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore.from_url(dsn)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def _seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over all queues is not made again while claims get something."""
    monkeypatch.setattr(lanes, "PASS_EVERY", 1_000_000)


async def fill(drive: Driver, queues: Sequence[str], count: int, **facts: Any) -> list[UUID]:
    """So many jobs, spread over the queues in turn."""
    requests = [drive.enqueue(queue=queues[number % len(queues)], **facts) for number in range(count)]
    for start in range(0, count, len(queues)):
        await drive.store.enqueue(requests[start : start + len(queues)])
    return [one.origin.id for one in requests]


def order(job: Job) -> tuple[int, datetime | None, UUID]:
    return -job.origin.priority, job.due_at, job.id


async def in_order(drive: Driver) -> list[UUID]:
    """All jobs in the order in which they are to be claimed."""
    jobs: list[Job] = []
    page = await drive.store.find(JobFilter(), limit=1000)
    jobs += page.jobs
    while page.after is not None:
        page = await drive.store.find(JobFilter(), limit=1000, after=page.after)
        jobs += page.jobs
    return [job.id for job in sorted(jobs, key=order)]


@pytest.mark.requirement("WC-02")
@pytest.mark.usefixtures("_seldom")
@pytest.mark.parametrize("limit", [1, 7, 40])
async def test_the_order_over_all_lanes_is_kept_although_few_are_asked(watched: Watched, limit: int) -> None:
    chance, queues = Random(limit), named(220)
    for _ in range(12):
        some = chance.randint(1, 60)
        await watched.store.enqueue(
            [
                watched.drive.enqueue(queue=chance.choice(queues), priority=chance.choice((-1, 0, 0, 0, 5)))
                for _ in range(some)
            ]
        )
    expected = await in_order(watched.drive)
    got: list[UUID] = []
    while some_jobs := await watched.claim(queues, limit):
        got += [job.id for job in some_jobs]
    assert got == expected
    assert len(watched.pages) <= len(expected) / limit * 1.5 + 10, "claims came back with much less than they could"


@pytest.mark.usefixtures("_seldom")
async def test_new_jobs_come_in_their_order_too(watched: Watched) -> None:
    """A model of what is there says what each claim takes: hints tell the store of all that is added."""
    chance, queues = Random(7), named(80)
    waiting: dict[UUID, Job] = {}
    for _ in range(60):
        requests = [
            watched.drive.enqueue(queue=chance.choice(queues), priority=chance.choice((-1, 0, 0, 5)))
            for _ in range(chance.randint(0, 12))
        ]
        waiting.update({added.job.id: added.job for added in await watched.store.enqueue(requests)})
        got = [job.id for job in await watched.claim(queues, chance.choice((1, 3, 10)))]
        assert got == [job.id for job in sorted(waiting.values(), key=order)[: len(got)]]
        assert got or not waiting
        for job_id in got:
            del waiting[job_id]


@pytest.mark.usefixtures("_seldom")
async def test_the_order_is_kept_although_others_take_from_the_same_lanes(watched: Watched, other: Driver) -> None:
    chance, queues = Random(3), named(150)
    for _ in range(8):
        requests = [other.enqueue(queue=name, priority=chance.choice((0, 0, 1))) for name in queues]
        await other.store.enqueue(chance.sample(requests, 70))
    waiting = await in_order(other)
    watched.asked.clear()
    while waiting:
        drive = other if chance.random() < 0.6 else None
        limit = chance.choice((5, 10, 30))
        jobs = await (watched.claim(queues, limit) if drive is None else drive.claim(queues=queues, limit=limit))
        assert jobs
        assert [job.id for job in jobs] == waiting[: len(jobs)]
        del waiting[: len(jobs)]
    assert await watched.claim(queues) == []


async def pages_in_a_drain(dsn: str, count: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pages of the index claims from so many queues look at, after the first one."""
    async with opened(dsn) as store:
        watched, queues = Watched(store, monkeypatch), named(count)
        await fill(watched.drive, queues, 5 * 1000)
        for _ in range(15):
            assert len(await watched.claim(queues)) == LIMIT
        assert watched.asked[0] >= count, "the first claim has to look everywhere"
    return watched.pages[1:]


@pytest.mark.usefixtures("_seldom")
async def test_what_a_claim_looks_at_does_not_grow_with_the_queues(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = await pages_in_a_drain(dsn, 50, monkeypatch)
    async with opened(dsn) as store:
        while await Driver(store).claim(queues=named(50), limit=1000):
            continue
    many = await pages_in_a_drain(dsn, 1000, monkeypatch)
    assert max(many) <= 2 * max(few)


@pytest.mark.usefixtures("_seldom")
async def test_lanes_that_ran_empty_or_wait_for_later_are_not_asked_again_and_again(watched: Watched) -> None:
    queues = named(200)
    await fill(watched.drive, queues, 200, priority=5, delay_ms=3_600_000)
    await fill(watched.drive, queues, 200, priority=7)
    await fill(watched.drive, queues, 400)
    for _ in range(14):
        await watched.claim(queues)
    watched.asked.clear()
    for _ in range(10):
        assert len(await watched.claim(queues)) == LIMIT
    assert max(watched.asked) <= 3 * LIMIT


@pytest.mark.usefixtures("_seldom")
@pytest.mark.parametrize("priority", [0, 3])
async def test_a_hint_brings_a_job_of_a_queue_that_was_empty(watched: Watched, priority: int) -> None:
    queues = named(100)
    await fill(watched.drive, queues[:-1], 400)
    await watched.claim(queues)
    added = await watched.drive.add(queue=queues[-1], priority=priority)
    expected = [one for one in await in_order(watched.drive) if one in await queued(watched.drive)]
    got: list[UUID] = []
    while some := await watched.claim(queues):
        got += [job.id for job in some]
    assert got == expected
    assert got.index(added.id) == (0 if priority else len(expected) - 1)


@pytest.mark.usefixtures("_seldom")
async def test_a_notification_of_another_process_is_such_a_hint(watched: Watched, other: Driver) -> None:
    queues = named(100)
    await fill(other, queues[:-1], 400)
    assert isinstance(other.store, PostgresStore)
    await other.store.quiet()
    async with watched.store.wakeups(queues) as wakeups:
        assert await wakeups.wait(20), "nobody listens"
        await watched.claim(queues)
        urgent = await other.add(queue=queues[-1], priority=3)
        await eventually(lambda: queues[-1] in watched.knows(queues)._news)
        watched.asked.clear()
        assert (await watched.claim(queues))[0].id == urgent.id
        assert max(watched.asked) <= 3 * LIMIT + many_lanes.NEWS_MAX


async def queued(drive: Driver) -> set[UUID]:
    return {job.id for job in (await drive.store.find(JobFilter(statuses=(QUEUED,)), limit=1000)).jobs}


async def test_without_a_hint_it_is_found_when_its_queue_has_its_turn(
    dsn: str, other: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore.from_url(dsn, seams=replace(SYSTEM, clock=SlowClock()))
    await store.open()
    watched, queues = Watched(store, monkeypatch), named(100)
    await fill(watched.drive, queues[:-1], 900)
    await watched.claim(queues)
    urgent = await other.add(queue=queues[-1], priority=3)
    claims = 0
    while urgent.id not in [job.id for job in await watched.claim(queues)]:
        claims += 1
    assert 0 < claims <= lanes.PASS_EVERY
    assert max(watched.asked[1:]) < 80, "all queues were looked through at once"
    await store.close()


@pytest.mark.usefixtures("_seldom")
async def test_nobody_is_told_that_there_is_nothing_while_something_is_due(watched: Watched, other: Driver) -> None:
    queues = named(100)
    assert await watched.claim(queues) == []
    for number in (3, 99, 3, 50):
        added = await other.add(queue=queues[number], priority=number)
        assert [job.id for job in await watched.claim(queues)] == [added.id]
        assert await watched.claim(queues) == []


@pytest.mark.usefixtures("_seldom")
async def test_who_is_woken_for_a_job_that_somebody_else_got_looks_only_there(watched: Watched, other: Driver) -> None:
    queues = named(100)
    assert await watched.claim(queues) == []
    await watched.drive.add(queue=queues[40])
    assert len(await other.claim(queues=(queues[40],))) == 1
    assert await watched.claim(queues) == []
    assert await watched.claim(queues) == []
    assert watched.asked == [100, 1, 100]


@pytest.mark.usefixtures("_seldom")
async def test_a_job_now_and_then_does_not_make_a_pass_over_all_queues_each_time(
    watched: Watched, other: Driver
) -> None:
    queues = named(100)
    assert await watched.claim(queues) == []
    for number in range(5):
        added = await watched.drive.add(queue=queues[number])
        assert [job.id for job in await watched.claim(queues)] == [added.id]
        assert await watched.claim(queues) == []
    assert max(watched.asked[1:]) <= 10
    untold = await other.add(queue=queues[50])
    assert [job.id for job in await watched.claim(queues)] == [untold.id], "it was asked without an occasion"


@pytest.mark.usefixtures("_seldom")
async def test_a_job_that_becomes_due_is_found_then(watched: Watched, other: Driver) -> None:
    queues = named(100)
    later = await other.add(queue=queues[40], delay_ms=50)
    assert await watched.claim(queues) == []
    won: list[Job] = []

    async def claimed() -> bool:
        won.extend(await watched.claim(queues))
        return bool(won)

    await eventually(claimed)
    assert [job.id for job in won] == [later.id]


@pytest.mark.usefixtures("_seldom")
async def test_claimers_at_once_take_every_job_once_and_leave_none(dsn: str, drive: Driver) -> None:
    queues = named(120)
    ids = await fill(drive, queues, 1200)
    won: list[UUID] = []

    async def drain(store: PostgresStore) -> None:
        while jobs := await Driver(store).claim(queues=queues, limit=7):
            won.extend(job.id for job in jobs)

    async with opened(dsn) as one, opened(dsn) as two, opened(dsn) as three:
        async with asyncio.timeout(60):
            await asyncio.gather(*(drain(store) for store in (one, two, three, three, three)))
    assert sorted(won) == sorted(ids)


async def test_a_claim_that_is_sent_again_is_answered_from_what_it_won(watched: Watched) -> None:
    queues = named(60)
    await fill(watched.drive, queues, 120)
    for _ in range(2):
        watched.pages.append(0)
        request = watched.drive.claim_request(queues=queues, limit=LIMIT)
        won = await watched.store.claim(request)
        assert len(won) == LIMIT
        assert await watched.store.claim(request) == won


async def test_a_hint_that_comes_before_a_repetition_is_not_used_up_by_it(watched: Watched) -> None:
    queues = named(60)
    await fill(watched.drive, queues[:-1], 200)
    watched.pages.append(0)
    request = watched.drive.claim_request(queues=queues, limit=LIMIT)
    won = await watched.store.claim(request)
    urgent = await watched.drive.add(queue=queues[-1], priority=1)
    assert await watched.store.claim(request) == won
    assert (await watched.claim(queues))[0].id == urgent.id


async def test_a_job_that_was_lost_while_it_ran_is_claimed_alone(watched: Watched) -> None:
    queues, drive = named(60), watched.drive
    killer = await drive.running(queue=queues[0], policy={"lease_seconds": 0.05})
    rest = await fill(drive, queues, 120)
    await watched.claim(queues, 1)

    async def lost() -> bool:
        return bool(await drive.store.recoverable(limit=1))

    await eventually(lost)
    await drive.apply(killer.id, Stall(), actor=RECOVERY)
    assert [job.id for job in await watched.claim(queues)] == [killer.id]
    assert [job.id for job in await watched.claim(queues)] == rest[1 : 1 + LIMIT]


async def test_rules_that_one_of_the_queues_is_given_hold_for_the_next_claim(watched: Watched) -> None:
    queues = named(60)
    await fill(watched.drive, queues, 60)
    await watched.store.queues.put("of-somebody-else", QueueLimits(concurrency_max=1), actor=OPERATOR)
    await watched.claim(queues, 1)
    assert len(await watched.claim(queues, 1)) == 1
    assert len(watched.asked) == 2, "another queue's rules were taken for one of theirs"
    await watched.store.queues.put(queues[5], QueueLimits(concurrency_max=1), actor=OPERATOR)
    await watched.drive.add(queue=queues[5], priority=9)
    await watched.drive.add(queue=queues[5], priority=9)
    won = await watched.claim(queues, 5)
    assert [job.origin.queue for job in won].count(queues[5]) == 1
    assert len(won) == 5


@pytest.mark.usefixtures("_seldom")
async def test_what_somebody_has_locked_hides_nothing_and_comes_when_it_is_free(dsn: str, watched: Watched) -> None:
    queues = named(60)
    ids = await fill(watched.drive, queues, 180)
    await watched.claim(queues, 1)
    held = ids[1:41]
    with psycopg.connect(dsn) as connection:
        connection.execute("select 1 from tenure.jobs where id = any(%s) for update", (held,))
        while some := await watched.claim(queues):
            assert not {job.id for job in some} & set(held)
        assert await queued(watched.drive) == set(held)
    assert {job.id for job in [*await watched.claim(queues), *await watched.claim(queues)]} == set(held)


@pytest.mark.usefixtures("_seldom")
async def test_under_an_old_snapshot_claims_and_hints_read_on_where_lanes_were_read_to(
    dsn: str, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "WALKED_LEAST", 300)
    monkeypatch.setattr(lanes, "WALKED_A_JOB", 1)
    monkeypatch.setattr(lanes, "LATE_SECONDS", 0.0)
    queues = named(40)
    await fill(watched.drive, queues, 4000)
    reader = await asyncpg.connect(dsn)
    async with reader.transaction(isolation="repeatable_read"):
        await reader.fetchval("select count(*) from tenure.jobs")
        while await watched.claim(queues, 500):
            continue
        known = watched.knows(queues)
        assert known._far, "a pass over dead entries was not taken for a far one"
        watched.pages.clear()
        for priority in (0, 2, 0):
            added = await watched.drive.add(queue=queues[7], priority=priority)
            assert [job.id for job in await watched.claim(queues)] == [added.id]
        assert await watched.claim(queues) == []
    assert max(watched.pages[:3]) < 100, "a hint made a claim walk over everything"
    assert watched.pages[3] < 10 * len(queues)
    await reader.close()


async def test_a_claim_that_failed_leaves_what_it_was_to_look_at_to_the_next(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "PASS_EVERY", 1_000_000)
    queues = named(60)
    await fill(watched.drive, queues[:-1], 200)
    await watched.claim(queues)
    urgent = await watched.drive.add(queue=queues[-1], priority=1)
    fetch = watched.store._connections.fetch

    async def fails(_name: str, _values: Mapping[str, Any]) -> list[asyncpg.Record]:
        raise StoreError("not now")

    monkeypatch.setattr(watched.store._connections, "fetch", fails)
    with pytest.raises(StoreError, match="not now"):
        await watched.claim(queues)
    monkeypatch.setattr(watched.store._connections, "fetch", fetch)
    assert (await watched.claim(queues))[0].id == urgent.id


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("full", [False, True])
async def test_the_plan_reads_along_the_ready_index(dsn: str, drive: Driver, analysed: bool, full: bool) -> None:
    queues = named(100)
    await fill(drive, queues, 3000)
    everywhere = {"gap_queues": queues, "gap_lows": [lanes.LOWEST] * 100, "gap_highs": [lanes.HIGHEST] * 100}
    some = {
        "lane_queues": queues[:40],
        "lane_priorities": [0] * 40,
        "lane_dues": ["2000-01-01 00:00+00"] * 40,
        "lane_ids": [str(lanes.NO_ID)] * 40,
    }
    given = {
        name: listed(values if wanted else [])
        for part, wanted in ((everywhere, full), (some, not full))
        for name, values in part.items()
    }
    ceiling = {"ceiling_priority": str(lanes.LOWEST), "ceiling_due": "now()", "ceiling_id": f"'{lanes.NO_ID}'"}
    with psycopg.connect(dsn) as connection:
        if analysed:
            connection.execute("analyze tenure.jobs")
            connection.commit()
        values = {**CLAIM, **given, **ceiling, "queue_lines": "'" + "\n".join(queues) + "'", "limit": str(LIMIT)}
        plan = plan_after_warm_up(connection, "claim_of_many", values)
    scans = [node for node in nodes(plan) if node.get("Relation Name") in ("jobs", "events")]
    assert not [node for node in scans if node["Node Type"] == "Seq Scan" and node["Actual Loops"]]
    read = sum(node["Actual Rows"] * node["Actual Loops"] for node in scans if "Scan" in node["Node Type"])
    assert read <= (2 * 100 if full else 40) + 4 * LIMIT


def listed(values: Sequence[object]) -> str:
    return "'{" + ",".join(f'"{value}"' for value in values) + "}'"
