"""The job state machine v1 (SM), on both stores, in its own vocabulary."""

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
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED
from tenure.stores.contract import ClaimRequest, DeadLetterFilter, EventFilter
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver, blank_verbose, runner
from tenure.testing.store_check import check_leases, check_monotonic
from tests.conformance.system import System, check_complete, reported_by, word_of
from tests.support.in_process_worker import is_renewed, working
from tests.support.sample_jobs import one_of_each
from tests.support.waiting import eventually

WORDS = "machine"
DEAD_LETTER = DeadLetter(ReasonCode.POLICY_VIOLATION, Stage.EXEC, ERROR)


def test_every_requirement_is_shown_here_or_listed_as_missing() -> None:
    check_complete("SM", Path(__file__).read_text(encoding="utf-8"), Path(__file__).name)


async def in_state(system: System, state: str, kind: str) -> Job:
    if state == "queued":
        return await system.drive.add(kind)
    return await (system.drive.claimed(kind=kind) if state == "assigned" else system.drive.running(kind=kind))


@pytest.mark.requirement("SM-01")
@pytest.mark.parametrize("state", ["queued", "assigned", "running"])
async def test_cancelled_and_dead_lettered_are_reached_from_every_open_state(system: System, state: str) -> None:
    cancelled = await in_state(system, state, "one")
    assert (await system.shown(cancelled.id))["state"] == state
    await system.drive.apply(cancelled.id, Cancel("no need"), actor=CLIENT)
    ended = await system.shown(cancelled.id)
    assert (ended["state"], ended["reason"], (await system.names(cancelled.id))[-1]) == (
        *("cancelled", "no need", "job_cancelled"),
    )
    buried = await in_state(system, state, "two")
    await system.drive.apply(buried.id, DEAD_LETTER, actor=RECOVERY)
    assert (await system.shown(buried.id))["state"] == "dead_lettered"
    assert (await system.names(buried.id))[-1] == "job_dead_lettered"


@pytest.mark.requirement("SM-02", "SM-03")
async def test_there_is_never_more_than_one_lease_and_no_attempt_goes_back(system: System) -> None:
    job = await system.drive.running()
    assert await system.drive.claim() == []
    system.clock.advance(60)
    assert await system.recover() == 1
    [again] = await system.drive.claim(worker="worker-2")
    assert isinstance(await system.drive.refuse(job.id, Complete("1"), actor=runner(job)), LeaseLost)
    await system.drive.apply(again, Complete("1"))
    events = await system.drive.events_of(job.id)
    check_leases(events)
    check_monotonic(events)
    reported = [one.fields["payload"] for one in await system.reported(job.id)]
    for before, after in pairwise(reported):
        assert before["to"] == after["from"], "no state is left but for the one that follows"
    assert [one["attempt"] for one in reported] == sorted(one["attempt"] for one in reported)


@pytest.mark.requirement("SM-04")
async def test_a_thousand_jobs_have_one_event_for_each_transition_and_in_its_order(system: System) -> None:
    count = 1000
    added = await system.store.enqueue([system.drive.enqueue() for _ in range(count)])
    seen: Counter[str] = Counter()
    for _ in range(10):
        jobs = await system.drive.claim(limit=100)
        await system.store.apply([system.drive.request(job, Complete("1")) for job in jobs])
    for one in added:
        reported = await system.reported(one.job.id)
        assert [t.fields["payload"]["rev"] for t in reported] == [1, 2, 3, 4]
        seen.update(t.name for t in reported)
    names = ("job_enqueued", "job_claimed", "job_started", "job_succeeded")
    assert seen == dict.fromkeys(names, count)


