"""`tenure.enqueue` and `tenure.signal`: the same jobs and events as a client in Python makes, from SQL alone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import psycopg
import pytest

import tenure
from tenure.errors import RequestIdReused
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.deadlines import deadline_of
from tenure.lifecycle.operations import Cancel, Retry, Signal, Stall, Suspend
from tenure.lifecycle.records import CONTRACT_VERSION, Policy
from tenure.lifecycle.timeouts import Timeouts
from tenure.stores.policy_cache import encode_policy
from tenure.stores.postgres.grants import grants_sql
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver
from tests.support.command import tenure as command
from tests.support.in_process_worker import working
from tests.support.pages import blocks, shell
from tests.support.postgres import Postgres, database_of, find_install

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "enqueue-js"
pytestmark = pytest.mark.requirement("EH-01")


class Sql:
    """One connection on which a test calls the functions."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def one(self, statement: str, *values: Any) -> Any:
        row = self.connection.execute(statement.encode(), values).fetchone()
        assert row is not None
        return row[0]

    def enqueue(self, kind: str | None, payload: str | None = "{}", **options: Any) -> UUID:
        casts = {"payload": "::jsonb", "policy": "::jsonb", "tags": "::jsonb"}
        given = {"kind": kind, "payload": payload, **options}
        arguments = ", ".join(f"{name} => %s{casts.get(name, '')}" for name in given)
        found: UUID = self.one(f"select tenure.enqueue({arguments})", *given.values())
        return found


def guide_block(has: str) -> str:
    """The SQL block of docs/guides/sql.md that has this text."""
    [found] = [block for block in blocks("sql.md", "sql") if has in block]
    return found


@pytest.fixture
def sql(dsn: str) -> Iterator[Sql]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield Sql(connection)


@pytest.fixture
def caller(postgres_server: Postgres, dsn: str) -> Iterator[str]:
    """The DSN of a role that may only call the functions."""
    with postgres_server.plain_role(dsn) as role:
        with psycopg.connect(dsn, autocommit=True) as owner:
            owner.execute(grants_sql("caller", role).encode())
        yield postgres_server.dsn(database_of(dsn), role=role)


POLICIES: dict[str, Policy] = {
    "{}": Policy(),
    '{"max_attempts": 3, "on_lost": "fail", "on_timeout": "dead_letter", "on_exhausted": "fail"}': Policy(
        max_attempts=3, on_lost="fail", on_timeout="dead_letter", on_exhausted="fail"
    ),
    '{"lease_seconds": 0.05, "heartbeat_seconds": 0.017}': Policy(lease_seconds=0.05, heartbeat_seconds=0.017),
    '{"lease_seconds": 1e2, "heartbeat_seconds": null}': Policy(lease_seconds=100),
    '{"backoff": {"base_seconds": 0, "factor": 1.5, "max_seconds": 31622400}}': Policy(
        backoff=Backoff(base_seconds=0, factor=1.5, max_seconds=31_622_400)
    ),
    '{"timeouts": {"queued_seconds": 30, "claimed_seconds": 10.125, "running_seconds": null}}': Policy(
        timeouts=Timeouts(queued_seconds=30, claimed_seconds=10.125, running_seconds=None)
    ),
    '{"deadline_seconds": 90.5, "secret": ["pin", "ssn", "Code", "pin"]}': Policy(
        deadline_seconds=90.5, secret=("Code", "pin", "ssn")
    ),
    '{"deadline_seconds": null, "secret": []}': Policy(),
}


@pytest.mark.parametrize("given", POLICIES)
def test_a_policy_is_stored_as_a_client_in_python_stores_it(sql: Sql, given: str) -> None:
    policy = POLICIES[given]
    assert sql.one("select tenure.policy_body(%s)", given) == encode_policy(policy).decode()
    sql.enqueue("mail", policy=given)
    row = sql.connection.execute(
        "select lease_ms, heartbeat_ms, queued_ms, claimed_ms, running_ms, deadline_ms from tenure.policies"
    ).fetchone()
    milliseconds = ("lease_ms", "heartbeat_ms", "queued_ms", "claimed_ms", "running_ms", "deadline_ms")
    assert row == tuple(getattr(policy, name) for name in milliseconds)


