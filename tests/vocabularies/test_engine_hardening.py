"""The engines' words need history: who had the job, when it entered each state, how long it stayed, and what failed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

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
from tenure.lifecycle.records import Actor, Event, EventType, Job, Role, Timeouts
from tenure.lifecycle.statuses import TERMINAL, Status
from tenure.lifecycle.transitions import legal_events
from tenure.testing.clock import START, ManualClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver
from tenure.testing.model.store import ModelStore
from tenure.vocabularies import JobHistory, TranslatedEvent, vocabulary
from tenure.vocabularies.engine_hardening import CATEGORIES, Category, category, error_text
from tenure.vocabularies.engine_legacy import NEW_NAMES, new_name
from tenure.vocabularies.vocabulary import epoch_ms
from tests.support.situations import SITUATIONS, Situation
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
    """One job on a model store whose clock goes a second with each step."""

    def __init__(self, *, role: Role = Role.POOL) -> None:
        self.clock = ManualClock()
        self.drive = Driver(ModelStore(self.clock))
        self.role = role

    async def begin(self, **facts: Any) -> Job:
        self.job = await self.drive.add(**{"submitted_by": "ada", "payload": '{"scene":7}', **facts})
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
async def test_a_whole_life_is_told_with_every_field_that_was_asked_for() -> None:
    life = Life()
    await life.begin()
    await life.claim()
    await life.do(Start())
    await life.do(Progress(40))
    await life.do(Complete("1"))
    job_id = str(life.job.id)
    assert [(one.name, one.fields) for one in await life.translated()] == [
        ("JOB_QUEUED", {"jobId": job_id, "jobType": "mail", "userId": "ada", "queuedAt": BEGIN}),
        ("JOB_DISPATCHED", {"jobId": job_id, "engineId": "engine-1", "dispatchedAt": BEGIN + 1000}),
        ("JOB_RUNNING", {"jobId": job_id, "engineId": "engine-1", "startedAt": BEGIN + 2000}),
        ("JOB_PROGRESS", {"jobId": job_id, "progress": 40}),
        (
            "JOB_COMPLETED",
            {"jobId": job_id, "engineId": "engine-1", "completedAt": BEGIN + 4000, "duration": 2000},
        ),
    ]
    assert await life.object() == {
        "jobId": job_id,
        "userId": "ada",
        "jobType": "mail",
        "payload": {"scene": 7},
        "status": "completed",
        "submittedAt": BEGIN,
        "queuedAt": BEGIN,
        "dispatchedAt": BEGIN + 1000,
        "startedAt": BEGIN + 2000,
        "completedAt": BEGIN + 4000,
        "failedAt": None,
        "error": None,
        "errorCategory": None,
        "retryCount": 0,
        "engineId": "engine-1",
        "durations": {"queued": 1000, "dispatched": 1000, "running": 2000, "total": 4000},
    }


@pytest.mark.requirement("EH-07")
async def test_a_remote_engine_has_the_job_from_its_first_acknowledgement_on() -> None:
    life = Life(role=Role.GATEWAY)
    await life.begin()
    await life.claim()
    assert [one.name for one in await life.translated()] == ["JOB_QUEUED"]
    waiting = await life.object()
    assert (waiting["status"], waiting["dispatchedAt"], waiting["engineId"]) == ("dispatched", None, "engine-1")
    await life.do(Ack())
    await life.do(Ack())
    assert [one.name for one in await life.translated()] == ["JOB_QUEUED", "JOB_DISPATCHED"]
    assert (await life.object())["dispatchedAt"] == BEGIN + 2000


@pytest.mark.requirement("EH-08")
async def test_a_job_that_is_tried_again_is_queued_again_and_counts_its_failures() -> None:
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
    assert ended["durations"] == {"queued": 2000, "dispatched": 2000, "running": 2000, "total": 6000}
    names = [one.name for one in await life.translated()]
    assert names == ["JOB_QUEUED", "JOB_DISPATCHED", "JOB_RUNNING"] * 2 + ["JOB_FAILED"]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
@pytest.mark.requirement("EH-07", "EH-08")
async def test_every_life_begins_with_queued_and_ends_with_one_of_two(situation: Situation) -> None:
    job, events = await brought_about(situation)
    translated = ENGINE.translate_log(job.origin, events)
    assert all(list(one.fields) == FIELDS[one.name] for one in translated)
    assert translated[0].name == "JOB_QUEUED"
    ends = [one for one in translated if one.name in ("JOB_COMPLETED", "JOB_FAILED")]
    assert ends == translated[-1:] if job.status in TERMINAL else ends == []
    fields = ENGINE.job(job, events)
    moment = {"queued": "queuedAt", "dispatched": "dispatchedAt", "running": "startedAt"} | {
        "completed": "completedAt",
        "failed": "failedAt",
    }
    moments = [fields[name] for name in ("submittedAt", *moment.values()) if fields[name] is not None]
    assert fields[moment[fields["status"]]] == max(moments)
    assert fields["submittedAt"] == min(moments)


def states(translated: list[TranslatedEvent]) -> list[str]:
    """The states that a reader of the stream sees."""
    of = {"JOB_QUEUED": "queued", "JOB_DISPATCHED": "dispatched", "JOB_RUNNING": "running"}
    return [of.get(one.name, one.name) for one in translated if one.name != "JOB_PROGRESS"]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
async def test_a_reader_of_the_stream_alone_knows_every_state(situation: Situation) -> None:
    job, events = await brought_about(situation)
    translated = ENGINE.translate_log(job.origin, events)
    seen = [ENGINE.status(event.to_status) for event in events]
    entered = [seen[0], *(after for before, after in pairwise(seen) if before != after)]
    ends = {"JOB_COMPLETED": "completed", "JOB_FAILED": "failed"}
    assert [ends.get(state, state) for state in states(translated)] == entered


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
async def test_an_end_without_a_result_says_what_went_wrong(name: str) -> None:
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
async def test_who_ended_the_job_says_more_than_the_reason() -> None:
    timeouts = Timeouts(queued_seconds=1, claimed_seconds=1, running_seconds=1)
    expected = {0: Category.QUEUE, 1: Category.QUEUE, 2: Category.SYSTEM}
    for steps, why in expected.items():
        life = Life()
        await life.begin(policy={"timeouts": timeouts})
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


@pytest.mark.requirement("EH-06")
async def test_a_job_whose_engine_was_lost_is_the_systems_failure() -> None:
    for policy, operation in (
        ({"on_lost": "fail"}, GiveUp(ERROR)),
        ({"on_lost": "dead_letter"}, DeadLetter(ReasonCode.EXHAUSTED_RETRIES, Stage.EXEC, ERROR)),
    ):
        life = Life()
        await life.begin(policy=policy)
        await life.claim()
        await life.do(Start())
        life.clock.advance(60)
        await life.do(Stall(), operation, actor=RECOVERY)
        assert (await life.object())["errorCategory"] == Category.SYSTEM
        names = [one.name for one in await life.translated()]
        assert names[-2:] == ["JOB_QUEUED", "JOB_FAILED"]


@pytest.mark.parametrize("step", sorted(legal_events(), key=str), ids=lambda step: "-".join(str(part) for part in step))
def test_only_an_end_without_a_result_has_an_error(step: tuple[EventType, Status | None, Status]) -> None:
    kind, _, after = step
    wrong = after in TERMINAL and after is not Status.SUCCEEDED
    assert (error_text(event(*step)) is not None) is wrong
    assert (category(event(*step)) is not None) is (kind in (EventType.FAILED, EventType.DEAD_LETTERED))


@pytest.mark.requirement("EH-10")
@pytest.mark.parametrize("status", list(Status))
def test_the_old_name_of_every_status_maps_to_the_new_one(status: Status) -> None:
    old = OLD.status(status)
    if ENGINE.status(status) == "dispatched":
        assert old == "queued", "the old names have no dispatched: what did not start was queued"
    else:
        assert new_name(old) == ENGINE.status(status)


@pytest.mark.requirement("EH-10")
def test_an_unknown_old_name_is_refused_with_those_that_there_are() -> None:
    assert NEW_NAMES == {"queued": "queued", "started": "running", "finished": "completed", "failed": "failed"}
    with pytest.raises(
        InvalidInput, match="'running' is not an old status; known are: queued, started, finished, failed"
    ):
        new_name("running")


@pytest.mark.requirement("EH-10")
async def test_the_old_names_tell_the_same_story_without_the_dispatch() -> None:
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
async def test_what_retention_has_removed_is_told_as_unknown_and_not_made_up() -> None:
    life = Life()
    await life.begin()
    await life.claim()
    await life.do(Start())
    await life.do(Fail(ERROR))
    first, *_, last = await life.log()
    [queued] = ENGINE.translate(JobHistory(None, [first]))
    assert (queued.fields["jobType"], queued.fields["userId"]) == (None, None)
    [failed] = ENGINE.translate(JobHistory(None, [last]))
    assert (failed.fields["engineId"], failed.fields["duration"]) == (None, None)
    blank = msgspec.structs.replace(last, detail=None)
    assert error_text(blank) == "PERMANENT_ERROR"
