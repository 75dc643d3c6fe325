"""The hardening of engines (EH), on both stores and in its own words."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.app import UNKNOWN
from tenure.errors import InvalidInput, PayloadRefused, UnknownKind
from tenure.lifecycle.fold import contents_of, fold
from tenure.lifecycle.operations import Complete, Fail, Heartbeat, Progress, Start
from tenure.lifecycle.records import Timeouts
from tenure.testing.driver import ERROR, Driver
from tenure.testing.store_check import whole_tail
from tenure.vocabularies import TranslatedEvent, vocabulary
from tenure.vocabularies.vocabulary import epoch_ms, histories
from tests.conformance.places import Place, check_complete, told_by
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.sample_jobs import one_of_each

WORDS = "engine"
OPEN = {
    "EH-01": "remote engines: the socket, its protocol and the reference engines",
    "EH-02": "the acknowledgement of an engine, and what becomes of a job that is not acknowledged",
    "EH-04": "the detection of a lost engine and what becomes of its jobs",
    "EH-11": "failures that a remote engine reports, a cut network to it, and the benchmark of dispatch times",
}
STRICT = Timeouts(queued_seconds=30, claimed_seconds=10, running_seconds=60)
"""The strict profile."""
ENDS = ("JOB_COMPLETED", "JOB_FAILED")


class BadAsset(tenure.PermanentError):
    """What an engine calls its failure."""


def test_every_requirement_is_shown_here_or_listed_as_open() -> None:
    check_complete("EH", Path(__file__).read_text(encoding="utf-8"), Path(__file__).name, OPEN)


@pytest.mark.requirement("EH-03", "EH-11")
@pytest.mark.parametrize(("state", "seconds"), [("queued", 30), ("dispatched", 10), ("running", 60)])
async def test_a_job_that_stays_too_long_in_a_state_fails(place: Place, state: str, seconds: float) -> None:
    facts: dict[str, Any] = {"policy": {"timeouts": STRICT, "lease_seconds": 120, "heartbeat_seconds": 100}}
    if state == "queued":
        job = await place.drive.add(**facts)
    else:
        job = await (place.drive.claimed(**facts) if state == "dispatched" else place.drive.running(**facts))
    assert (await place.shown(job.id))["status"] == state
    place.clock.advance(seconds - 0.001)
    assert await place.recover() == 0
    place.clock.advance(0.001)
    assert await place.recover() == 1
    shown = await place.shown(job.id)
    assert (shown["status"], shown["error"].partition(":")[0]) == ("failed", "Timeout")
    assert shown["errorCategory"] == ("system" if state == "running" else "queue")
    assert shown["durations"]["total"] == seconds * 1000
    last = (await place.told(job.id))[-1]
    assert (last.name, last.fields["failedAt"]) == ("JOB_FAILED", shown["failedAt"])
    assert last.fields["engineId"] == (None if state == "queued" else "worker-1")


@pytest.mark.requirement("EH-03")
async def test_a_state_without_a_timeout_has_none(place: Place) -> None:
    job = await place.drive.add()
    place.clock.advance(10_000_000)
    assert await place.recover() == 0
    assert (await place.shown(job.id))["status"] == "queued"


@pytest.mark.requirement("EH-05")
async def test_what_cannot_be_valid_is_refused_counted_and_logged_and_nothing_is_stored(
    app: tenure.App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(kind="BUILD_SCENE")
    async def build(scene: str, floors: int) -> None: ...

    wrong: list[tuple[str, str, type[InvalidInput]]] = [
        ("DIG_HOLE", "{}", UnknownKind),
        ("BUILD_SCENE", '{"scene":"attic"}', PayloadRefused),
        ("BUILD_SCENE", '{"scene":"attic","floors":"many"}', PayloadRefused),
        ("BUILD_SCENE", '{"scene":"attic","floors":NaN}', InvalidInput),
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
        "scene": (RuntimeError("no floor"), "RuntimeError: no floor", "engine"),
    }

    @app.job(kind="BUILD_SCENE", max_attempts=1)
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
                assert (await told_by(app, job.id, WORDS))[-1].fields["error"] == error
    for name, handle in jobs.items():
        assert any(str(handle.id) in record.getMessage() for record in caplog.records), f"{name} failed in silence"
    counted = {
        name: worker.metrics().value(f"tenure_{name}_total", "BUILD_SCENE") for name in ("failures", "dead_letters")
    }
    assert counted == {"failures": 2, "dead_letters": 1}


@pytest.mark.requirement("EH-07", "EH-08")
async def test_every_job_is_queued_first_and_completed_or_failed_last(place: Place) -> None:
    for made in await one_of_each(place.drive):
        told = await place.told(made.id)
        shown = await place.shown(made.id)
        assert told[0].name == "JOB_QUEUED"
        assert told[0].fields["queuedAt"] == shown["submittedAt"]
        ends = [one for one in told if one.name in ENDS]
        assert [one.name for one in ends] == ([] if made.live else [told[-1].name])
        assert (shown["status"] in ("completed", "failed")) is not made.live


FIELDS = {
    *("jobId", "userId", "jobType", "payload", "status", "submittedAt", "queuedAt", "dispatchedAt", "startedAt"),
    *("completedAt", "failedAt", "error", "errorCategory", "retryCount", "engineId", "durations"),
}


@pytest.mark.requirement("EH-08")
async def test_the_job_object_has_every_field_a_moment_per_state_and_durations(place: Place) -> None:
    job = await place.drive.add("BUILD_SCENE", submitted_by="user_123", payload='{"scene":7}')
    place.clock.advance(2)
    [job] = await place.drive.claim(kinds=("BUILD_SCENE",), worker="engine_local_01", start=False)
    place.clock.advance(0.1)
    job = await place.drive.apply(job, Start())
    place.clock.advance(4)
    job = await place.drive.apply(job, Progress(50))
    await place.drive.apply(job, Complete("1"))
    shown = await place.shown(job.id)
    assert set(shown) == FIELDS
    submitted = epoch_ms(job.created_at)
    assert {name: shown[name] - submitted for name in ("submittedAt", "queuedAt", "dispatchedAt", "startedAt")} == {
        "submittedAt": 0,
        "queuedAt": 0,
        "dispatchedAt": 2000,
        "startedAt": 2100,
    }
    assert shown["completedAt"] - submitted == 6100
    assert (shown["userId"], shown["jobType"], shown["payload"]) == ("user_123", "BUILD_SCENE", {"scene": 7})
    assert (shown["engineId"], shown["retryCount"], shown["status"]) == ("engine_local_01", 0, "completed")
    assert shown["durations"] == {"queued": 2000, "dispatched": 100, "running": 4000, "total": 6100}
    assert (await place.told(job.id))[-1].fields["duration"] == 4000
    assert json.loads(json.dumps(shown)) == shown, "plain JSON"


@pytest.mark.requirement("EH-07", "EH-11")
async def test_many_jobs_at_once_each_have_their_telemetry_from_a_real_worker(app: tenure.App) -> None:
    @app.job(max_attempts=2, backoff=tenure.Backoff(base_seconds=0.01))
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
        told = await told_by(app, handle.id, WORDS)
        names = [one.name for one in told if one.name != "JOB_PROGRESS"]
        rounds = 2 if number % 3 == 0 else 1
        end = "JOB_FAILED" if number % 5 == 0 else "JOB_COMPLETED"
        assert names == ["JOB_QUEUED", "JOB_DISPATCHED", "JOB_RUNNING"] * rounds + [end]
        moments = [value for one in told for name, value in one.fields.items() if name.endswith("At")]
        assert moments == sorted(moments)


@pytest.mark.requirement("EH-09")
async def test_the_job_can_be_seen_as_it_was_at_any_moment(place: Place) -> None:
    job = await place.drive.running()
    seen = {job.rev: await place.shown(job.id)}
    for operation in (Heartbeat(), Progress(50), Fail(ERROR)):
        place.clock.advance(1)
        job = await place.drive.apply(job, operation)
        seen[job.rev] = await place.shown(job.id)
    row, events = await place.drive.seen(job.id)
    assert row is not None
    for rev, then in seen.items():
        past = fold(row.origin, events[:rev], contents_of(row))
        assert past is not None
        assert vocabulary(WORDS).job(past, events[:rev]) == then


@pytest.mark.requirement("EH-09", "EH-07")
async def test_the_stream_goes_on_from_any_position_without_gap_or_repetition(place: Place) -> None:
    made = await one_of_each(place.drive)
    whole = await whole_tail(place.store, expected=sum(job.rev for job in made))
    origins = {job.id: job.origin for job in made}
    logs = await place.store.history(list(origins))
    words = vocabulary(WORDS)
    said: dict[str, list[TranslatedEvent]] = {
        event.id: words.translate(history)
        for job_id, log in logs.items()
        for event, history in zip(log, histories(origins[job_id], log), strict=True)
    }
    everything = [told for event in whole for told in said[event.id]]
    for place_in_log in range(0, len(whole), 7):
        rest = (await place.store.tail(after=whole[place_in_log].position, limit=1000)).events
        before = [told for event in whole[: place_in_log + 1] for told in said[event.id]]
        assert [*before, *(told for event in rest for told in said[event.id])] == everything


@pytest.mark.requirement("EH-10")
async def test_old_and_new_names_are_told_side_by_side_and_the_old_ones_can_be_left_out(database: Database) -> None:
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