async def test_the_guide_has_the_strict_profile(drive: Driver, sql: Sql) -> None:
    job = await drive.job(sql.one(guide_block("on_timeout")))
    assert job.policy == Policy(**tenure.STRICT)


AT = datetime(2099, 1, 31, 9, 30, tzinfo=UTC)
SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"delay_seconds": 1.5}, {"delay_seconds": 1.5}),
    ({"at": AT}, {"at": AT}),
    ({"at": AT.replace(microsecond=70)}, {"at": AT.replace(microsecond=70)}),
    ({"tags": '{"z": "1", "é": "\\u0001\\"/", "a": "\\t"}'}, {"tags": {"z": "1", "é": '\x01"/', "a": "\t"}}),
    (
        {"queue": "slow", "priority": -5, "dedupe_key": "a:b%", "partition_key": "p", "policy": '{"max_attempts": 2}'},
        {"queue": "slow", "priority": -5, "dedupe_key": "a:b%", "partition_key": "p", "max_attempts": 2},
    ),
    (
        {"correlation_id": "c", "trace": "00-x", "submitted_by": "ada"},
        {"correlation_id": "c", "trace": "00-x", "submitted_by": "ada"},
    ),
]


@pytest.mark.parametrize(("given", "options"), SAME)
async def test_the_same_request_of_sql_and_of_python_is_one_job(
    dsn: str, sql: Sql, given: dict[str, Any], options: dict[str, Any]
) -> None:
    async with tenure.App(dsn) as app:

        @app.job(kind="na:me%")
        async def work(number: int) -> None: ...

        # The text that jsonb makes of the payload has a space.
        first = sql.enqueue("na:me%", '{"number": 1}', request_id="r", **given)
        store = await app.store()
        job = (await store.read([first]))[first]
        [event] = (await store.history([first]))[first]
        assert event.digest == job.origin.digest()
        assert event.version == CONTRACT_VERSION
        assert job.origin.tags == options.get("tags")
        with pytest.raises(RequestIdReused):
            await work.options(**{**options, "dedupe_key": None, "request_id": "r"}).enqueue(2)
        # A request of Python that is sent again from SQL.
        other = work.options(**{**options, "dedupe_key": None, "request_id": "s"})
        origin = msgspec.structs.replace(other.request(1).enqueue.origin, payload='{"number": 1}')
        made = await store.enqueue([msgspec.structs.replace(other.request(1).enqueue, origin=origin)])
        assert sql.enqueue("na:me%", '{"number": 1}', request_id="s", **{**given, "dedupe_key": None}) == made[0].job.id
    assert command("verify", "--database", dsn).code == 0
    assert command("doctor", "--database", dsn).code == 0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"kind": None}, "kind is missing"),
    ({"kind": ""}, "kind must not be empty"),
    ({"kind": "a\nb"}, "kind has control characters"),
    ({"kind": " a"}, "kind has control characters or outer spaces"),
    ({"kind": "k" * 201}, "kind has more than 200 characters"),
    ({"queue": None}, "queue is missing"),
    ({"payload": None}, "payload is missing"),
    ({"payload": "[1]"}, "payload must be an object"),
    ({"payload": '{"n": 9007199254740993}'}, r"payload has a number beyond ±2\^53"),
    ({"payload": '{"a": ' * 65 + "1" + "}" * 65}, "payload is nested more than 64 levels"),
    ({"payload": json.dumps({"a": "x" * 262_144})}, "at most 262144 are allowed"),
    ({"priority": 32_768}, "priority must lie"),
    ({"priority": None}, "priority must lie"),
    ({"delay_seconds": -1}, "delay_seconds must lie"),
    ({"delay_seconds": 1, "at": AT}, "exclude each other"),
    ({"at": "infinity"}, "at must lie"),
    ({"dedupe_key": "k" * 501}, "dedupe_key has more than 500 characters"),
    ({"request_id": ""}, "request_id must not be empty"),
    ({"tags": "[]"}, "tags must be an object"),
    ({"tags": '{"a": 1}'}, "tags.a must be text"),
    ({"policy": "[]"}, "policy must be an object"),
    ({"policy": '{"attempts": 1}'}, "policy has no field attempts; it has backoff,"),
    ({"policy": '{"max_attempts": 0}'}, "policy.max_attempts is 0"),
    ({"policy": '{"max_attempts": "3"}'}, "policy.max_attempts is"),
    ({"policy": '{"lease_seconds": null}'}, "policy.lease_seconds must be a number"),
    ({"policy": '{"lease_seconds": 0}'}, "policy.lease_seconds is 0"),
    ({"policy": '{"on_lost": "ignore"}'}, 'policy.on_lost is "ignore", and must be one of requeue, fail, dead_letter'),
    ({"policy": '{"timeouts": {"running": 1}}'}, "policy.timeouts has no field running"),
    ({"policy": '{"budget": {}}'}, "policy has no field budget"),
]


