"""Every vocabulary has a word for everything, and they are the words that the requirements decided upon.

The tables are written by hand from the requirements, so that they and the code check each other.
"""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest

from tenure.errors import InvalidInput
from tenure.lifecycle.fold import executions
from tenure.lifecycle.records import Event, EventType, Job, Role
from tenure.lifecycle.statuses import Status
from tenure.lifecycle.transitions import legal_events
from tenure.testing.clock import ManualClock
from tenure.testing.driver import Driver
from tenure.testing.model.store import ModelStore
from tenure.vocabularies import ALL, VOCABULARY_NAMES, JobHistory, Vocabulary, translate, vocabularies, vocabulary
from tenure.vocabularies.execution_ledger import EXECUTION_STATUSES
from tenure.vocabularies.state_machine import NAMED
from tenure.vocabularies.vocabulary import histories
from tenure.vocabularies.worker_contract import AUTHORITIES
from tests.support.situations import SITUATIONS, Scene, Situation

# ours | contract | machine | worker | ledger: job / executions | engine | engine-old
TABLE = """
queued        | queued    | queued        | queued    | PENDING / - ABORTED            | queued     | queued
claimed       | claimed   | assigned      | running   | RUNNING / LEASED               | dispatched | queued
running       | running   | running       | running   | RUNNING / IN_PROGRESS COMMITTED| running    | started
waiting       | queued    | queued        | retry     | PENDING / ABORTED              | queued     | queued
retry         | queued    | queued        | retry     | PENDING / ABORTED              | queued     | queued
stalled       | stalled   | queued        | retry     | PENDING / ABORTED COMMITTED    | queued     | queued
succeeded     | succeeded | succeeded     | succeeded | SUCCEEDED / DONE               | completed  | finished
failed        | failed    | failed        | failed    | FAILED / - ABORTED             | failed     | failed
cancelled     | failed    | cancelled     | halted    | FAILED / - ABORTED             | failed     | failed
halted        | failed    | cancelled     | halted    | FAILED / ABORTED               | failed     | failed
dead_lettered | failed    | dead_lettered | failed    | FAILED / - ABORTED             | failed     | failed
"""
# An execution that is not there (-), or is that of an earlier attempt, belongs to a job that is queued again, or that
# ended before anyone claimed it.
ROWS = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()]
EXECUTIONS = {row[0]: set(row[4].partition("/")[2].split()) for row in ROWS}
WORDS = {
    (name, row[0]): row[column].partition("/")[0].strip()
    for row in ROWS
    for column, name in enumerate(VOCABULARY_NAMES, start=1)
}

AT = datetime(2030, 1, 1, tzinfo=UTC)
EVERY_VOCABULARY = pytest.mark.parametrize("words", ALL, ids=VOCABULARY_NAMES)


def event(kind: EventType, before: Status | None, after: Status, *, rev: int = 2, role: Role = Role.POOL) -> Event:
    return Event(
        job_id=UUID(int=1),
        rev=rev,
        type=kind,
        from_status=before,
        to_status=after,
        at=AT,
        attempt=1,
        actor=f"{role}:worker-1",
        request_id="r",
        cause="timeout" if kind is EventType.DEAD_LETTERED else None,
    )


def with_words(words: Vocabulary, status: Status | None) -> str | None:
    return None if status is None else words.status(status)


@EVERY_VOCABULARY
@pytest.mark.parametrize("status", list(Status))
@pytest.mark.requirement("LC-01", "SM-01", "EL-02", "EH-08")
def test_every_status_has_the_word_that_was_decided(words: Vocabulary, status: Status) -> None:
    assert words.status(status) == WORDS[words.name, status.value]


@EVERY_VOCABULARY
def test_nothing_is_left_out_and_nothing_is_made_up(words: Vocabulary) -> None:
    assert set(words.statuses) == set(Status)
    assert set(words.events) == set(EventType)


@EVERY_VOCABULARY
def test_a_word_stands_for_every_status_that_it_was_decided_for(words: Vocabulary) -> None:
    """Several of ours may have one word of theirs: there is no way back."""
    covered: list[Status] = []
    for word in set(words.statuses.values()):
        meant = words.meaning(word)
        assert {status.value for status in meant} == {row[0] for row in ROWS if WORDS[words.name, row[0]] == word}
        covered += meant
    assert sorted(covered) == sorted(Status)
    assert len(set(words.statuses.values())) < len(Status), "the mapping is many to one"


@EVERY_VOCABULARY
def test_an_unknown_word_is_refused_with_the_words_that_there_are(words: Vocabulary) -> None:
    with pytest.raises(InvalidInput, match="'lost' is not a status of the vocabulary") as refusal:
        words.meaning("lost")
    for word in words.statuses.values():
        assert word in str(refusal.value)