@pytest.mark.requirement("SM-05")
async def test_a_lease_is_of_its_job_types_length_and_renewed_once_half_of_it_is_gone(system: System) -> None:
    job = await system.drive.running(policy={"lease_seconds": 90, "heartbeat_seconds": 30})
    [claimed] = [one.fields for one in await system.reported(job.id) if one.name == "job_claimed"]
    lease = claimed["payload"]["lease_expires_at"] - claimed["ts"]
    assert lease.total_seconds() == 90
    system.clock.advance(44)
    job = await system.drive.apply(job, Heartbeat())
    system.clock.advance(1)
    await system.drive.apply(job, Heartbeat())
    reported = await system.reported(job.id)
    assert [one.name for one in reported[-2:]] == ["job_heartbeat", "job_lease_renewed"]
    assert "lease_expires_at" not in reported[-2].fields["payload"]
    renewed = reported[-1].fields["payload"]["lease_expires_at"] - reported[-1].fields["ts"]
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
    system: System, policy: dict[str, Any], seconds: float, cause: str
) -> None:
    job = await system.drive.running(policy=policy)
    system.clock.advance(seconds - 0.001)
    assert await system.recover() == 0
    system.clock.advance(0.001)
    assert await system.recover() == 1
    reported = await system.reported(job.id)
    assert [one.name for one in reported[-2:]] == ["job_stalled", "job_requeued"]
    assert reported[-2].fields["cause"] == cause
    assert (await system.shown(job.id))["state"] == "queued"


@pytest.mark.requirement("SM-07", "SM-09")
@pytest.mark.parametrize(("end", "state"), [("fail", "failed"), ("dead_letter", "dead_lettered")])
async def test_a_lost_job_is_queued_again_until_its_attempts_are_used_up(system: System, end: str, state: str) -> None:
    job = await system.drive.add(policy={"max_attempts": 2, "on_exhausted": end})
    states = []
    for _ in range(2):
        await system.drive.claim()
        system.clock.advance(60)
        await system.recover()
        states.append((await system.shown(job.id))["state"])
    assert states == ["queued", state]
    if end == "dead_letter":
        letter = (await system.shown(job.id))["dead_letter"]
        assert (letter["reason_code"], letter["attempts"]) == ("infrastructure_failure", 2)


@pytest.mark.requirement("SM-07", "SM-11")
async def test_a_job_that_failed_and_then_was_lost_has_exhausted_its_retries(system: System) -> None:
    job = await system.drive.add(policy={"max_attempts": 2, "on_exhausted": "dead_letter"})
    [claimed] = await system.drive.claim()
    await system.drive.apply(claimed, Retry(ERROR, delay_seconds=0))
    await system.drive.claim()
    system.clock.advance(60)
    await system.recover()
    letter = (await system.shown(job.id))["dead_letter"]
    assert (letter["reason_code"], letter["attempts"]) == ("exhausted_retries", 2)


@pytest.mark.requirement("SM-08")
async def test_a_retry_waits_exponentially_longer_with_jitter_and_never_beyond_its_cap(system: System) -> None:
    backoff = tenure.Backoff(base_seconds=0.5, factor=2, max_seconds=60)
    delays: list[list[float]] = []
    for _ in range(4):
        job = await system.drive.add(policy={"backoff": backoff, "max_attempts": 20, "on_exhausted": "fail"})
        for _ in range(10):
            [claimed] = await system.drive.claim()
            await system.drive.apply(claimed, Retry(ERROR))
            system.clock.advance(60)
        reported = [one.fields for one in await system.reported(job.id) if one.name == "job_retry_scheduled"]
        delays.append([(one["payload"]["next_attempt_at"] - one["ts"]).total_seconds() for one in reported])
        await system.drive.apply(job.id, Cancel(), actor=CLIENT)
    for number in range(10):
        most = min(60, 0.5 * 2**number)
        assert all(most / 2 <= delay[number] <= most for delay in delays), (number, delays)
    assert len({tuple(delay) for delay in delays}) > 1, "jitter differs from job to job"


@pytest.mark.requirement("SM-09")
@pytest.mark.parametrize(("end", "state"), [("fail", "failed"), ("dead_letter", "dead_lettered")])
async def test_the_error_of_the_last_attempt_ends_the_job_by_its_policy(app: tenure.App, end: Any, state: str) -> None:
    @app.job(max_attempts=2, on_exhausted=end, backoff=tenure.Backoff(base_seconds=0.01))
    async def work() -> None:
        raise TransientError("later")

    async with working(app):
        job = await (await work.enqueue()).wait(20)
    assert (await word_of(app, job.id, WORDS), job.attempt) == (state, 2)
    names = [one.name for one in await reported_by(app, job.id, WORDS)]
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
            assert await word_of(app, (await job.wait(20)).id, WORDS) == "cancelled"
            assert await asyncio.wait_for(stopped.get(), 20) == name
            asked = "job_cancel_requested" in [one.name for one in await reported_by(app, job.id, WORDS)]
            assert asked is (name == "soft")
            assert await (await app.store()).artifacts(job.id) == []