@pytest.mark.parametrize(("given", "problem"), REFUSED)
def test_an_argument_that_does_not_fit_is_refused_by_its_name(sql: Sql, given: dict[str, Any], problem: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=problem):
        sql.enqueue(**{"kind": "mail", **given})
    assert sql.one("select count(*) from tenure.jobs") == 0


def test_keys_return_the_earlier_job_or_are_refused_by_a_state_of_their_own(sql: Sql) -> None:
    first = sql.enqueue("mail", dedupe_key="k")
    assert sql.enqueue("mail", '{"other": 1}', dedupe_key="k") == first
    assert sql.enqueue("post", dedupe_key="k") != first
    asked = sql.enqueue("mail", request_id="r")
    assert sql.enqueue("mail", request_id="r") == asked
    with pytest.raises(psycopg.Error) as reused:
        sql.enqueue("mail", '{"other": 1}', request_id="r")
    assert reused.value.sqlstate == "TN001"
    # A key that all kinds share, from a client in Python.
    sql.one("select tenure.enqueue('a', dedupe_key => 'b:c')")
    assert sql.one("select count(*) from tenure.jobs") == 4


async def test_a_worker_runs_what_sql_enqueued(dsn: str, sql: Sql) -> None:
    app = tenure.App(dsn)

    @app.job(queue="mail")
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with app, working(app):
        job_id = sql.enqueue("greet", '{"name": "ada"}', queue="mail")
        handle = await app.get(job_id)
        assert await handle.result(timeout_seconds=30) == "hello ada"
        [enqueued, *_] = await handle.events()
        assert (enqueued.actor, enqueued.request_id) == (f"client:{sql.one('select session_user')}", str(job_id))


def test_a_trigger_enqueues_in_the_transaction_of_its_row(sql: Sql) -> None:
    sql.connection.execute("create table orders (id bigint primary key, address text not null)")
    sql.connection.execute(guide_block("create trigger").encode())
    with sql.connection.transaction(force_rollback=True):
        sql.connection.execute("insert into orders values (1, 'a')")
        assert sql.one("select count(*) from tenure.jobs") == 1
    assert sql.one("select count(*) from tenure.jobs") == 0
    sql.connection.execute("insert into orders select n, 'a' from generate_series(1, 3) n")
    payloads = sql.connection.execute("select payload from tenure.jobs order by request_id").fetchall()
    assert payloads == [('{"order": 1}',), ('{"order": 2}',), ('{"order": 3}',)]
    # The transaction stays that of the user.
    with sql.connection.transaction(force_rollback=True):
        sql.enqueue("mail")
        with pytest.raises(psycopg.Error) as refused:
            sql.connection.execute("delete from tenure.events")
        assert refused.value.sqlstate == "TN002"


async def reached(drive: Driver, at: datetime) -> None:
    """Wait until the database's clock has passed this time."""
    left = (at - await drive.store.now()).total_seconds()
    while left > 0:
        await asyncio.sleep(left)
        left = (at - await drive.store.now()).total_seconds()


async def in_status(drive: Driver, status: str) -> Any:
    if status == "queued":
        return await drive.add(policy={"timeouts": Timeouts(queued_seconds=100)}, delay_ms=5000)
    if status == "claimed":
        return await drive.claimed()
    # Its policy does not let it run again, so that no claim takes it.
    brief = {"lease_seconds": 0.05, "heartbeat_seconds": 0.02, "on_lost": "fail"} if status == "stalled" else {}
    job = await drive.running(policy={"timeouts": Timeouts(queued_seconds=100), **brief})
    match status:
        case "waiting":
            return await drive.apply(job, Suspend(delay_seconds=50))
        case "waiting for a signal":
            return await drive.apply(job, Suspend())
        case "retry":
            return await drive.apply(job, Retry(ERROR, delay_seconds=9))
        case "stalled":
            assert job.lease_expires_at is not None
            await reached(drive, job.lease_expires_at)
            return await drive.apply(job.id, Stall(), actor=RECOVERY)
        case "running":
            return job
    raise AssertionError(status)


