"""The hardening of engines (EH), on both stores, in its own vocabulary."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.app import UNKNOWN
from tenure.engines.protocol import JobDispatch
from tenure.errors import InvalidInput, PayloadRefused, UnknownKind
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.fold import contents_of, fold
from tenure.lifecycle.operations import (
    Ack,
    Cancel,
    Commit,
    Complete,
    DeadLetter,
    Fail,
    GiveUp,
    Heartbeat,
    Operation,
    Progress,
    Reconcile,
    Release,
    Requeue,
    Retry,
    Stall,
    Start,
)
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.statuses import Status
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver, runner
from tenure.testing.store_check import whole_tail
from tenure.vocabularies import TranslatedEvent, vocabulary
from tenure.vocabularies.vocabulary import epoch_ms, histories
from tests.conformance.system import System, check_complete, reported_by
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.engine_socket import connected, declare, log_of, opened_gateway, until
from tests.support.in_process_worker import working
from tests.support.sample_jobs import one_of_each

WORDS = "engine"
ENDS = ("JOB_COMPLETED", "JOB_FAILED")


class BadAsset(tenure.PermanentError):
    """What an engine calls its failure."""


def test_every_requirement_is_shown_here_or_listed_as_missing() -> None:
    check_complete("EH", Path(__file__).read_text(encoding="utf-8"), Path(__file__).name)


async def in_state(system: System, state: str, **facts: Any) -> Job:
    """A job in one of the states that are not terminal. Its engine has acknowledged a dispatched one."""
    if state == "queued":
        return await system.drive.add(**facts)
    if state == "running":
        return await system.drive.running(**facts)
    await system.drive.add(**facts)
    [job] = await system.drive.claim(role=Role.GATEWAY, start=False)
    await system.drive.apply(job, Ack(), actor=runner(job, role=Role.GATEWAY))
    return job


@pytest.mark.requirement("EH-03", "EH-11")
@pytest.mark.parametrize(("state", "seconds"), [("queued", 30), ("dispatched", 10), ("running", 60)])
async def test_a_job_that_stays_too_long_in_a_state_fails(system: System, state: str, seconds: float) -> None:
    facts: dict[str, Any] = {"policy": {**tenure.STRICT, "lease_seconds": 120, "heartbeat_seconds": 100}}
    # For a running job recovery waits 10 s longer than its owner.
    seconds += 10 if state == "running" else 0
    job = await in_state(system, state, **facts)
    assert (await system.shown(job.id))["status"] == state
    system.clock.advance(seconds - 0.001)
    assert await system.recover() == 0
    system.clock.advance(0.001)
    assert await system.recover() == 1
    shown = await system.shown(job.id)
    assert (shown["status"], shown["error"].partition(":")[0]) == ("failed", "Timeout")
    assert shown["errorCategory"] == ("system" if state == "running" else "queue")
    assert shown["durations"]["total"] == seconds * 1000
    last = (await system.reported(job.id))[-1]
    assert (last.name, last.fields["failedAt"]) == ("JOB_FAILED", shown["failedAt"])
    assert last.fields["engineId"] == (None if state == "queued" else "worker-1")


@pytest.mark.requirement("EH-03")
async def test_a_state_without_a_timeout_has_none(system: System) -> None:
    job = await system.drive.add()
    system.clock.advance(10_000_000)
    assert await system.recover() == 0
    assert (await system.shown(job.id))["status"] == "queued"


@pytest.mark.requirement("EH-05")
async def test_what_cannot_be_valid_is_refused_counted_and_logged_and_nothing_is_stored(
    app: tenure.App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(kind="BUILD_SCENE")
    async def build(setup: str, floors: int) -> None: ...

    wrong: list[tuple[str, str, type[InvalidInput]]] = [
        ("DIG_HOLE", "{}", UnknownKind),
        ("BUILD_SCENE", '{"setup":"attic"}', PayloadRefused),
        ("BUILD_SCENE", '{"setup":"attic","floors":"many"}', PayloadRefused),
        ("BUILD_SCENE", '{"setup":"attic","floors":NaN}', InvalidInput),
    ]
    for kind, payload, refusal in wrong:
        with pytest.raises(refusal):
            await app.submit(kind, payload)
    assert app.rejections == {UNKNOWN: 1, "BUILD_SCENE": 3}
    assert len([record for record in caplog.records if "rejected: " in record.getMessage()]) == 4
    assert (await app.find(tenure.JobFilter())).jobs == []


@pytest.mark.requirement("EH-06", "EH-11")
async def test_a_failure_has_its_transition_its_log_line_its_event_its_metric_and_its_category(
    app: tenure.App, caplog: pytest.LogCaptureFixture
) -> None:
    failures: dict[str, tuple[Exception, str, str]] = {
        "asset": (BadAsset("corrupted_texture.png"), "BadAsset: corrupted_texture.png", "engine"),
        "entity": (
            tenure.ValidationError("no such entity"),
            "DEAD_LETTERED: validation_failed: ValidationError: no such entity",
            "validation",
        ),
        "setup": (RuntimeError("no floor"), "RuntimeError: no floor", "engine"),
    }

    @app.job(kind="BUILD_SCENE", max_attempts=1, on_exhausted="fail")
    async def build(name: str) -> None:
        raise failures[name][0]

    with caplog.at_level(logging.WARNING):
        async with working(app, metrics=True) as worker:
            jobs = {name: await build.enqueue(name) for name in failures}
            for name, handle in jobs.items():
                job = await handle.wait(20)
                shown = vocabulary(WORDS).job(job, await handle.events())
                _, error, why = failures[name]
                assert (shown["status"], shown["error"], shown["errorCategory"]) == ("failed", error, why)
                assert (await reported_by(app, job.id, WORDS))[-1].fields["error"] == error
    for name, handle in jobs.items():
        assert any(str(handle.id) in record.getMessage() for record in caplog.records), f"{name} failed in silence"
    counted = {
        name: worker.metrics().value(f"tenure_{name}_total", "BUILD_SCENE") for name in ("failures", "dead_letters")
    }
    assert counted == {"failures": 2, "dead_letters": 1}


@pytest.mark.requirement("EH-07", "EH-08")
async def test_every_job_is_queued_first_and_completed_or_failed_last(system: System) -> None:
    for made in await one_of_each(system.drive):
        reported = await system.reported(made.id)
        shown = await system.shown(made.id)
        assert reported[0].name == "JOB_QUEUED"
        assert reported[0].fields["queuedAt"] == shown["submittedAt"]
        ends = [one for one in reported if one.name in ENDS]
        assert [one.name for one in ends] == ([] if made.live else [reported[-1].name])
        assert (shown["status"] in ("completed", "failed")) is not made.live


FIELDS = {
    *("jobId", "userId", "jobType", "payload", "status", "submittedAt", "queuedAt", "dispatchedAt", "startedAt"),
    *("completedAt", "failedAt", "error", "errorCategory", "retryCount", "engineId", "durations"),
}


@pytest.mark.requirement("EH-08")
async def test_the_job_object_has_every_field_a_timestamp_per_state_and_durations(system: System) -> None:
    job = await system.drive.add("BUILD_SCENE", submitted_by="user_123", payload='{"setup":7}')
    system.clock.advance(2)
    [job] = await system.drive.claim(role=Role.GATEWAY, kinds=("BUILD_SCENE",), worker="engine_local_01", start=False)
    engine = Actor(Role.GATEWAY, "engine_local_01", job.token)
    await system.drive.apply(job.id, Ack(), actor=engine)
    system.clock.advance(0.1)
    await system.drive.apply(job.id, Start(), actor=engine)
    system.clock.advance(4)
    await system.drive.apply(job.id, Progress(50), actor=engine)
    await system.drive.apply(job.id, Complete("1"), actor=engine)
    shown = await system.shown(job.id)
    assert set(shown) == FIELDS
    submitted = epoch_ms(job.created_at)
    assert {name: shown[name] - submitted for name in ("submittedAt", "queuedAt", "dispatchedAt", "startedAt")} == {
        "submittedAt": 0,
        "queuedAt": 0,
        "dispatchedAt": 2000,
        "startedAt": 2100,
    }
    assert shown["completedAt"] - submitted == 6100
    assert (shown["userId"], shown["jobType"], shown["payload"]) == ("user_123", "BUILD_SCENE", {"setup": 7})
    assert (shown["engineId"], shown["retryCount"], shown["status"]) == ("engine_local_01", 0, "completed")
    assert shown["durations"] == {"queued": 2000, "dispatched": 100, "running": 4000, "total": 6100}
    assert (await system.reported(job.id))[-1].fields["duration"] == 4000
    assert json.loads(json.dumps(shown)) == shown, "plain JSON"


@pytest.mark.requirement("EH-07", "EH-11")
async def test_many_jobs_at_once_each_have_their_telemetry_from_a_real_worker(app: tenure.App) -> None:
    @app.job(max_attempts=2, on_exhausted="fail", backoff=tenure.Backoff(base_seconds=0.01))
    async def work(ctx: tenure.Context, number: int) -> int:
        ctx.progress(50)
        if number % 3 == 0 and ctx.attempt == 1:
            raise tenure.TransientError("again")
        if number % 5 == 0:
            raise tenure.PermanentError("never")
        return number

    async with working(app, concurrency=8):
        jobs = await app.enqueue_many(work.request(number) for number in range(40))
        for handle in jobs:
            await handle.wait(30)
    for number, handle in enumerate(jobs):
        reported = await reported_by(app, handle.id, WORDS)
        names = [one.name for one in reported if one.name != "JOB_PROGRESS"]
        rounds = 2 if number % 3 == 0 else 1
        end = "JOB_FAILED" if number % 5 == 0 else "JOB_COMPLETED"
        assert names == ["JOB_QUEUED", "JOB_DISPATCHED", "JOB_RUNNING"] * rounds + [end]
        timestamps = [value for one in reported for name, value in one.fields.items() if name.endswith("At")]
        assert timestamps == sorted(timestamps)


@pytest.mark.requirement("EH-09")
async def test_the_state_of_a_job_at_any_revision_can_be_replayed(system: System) -> None:
    job = await system.drive.running()
    seen = {job.rev: await system.shown(job.id)}
    for operation in (Heartbeat(), Progress(50), Fail(ERROR)):
        system.clock.advance(1)
        job = await system.drive.apply(job, operation)
        seen[job.rev] = await system.shown(job.id)
    row, events = await system.drive.seen(job.id)
    assert row is not None
    for rev, then in seen.items():
        past = fold(row.origin, events[:rev], contents_of(row))
        assert past is not None
        assert vocabulary(WORDS).job(past, events[:rev]) == then


@pytest.mark.requirement("EH-09", "EH-07")
async def test_the_stream_resumes_from_any_position_without_gap_or_repetition(system: System) -> None:
    made = await one_of_each(system.drive)
    whole = await whole_tail(system.store, expected=sum(job.rev for job in made))
    origins = {job.id: job.origin for job in made}
    logs = await system.store.history(list(origins))
    words = vocabulary(WORDS)
    translated: dict[str, list[TranslatedEvent]] = {
        event.id: words.translate(history)
        for job_id, log in logs.items()
        for event, history in zip(log, histories(origins[job_id], log), strict=True)
    }
    everything = [reported for event in whole for reported in translated[event.id]]
    for place_in_log in range(0, len(whole), 7):
        rest = (await system.store.tail(after=whole[place_in_log].position, limit=1000)).events
        before = [reported for event in whole[: place_in_log + 1] for reported in translated[event.id]]
        assert [*before, *(reported for event in rest for reported in translated[event.id])] == everything


@pytest.mark.requirement("EH-10")
async def test_old_and_new_names_can_be_emitted_together_and_the_old_ones_left_out(database: Database) -> None:
    async with database.opened() as store:
        drive = Driver(store)
        job = await drive.apply(await drive.running(), Complete("1"))

    def tail(*vocabularies: str) -> list[tuple[str, str]]:
        options = [option for name in vocabularies for option in ("--vocabulary", name)]
        answer = command("jobs", "tail", str(job.id), "--json", "--database", database.url, *options)
        assert answer.code == 0, answer
        lines = [json.loads(line) for line in answer.out.splitlines()]
        return [(line["vocabulary"], line["name"]) for line in lines]

    old = [("engine-old", name) for name in ("JOB_QUEUED", "JOB_STARTED", "JOB_FINISHED")]
    new = [("engine", name) for name in ("JOB_QUEUED", "JOB_DISPATCHED", "JOB_RUNNING", "JOB_COMPLETED")]
    both = await asyncio.to_thread(tail, "engine-old", "engine")
    assert [one for one in both if one in old] == old
    assert [one for one in both if one in new] == new
    assert len(both) == len(old) + len(new)
    assert await asyncio.to_thread(tail, "engine") == new


VALID = {
    # "Valid Transitions": queued → dispatched ✅, dispatched → running ✅, running → completed ✅, running → failed ✅
    *(("queued", "dispatched"), ("dispatched", "running"), ("running", "completed"), ("running", "failed")),
    # "Timeout Rules": `queued` → `failed` after 30s, `dispatched` → `failed` after 10s, `running` → `failed` after 60s
    *(("queued", "failed"), ("dispatched", "failed")),
}
EXTENDED = {("running", "queued"), ("dispatched", "queued")}
"""The listed extensions: the end of an attempt."""


async def checked_transitions(system: System, job: Job) -> list[tuple[str | None, str]]:
    """The reported transitions. Each is valid, or a listed extension that is marked as one."""
    found = [one.transition for one in await system.reported(job.id) if one.transition is not None]
    for one in found[1:]:
        assert (one.before, one.after) in (EXTENDED if one.extension else VALID)
    assert (found[0].before, found[0].after) == (None, "queued")
    return [(one.before, one.after) for one in found[1:]]


STARTED = [("queued", "dispatched"), ("dispatched", "running")]
ENDED: dict[str, tuple[list[Operation], dict[str, Any], list[tuple[str, str]]]] = {
    "lost, and tried again": ([Stall(), Requeue()], {}, [*STARTED, ("running", "queued")]),
    "lost, on_lost fail": ([Stall(), GiveUp(ERROR)], {"on_lost": "fail"}, [*STARTED, ("running", "failed")]),
    "lost, on_lost dead_letter": (
        [Stall(), DeadLetter(ReasonCode.INFRASTRUCTURE_FAILURE, Stage.EXEC, ERROR)],
        {"on_lost": "dead_letter"},
        [*STARTED, ("running", "failed")],
    ),
    "lost, and exhausted": (
        [Stall(), GiveUp(ERROR)],
        {"max_attempts": 1, "on_exhausted": "fail"},
        [*STARTED, ("running", "failed")],
    ),
}


@pytest.mark.requirement("EH-12")
@pytest.mark.parametrize("name", list(ENDED))
async def test_a_lost_engine_is_one_valid_transition(system: System, name: str) -> None:
    operations, policy, expected = ENDED[name]
    job = await system.drive.running(policy=policy)
    system.clock.advance(60)
    for operation in operations:
        await system.drive.apply(job.id, operation, actor=RECOVERY)
    assert await checked_transitions(system, job) == expected


@pytest.mark.requirement("EH-12")
async def test_a_committed_job_is_completed_from_running_although_its_engine_was_lost(system: System) -> None:
    job = await system.drive.apply(await system.drive.running(), Commit("1"))
    system.clock.advance(60)
    await system.drive.apply(job.id, Stall(), actor=RECOVERY)
    assert (await system.shown(job.id))["status"] == "running"
    await system.drive.apply(job.id, Reconcile(), actor=RECOVERY)
    assert await checked_transitions(system, job) == [*STARTED, ("running", "completed")]


@pytest.mark.requirement("EH-12")
async def test_an_attempt_that_never_started_is_reported_as_queued_until_its_job_ends(system: System) -> None:
    job = await system.drive.claimed()
    job = await system.drive.apply(job, Release())
    assert await checked_transitions(system, job) == []
    await system.drive.apply(job.id, Cancel(), actor=CLIENT)
    assert await checked_transitions(system, job) == [("queued", "failed")]


@pytest.mark.requirement("EH-12")
async def test_a_retried_job_is_dispatched_again_with_the_next_attempt(system: System) -> None:
    job = await system.drive.running()
    await system.drive.apply(job, Retry(ERROR, delay_seconds=0))
    [again] = await system.drive.claim()
    await system.drive.apply(again, Complete("1"))
    assert await checked_transitions(system, job) == [
        *STARTED,
        ("running", "queued"),
        *STARTED,
        ("running", "completed"),
    ]
    assert again.attempt == job.attempt + 1


@pytest.mark.requirement("EH-12")
async def test_every_job_of_a_database_is_reported_by_valid_transitions(system: System) -> None:
    for job in await one_of_each(system.drive):
        await checked_transitions(system, job)


@pytest.mark.requirement("EH-02")
@pytest.mark.parametrize(("on_timeout", "status"), [("fail", Status.FAILED), ("retry", Status.QUEUED)])
async def test_a_dispatch_that_the_engine_does_not_acknowledge_ends_by_policy(
    database: Database, on_timeout: str, status: Status
) -> None:
    async with database.opened(), tenure.App(database.url) as app:
        render = declare(app, on_timeout=on_timeout, timeouts=tenure.Timeouts(claimed_seconds=2.0))
        async with opened_gateway(app) as gateway:
            handle = await render.enqueue("intro")
            async with connected(gateway, "render", capacity=1) as engine:
                await engine.next(JobDispatch)
                # It takes no further job, so that the returned one stays where it is.
                await engine.acked(engine.say("drain"))
                job = await until(app, handle, status)
        shown = vocabulary(WORDS).job(job, await log_of(app, handle))
        assert shown["errorCategory"] == ("queue" if on_timeout == "fail" else None)
        assert shown["dispatchedAt"] is None


@pytest.mark.requirement("EH-04", "EH-06")
@pytest.mark.parametrize(("on_lost", "status"), [("fail", Status.FAILED), ("requeue", Status.QUEUED)])
async def test_all_jobs_of_an_engine_whose_socket_closed_end_by_policy(
    database: Database, on_lost: str, status: Status, caplog: pytest.LogCaptureFixture
) -> None:
    async with database.opened(), tenure.App(database.url) as app:
        render = declare(app, on_lost=on_lost, heartbeat_seconds=2.0)
        async with opened_gateway(app) as gateway:
            handles = await app.enqueue_many(render.request(str(number)) for number in range(50))
            async with connected(gateway, "render", capacity=50) as engine:
                for _ in handles:
                    await engine.acked(engine.about(await engine.next(JobDispatch), "job_started"))
            for handle in handles:
                job = await until(app, handle, status)
                shown = vocabulary(WORDS).job(job, await log_of(app, handle))
                assert (shown["engineId"], job.losses) == ("e1", 1)
                assert shown["errorCategory"] == ("system" if on_lost == "fail" else None)
    recovered = [record for record in caplog.records if "recovered from running" in record.getMessage()]
    assert len(recovered) == 50


@pytest.mark.requirement("EH-01", "EH-07", "EH-12")
@pytest.mark.parametrize("first", ["job_ack", "job_started", "job_progress", "job_complete"])
async def test_a_remote_engine_reports_a_job_from_its_dispatch_to_its_end(database: Database, first: str) -> None:
    """Whatever the engine reports first, the stream has every state on the way."""
    async with database.opened(), tenure.App(database.url) as app:
        render = declare(app)
        messages: dict[str, dict[str, Any]] = {
            "job_ack": {},
            "job_started": {},
            "job_progress": {"percent": 50},
            "job_complete": {"result": "done.png"},
        }
        names = list(messages)
        async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
            handle = await render.enqueue("intro")
            dispatch = await engine.next(JobDispatch)
            for name in names[names.index(first) :]:
                ack = await engine.acked(engine.about(dispatch, name, **messages[name]))
                assert ack.outcome == "recorded"
        reported = [one.name for one in await reported_by(app, handle.id, WORDS)]
        progress = [] if first == "job_complete" else ["JOB_PROGRESS"]
        assert reported == ["JOB_QUEUED", "JOB_DISPATCHED", "JOB_RUNNING", *progress, "JOB_COMPLETED"]
        assert (await log_of(app, handle))[-1].to_status is Status.SUCCEEDED