@pytest.mark.requirement("SM-10")
async def test_a_job_without_a_lease_is_cancelled_at_once(system: System) -> None:
    job = await system.drive.add()
    await system.operator().cancel(job.id)
    assert (await system.shown(job.id))["state"] == "cancelled"
    assert await system.drive.claim() == []


@pytest.mark.requirement("SM-11")
@pytest.mark.parametrize("reason", list(ReasonCode))
async def test_every_reason_leaves_its_whole_record_which_can_be_listed_redriven_and_discarded(
    system: System, reason: ReasonCode
) -> None:
    jobs = [await system.drive.running(correlation_id="order-7", kind=f"kind-{n}") for n in range(2)]
    for job, stage in zip(jobs, (Stage.EXEC, Stage.COMMIT), strict=True):
        await system.drive.apply(job, DeadLetter(reason, stage, ERROR))
        letter = (await system.shown(job.id))["dead_letter"]
        stored = await system.store.dead_letter(job.id)
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
    page = await system.store.dead_letters(DeadLetterFilter(reason_codes=(reason,)))
    assert [one.job_id for one in page.letters] == [job.id for job in jobs]
    again = await system.operator().redrive(jobs[0].id)
    assert (again.job.origin.redrive_of, again.job.status) == (jobs[0].id, "queued")
    await system.operator().discard(jobs[1].id)
    assert (await system.store.dead_letters(DeadLetterFilter())).letters == []
    assert (await system.shown(jobs[0].id))["state"] == "dead_lettered", "the record stays as it is"


@pytest.mark.requirement("SM-11", "SM-18")
async def test_the_class_of_an_error_decides_between_retry_failure_and_dead_letter(app: tenure.App) -> None:
    errors = {"transient": TransientError, "permanent": PermanentError, "validation": ValidationError}

    @app.job(max_attempts=2, on_exhausted="fail", backoff=tenure.Backoff(base_seconds=0.01))
    async def work(name: str) -> None:
        raise errors[name]("because")

    ends = {}
    async with working(app):
        for name in errors:
            job = await (await work.enqueue(name)).wait(20)
            ends[name] = (await word_of(app, job.id, WORDS), job.attempt)
            if name == "validation":
                letter = await (await app.store()).dead_letter(job.id)
                assert letter is not None
                assert (letter.reason_code, letter.stage) == ("validation_failed", "input")
    assert ends == {"transient": ("failed", 2), "permanent": ("failed", 1), "validation": ("dead_lettered", 1)}