def seconds_after(job: Any, name: str) -> float | None:
    at = getattr(job, name)
    return None if at is None else float((at - job.created_at).total_seconds())


SIGNALLED = ("queued", "claimed", "running", "waiting", "waiting for a signal", "retry", "stalled")


@pytest.mark.parametrize("status", SIGNALLED)
async def test_a_signal_from_sql_is_that_of_a_client_in_python(drive: Driver, sql: Sql, status: str) -> None:
    ours, theirs = await in_status(drive, status), await in_status(drive, status)
    expected = await drive.apply(theirs.id, Signal("approved", '{"by": "ada"}'), actor=CLIENT)
    rev = sql.one("select tenure.signal(%s, 'approved', %s)", ours.id, '{"by": "ada"}')
    job = await drive.job(ours.id)
    assert rev == job.rev == expected.rev
    assert (job.signal_rev, job.status) == (expected.signal_rev, expected.status)
    for name in ("due_at", "timeout_at", "lease_expires_at"):
        after, expected_after = seconds_after(job, name), seconds_after(expected, name)
        assert after == pytest.approx(expected_after, abs=5.0), name
    [sent, wanted] = [(await drive.store.history([one.id]))[one.id][-1] for one in (ours, theirs)]
    same = ("type", "from_status", "to_status", "attempt", "digest", "detail", "cause", "version", "until_at")
    assert {name: getattr(sent, name) for name in same} == {name: getattr(wanted, name) for name in same}
    [stored] = await drive.store.signals(ours.id)
    assert (stored.name, stored.payload, stored.rev) == ("approved", '{"by": "ada"}', rev)


async def test_a_signal_is_sent_once_per_request_id_and_never_to_an_ended_job(
    dsn: str, drive: Driver, sql: Sql
) -> None:
    job = await drive.add()
    call = "select tenure.signal(%s, 'go', %s, request_id => %s)"
    rev = sql.one(call, job.id, "1", "r")
    assert sql.one(call, job.id, "1", "r") == rev
    with pytest.raises(psycopg.Error) as reused:
        sql.one(call, job.id, "2", "r")
    await drive.apply(job.id, Cancel(), actor=CLIENT)
    assert sql.one(call, job.id, "1", "r") == rev
    with pytest.raises(psycopg.Error, match="is cancelled, so it cannot be signalled") as ended:
        sql.one(call, job.id, "1", "s")
    with pytest.raises(psycopg.Error, match="there is no job") as absent:
        sql.one(call, uuid4(), "1", "r")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="name is missing"):
        sql.one("select tenure.signal(%s, null)", job.id)
    assert [one.value.sqlstate for one in (reused, ended, absent)] == ["TN001", "TN005", "TN005"]
    assert len(await drive.store.signals(job.id)) == 1
    assert command("verify", "--database", dsn).code == 0


@pytest.mark.requirement("WF-11")
async def test_a_signal_from_sql_beyond_the_limit_is_refused_and_nothing_is_stored(
    dsn: str, drive: Driver, sql: Sql
) -> None:
    job = await drive.add(policy={"signals_max": 2})
    call = "select tenure.signal(%s, 'go', %s, request_id => %s)"
    revs = [sql.one(call, job.id, "1", name) for name in ("a", "b")]
    with pytest.raises(psycopg.Error, match="was sent 2 signals, which is its limit") as refused:
        sql.one(call, job.id, "1", "c")
    assert refused.value.sqlstate == "TN006"
    assert sql.one(call, job.id, "1", "b") == revs[1], "a repeated request is no new signal"
    assert len(await drive.store.signals(job.id)) == 2
    assert (await drive.job(job.id)).rev == revs[1]
    assert command("verify", "--database", dsn).code == 0


@pytest.mark.requirement("WF-11")
async def test_the_limit_of_signals_is_set_from_sql(drive: Driver, sql: Sql) -> None:
    job_id = sql.one("select tenure.enqueue('mail', policy => %s)", '{"signals_max": 7}')
    assert (await drive.job(job_id)).policy == Policy(signals_max=7)
    usual = sql.one("select tenure.enqueue('mail', policy => %s)", '{"signals_max": null}')
    assert (await drive.job(usual)).policy == Policy()
    for wrong in ("-1", "1.5", '"many"', "1000001"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"policy\.signals_max"):
            sql.one("select tenure.enqueue('mail', policy => %s)", f'{{"signals_max": {wrong}}}')