def test_an_unknown_vocabulary_is_refused_with_the_names_that_there_are() -> None:
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
@pytest.mark.parametrize("step", sorted(legal_events(), key=str), ids=lambda step: "-".join(str(part) for part in step))
def test_every_legal_step_is_translated_into_names_that_its_type_allows(
    words: Vocabulary, step: tuple[EventType, Status | None, Status]
) -> None:
    kind, before, after = step
    claim = event(EventType.CLAIMED, Status.QUEUED, Status.CLAIMED, rev=1)
    for origin_known in (True, False):
        events = [event(*step, rev=1)] if not origin_known or kind is EventType.ENQUEUED else [claim, event(*step)]
        translated = words.translate(JobHistory(None, events))
        assert {one.name for one in translated} <= set(words.events[kind])
        assert all(one.vocabulary == words.name for one in translated)
        for one in translated:
            assert msgspec.json.decode(msgspec.json.encode(one.fields)), "an event can be written as JSON"
        changed = with_words(words, before) != words.status(after)
        if changed and words.name != "engine-old":
            assert translated, f"{before} → {after} is a change in {words.name}, and it is silent"


@EVERY_VOCABULARY
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
async def test_every_situation_can_be_translated(words: Vocabulary, situation: Situation) -> None:
    job, events = await brought_about(situation)
    fields = words.job(job, events)
    assert WORDS[words.name, job.status.value] in (fields.get("status"), fields.get("state"))
    assert msgspec.json.decode(msgspec.json.encode(fields))
    bare = words.job(job, events, content=False)
    assert words.content & set(bare) == set()
    assert {**fields, **bare} == fields
    last = [words.translate(history) for history in histories(job.origin, events)][-1]
    assert last == translate([words], JobHistory(job.origin, events))


@EVERY_VOCABULARY
async def test_a_log_that_is_not_the_jobs_own_or_not_whole_is_refused(words: Vocabulary) -> None:
    job, events = await brought_about(SITUATIONS[0])
    other, strange = await brought_about(SITUATIONS[0])
    for wrong in ([], events[:-1], events[1:], strange):
        with pytest.raises(InvalidInput, match=r"are not the \d+ events of job"):
            words.job(job, wrong)
    assert other.id != job.id


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
@pytest.mark.requirement("EL-01", "EL-02")
async def test_the_last_execution_has_the_status_that_was_decided(situation: Situation) -> None:
    job, events = await brought_about(situation)
    runs = executions(events)
    assert (EXECUTION_STATUSES[runs[-1].status] if runs else "-") in EXECUTIONS[job.status.value]


@pytest.mark.requirement("SM-12")
def test_the_nine_names_of_the_state_machine_are_there_and_the_rest_are_additions() -> None:
    assert {name for names in NAMED.values() for name in names} == {
        *("job_claimed", "job_started", "job_lease_renewed", "job_heartbeat", "job_succeeded", "job_failed"),
        *("job_cancelled", "job_dead_lettered", "job_compensated"),
    }
    events = vocabulary("machine").events
    assert {names for kind, names in events.items() if kind not in NAMED} == {
        (f"job_{kind}",) for kind in EventType if kind not in NAMED
    }


@pytest.mark.requirement("SM-12", "SM-04")
@pytest.mark.parametrize("step", sorted(legal_events(), key=str), ids=lambda step: "-".join(str(part) for part in step))
def test_each_transition_is_exactly_one_event_of_the_contract_and_of_the_state_machine(
    step: tuple[EventType, Status | None, Status],
) -> None:
    history = JobHistory(None, [event(*step)])
    for name in ("contract", "machine"):
        [translated] = vocabulary(name).translate(history)
        assert translated.name == translated.fields["type"]


def test_a_heartbeat_that_renewed_the_lease_has_a_name_of_its_own_in_the_state_machine() -> None:
    beat = event(EventType.HEARTBEAT, Status.RUNNING, Status.RUNNING)
    renewal = msgspec.structs.replace(beat, until_at=AT)
    machine = vocabulary("machine")
    assert [translated.name for translated in machine.translate(JobHistory(None, [beat]))] == ["job_heartbeat"]
    [translated] = machine.translate(JobHistory(None, [renewal]))
    assert (translated.name, translated.fields["payload"]["lease_expires_at"]) == ("job_lease_renewed", AT)


@pytest.mark.requirement("WC-01")
@pytest.mark.parametrize("role", list(Role))
def test_every_role_is_an_authority_of_the_worker_contract(role: Role) -> None:
    history = JobHistory(None, [event(EventType.ENQUEUED, None, Status.QUEUED, role=role)])
    [translated] = vocabulary("worker").translate(history)
    assert translated.fields["authority"] == AUTHORITIES[role]
    assert len(set(AUTHORITIES.values())) == len(Role)


async def brought_about(situation: Situation) -> tuple[Job, list[Event]]:
    clock = ManualClock()
    drive = Driver(ModelStore(clock))
    stand = await situation.recipe(Scene(drive, clock))
    job, events = await drive.seen(stand.id)
    assert job is not None
    return job, events
