"""Artifacts, messages, signals and steps: the database refuses changes by hand, and `verify` finds those that were made
with the guards switched off."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from tenure.lifecycle.operations import Commit, Complete, Signal
from tenure.stores.contract import Artifact, OutboxMessage
from tenure.testing.contract.steps import recorded, save, save_request
from tenure.testing.driver import CLIENT, OPERATOR, Driver, runner
from tests.support.command import Answer, tenure
from tests.support.databases import Database, GuardRefused

ARTIFACT = "insert into {{artifacts}} (job_id, name, attempt, media_type, bytes, at, body)"
ARTIFACT += " select '{job}', 'forged', 1, media_type, bytes, at, body from {{artifacts}} where name = 'report'"
MESSAGE = "insert into {{outbox}} (aggregate, sequence, id, topic, body, job_id, correlation_id, at)"
MESSAGE += (
    " select aggregate, 99, '{other}', topic, body, '{job}', correlation_id, at from {{outbox}} where topic = 'paid'"
)
SIGNAL = "insert into {{signals}} (job_id, rev, name, payload, at)"
SIGNAL += " select '{job}', 3, name, payload, at from {{signals}}"

OF_A_STEP = "kind, name, branch, ordinal, status, started_at, finished_at, content_digest, digest, result"
STEP = f"insert into {{{{steps}}}} (job_id, key, attempt, number, {OF_A_STEP})"
STEP += f" select job_id, 'forged', 1, 99, {OF_A_STEP} from {{{{steps}}}} where key = 'a'"

ADDED = {"artifact": ARTIFACT, "message": MESSAGE, "signal": SIGNAL, "step": STEP}
CHANGED = {
    "artifact": [
        "update {{artifacts}} set body = media_body where name = 'report'",
        "update {{artifacts}} set media_type = 'text/html'",
        "update {{artifacts}} set name = 'other' where name = 'report'",
        "update {{artifacts}} set attempt = 2",
        "update {{artifacts}} set bytes = 7",
        "delete from {{artifacts}} where name = 'report'",
        "update {{artifacts}} set job_id = '{bare}' where name = 'report'",
    ],
    "message": [
        "update {{outbox}} set body = '[]'",
        "update {{outbox}} set headers = null where topic = 'paid'",
        "update {{outbox}} set topic = 'refunded'",
        "update {{outbox}} set aggregate = 'bob'",
        "update {{outbox}} set id = '{other}' where topic = 'paid'",
        "update {{outbox}} set job_id = null where topic = 'paid'",
        "update {{outbox}} set job_id = '{bare}' where topic = 'paid'",
        "delete from {{outbox}} where topic = 'paid'",
    ],
    "signal": [
        "update {{signals}} set payload = '8'",
        "update {{signals}} set name = 'stop'",
        "update {{signals}} set rev = 3",
        "delete from {{signals}}",
        "update {{signals}} set job_id = '{bare}'",
    ],
    "step": [
        "update {{steps}} set result = '2' where key = 'a'",
        "update {{steps}} set result = null where key = 'a'",
        "update {{steps}} set error = '2' where key = 'b'",
        "update {{steps}} set undo = '2' where key = 'a'",
        "update {{steps}} set undo = null where key = 'a'",
        "update {{steps}} set spend = '2'",
        "update {{steps}} set key = 'c' where key = 'a'",
        "update {{steps}} set kind = 'undo'",
        "update {{steps}} set name = 'refund'",
        "update {{steps}} set branch = 'left'",
        "update {{steps}} set ordinal = 5",
        "update {{steps}} set attempt = 2",
        "update {{steps}} set status = 'failed', result = null, error = result where key = 'a'",
        "update {{steps}} set arguments_digest = 'x'",
        "update {{steps}} set code_version = '2'",
        "update {{steps}} set signal_rev = 2",
        "update {{steps}} set child_id = '{other}'",
        "update {{steps}} set content_digest = 'x'",
        "update {{steps}} set digest = '7'",
        "delete from {{steps}} where key = 'a'",
        "update {{steps}} set job_id = '{bare}' where key = 'a'",
        "update {{events}} set steps = null",
        "update {{events}} set steps = '2:7' where steps is not null",
        "update {{events}} set steps = '3:7' where steps is not null",
    ],
}
CHANGES = [(what, statement) for what, statements in CHANGED.items() for statement in statements]
CHANGES += ADDED.items()
UNGUARDED = [
    pytest.param(what, statement, marks=[] if statement == CHANGED[what][0] else [pytest.mark.deep])
    for what, statement in CHANGES
]
"""The first change of each kind of content. All others are deep."""

REFUSED_TO_ERASURE = [
    "update {{outbox}} set body = '[]'",
    "update {{outbox}} set body = 'null', headers = headers",
    "update {{outbox}} set body = 'null', headers = null, endpoint_count = 7",
    "update {{artifacts}} set body = media_body",
    "update {{signals}} set payload = '8'",
    "delete from {{signals}}",
    "delete from {{outbox}}",
    "delete from {{steps}}",
    "update {{steps}} set result = '2', error = null, undo = null",
    "update {{steps}} set result = null, error = null, undo = null, name = 'x'",
    "update {{steps}} set result = null, error = null, undo = null, digest = 1",
    "update {{steps}} set result = null, error = null, undo = null, content_digest = 'x'",
    "update {{steps}} set result = null, error = null",
]
REFUSED_TO_THE_STORE = [
    *(statement for what, statement in CHANGES if what != "signal" and not statement.startswith("insert")),
    *("update {{steps}} set number = 99 where key = 'a'", "update {{steps}} set finished_at = started_at"),
    *CHANGED["signal"],
]
OTHER = UUID(int=7)
CONTENT = ("artifacts", "outbox", "signals", "steps")


@pytest.fixture
async def jobs(database: Database) -> dict[str, UUID]:
    """A job with two artifacts, two messages, two steps and a signal; and one without."""
    async with database.opened() as store:
        drive = Driver(store)
        bare = await drive.apply(await drive.running(kind="bare"), Complete("1"))
        job = await drive.running()
        await drive.apply(job.id, Signal("go", "7"), actor=CLIENT)
        await save(
            store, save_request(job, "a", undo='"refund"'), save_request(job, "b", status="failed", duration_ms=5)
        )
        async with store.transaction(deadline_seconds=30) as tx:
            made = [("report", b"\x00\xff"), ("log", b"")]
            await tx.attach(job, [Artifact(name=name, media_type="text/plain", body=body) for name, body in made])
            for topic in ("paid", "sent"):
                id_ = drive.random.job_id()
                message = OutboxMessage(id=id_, topic=topic, body="{}", aggregate="ada", headers='{"x":"1"}')
                await tx.post([message], job=job)
            steps = await recorded(store, job)
            await tx.apply(drive.request(job.id, Commit("1"), actor=runner(job), steps=steps))
    assert verify(database).code == 0
    return {"job": job.id, "bare": bare.id, "other": OTHER}


def verify(database: Database) -> Answer:
    return tenure("verify", "--database", database.url, "--json")


def everything(database: Database) -> list[object]:
    return [sorted(database.rows(f"select * from {{{name}}}"), key=str) for name in CONTENT]


def filled(database: Database, statement: str, jobs: dict[str, UUID]) -> str:
    body = "x'00'" if database.is_sqlite else "'\\x00'::bytea"
    return statement.format(**jobs).replace("media_body", body)


def check_refused(database: Database, writer: str | None, statement: str) -> None:
    """Assert that the guards check_refused the statement to this writer, and that nothing is changed."""
    before = everything(database)
    try:
        database.write_as(writer, statement)
    except GuardRefused:
        assert everything(database) == before, statement
    else:
        pytest.fail(f"{writer} may {statement}")


@pytest.mark.requirement("SM-20", "LC-03")
async def test_content_is_not_changed_by_hand_nor_by_the_store(database: Database, jobs: dict[str, UUID]) -> None:
    for _, statement in CHANGES:
        check_refused(database, None, filled(database, statement, jobs))
    for statement in REFUSED_TO_THE_STORE:
        check_refused(database, "store", filled(database, statement, jobs))


@pytest.mark.requirement("SM-20", "LC-03")
@pytest.mark.parametrize(("what", "statement"), UNGUARDED)
async def test_a_change_without_guards_is_found(
    database: Database, jobs: dict[str, UUID], what: str, statement: str
) -> None:
    database.tamper(filled(database, statement, jobs))
    answer = verify(database)
    assert answer.code == 1
    assert {problem["type"] for problem in answer.json["problems"]} == {what}


@pytest.mark.requirement("SM-20")
async def test_content_is_not_truncated(database: Database, jobs: dict[str, UUID]) -> None:
    for table in CONTENT:
        for writer in (None, "store"):
            check_refused(database, writer, f"{'delete from' if database.is_sqlite else 'truncate'} {{{table}}}")


@pytest.mark.requirement("SM-20")
async def test_erasure_empties_content_and_changes_nothing_else(database: Database, jobs: dict[str, UUID]) -> None:
    for statement in REFUSED_TO_ERASURE:
        check_refused(database, "erasure", filled(database, statement, jobs))


@pytest.mark.requirement("SM-20")
async def test_the_store_records_that_an_endpoint_receives_a_message_which_still_verifies(
    database: Database, jobs: dict[str, UUID]
) -> None:
    delivery = "update {outbox} set endpoint_count = endpoint_count + 1"
    with pytest.raises(GuardRefused):
        database.write_as(None, delivery)
    database.write_as("store", delivery)
    assert verify(database).code == 0


@pytest.mark.requirement("SM-20")
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_replaced_row_is_refused_as_well(database: Database, jobs: dict[str, UUID]) -> None:
    """PostgreSQL has no `insert or replace`."""
    into_outbox = "insert or replace into {outbox} (aggregate, sequence, id, topic, body, at)"
    into_steps = f"insert or replace into {{steps}} (job_id, key, attempt, {OF_A_STEP}"
    for statement in (
        "insert or replace into {artifacts} select job_id, name, 7, media_type, body, bytes, at from {artifacts}",
        f"{into_outbox} select aggregate, sequence, '1', topic, body, at from {{outbox}}",
        f"{into_outbox} select 'x', sequence, id, topic, body, at from {{outbox}}",
        f"{into_outbox.replace('(', '(rowid, ')} select rowid, 'x', 1, 'y', topic, body, at from {{outbox}} limit 1",
        f"{into_steps}) select job_id, key, 7, {OF_A_STEP} from {{steps}}",
        f"{into_steps}, number) select job_id, 'x', 7, {OF_A_STEP}, number from {{steps}}",
    ):
        with pytest.raises(GuardRefused):
            database.write_as("store", statement)


@pytest.mark.requirement("SM-20")
async def test_what_erasure_has_emptied_still_verifies_and_a_row_added_afterwards_is_found(
    database: Database, jobs: dict[str, UUID]
) -> None:
    async with database.opened() as store:
        job = (await store.read([jobs["job"]]))[jobs["job"]]
        drive = Driver(store)
        [token] = [UUID(str(row[0])) for row in database.rows(f"select token from {{jobs}} where id = '{job.id}'")]
        steps = await recorded(store, job)
        await drive.apply(msgspec.structs.replace(job, token=token), Complete("1"), steps=steps)
        await store.erase(job.id, reason="asked", actor=OPERATOR)
    assert verify(database).code == 0
    assert set(database.rows("select body, headers from {outbox}")) == {("null", None)}
    assert database.rows("select 1 from {artifacts}") == []
    assert set(database.rows("select result, error, undo from {steps}")) == {(None, None, None)}
    database.tamper("delete from {outbox} where topic = 'paid'")
    assert {problem["type"] for problem in verify(database).json["problems"]} == {"message"}
    database.tamper("delete from {steps} where key = 'a'")
    assert {problem["type"] for problem in verify(database).json["problems"]} == {"message", "step"}