@pytest.mark.requirement("WF-15")
async def test_a_deadline_is_set_from_sql_and_kept_by_a_signal(drive: Driver, sql: Sql) -> None:
    job_id = sql.one("select tenure.enqueue('mail', policy => %s)", '{"deadline_seconds": 600}')
    job = await drive.job(job_id)
    assert job.timeout_at == deadline_of(job) == job.created_at + timedelta(seconds=600)
    [running] = await drive.claim(start=True)
    await drive.apply(running, Suspend())
    sql.one("select tenure.signal(%s, 'go')", job_id)
    assert (await drive.job(job_id)).timeout_at == job.timeout_at


def test_names_of_secret_fields_and_the_tag_of_a_deadline_are_checked(sql: Sql) -> None:
    for wrong in ('"ssn"', '["a b"]', "[1]", '[""]', "{}"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"policy\.secret"):
            sql.one("select tenure.enqueue('mail', policy => %s)", f'{{"secret": {wrong}}}')
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"deadline"):
        sql.one("select tenure.enqueue('mail', tags => %s)", '{"tenure.deadline": "2030-01-01T00:00:00.000000Z"}')


async def test_a_workflow_receives_a_signal_from_sql(dsn: str, sql: Sql) -> None:
    app = tenure.App(dsn)

    @app.workflow
    async def order(run: tenure.Run) -> str:
        approved = await run.wait_for("approved", str)
        return f"by {approved}"

    async with app, working(app):
        handle = await order.enqueue()
        # Sent before or while it waits: either way it is received.
        sql.one("select tenure.signal(%s, 'approved', %s)", handle.id, '"ada"')
        assert await handle.result(timeout_seconds=30) == "by ada"


async def test_a_signal_in_an_open_transaction_is_sent_at_its_commit(drive: Driver, sql: Sql) -> None:
    job = await drive.add()
    with sql.connection.transaction(force_rollback=True):
        sql.one("select tenure.signal(%s, 'go')", job.id)
    assert (await drive.job(job.id)).signal_rev == 0


FORBIDDEN = (
    "select count(*) from tenure.jobs",
    "select payload from tenure.job_records",
    "select * from tenure.events",
    "select * from tenure.signals",
    "insert into tenure.policies (body, lease_ms, heartbeat_ms) values ('{}', 1, 1)",
    "select tenure.policy_of_body(tenure.policy_body('{}'))",
    "select tenure.enqueue_within('{}')",
    "delete from tenure.jobs",
)


def test_a_caller_enqueues_and_signals_and_reads_nothing(caller: str, sql: Sql) -> None:
    with psycopg.connect(caller, autocommit=True) as connection:
        mine = Sql(connection)
        job_id = mine.enqueue("mail", dedupe_key="k")
        assert mine.enqueue("mail", dedupe_key="k") == job_id
        assert mine.one("select tenure.signal(%s, 'go')", job_id) == 2
        assert mine.one("select tenure.api_version()") == 1
        connection.execute("set tenure.writer = 'store'")
        for statement in FORBIDDEN:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
        actors = sql.connection.execute("select distinct actor from tenure.events").fetchall()
        assert actors == [(f"client:{mine.one('select session_user')}",)]


def test_a_caller_cannot_replace_what_the_functions_call(caller: str) -> None:
    """They run with the owner's rights, so names are looked up in the system's schema only."""
    with psycopg.connect(caller, autocommit=True) as connection:
        connection.execute(
            b"create function pg_temp.gen_random_uuid() returns uuid language plpgsql as "
            b"$$ begin raise exception 'replaced'; end $$"
        )
        connection.execute("set search_path = pg_temp, public")
        assert isinstance(Sql(connection).enqueue("mail"), UUID)


