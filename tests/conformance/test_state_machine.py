"""The job state machine v1 (SM), on both stores and in its own words."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.errors import LeaseLost, PermanentError, TransientError, ValidationError
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Cancel,
    Complete,
    DeadLetter,
    Fail,
    Heartbeat,
    Operation,
    Progress,
    Requeue,
    Retry,
    Stall,
    Start,
)
from tenure.lifecycle.records import CONTRACT_VERSION, EventType, Job
from tenure.stores.contract import ClaimRequest, DeadLetterFilter, EventFilter
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, RECOVERY, Driver, runner
from tenure.testing.store_check import check_leases, check_monotonic
from tenure.vocabularies import vocabulary
from tests.conformance.places import Place, check_complete, told_by
from tests.support.in_process_worker import is_renewed, working
from tests.support.sample_jobs import one_of_each
from tests.support.waiting import eventually

WORDS = "machine"
OPEN = {
    "SM-16": "built for jobs, events, spans and logs; not for steps, delivered outbox messages, remote engines",
    "SM-21": "compensation of workflows: the event exists, the workflow engine that would cause it does not",
}
BURIAL = DeadLetter(ReasonCode.POLICY_VIOLATION, Stage.EXEC, ERROR)


def test_every_requirement_is_shown_here_or_listed_as_open() -> None:
    check_complete("SM", Path(__file__).read_text(encoding="utf-8"), Path(__file__).name, OPEN)


async def in_state(place: Place, state: str, kind: str) -> Job:
    if state == "queued":
        return await place.drive.add(kind)
    return await (place.drive.claimed(kind=kind) if state == "assigned" else place.drive.running(kind=kind))


@pytest.mark.requirement("SM-01")
@pytest.mark.parametrize("state", ["queued", "assigned", "running"])
async def test_cancelled_and_dead_lettered_are_reached_from_every_open_state(place: Place, state: str) -> None:
    cancelled = await in_state(place, state, "one")
    assert (await place.shown(cancelled.id))["state"] == state
    await place.drive.apply(cancelled.id, Cancel("no need"), actor=CLIENT)
    ended = await place.shown(cancelled.id)
    assert (ended["state"], ended["reason"], (await place.names(cancelled.id))[-1]) == (
        *("cancelled", "no need", "job_cancelled"),
    )
    buried = await in_state(place, state, "two")
    await place.drive.apply(buried.id, BURIAL, actor=RECOVERY)
    assert (await place.shown(buried.id))["state"] == "dead_lettered"
    assert (await place.names(buried.id))[-1] == "job_dead_lettered"


@pytest.mark.requirement("SM-02", "SM-03")
async def test_there_is_never_more_than_one_lease_and_no_attempt_goes_back(place: Place) -> None:
    job = await place.drive.running()
    assert await place.drive.claim() == []
    place.clock.advance(60)
    assert await place.recover() == 1
    [again] = await place.drive.claim(worker="worker-2")
    assert isinstance(await place.drive.refuse(job.id, Complete("1"), actor=runner(job)), LeaseLost)
    await place.drive.apply(again, Complete("1"))
    events = await place.drive.events_of(job.id)
    check_leases(events)
    check_monotonic(events)
    told = [one.fields["payload"] for one in await place.told(job.id)]
    for before, after in pairwise(told):
        assert before["to"] == after["from"], "no state is left but for the one that follows"
    assert [one["attempt"] for one in told] == sorted(one["attempt"] for one in told)


@pytest.mark.requirement("SM-04")
async def test_a_thousand_jobs_have_one_event_for_each_transition_and_in_its_order(place: Place) -> None:
    count = 1000
    added = await place.store.enqueue([place.drive.enqueue() for _ in range(count)])
    seen: Counter[str] = Counter()
    for _ in range(10):
        jobs = await place.drive.claim(limit=100)
        await place.store.apply([place.drive.request(job, Complete("1")) for job in jobs])
    machine = vocabulary(WORDS)
    for one in added:
        told = await place.told(one.job.id)
        assert [t.fields["payload"]["rev"] for t in told] == [1, 2, 3, 4]
        seen.update(t.name for t in told)
    names = ("job_enqueued", "job_claimed", "job_started", "job_succeeded")
    assert seen == dict.fromkeys(names, count)
    assert set(seen) <= {name for names in machine.events.values() for name in names}


@pytest.mark.requirement("SM-05")
async def test_a_lease_is_of_its_job_types_length_and_renewed_once_half_of_it_is_gone(place: Place) -> None:
    job = await place.drive.running(policy={"lease_seconds": 90, "heartbeat_seconds": 30})
    [claimed] = [one.fields for one in await place.told(job.id) if one.name == "job_claimed"]
    lease = claimed["payload"]["lease_expires_at"] - claimed["ts"]
    assert lease.total_seconds() == 90
    place.clock.advance(44)
    job = await place.drive.apply(job, Heartbeat())
    place.clock.advance(1)
    await place.drive.apply(job, Heartbeat())
    told = await place.told(job.id)
    assert [one.name for one in told[-2:]] == ["job_heartbeat", "job_lease_renewed"]
    assert "lease_expires_at" not in told[-2].fields["payload"]
    renewed = told[-1].fields["payload"]["lease_expires_at"] - told[-1].fields["ts"]
    assert renewed.total_seconds() == 90


@pytest.mark.requirement("SM-06")
@pytest.mark.parametrize(
    ("policy", "seconds", "cause"),
    [
        ({"lease_seconds": 120, "heartbeat_seconds": 10}, 20, "heartbeats_missed"),
        ({"lease_seconds": 30, "heartbeat_seconds": 30}, 30, "lease_expired"),
    ],
)
async def test_missed_heartbeats_or_an_expired_lease_make_an_orphan(
    place: Place, policy: dict[str, Any], seconds: float, cause: str
) -> None:
    job = await place.drive.running(policy=policy)
    place.clock.advance(seconds - 0.001)
    assert await place.recover() == 0
    place.clock.advance(0.001)
    assert await place.recover() == 1
    told = await place.told(job.id)
    assert [one.name for one in told[-2:]] == ["job_stalled", "job_requeued"]
    assert told[-2].fields["cause"] == cause
    assert (await place.shown(job.id))["state"] == "queued"


@pytest.mark.requirement("SM-07", "SM-09")
@pytest.mark.parametrize(("end", "state"), [("fail", "failed"), ("dead_letter", "dead_lettered")])
async def test_a_lost_job_is_queued_again_until_its_attempts_are_used_up(place: Place, end: str, state: str) -> None:
    job = await place.drive.add(policy={"max_attempts": 2, "on_exhausted": end})
    states = []
    for _ in range(2):
        await place.drive.claim()
        place.clock.advance(60)
        await place.recover()
        states.append((await place.shown(job.id))["state"])
    assert states == ["queued", state]
    if end == "dead_letter":
        letter = (await place.shown(job.id))["dead_letter"]
        assert (letter["reason_code"], letter["attempts"]) == ("exhausted_retries", 2)


@pytest.mark.requirement("SM-08")
async def test_a_retry_waits_exponentially_longer_with_jitter_and_never_beyond_its_cap(place: Place) -> None:
    backoff = tenure.Backoff(base_seconds=0.5, factor=2, max_seconds=60)
    delays: list[list[float]] = []
    for _ in range(4):
        job = await place.drive.add(policy={"backoff": backoff, "max_attempts": 20})
        for _ in range(10):
            [claimed] = await place.drive.claim()
            await place.drive.apply(claimed, Retry(ERROR))
            place.clock.advance(60)
        told = [one.fields for one in await place.told(job.id) if one.name == "job_retry_scheduled"]
        delays.append([(one["payload"]["next_attempt_at"] - one["ts"]).total_seconds() for one in told])
        await place.drive.apply(job.id, Cancel(), actor=CLIENT)
    for number in range(10):
        most = min(60, 0.5 * 2**number)
        assert all(most / 2 <= delay[number] <= most for delay in delays), (number, delays)
    assert len({tuple(delay) for delay in delays}) > 1, "jitter differs from job to job"


@pytest.mark.requirement("SM-09")
@pytest.mark.parametrize(("end", "state"), [("fail", "failed"), ("dead_letter", "dead_lettered")])
async def test_the_last_attempts_error_leads_where_the_policy_says(app: tenure.App, end: Any, state: str) -> None:
    @app.job(max_attempts=2, on_exhausted=end, backoff=tenure.Backoff(base_seconds=0.01))
    async def work() -> None:
        raise TransientError("later")

    async with working(app):
        job = await (await work.enqueue()).wait(20)
    assert (vocabulary(WORDS).status(job.status), job.attempt) == (state, 2)
    names = [one.name for one in await told_by(app, job.id, WORDS)]
    assert names.count("job_retry_scheduled") == 1
    assert names[-1] == f"job_{state}"


@pytest.mark.requirement("SM-10", "SM-20")
async def test_a_soft_cancel_is_answered_and_a_hard_one_ends_the_work_and_drops_its_artifacts(app: tenure.App) -> None:
    begun, stopped = asyncio.Queue[str](), asyncio.Queue[str]()

    @app.job()
    async def soft(ctx: tenure.Context) -> None:
        await begun.put("soft")
        try:
            while True:
                ctx.check()
                await asyncio.sleep(0.01)
        finally:
            await stopped.put("soft")

    @app.job()
    async def hard(ctx: tenure.Context) -> None:
        ctx.attach("half.txt", "half")
        await begun.put("hard")
        try:
            await asyncio.sleep(60)
        finally:
            await stopped.put("hard")

    async with working(app):
        for job in (await soft.enqueue(), await hard.enqueue()):
            name = await asyncio.wait_for(begun.get(), 20)
            await job.cancel(hard=name == "hard")
            assert vocabulary(WORDS).status((await job.wait(20)).status) == "cancelled"
            assert await asyncio.wait_for(stopped.get(), 20) == name
            asked = "job_cancel_requested" in [one.name for one in await told_by(app, job.id, WORDS)]
            assert asked is (name == "soft")
            assert await (await app.store()).artifacts(job.id) == []


@pytest.mark.requirement("SM-10")
async def test_a_job_that_nobody_holds_is_cancelled_at_once(place: Place) -> None:
    job = await place.drive.add()
    await place.operator().cancel(job.id)
    assert (await place.shown(job.id))["state"] == "cancelled"
    assert await place.drive.claim() == []


@pytest.mark.requirement("SM-11")
@pytest.mark.parametrize("reason", list(ReasonCode))
async def test_every_reason_leaves_its_whole_record_which_can_be_listed_redriven_and_discarded(
    place: Place, reason: ReasonCode
) -> None:
    jobs = [await place.drive.running(correlation_id="order-7", kind=f"kind-{n}") for n in range(2)]
    for job, stage in zip(jobs, (Stage.EXEC, Stage.COMMIT), strict=True):
        await place.drive.apply(job, DeadLetter(reason, stage, ERROR))
        letter = (await place.shown(job.id))["dead_letter"]
        stored = await place.store.dead_letter(job.id)
        assert stored is not None
        assert letter == {
            "reason_code": stored.reason_code,
            "stage": stored.stage,
            "last_error": {"type": "ValueError", "message": "no"},
            "attempts": stored.attempts,
            "last_owner": stored.last_owner,
            "last_lease_expires_at": stored.last_lease_expires_at,
            "correlation_id": "order-7",
        }
    page = await place.store.dead_letters(DeadLetterFilter(reason_codes=(reason,)))
    assert [one.job_id for one in page.letters] == [job.id for job in jobs]
    again = await place.operator().redrive(jobs[0].id)
    assert (again.job.origin.redrive_of, again.job.status) == (jobs[0].id, "queued")
    await place.operator().discard(jobs[1].id)
    assert (await place.store.dead_letters(DeadLetterFilter())).letters == []
    assert (await place.shown(jobs[0].id))["state"] == "dead_lettered", "the record stays as it is"


@pytest.mark.requirement("SM-11", "SM-18")
async def test_the_class_of_an_error_decides_between_retry_failure_and_dead_letter(app: tenure.App) -> None:
    errors = {"transient": TransientError, "permanent": PermanentError, "validation": ValidationError}

    @app.job(max_attempts=2, backoff=tenure.Backoff(base_seconds=0.01))
    async def work(name: str) -> None:
        raise errors[name]("because")

    ends = {}
    async with working(app):
        for name in errors:
            job = await (await work.enqueue(name)).wait(20)
            ends[name] = (vocabulary(WORDS).status(job.status), job.attempt)
            if name == "validation":
                letter = await (await app.store()).dead_letter(job.id)
                assert letter is not None
                assert (letter.reason_code, letter.stage) == ("validation_failed", "input")
    assert ends == {"transient": ("failed", 2), "permanent": ("failed", 1), "validation": ("dead_lettered", 1)}


@pytest.mark.requirement("SM-12", "SM-16", "SM-17", "SM-19")
async def test_every_event_has_the_whole_record_and_can_be_found_by_job_type_and_correlation(place: Place) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    job = await place.drive.running(correlation_id="order-7", trace=trace)
    await place.drive.apply(job, Fail(ERROR))
    told = [one.fields for one in await place.told(job.id)]
    fields = {"id", "job_id", "type", "ts", "actor", "correlation_id", "cause", "payload", "version", "trace_id"}
    for one in told:
        assert set(one) == fields
        assert (one["correlation_id"], one["version"]) == ("order-7", CONTRACT_VERSION)
        assert one["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert len({one["id"] for one in told}) == len(told)
    assert told[-1]["cause"] == "permanent_error"
    shown = await place.shown(job.id)
    assert (shown["correlation_id"], shown["trace_id"]) == ("order-7", told[0]["trace_id"])
    await place.drive.add("other")
    for wanted, count in (
        (EventFilter(job_id=job.id, since=job.created_at), 4),
        (EventFilter(types=(EventType.FAILED,), since=job.created_at), 1),
        (EventFilter(correlation_id="order-7"), 4),
    ):
        page = await place.store.events(wanted)
        assert [event.job_id for event in page.events] == [job.id] * count


@pytest.mark.requirement("SM-12")
async def test_verbose_payloads_have_a_time_to_live_and_transitions_do_not(place: Place) -> None:
    job = await place.drive.apply(await place.drive.running(), Progress(10, "half way"))
    job = await place.drive.apply(job, Progress(90))
    place.clock.advance(10)
    assert await place.store.blank(older_than_seconds=5, actor=OPERATOR) == 1
    told = [one for one in await place.told(job.id) if one.name == "job_progress"]
    assert ["message" in one.fields["payload"] for one in told] == [False, False]
    assert [one.fields["payload"].get("percent") for one in told] == [None, 90]
    assert (await place.names(job.id))[:3] == ["job_enqueued", "job_claimed", "job_started"]


@pytest.mark.requirement("SM-13")
async def test_a_claim_that_is_asked_for_again_returns_what_it_won(place: Place) -> None:
    for _ in range(3):
        await place.drive.add()
    request: ClaimRequest = place.drive.claim_request(limit=2)
    won = await place.store.claim(request)
    again = await place.store.claim(request)
    assert [(job.id, job.attempt, job.rev) for job in again] == [(job.id, 1, 3) for job in won]
    assert len(await place.drive.claim(limit=10)) == 1


@pytest.mark.requirement("SM-14")
async def test_sixty_four_claimers_at_once_never_share_a_job(place: Place) -> None:
    await place.store.enqueue([place.drive.enqueue() for _ in range(100)])
    claims = [place.drive.claim(limit=2, worker=f"worker-{number}") for number in range(64)]
    won = [job.id for jobs in await asyncio.gather(*claims) for job in jobs]
    while more := await place.drive.claim(limit=10):
        won += [job.id for job in more]
    assert len(won) == len(set(won)) == 100
    assert {(await place.shown(job_id))["attempts"] for job_id in won} == {1}


@pytest.mark.requirement("SM-15")
async def test_every_transition_is_counted_and_waits_and_run_times_have_their_quantiles_by_type(
    app: tenure.App,
) -> None:
    renewed = asyncio.Event()

    @app.job(max_attempts=2, backoff=tenure.Backoff(base_seconds=0.01), lease_seconds=6)
    async def work(name: str) -> None:
        if name == "slow":
            await renewed.wait()
        if name in errors:
            raise errors[name]("because")

    errors = {"transient": TransientError, "permanent": PermanentError, "validation": ValidationError}
    store = await app.store()
    orphan = await Driver(store).running(kind="work", payload='{"name":"orphan"}', policy={"lease_seconds": 3})
    with pytest.raises(tenure.InvalidInput):
        await app.submit("work", '{"name":7}')
    async with working(app, metrics=True) as worker:
        handles = [await work.enqueue(name) for name in ("slow", "quick", *errors)]
        await eventually(lambda: is_renewed(store, handles[0].id), seconds=60)
        renewed.set()
        for handle in (*handles, tenure.Handle(app, orphan, work.definition, created=True)):
            await handle.wait(60)
        seen = worker.metrics() + app.metrics()
    counted = {
        name: seen.value(f"tenure_{name}_total", "work")
        for name in ("claims", "claim_conflicts", "lease_expiries", "retries", "failures", "dead_letters", "rejections")
    }
    # Five that were enqueued, one of them twice, and the orphan when it was taken back.
    assert counted == {
        "claims": 7,
        "claim_conflicts": 0,
        "lease_expiries": 1,
        "retries": 1,
        "failures": 2,
        "dead_letters": 1,
        "rejections": 1,
    }
    assert seen.value("tenure_lease_renewals_total", "work") >= 1
    waits, runs = (seen.histogram(f"tenure_{name}_seconds", "work") for name in ("queue_wait", "run"))
    assert waits is not None
    assert runs is not None
    assert (sum(waits.counts), sum(runs.counts)) == (7, 7)
    p50, p95 = runs.quantile(0.5), runs.quantile(0.95)
    assert p50 is not None
    assert p95 is not None
    assert p50 <= p95
    assert p95 > 1.0, "one has run for half of its lease and more"
    assert (waits.quantile(0.5) or 0) <= (waits.quantile(0.95) or 0)


@pytest.mark.requirement("SM-17")
async def test_time_never_goes_back_within_a_job_although_the_clock_does(place: Place) -> None:
    job = await place.drive.claimed()
    place.clock.advance(-30)
    job = await place.drive.apply(job, Start())
    place.clock.advance(-30)
    await place.drive.apply(job, Complete("1"))
    moments = [one.fields["ts"] for one in await place.told(job.id)]
    assert moments == sorted(moments)
    assert all(one.fields["actor"] for one in await place.told(job.id))


@pytest.mark.requirement("SM-19")
async def test_what_was_added_later_is_only_optional(place: Place) -> None:
    """A reader that knows the nine events and seven states of the first version can leave the rest aside."""
    states = {"queued", "assigned", "running", "succeeded", "failed", "cancelled", "dead_lettered"}
    for job in await one_of_each(place.drive):
        assert (await place.shown(job.id))["state"] in states
        for one in await place.told(job.id):
            assert one.name.startswith("job_")
            assert one.fields["version"] == CONTRACT_VERSION
            assert one.fields["payload"]["to"] in states


@pytest.mark.requirement("SM-20")
async def test_artifacts_are_visible_once_the_job_committed(app: tenure.App) -> None:
    @app.job()
    async def work(ctx: tenure.Context) -> str:
        ctx.attach("page.txt", "whole")
        assert await (await app.store()).artifacts(ctx.id) == [], "not before the commit"
        return "done"

    async with working(app):
        job = await work.enqueue()
        assert await job.result(20) == "done"
    [artifact] = await (await app.store()).artifacts(job.id)
    assert (artifact.name, artifact.attempt) == ("page.txt", 1)


@pytest.mark.requirement("SM-02")
@pytest.mark.parametrize("operation", [Heartbeat(), Progress(1), Complete("1"), Retry(ERROR)], ids=lambda one: one.type)
async def test_ownership_is_forfeited_when_the_lease_is_not_renewed_in_time(place: Place, operation: Operation) -> None:
    job = await place.drive.running(policy={"lease_seconds": 30})
    place.clock.advance(30)
    assert isinstance(await place.drive.refuse(job, operation), LeaseLost)
    await place.drive.apply(job.id, Stall(), Requeue(), actor=RECOVERY)
    [again] = await place.drive.claim()
    assert (again.id, again.attempt) == (job.id, 2)
