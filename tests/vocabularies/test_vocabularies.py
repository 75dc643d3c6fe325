"""Every vocabulary translates every job and every event. The words themselves are checked in `test_transitions`."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest

from simulation.model.store import ModelStore
from tenure.errors import InvalidInput
from tenure.lifecycle.fold import executions
from tenure.lifecycle.records import Event, EventType, Job, Role
from tenure.lifecycle.statuses import LEASED, Status
from tenure.lifecycle.transitions import legal_events
from tenure.testing.clock import ManualClock
from tenure.testing.driver import Driver
from tenure.vocabularies import ALL, VOCABULARY_NAMES, JobHistory, Vocabulary, translate, vocabularies, vocabulary
from tenure.vocabularies.state_machine import HEARTBEAT, LEASE_RENEWED, NAMED, event_name
from tenure.vocabularies.vocabulary import histories
from tenure.vocabularies.worker_contract import AUTHORITIES
from tests.support.situations import SITUATIONS, Setup, Situation
from tests.vocabularies import records

AT = datetime(2030, 1, 1, tzinfo=UTC)
EVERY_VOCABULARY = pytest.mark.parametrize("words", ALL, ids=VOCABULARY_NAMES)
EVERY_LEGAL_EVENT = pytest.mark.parametrize(
    "step", sorted(legal_events(), key=str), ids=lambda step: "-".join(str(part) for part in step)
)


def event(kind: EventType, before: Status | None, after: Status, *, rev: int = 2, role: Role = Role.POOL) -> Event:
    return Event(
        job_id=UUID(int=1),
        rev=rev,
        type=kind,
        from_status=before,
        to_status=after,
        at=AT,
        attempt=0 if before is None else 1,
        actor=f"{role}:worker-1",
        request_id="r",
        cause="timeout" if kind is EventType.DEAD_LETTERED else None,
    )


def test_an_unknown_vocabulary_is_refused_with_the_known_names() -> None:
    with pytest.raises(InvalidInput, match="'klingon' is not known") as refusal:
        vocabulary("klingon")
    assert all(name in str(refusal.value) for name in VOCABULARY_NAMES)
    assert [vocabulary(name).name for name in VOCABULARY_NAMES] == list(VOCABULARY_NAMES)


@pytest.mark.requirement("EH-10")
def test_two_vocabularies_can_be_used_at_once_and_no_more_and_none_twice() -> None:
    assert vocabularies(()) == ()
    assert [one.name for one in vocabularies(("engine", "engine-old"))] == ["engine", "engine-old"]
    for wrong in (("engine", "engine"), ("engine", "engine-old", "worker")):
        with pytest.raises(InvalidInput, match="at most 2 different ones"):
            vocabularies(wrong)
    with pytest.raises(InvalidInput, match="known are"):
        vocabularies(("engine", "klingon"))


@EVERY_VOCABULARY
@EVERY_LEGAL_EVENT
def test_every_legal_event_is_translated_also_without_the_events_before_it(
    words: Vocabulary, step: tuple[EventType, Status | None, Status]
) -> None:
    claim = event(EventType.CLAIMED, Status.QUEUED, Status.CLAIMED, rev=1)
    for before in ([], [claim]):
        for one in words.translate(JobHistory.of(None, [*before, event(*step)])):
            assert one.vocabulary == words.name
            assert msgspec.json.decode(msgspec.json.encode(one.as_fields())), "an event can be written as JSON"


@EVERY_VOCABULARY
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
async def test_every_situation_can_be_translated(words: Vocabulary, situation: Situation) -> None:
    job, events = await brought_about(situation)
    fields = words.job(job, events)
    assert words.status(job, events) in (fields.get("status"), fields.get("state"))
    assert words.status(job, events) in words.words
    assert msgspec.json.decode(msgspec.json.encode(fields))
    bare = words.job(job, events, content=False)
    assert words.content & set(bare) == set()
    assert {**fields, **bare} == fields
    last = [words.translate(history) for history in histories(job.origin, events)][-1]
    assert last == translate([words], JobHistory.of(job.origin, events))


@EVERY_VOCABULARY
async def test_a_log_of_another_job_or_a_part_of_a_log_is_refused(words: Vocabulary) -> None:
    job, events = await brought_about(SITUATIONS[0])
    other, strange = await brought_about(SITUATIONS[0])
    for wrong in ([], events[:-1], events[1:], strange):
        with pytest.raises(InvalidInput, match=r"are not the \d+ events of job"):
            words.job(job, wrong)
        with pytest.raises(InvalidInput, match=r"are not the \d+ events of job"):
            words.status(job, wrong)
    assert other.id != job.id


OWNED = ("claimed", "running")


@pytest.mark.parametrize("name", list(records.RECIPES))
@pytest.mark.requirement("LC-02")
async def test_the_contracts_object_has_an_owner_and_a_lease_exactly_while_it_is_claimed_or_running(name: str) -> None:
    """ "Claimed: `owner` MUST be present, `lease` MUST be present"; "Stalled: `owner` MUST be absent"."""
    job, events = await records.brought_about(name)
    fields = vocabulary("contract").job(job, events)
    assert ("owner" in fields) is ("lease" in fields) is (fields["status"] in OWNED)
    assert ("result" in fields) is (fields["status"] == "succeeded")
    assert ("error" in fields) is (fields["status"] == "failed")
    machine = vocabulary("machine").job(job, events)
    assert (machine["owner"] is not None) is (machine["state"] in ("assigned", "running"))
    if job.status in LEASED:
        last = executions(events)[-1]
        assert (fields["owner"], fields["lease"]["expires_at"]) == (job.owner, job.lease_expires_at)
        assert (machine["owner"], machine["lease_expires_at"]) == (last.lease_owner, last.lease_expires_at)


@pytest.mark.requirement("SM-12")
def test_the_nine_names_of_the_state_machine_are_used_and_the_others_are_additions() -> None:
    """ "Event types: job_claimed, job_started, …, job_compensated." """
    assert {*NAMED.values(), HEARTBEAT, LEASE_RENEWED} == {
        *("job_claimed", "job_started", "job_lease_renewed", "job_heartbeat", "job_succeeded", "job_failed"),
        *("job_cancelled", "job_dead_lettered", "job_compensated"),
    }
    for kind in set(EventType) - {*NAMED, EventType.HEARTBEAT}:
        assert event_name(event(kind, Status.RUNNING, Status.RUNNING)) == f"job_{kind}"


@pytest.mark.requirement("SM-12", "SM-04")
@EVERY_LEGAL_EVENT
def test_each_event_is_exactly_one_event_of_the_contract_and_of_the_state_machine(
    step: tuple[EventType, Status | None, Status],
) -> None:
    history = JobHistory.of(None, [event(*step)])
    for name in ("contract", "machine"):
        [translated] = vocabulary(name).translate(history)
        assert translated.name == translated.fields["type"]


def test_a_heartbeat_that_renewed_the_lease_has_its_own_name_in_the_state_machine() -> None:
    beat = event(EventType.HEARTBEAT, Status.RUNNING, Status.RUNNING)
    renewal = msgspec.structs.replace(beat, until_at=AT)
    machine = vocabulary("machine")
    assert [translated.name for translated in machine.translate(JobHistory.of(None, [beat]))] == ["job_heartbeat"]
    [translated] = machine.translate(JobHistory.of(None, [renewal]))
    assert (translated.name, translated.fields["payload"]["lease_expires_at"]) == ("job_lease_renewed", AT)


@pytest.mark.requirement("WC-01")
@pytest.mark.parametrize("role", list(Role))
def test_every_role_is_an_authority_of_the_worker_contract(role: Role) -> None:
    history = JobHistory.of(None, [event(EventType.ENQUEUED, None, Status.QUEUED, role=role)])
    [translated] = vocabulary("worker").translate(history)
    assert translated.fields["authority"] == AUTHORITIES[role]
    assert len(set(AUTHORITIES.values())) == len(Role)


async def brought_about(situation: Situation) -> tuple[Job, list[Event]]:
    clock = ManualClock()
    drive = Driver(ModelStore(clock))
    tokens = await situation.recipe(Setup(drive, clock))
    job, events = await drive.seen(tokens.id)
    assert job is not None
    return job, events
