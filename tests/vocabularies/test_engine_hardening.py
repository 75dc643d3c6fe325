"""The engines' telemetry and job object: engine, timestamp and duration of each state, and the failure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from simulation.model.store import ModelStore
from tenure.errors import InvalidInput
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Ack,
    Cancel,
    Complete,
    DeadLetter,
    Fail,
    GiveUp,
    Halt,
    Operation,
    Progress,
    Release,
    Requeue,
    Retry,
    Stall,
    Start,
    TimeOut,
)
from tenure.lifecycle.records import Actor, Event, EventType, Job, Role
from tenure.lifecycle.statuses import TERMINAL, Status
from tenure.lifecycle.timeouts import Timeouts
from tenure.lifecycle.transitions import legal_events
from tenure.testing.clock import START, ManualClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver
from tenure.vocabularies import JobHistory, TranslatedEvent, vocabulary
from tenure.vocabularies.engine_hardening import CATEGORIES, Category, category, error_text
from tenure.vocabularies.engine_legacy import NEW_NAMES, new_name
from tenure.vocabularies.vocabulary import epoch_ms
from tests.support.situations import SITUATIONS, Situation
from tests.vocabularies.records import RECIPES
from tests.vocabularies.records import brought_about as record_of
from tests.vocabularies.test_vocabularies import brought_about, event

ENGINE, OLD = vocabulary("engine"), vocabulary("engine-old")
BEGIN = epoch_ms(START)
FIELDS = {
    "JOB_QUEUED": ["jobId", "jobType", "userId", "queuedAt"],
    "JOB_DISPATCHED": ["jobId", "engineId", "dispatchedAt"],
    "JOB_RUNNING": ["jobId", "engineId", "startedAt"],
    "JOB_PROGRESS": ["jobId", "progress"],
    "JOB_COMPLETED": ["jobId", "engineId", "completedAt", "duration"],
    "JOB_FAILED": ["jobId", "engineId", "failedAt", "error", "duration"],
}


class Life:
    """One job on a model store whose clock advances a second with each step."""

    def __init__(self, *, role: Role = Role.POOL) -> None:
        self.clock = ManualClock()
        self.drive = Driver(ModelStore(self.clock))
        self.role = role

    async def begin(self, **facts: Any) -> Job:
        self.job = await self.drive.add(**{"submitted_by": "ada", "payload": '{"setup":7}', **facts})
        return self.job

    async def claim(self) -> None:
        self.clock.advance(1)
        [self.job] = await self.drive.claim(role=self.role, worker="engine-1", start=False)

    async def do(self, *operations: Operation, actor: Actor | None = None) -> None:
        self.clock.advance(1)
        owner = Actor(Role.GATEWAY if self.role is Role.GATEWAY else Role.RUNNER, "engine-1", self.job.token)
        token = self.job.token
        self.job = await self.drive.apply(self.job.id, *operations, actor=actor or owner)
        self.job = msgspec.structs.replace(self.job, token=token)

    async def log(self) -> list[Event]:
        return await self.drive.events_of(self.job.id)

    async def translated(self) -> list[TranslatedEvent]:
        log = await self.log()
        return ENGINE.translate_log(self.job.origin, log)

    async def object(self) -> dict[str, Any]:
        return ENGINE.job(await self.drive.job(self.job.id), await self.log())


@pytest.mark.requirement("EH-07", "EH-08")
async def test_the_log_of_a_completed_job_has_every_required_field() -> None:
    life = Life(role=Role.GATEWAY)
    await life.begin()
    await life.claim()
    await life.do(Ack())
    await life.do(Start())
    await life.do(Progress(40))
    await life.do(Complete("1"))
    job_id = str(life.job.id)
    assert [(one.name, one.fields) for one in await life.translated()] == [
        ("JOB_QUEUED", {"jobId": job_id, "jobType": "mail", "userId": "ada", "queuedAt": BEGIN}),
        ("JOB_DISPATCHED", {"jobId": job_id, "engineId": "engine-1", "dispatchedAt": BEGIN + 2000}),
        ("JOB_RUNNING", {"jobId": job_id, "engineId": "engine-1", "startedAt": BEGIN + 3000}),
        ("JOB_PROGRESS", {"jobId": job_id, "progress": 40}),
        (
            "JOB_COMPLETED",
            {"jobId": job_id, "engineId": "engine-1", "completedAt": BEGIN + 5000, "duration": 2000},
        ),
    ]
    assert await life.object() == {
        "jobId": job_id,
        "userId": "ada",
        "jobType": "mail",
        "payload": {"setup": 7},
        "status": "completed",
        "submittedAt": BEGIN,
        "queuedAt": BEGIN,
        "dispatchedAt": BEGIN + 2000,
        "startedAt": BEGIN + 3000,
        "completedAt": BEGIN + 5000,
        "failedAt": None,
        "error": None,
        "errorCategory": None,
        "retryCount": 0,
        "engineId": "engine-1",
        "durations": {"queued": 2000, "dispatched": 1000, "running": 2000, "total": 5000},
    }


@pytest.mark.requirement("EH-07")
async def test_a_job_is_dispatched_at_the_first_acknowledgement_of_its_engine() -> None:
    life = Life(role=Role.GATEWAY)
    await life.begin()
    await life.claim()
    assert [one.name for one in await life.translated()] == ["JOB_QUEUED"]
    waiting = await life.object()
    assert (waiting["status"], waiting["dispatchedAt"], waiting["engineId"]) == ("queued", None, "engine-1")
    await life.do(Ack())
    await life.do(Ack())
    assert [one.name for one in await life.translated()] == ["JOB_QUEUED", "JOB_DISPATCHED"]
    dispatched = await life.object()
    assert (dispatched["status"], dispatched["dispatchedAt"]) == ("dispatched", BEGIN + 2000)


@pytest.mark.parametrize("role", [Role.POOL, Role.GATEWAY])
@pytest.mark.requirement("EH-07", "EH-12")
async def test_a_start_without_an_acknowledgement_is_also_the_acknowledgement(role: Role) -> None:
    life = Life(role=role)
    await life.begin()
    await life.claim()
    assert (await life.object())["status"] == "queued"
    await life.do(Start())
    assert [one.name for one in await life.translated()] == ["JOB_QUEUED", "JOB_DISPATCHED", "JOB_RUNNING"]
    started = await life.object()
    assert started["dispatchedAt"] == started["startedAt"] == BEGIN + 2000
    assert started["durations"] == {"queued": 2000, "dispatched": 0, "running": 0, "total": None}


@pytest.mark.requirement("EH-08")
async def test_a_retried_job_is_queued_again_and_counts_its_failures() -> None:
    life = Life()
    await life.begin()
    await life.claim()
    await life.do(Start())
    await life.do(Retry(ERROR, delay_seconds=0))
    again = await life.object()
    assert (again["status"], again["retryCount"], again["queuedAt"]) == ("queued", 1, BEGIN + 3000)
    assert (again["submittedAt"], again["startedAt"], again["error"]) == (BEGIN, BEGIN + 2000, None)
    await life.claim()
    await life.do(Start())
    await life.do(Fail(ERROR))
    ended = await life.object()
    assert (ended["status"], ended["retryCount"], ended["error"]) == ("failed", 2, "ValueError: no")
    assert ended["durations"] == {"queued": 4000, "dispatched": 0, "running": 2000, "total": 6000}
    extensions = [one.name for one in await life.translated() if one.extension]
    assert extensions == ["JOB_QUEUED"], "the return to queued is marked"
    names = [one.name for one in await life.translated()]
    assert names == ["JOB_QUEUED", "JOB_DISPATCHED", "JOB_RUNNING"] * 2 + ["JOB_FAILED"]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
@pytest.mark.requirement("EH-07", "EH-08")
async def test_telemetry_starts_with_queued_and_ends_with_exactly_one_end(situation: Situation) -> None:
    job, events = await brought_about(situation)
    translated = ENGINE.translate_log(job.origin, events)
    assert all(list(one.fields) == FIELDS[one.name] for one in translated)
    assert translated[0].name == "JOB_QUEUED"
    ends = [one for one in translated if one.name in ("JOB_COMPLETED", "JOB_FAILED")]
    assert ends == translated[-1:] if job.status in TERMINAL else ends == []
    fields = ENGINE.job(job, events)
    timestamp = {"queued": "queuedAt", "dispatched": "dispatchedAt", "running": "startedAt"} | {
        "completed": "completedAt",
        "failed": "failedAt",
    }
    timestamps = [fields[name] for name in ("submittedAt", *timestamp.values()) if fields[name] is not None]
    assert fields[timestamp[fields["status"]]] == max(timestamps)
    assert fields["submittedAt"] == min(timestamps)


ENDS: dict[str, tuple[Operation, Actor | None, str, Category | None]] = {
    "fail": (Fail(ERROR), None, "ValueError: no", Category.ENGINE),
    "an engine's own code": (
        Fail('{"type":"BAD_ASSET","message":"corrupted_texture.png"}'),
        None,
        "BAD_ASSET: corrupted_texture.png",
        Category.ENGINE,
    ),
    "an error without a message": (Fail('["odd"]'), None, '["odd"]', Category.ENGINE),
    "halt": (Halt("cost", "[1]"), None, "HALTED: cost", None),
    "cancel": (Cancel("no need"), CLIENT, "CANCELLED: no need", None),
}


@pytest.mark.parametrize("name", list(ENDS))
@pytest.mark.requirement("EH-06", "EH-07")
async def test_an_end_without_a_result_has_its_error(name: str) -> None:
    operation, actor, text, why = ENDS[name]
    life = Life()
    await life.begin()
    await life.claim()
    await life.do(Start())
    await life.do(operation, actor=actor)
    fields = await life.object()
    assert (fields["status"], fields["error"], fields["errorCategory"]) == ("failed", text, why)
    assert (await life.translated())[-1].fields["error"] == text


@pytest.mark.parametrize("reason", list(ReasonCode))
@pytest.mark.requirement("EH-06", "SM-11")
async def test_every_reason_of_a_dead_letter_has_a_category(reason: ReasonCode) -> None:
    assert set(CATEGORIES) == set(ReasonCode)
    life = Life()
    await life.begin()
    await life.claim()
    await life.do(Start())
    await life.do(DeadLetter(reason, Stage.EXEC, ERROR))
    fields = await life.object()
    assert fields["error"] == f"DEAD_LETTERED: {reason}: ValueError: no"
    assert fields["errorCategory"] == CATEGORIES[reason]
    letter = vocabulary("machine").job(life.job, await life.log())["dead_letter"]
    assert (letter["reason_code"], letter["stage"], letter["last_owner"]) == (reason, "exec", "engine-1")


@pytest.mark.requirement("EH-06")
async def test_a_timeout_before_the_start_is_the_queues_and_after_it_the_systems() -> None:
    timeouts = Timeouts(queued_seconds=1, claimed_seconds=1, running_seconds=1)
    expected = {0: Category.QUEUE, 1: Category.QUEUE, 2: Category.SYSTEM}
    for steps, why in expected.items():
        life = Life()
        await life.begin(policy={"timeouts": timeouts, "on_timeout": "fail"})
        if steps:
            life.clock.advance(-1)
            await life.claim()
        if steps == 2:
            life.clock.advance(-1)
            await life.do(Start())
        await life.do(TimeOut('{"type":"Timeout","message":"too long"}'), actor=RECOVERY)
        fields = await life.object()
        assert (fields["error"], fields["errorCategory"]) == ("Timeout: too long", why), steps
        assert fields["engineId"] == (None if steps == 0 else "engine-1")
        assert (await life.translated())[-1].fields["duration"] == (1000 if steps == 2 else None)


LOST: tuple[tuple[dict[str, Any], Operation], ...] = (
    ({"on_lost": "fail"}, GiveUp(ERROR)),
    ({"on_lost": "dead_letter"}, DeadLetter(ReasonCode.EXHAUSTED_RETRIES, Stage.EXEC, ERROR)),
)


@pytest.mark.parametrize(("policy", "operation"), LOST, ids=["fail", "dead_letter"])
@pytest.mark.parametrize("begun", [(), (Ack(),), (Start(),)], ids=["claimed", "acked", "started"])
@pytest.mark.requirement("EH-06", "EH-12")
async def test_a_lost_engine_is_the_systems_failure_once_it_has_started_and_the_queues_before(
    policy: dict[str, Any], operation: Operation, begun: tuple[Operation, ...]
) -> None:
    life = Life(role=Role.GATEWAY)
    await life.begin(policy=policy)
    await life.claim()
    for one in begun:
        await life.do(one)
    before = (await life.object())["status"]
    life.clock.advance(60)
    await life.do(Stall(), actor=RECOVERY)
    assert (await life.object())["status"] == before, "the stall and the end are one transition"
    await life.do(operation, actor=RECOVERY)
    assert (await life.object())["errorCategory"] == (Category.SYSTEM if before == "running" else Category.QUEUE)
    last = (await life.translated())[-1]
    assert last.transition is not None
    assert (last.name, last.transition.before, last.extension) == ("JOB_FAILED", before, False)


@pytest.mark.parametrize("step", sorted(legal_events(), key=str), ids=lambda step: "-".join(str(part) for part in step))
def test_only_an_end_without_a_result_has_an_error(step: tuple[EventType, Status | None, Status]) -> None:
    kind, _, after = step
    wrong = after in TERMINAL and after is not Status.SUCCEEDED
    end = JobHistory.of(None, [event(*step)]).step
    assert (error_text(end.event) is not None) is wrong
    assert (category(end) is not None) is (kind in (EventType.FAILED, EventType.DEAD_LETTERED))


@pytest.mark.requirement("EH-10")
@pytest.mark.parametrize("name", list(RECIPES))
async def test_every_old_word_maps_to_the_new_one(name: str) -> None:
    job, events = await record_of(name)
    old, new = OLD.status(job, events), ENGINE.status(job, events)
    if new == "dispatched":
        assert old == "queued", "the old names have no dispatched: a job that had not started was queued"
    else:
        assert new_name(old) == new


@pytest.mark.requirement("EH-10")
def test_an_unknown_old_name_is_refused_with_the_known_ones() -> None:
    assert NEW_NAMES == {"queued": "queued", "started": "running", "finished": "completed", "failed": "failed"}
    with pytest.raises(
        InvalidInput, match="'running' is not an old status; known are: queued, started, finished, failed"
    ):
        new_name("running")


@pytest.mark.requirement("EH-10")
async def test_the_old_names_have_the_same_events_without_the_dispatch() -> None:
    life = Life()
    await life.begin()
    await life.claim()
    await life.do(Start())
    await life.do(Progress(1))
    await life.do(Release())
    await life.do(Requeue(), actor=RECOVERY)
    await life.claim()
    await life.do(Start())
    await life.do(Complete("1"))
    log = await life.log()
    old = OLD.translate_log(life.job.origin, log)
    names = ["JOB_QUEUED", "JOB_STARTED", "JOB_PROGRESS", "JOB_QUEUED", "JOB_STARTED", "JOB_FINISHED"]
    assert [one.name for one in old] == names
    new = [one for one in await life.translated() if one.name != "JOB_DISPATCHED"]
    assert [one.fields for one in old] == [one.fields for one in new]
    job = await life.drive.job(life.job.id)
    assert OLD.job(job, log) == {**ENGINE.job(job, log), "status": "finished"}


@pytest.mark.requirement("EH-07")
async def test_what_retention_has_removed_is_null() -> None:
    life = Life()
    await life.begin()
    await life.claim()
    await life.do(Start())
    await life.do(Fail(ERROR))
    first, *_, last = await life.log()
    [queued] = ENGINE.translate(JobHistory.of(None, [first]))
    assert (queued.fields["jobType"], queued.fields["userId"]) == (None, None)
    [failed] = ENGINE.translate(JobHistory.of(None, [last]))
    assert (failed.fields["engineId"], failed.fields["duration"]) == (None, None)
    blank = msgspec.structs.replace(last, detail=None)
    assert error_text(blank) == "PERMANENT_ERROR"