@pytest.mark.requirement("SM-12", "SM-16", "SM-17", "SM-19")
async def test_every_event_has_the_whole_record_and_can_be_found_by_job_type_and_correlation(system: System) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    job = await system.drive.running(correlation_id="order-7", trace=trace)
    await system.drive.apply(job, Fail(ERROR))
    reported = [one.fields for one in await system.reported(job.id)]
    fields = {"id", "job_id", "type", "ts", "actor", "correlation_id", "cause", "payload", "version", "trace_id"}
    for one in reported:
        assert set(one) == fields
        assert (one["correlation_id"], one["version"]) == ("order-7", CONTRACT_VERSION)
        assert one["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert len({one["id"] for one in reported}) == len(reported)
    assert reported[-1]["cause"] == "permanent_error"
    shown = await system.shown(job.id)
    assert (shown["correlation_id"], shown["trace_id"]) == ("order-7", reported[0]["trace_id"])
    await system.drive.add("other")
    for wanted, count in (
        (EventFilter(job_id=job.id, since=job.created_at), 4),
        (EventFilter(types=(EventType.FAILED,), since=job.created_at), 1),
        (EventFilter(correlation_id="order-7"), 4),
    ):
        page = await system.store.events(wanted)
        assert [event.job_id for event in page.events] == [job.id] * count


@pytest.mark.requirement("SM-12")
async def test_verbose_payloads_have_a_time_to_live_and_transitions_do_not(system: System) -> None:
    job = await system.drive.apply(await system.drive.running(), Progress(10, "half way"))
    job = await system.drive.apply(job, Progress(90))
    system.clock.advance(10)
    assert await blank_verbose(system.store, older_than_seconds=5) == 1
    reported = [one for one in await system.reported(job.id) if one.name == "job_progress"]
    assert ["message" in one.fields["payload"] for one in reported] == [False, False]
    assert [one.fields["payload"].get("percent") for one in reported] == [None, 90]
    assert (await system.names(job.id))[:3] == ["job_enqueued", "job_claimed", "job_started"]


@pytest.mark.requirement("SM-13")
async def test_a_repeated_claim_returns_its_jobs(system: System) -> None:
    for _ in range(3):
        await system.drive.add()
    request: ClaimRequest = system.drive.claim_request(limit=2)
    won = await system.store.claim(request)
    again = await system.store.claim(request)
    assert [(job.id, job.attempt, job.rev) for job in again] == [(job.id, 1, 3) for job in won]
    assert len(await system.drive.claim(limit=10)) == 1


@pytest.mark.requirement("SM-14")
async def test_sixty_four_claimers_at_once_never_share_a_job(system: System) -> None:
    await system.store.enqueue([system.drive.enqueue() for _ in range(100)])
    claims = [system.drive.claim(limit=2, worker=f"worker-{number}") for number in range(64)]
    won = [job.id for jobs in await asyncio.gather(*claims) for job in jobs]
    while more := await system.drive.claim(limit=10):
        won += [job.id for job in more]
    assert len(won) == len(set(won)) == 100
    assert {(await system.shown(job_id))["attempts"] for job_id in won} == {1}


@pytest.mark.requirement("SM-15")
async def test_every_transition_is_counted_and_waits_and_run_times_have_their_quantiles_by_type(
    app: tenure.App,
) -> None:
    renewed = asyncio.Event()

    @app.job(max_attempts=2, on_exhausted="fail", backoff=tenure.Backoff(base_seconds=0.01), lease_seconds=6)
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
    # Five enqueues, one of them repeated, and the requeue of the orphan.
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
async def test_time_never_goes_back_within_a_job_although_the_clock_does(system: System) -> None:
    job = await system.drive.claimed()
    system.clock.advance(-30)
    job = await system.drive.apply(job, Start())
    system.clock.advance(-30)
    await system.drive.apply(job, Complete("1"))
    timestamps = [one.fields["ts"] for one in await system.reported(job.id)]
    assert timestamps == sorted(timestamps)
    assert all(one.fields["actor"] for one in await system.reported(job.id))


@pytest.mark.requirement("SM-19")
async def test_what_was_added_later_is_only_optional(system: System) -> None:
    """A reader that knows the nine events and seven states of the first version can ignore the rest."""
    states = {"queued", "assigned", "running", "succeeded", "failed", "cancelled", "dead_lettered"}
    for job in await one_of_each(system.drive):
        assert (await system.shown(job.id))["state"] in states
        for one in await system.reported(job.id):
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


@pytest.mark.requirement("SM-21")
@pytest.mark.parametrize("undo_fails", [False, True])
async def test_a_workflow_that_fails_compensates_before_its_end(app: tenure.App, undo_fails: bool) -> None:
    def book(what: str) -> str:
        return what

    def cancel(what: str) -> None:
        if undo_fails:
            raise tenure.PermanentError(f"{what} cannot be cancelled")

    @app.workflow(max_attempts=1, on_exhausted="fail")
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=cancel).step(book, "hotel")
        raise tenure.PermanentError("no flight")

    async with working(app):
        handle = await trip.enqueue()
        job = await handle.wait(60)
        events = [event.type.value for event in await handle.events()]
    if undo_fails:
        assert job.status is DEAD_LETTERED
        assert "compensated" not in events
        [letter] = (await (await app.store()).dead_letters(DeadLetterFilter())).letters
        assert (letter.job_id, letter.reason_code) == (job.id, ReasonCode.COMPENSATION_FAILED)
    else:
        assert job.status is FAILED
        assert events[-2:] == ["compensated", "failed"]


@pytest.mark.requirement("SM-02")
@pytest.mark.parametrize("operation", [Heartbeat(), Progress(1), Complete("1"), Retry(ERROR)], ids=lambda one: one.type)
async def test_ownership_is_forfeited_when_the_lease_is_not_renewed_in_time(
    system: System, operation: Operation
) -> None:
    job = await system.drive.running(policy={"lease_seconds": 30})
    system.clock.advance(30)
    assert isinstance(await system.drive.refuse(job, operation), LeaseLost)
    await system.drive.apply(job.id, Stall(), Requeue(), actor=RECOVERY)
    [again] = await system.drive.claim()
    assert (again.id, again.attempt) == (job.id, 2)
