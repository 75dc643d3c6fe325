"""A log in which a later version has written: events of types and rows with columns that this one does not know."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from tenure.lifecycle.fold import BrokenLog, executions, fold
from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import CONTRACT_VERSION, Event, EventType, Job
from tenure.stores.contract import EventFilter, Store
from tenure.testing.driver import Driver, runner
from tenure.testing.store_check import whole_tail
from tenure.vocabularies import VOCABULARY_NAMES, vocabulary
from tests.support.command import tenure
from tests.support.databases import Database

LATER = "annealed"
"""The type of an event that no version has yet."""
pytestmark = pytest.mark.requirement("SM-19")


def written_by_a_later_version(database: Database, job: Job, *, version: int = CONTRACT_VERSION + 1) -> None:
    """Its migration has added columns; it has written an event of a new type on this running job, the only one."""
    database.tamper(
        "alter table {events} add column extra text",
        "alter table {jobs} add column extra text not null default 'unknown here'",
        f"""insert into {{events}} (job_id, rev, type, version, extra, at, attempt, commits, actor, request_id,
                from_status, to_status)
            select job_id, rev + 1, '{LATER}', {version}, 'a new fact', at, attempt, commits, actor, 'its request',
                'running', 'running'
            from {{events}}
            where rev = {job.rev}""",
        "update {jobs} set rev = rev + 1, previous_status = status, transition_count = 1",
    )


@pytest.fixture
async def written(database: Database) -> UUID:
    """A job that was completed by this version after a later one has written an event, with all of it in the tail."""
    async with database.opened() as store:
        job = await Driver(store).running()
    written_by_a_later_version(database, job)
    async with database.opened() as store:
        await Driver(store).apply(job.id, Complete("1"), actor=runner(job))
        # Transactions of other tests on the same server hold the tail back.
        assert len(await whole_tail(store, expected=5)) == 5
    return job.id


async def both(store: Store, job_id: UUID) -> tuple[Job, list[Event]]:
    return (await store.read([job_id]))[job_id], (await store.history([job_id]))[job_id]


async def test_stores_read_such_a_log_and_run_its_job(database: Database, written: UUID) -> None:
    async with database.opened() as store:
        job, history = await both(store, written)
        assert (job.status, job.rev) == ("succeeded", 5)
        assert [event.type for event in history] == ["enqueued", "claimed", "started", LATER, "succeeded"]
        assert [event.type.is_known for event in history] == [True, True, True, False, True]
        tail = (await store.tail()).events
        assert [event.type for event in tail] == [event.type for event in history]
        assert (await store.events(EventFilter(job_id=written))).events == tail
        [execution] = await store.executions(written)
        assert (execution.status, executions(history)) == ("done", [execution])
        # The job goes on being listed, and others are enqueued and claimed beside it.
        other = await Driver(store).running()
        assert (await Driver(store).apply(other, Complete("2"))).status == "succeeded"


async def test_a_fold_sets_the_status_of_an_unknown_event_and_nothing_else(database: Database, written: UUID) -> None:
    async with database.opened() as store:
        job, history = await both(store, written)
    folded = fold(job.origin, history[:4])
    before = fold(job.origin, history[:3])
    assert folded is not None
    assert before is not None
    assert (folded.status, folded.rev, folded.attempt) == ("running", 4, before.attempt)
    assert folded.lease_expires_at == before.lease_expires_at


async def test_an_unknown_type_under_a_version_that_is_known_is_a_broken_log(database: Database) -> None:
    async with database.opened() as store:
        job = await Driver(store).running()
    written_by_a_later_version(database, job, version=CONTRACT_VERSION)
    async with database.opened() as store:
        record, history = await both(store, job.id)
    with pytest.raises(BrokenLog, match=LATER):
        fold(record.origin, history)
    answer = tenure("verify", "--database", database.url)
    assert (answer.code, LATER in answer.out) == (1, True)


async def test_verify_accepts_it_and_reports_what_was_not_compared(database: Database, written: UUID) -> None:
    answer = tenure("verify", "--database", database.url)
    assert (answer.code, "1 event of a later version" in answer.out) == (0, True)
    in_json = tenure("verify", "--json", "--database", database.url).json
    assert (in_json["ok"], in_json["later_events"], in_json["problems"]) == (True, 1, [])


async def test_commands_print_an_unknown_event_with_its_own_name(database: Database, written: UUID) -> None:
    for arguments in (["events"], ["jobs", "show", str(written), "--events"], ["jobs", "tail", str(written)]):
        answer = tenure(*arguments, "--database", database.url)
        assert (answer.code, LATER in answer.out) == (0, True), arguments
    lines = tenure("events", "--json", "--database", database.url).out.splitlines()
    assert [json.loads(line)["type"] for line in lines].count(LATER) == 1
    replayed = tenure("replay", str(written), "--rev", "4", "--json", "--database", database.url)
    assert replayed.code == 0
    assert tenure("jobs", "show", str(written), "--provenance", "--database", database.url).code == 0
    assert tenure("stats", "--database", database.url).code == 0


@pytest.mark.parametrize("name", VOCABULARY_NAMES)
async def test_every_vocabulary_translates_the_rest_of_the_log(database: Database, written: UUID, name: str) -> None:
    async with database.opened() as store:
        job, history = await both(store, written)
    words = vocabulary(name)
    known = [event for event in history if event.type.is_known]
    translated = words.translate_log(job.origin, history)
    assert len(translated) >= len(words.translate_log(job.origin, known[:3]))
    assert words.job(job, history)
    assert tenure("events", "--vocabulary", name, "--database", database.url).code == 0


async def test_an_export_keeps_an_unknown_event(database: Database, written: UUID, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    assert tenure("export", str(file), "--database", database.url).code == 0
    assert f'"{LATER}"' in file.read_text(encoding="utf-8")


def test_a_type_that_is_not_known_is_no_member_and_keeps_its_text() -> None:
    later = EventType.of(LATER)
    assert (later, str(later), later.value, later.is_known) == (LATER, LATER, LATER, False)
    assert later not in set(EventType)
    assert later == EventType.of(LATER)
    assert EventType.of("claimed") is EventType.CLAIMED