@pytest.mark.parametrize(
    ("kind", "works"), [("reader", False), ("outbox", False), ("enqueuer", True), ("worker", True)]
)
def test_other_roles_call_the_functions_by_their_kind(
    postgres_server: Postgres, dsn: str, sql: Sql, kind: str, works: bool
) -> None:
    with postgres_server.plain_role(dsn) as role:
        # The last grants count.
        sql.connection.execute(grants_sql("caller", role).encode())
        sql.connection.execute(grants_sql(kind, role).encode())
        with psycopg.connect(postgres_server.dsn(database_of(dsn), role=role), autocommit=True) as connection:
            if works:
                Sql(connection).enqueue("mail")
            else:
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="enqueue"):
                    Sql(connection).enqueue("mail")
            if kind == "enqueuer":
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="signal"):
                    connection.execute("select tenure.signal(gen_random_uuid(), 'go')")


def connection_variables(dsn: str) -> dict[str, str]:
    """The address as libpq and its relatives read it."""
    facts = psycopg.conninfo.conninfo_to_dict(dsn)
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE", "password": "PGPASSWORD"}
    return {names[key]: str(value) for key, value in facts.items() if key in names}


def test_the_calls_of_the_guide_enqueue_and_signal(sql: Sql) -> None:
    enqueue, signal = guide_block("tenure.signal(").splitlines()
    [example] = re.findall(r"[0-9a-f-]{36}", signal)
    job_id = sql.one(enqueue)
    assert sql.one(signal.replace(example, str(job_id))) == 2
    assert sql.one("select payload from tenure.jobs where queue = 'render'") == '{"scene": "intro"}'


async def test_the_call_of_the_guide_in_javascript_enqueues(dsn: str, sql: Sql, tmp_path: Path) -> None:
    """Node calls a client that prints what the one of `pg` would send; it is then sent from here."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    client = "const client = {query: async (...call) => console.log(JSON.stringify(call))};\n"
    (tmp_path / "call.mjs").write_text(client + blocks("sql.md", "js")[0])
    called, values = json.loads(shell("node call.mjs", folder=tmp_path))
    connection = await asyncpg.connect(dsn)
    await connection.execute(called, *(one if isinstance(one, str) else json.dumps(one) for one in values))
    await connection.close()
    assert sql.one("select payload from tenure.jobs where queue = 'render'") == '{"scene": "intro"}'


def test_the_grants_of_the_guide_are_those_of_a_caller(postgres_server: Postgres, dsn: str, tmp_path: Path) -> None:
    [written] = blocks("sql.md", "sh")
    with postgres_server.plain_role(dsn) as role:
        shell(written.replace("shop_trigger", role), folder=tmp_path, OWNER_URL=dsn)
        with psycopg.connect(postgres_server.dsn(database_of(dsn), role=role), autocommit=True) as connection:
            Sql(connection).enqueue("mail")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("select * from tenure.job_records")


def test_psql_enqueues_and_signals(caller: str, sql: Sql) -> None:
    psql = shutil.which("psql") or str(find_install().bin / "psql")
    script = """
        select tenure.enqueue('render', '{"scene": "intro"}', queue => 'render', priority => 5) as job \\gset
        select tenure.signal(:'job', 'approved', '"ada"');
        select :'job';
    """
    ran = subprocess.run(
        [psql, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"],
        input=script,
        env={**os.environ, **connection_variables(caller)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    rev, job_id = ran.stdout.split()
    assert rev == "2"
    row = sql.connection.execute("select id::text, kind, queue, priority, rev from tenure.jobs").fetchone()
    assert row == (job_id, "render", "render", 5, 2)


@pytest.fixture(scope="session")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example in JavaScript with its package installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not installed")
    folder = tmp_path_factory.mktemp("enqueue-js")
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--fetch-retries=0"]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if installed.returncode != 0:
        pytest.skip("npm cannot install `pg`: the package registry is not reachable")
    return folder / "enqueue.mjs"


@pytest.mark.deep
def test_a_client_in_javascript_enqueues_and_signals(node_client: Path, caller: str, sql: Sql) -> None:
    def node(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **connection_variables(caller)}
        return subprocess.run(
            ["node", str(node_client), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    job_id = node("render", '{"scene": "intro"}').stdout.strip()
    assert node("signal", job_id, "approved", '{"by": "ada"}').stdout.strip() == "2"
    row = sql.connection.execute("select id::text, kind, payload from tenure.jobs").fetchone()
    assert row == (job_id, "render", '{"scene": "intro"}')
    assert "22023: tenure: payload must be an object" in node("render", "[1]").stderr
