"""Messages and artifacts of a commit in the user's transaction, on every kind of connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from tenure.errors import InvalidInput, LeaseLost, RequestIdReused
from tenure.lifecycle.operations import Commit
from tenure.lifecycle.records import Actor, Job, Role
from tenure.seams import SYSTEM
from tenure.stores.contract import Applied, Artifact, Failure, OutboxMessage, Outcome, Repeated, Request, Store
from tenure.stores.user_connections import UserTransaction
from tenure.testing.driver import Driver
from tests.support.databases import Database
from tests.support.user_connections import ConnectionUser

Look = Callable[[Any], Any]
BODY = bytes(range(256)) * 4
ARTIFACTS = (
    Artifact(name="ß.bin", media_type="application/x-test", body=BODY),
    Artifact(name="empty", media_type="text/plain", body=b""),
)


@pytest.fixture
def job(look: Look, own_name: str) -> Job:
    """A running job, with the token of its lease."""
    running: Job = look(lambda store: Driver(store).running(kind=own_name))
    return running


def message(aggregate: str, n: int, *, known_as: UUID | None = None) -> OutboxMessage:
    headers = '{"h":"%s:x"}' if n == 1 else None
    body = f'{{"n":{n}}}'
    return OutboxMessage(id=known_as or uuid4(), topic=f"t{n}", body=body, aggregate=aggregate, headers=headers)


def marked(
    user: ConnectionUser,
    database: Database,
    job: Job,
    *,
    messages: Sequence[OutboxMessage] = (),
    artifacts: Sequence[Artifact] = (),
    token: UUID | None = None,
) -> Outcome:
    actor = Actor(Role.RUNNER, "worker-1", token or job.token)
    request = Request(job=job, operations=(Commit("1"),), actor=actor, request_id="mark-1", fresh=True)
    transaction = UserTransaction(user.connection, database.url)

    async def mark() -> Outcome:
        await transaction.post(messages)
        await transaction.attach(job, artifacts)
        return await transaction.apply(request)

    return user.run(transaction, mark())


def outbox_of(job: Job, database: Database) -> Callable[[Store], Any]:
    """Read the messages of this job, and the streams of its aggregates."""
    prefix = "tenure_" if database.is_sqlite else "tenure."
    place = "row_number() over (partition by aggregate order by sequence)"
    messages = f"select aggregate, {place} as sequence, topic, body, headers, job_id from {prefix}outbox"
    messages = f"select * from ({messages}) message where job_id = $1"
    written = f"(select count(*) from {prefix}outbox message where message.aggregate = stream.aggregate)"
    streams = f"select aggregate, {written} as written, at from {prefix}streams stream where aggregate like $1"
    streams += " order by aggregate"
    job_id: Any = str(job.id) if database.is_sqlite else job.id

    async def look(store: Store) -> Any:
        async with store.transaction(deadline_seconds=5) as tx:
            written = [tuple(row.values())[:-1] for row in await tx.fetch(f"{messages} order by 1, 2", job_id)]
            rows = await tx.fetch(streams, f"{job.kind}%")
            return written, [(row["aggregate"], row["written"], row["at"] is not None) for row in rows]

    return look


def artifacts_of(job: Job) -> Callable[[Store], Any]:
    return lambda store: store.artifacts(job.id)


@pytest.mark.requirement("EL-04", "SM-20")
def test_messages_and_artifacts_take_effect_with_the_users_commit(
    user: ConnectionUser, job: Job, look: Look, database: Database
) -> None:
    a, b = f"{job.kind}-a", f"{job.kind}-b"
    messages = [message(b, 1), message(a, 2), message(b, 3)]
    assert isinstance(marked(user, database, job, messages=messages, artifacts=ARTIFACTS), Applied)
    assert (look(artifacts_of(job)), look(lambda store: store.read([job.id]))[job.id].committed) == ([], False)
    user.commit()
    written, streams = look(outbox_of(job, database))
    assert written == [
        (a, 1, "t2", '{"n":2}', None),
        (b, 1, "t1", '{"n":1}', '{"h":"%s:x"}'),
        (b, 2, "t3", '{"n":3}', None),
    ]
    assert streams == [(a, 1, True), (b, 2, True)]
    records = look(artifacts_of(job))
    assert [(one.name, one.attempt, one.media_type, one.bytes) for one in records] == [
        ("empty", 1, "text/plain", 0),
        ("ß.bin", 1, "application/x-test", len(BODY)),
    ]
    assert look(lambda store: store.artifact(job.id, "ß.bin")).body == BODY


def test_sequence_numbers_continue_those_of_the_aggregate(
    user: ConnectionUser, job: Job, look: Look, database: Database
) -> None:
    async def before(store: Store) -> None:
        async with store.transaction(deadline_seconds=5) as tx:
            await tx.post([message(job.kind, 7)])

    look(before)
    assert isinstance(marked(user, database, job, messages=[message(job.kind, 8)]), Applied)
    user.commit()
    written, streams = look(outbox_of(job, database))
    assert [(row[1], row[2]) for row in written] == [(2, "t8")]
    assert streams == [(job.kind, 2, True)]


def test_what_is_rolled_back_leaves_no_message_and_no_artifact(
    user: ConnectionUser, job: Job, look: Look, database: Database
) -> None:
    assert isinstance(marked(user, database, job, messages=[message(job.kind, 1)], artifacts=ARTIFACTS), Applied)
    user.rollback()
    assert (look(artifacts_of(job)), look(outbox_of(job, database))) == ([], ([], []))


def test_a_mark_that_is_refused_writes_no_message_and_no_artifact(
    user: ConnectionUser, job: Job, look: Look, database: Database
) -> None:
    outcome = marked(
        user, database, job, token=SYSTEM.random.token(), messages=[message(job.kind, 1)], artifacts=ARTIFACTS
    )
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, LeaseLost)
    user.commit()
    assert (look(artifacts_of(job)), look(outbox_of(job, database))) == ([], ([], []))


@pytest.mark.requirement("LC-07")
def test_a_repeated_mark_writes_nothing_and_one_with_other_content_is_refused(
    user: ConnectionUser, job: Job, look: Look, database: Database
) -> None:
    sent = message(job.kind, 1)
    assert isinstance(marked(user, database, job, messages=[sent], artifacts=ARTIFACTS), Applied)
    assert isinstance(marked(user, database, job, messages=[sent], artifacts=ARTIFACTS), Repeated)
    other = marked(user, database, job, messages=[message(job.kind, 2)], artifacts=ARTIFACTS)
    assert isinstance(other, Failure)
    assert isinstance(other.error, RequestIdReused)
    user.commit()
    written, _ = look(outbox_of(job, database))
    assert (len(look(artifacts_of(job))), [row[2] for row in written]) == (2, ["t1"])


def test_a_reused_message_id_is_refused_and_the_transaction_continues(
    user: ConnectionUser, job: Job, look: Look, database: Database
) -> None:
    known = message(job.kind, 1)

    async def before(store: Store) -> None:
        async with store.transaction(deadline_seconds=5) as tx:
            await tx.post([known])

    look(before)
    again = message(job.kind, 2, known_as=known.id)
    with pytest.raises(InvalidInput, match=str(known.id)):
        marked(user, database, job, messages=[again], artifacts=ARTIFACTS)
    assert isinstance(marked(user, database, job, messages=[message(job.kind, 3)]), Applied)
    user.commit()
    written, streams = look(outbox_of(job, database))
    assert ([(row[1], row[2]) for row in written], streams) == ([(2, "t3")], [(job.kind, 2, True)])
    assert look(artifacts_of(job)) == []


def test_a_reused_artifact_name_is_refused_and_the_transaction_continues(
    user: ConnectionUser, job: Job, look: Look, database: Database
) -> None:
    # Only a statement by hand, in the store's name, gives a job an artifact before its commit.
    columns = "(job_id, name, attempt, media_type, body, bytes, at)"
    at = "0" if database.is_sqlite else "now()"
    values = f"('{job.id}', 'empty', 1, 'x', '', 0, {at})"
    database.write_as("store", f"insert into {{artifacts}} {columns} values {values}")
    with pytest.raises(InvalidInput, match="'empty' already"):
        marked(user, database, job, messages=[message(job.kind, 1)], artifacts=ARTIFACTS)
    assert isinstance(marked(user, database, job, artifacts=ARTIFACTS[:1]), Applied)
    user.commit()
    assert [one.name for one in look(artifacts_of(job))] == ["empty", "ß.bin"]
    assert look(outbox_of(job, database)) == ([], [])


@pytest.mark.parametrize("kind", ["psycopg_plain", "sqlite_legacy"], indirect=True)
def test_invalid_messages_and_artifacts_are_refused_before_anything_is_written(
    user: ConnectionUser, job: Job, look: Look, database: Database
) -> None:
    twice = message("a", 1)
    wrong: list[dict[str, Any]] = [
        {"messages": [twice, twice]},
        {"messages": [OutboxMessage(id=uuid4(), topic="t", body="{", aggregate="a")]},
        {"messages": [OutboxMessage(id=uuid4(), topic="", body="1", aggregate="a")]},
        {"artifacts": [ARTIFACTS[0], ARTIFACTS[0]]},
        {"artifacts": [Artifact(name="", media_type="x", body=b"")]},
        {"artifacts": [Artifact(name="x", media_type="x", body="text")]},  # type: ignore[arg-type]
    ]
    for content in wrong:
        with pytest.raises(InvalidInput):
            marked(user, database, job, **content)
    user.commit()
    assert not look(lambda store: store.read([job.id]))[job.id].committed
