"""SQL typed into psql that violates the lifecycle. Each attempt is refused with a message, and nothing changes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from types import MappingProxyType
from uuid import UUID

import psycopg
import pytest

from tenure.errors import RowPoisoned
from tenure.lifecycle.causes import CAUSES
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import Cancel, Commit, Complete, DeadLetter, Heartbeat, Progress, Retry
from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import Status
from tenure.lifecycle.transitions import legal_events
from tenure.stores.contract import Applied, Failure
from tenure.testing.driver import CLIENT, ERROR, Driver

AS_THE_STORE = "select set_config('tenure.writer', 'store', true);"
MARK = "update tenure.dead_letters set handled_at = clock_timestamp()"
LEGAL = "select tenure.legal_event(%s, %s, %s, %s, %s, true)"
EVENT = """insert into tenure.events (job_id, at, rev, attempt, version, commits, type, from_status, to_status, actor,
    request_id)
    values ('{id}', now(), {rev}, 1, 1, {commits}, '{type}', {from_}, '{to}', 'runner:me', 'x');"""


def event(job: str, rev: int, type_: str, from_: str | None, to: str, *, commits: bool = False) -> str:
    source = "null" if from_ is None else f"'{from_}'"
    return EVENT.format(id=f"{{{job}}}", rev=rev, type=type_, from_=source, to=to, commits=commits)


ATTACKS = {
    "a status typed by hand": "update tenure.jobs set status = 'queued', owner = null, token = null,"
    " lease_expires_at = null, heartbeat_deadline_at = null where id = '{running}'",
    "a revision without its event": "update tenure.jobs set rev = rev + 1, previous_status = status,"
    " transition_count = 1, updated_at = now() where id = '{running}'",
    "a revision that stands still": "update tenure.jobs set progress = 7 where id = '{running}'",
    "an illegal transition with its event": AS_THE_STORE
    + event("queued", 2, "succeeded", "queued", "succeeded", commits=True)
    + "update tenure.jobs set status = 'succeeded', previous_status = 'queued', rev = 2, transition_count = 1,"
    " result = '1', committed_at = now(), finished_at = now(), updated_at = now()"
    " where id = '{queued}'",
    "a chain that starts elsewhere": AS_THE_STORE
    + event("queued", 2, "started", "claimed", "running")
    + "update tenure.jobs set status = 'running', previous_status = status, rev = 2, transition_count = 1, attempt = 1,"
    " owner = 'me', token = gen_random_uuid(), lease_expires_at = now(), heartbeat_deadline_at = now(),"
    " started_at = updated_at"
    " where id = '{queued}'",
    "a chain with a hole": AS_THE_STORE
    + event("running", 5, "heartbeat", "running", "running")
    + "update tenure.jobs set rev = 5, previous_status = status, transition_count = 2, updated_at = now()"
    " where id = '{running}'",
    "a lie about the status before": AS_THE_STORE
    + event("running", 4, "requeued", "stalled", "queued")
    + "update tenure.jobs set status = 'queued', previous_status = 'stalled', rev = 4, transition_count = 1,"
    " owner = null,"
    " token = null, lease_expires_at = null, heartbeat_deadline_at = null,"
    " updated_at = now() where id = '{running}'",
    "a signal that leaves its revision unsaid": AS_THE_STORE
    + event("running", 4, "signalled", "running", "running")
    + "update tenure.jobs set rev = 4, previous_status = status, transition_count = 1, updated_at = now()"
    " where id = '{running}'",
    "a wait for nothing": AS_THE_STORE
    + event("running", 4, "suspended", "running", "waiting")
    + "update tenure.jobs set status = 'waiting', rev = 4, previous_status = status, transition_count = 1,"
    " owner = null, token = null, lease_expires_at = null, heartbeat_deadline_at = null,"
    " updated_at = now() where id = '{running}'",
    "a wait for a time without one": AS_THE_STORE
    + event("running", 4, "suspended", "running", "waiting")
    + "update tenure.jobs set status = 'waiting', waiting_for = 'time', due_at = null, rev = 4,"
    " previous_status = status, transition_count = 1, owner = null, token = null, lease_expires_at = null,"
    " heartbeat_deadline_at = null,"
    " updated_at = now() where id = '{running}'",
    "a stray event": event("queued", 2, "claimed", "queued", "claimed"),
    "an event of no known kind": AS_THE_STORE + event("queued", 2, "blessed", "queued", "queued"),
    "a second commit": AS_THE_STORE + event("succeeded", 5, "committed", "running", "running", commits=True),
    "a terminal row changed": "update tenure.jobs set result = '2' where id = '{succeeded}'",
    "a terminal row revived": AS_THE_STORE
    + "update tenure.jobs set status = 'queued', previous_status = status, rev = rev + 1, transition_count = 1,"
    " result = null, finished_at = null, committed_at = null where id = '{succeeded}'",
    "a commit taken back": "update tenure.jobs set committed_at = null, committed_result = null"
    " where id = '{committed}'",
    "a committed result changed": "update tenure.jobs set committed_result = '9' where id = '{committed}'",
    "a payload changed": "update tenure.jobs set payload = '[]' where id = '{queued}'",
    "a payload of a terminal job changed": "update tenure.jobs set payload = '[]' where id = '{succeeded}'",
    "a queue changed": "update tenure.jobs set queue = 'other' where id = '{queued}'",
    "an attempt forgotten": "update tenure.jobs set attempt = 0 where id = '{running}'",
    "an event changed": "update tenure.events set actor = 'nobody' where job_id = '{succeeded}'",
    "an event's detail invented": "update tenure.events set detail = 'x' where job_id = '{succeeded}'",
    "an event removed": "delete from tenure.events where job_id = '{succeeded}' and rev = 2",
    "a live job removed": "delete from tenure.jobs where id = '{queued}'",
    "a live job removed in retention's name": "select set_config('tenure.writer', 'retention', true);"
    "delete from tenure.jobs where id = '{queued}'",
    "a terminal job removed by hand": "delete from tenure.jobs where id = '{succeeded}'",
    "the log truncated": "truncate tenure.events",
    "the jobs truncated": "truncate tenure.jobs",
    "everything truncated": "truncate tenure.jobs, tenure.events, tenure.claims cascade",
    "a claim invented": "insert into tenure.claims values ('mine', '', clock_timestamp(), '{{}}')",
    "a claim changed": "update tenure.claims set job_ids = '{{}}'",
    "a dead letter removed": "delete from tenure.dead_letters",
    "a dead letter changed": "update tenure.dead_letters set attempts = 0",
    "a dead letter marked": f"{MARK}, handled_as = 'discarded'",
    "a dead letter marked twice": f"{AS_THE_STORE}{MARK}, handled_as = 'discarded';{MARK}, handled_as = 'redriven'",
    "a dead letter whose mark is taken back": f"{AS_THE_STORE}{MARK}, handled_as = 'discarded';"
    "update tenure.dead_letters set handled_at = null, handled_as = null",
    "a dead letter marked and rewritten": f"{AS_THE_STORE}{MARK}, handled_as = 'discarded', last_error = '2'",
    "a dead letter marked and redated": f"{AS_THE_STORE}{MARK}, handled_as = 'discarded', at = now()",
    "a dead letter rewritten without a mark": AS_THE_STORE + "update tenure.dead_letters set last_error = null",
    "a dead letter marked with a word of one's own": f"{AS_THE_STORE}{MARK}, handled_as = 'forgotten'",
    "a dead letter with a time and no resolution": f"{AS_THE_STORE}{MARK}",
    "an erasure that marks a dead letter": "select set_config('tenure.writer', 'erasure', true);"
    f"{MARK}, handled_as = 'discarded', last_error = null",
    "an erasure that redates a dead letter": "select set_config('tenure.writer', 'erasure', true);"
    "update tenure.dead_letters set last_error = null, at = now()",
    "an answer invented": "insert into tenure.deduplicated_requests values ('mine', '{queued}', 'x', null, now())",
    "a policy invented": "insert into tenure.policies (body, lease_ms, heartbeat_ms) values ('x', 1, 1)",
    "a lease for ever": AS_THE_STORE
    + "insert into tenure.policies (body, lease_ms, heartbeat_ms) values ('x', 9223372036854775807, 1)",
    "the operators' log rewritten": "delete from tenure.operator_log",
    "a job born long ago": "select tenure.insert_jobs(array[gen_random_uuid()], array['mail'], array['default'],"
    " array[0]::smallint[], array['1'], array[1], array[null::text], array[null::text], array[null::text],"
    " array[null::text], array[null::text], array[null::text], array[null::text], array[null::uuid],"
    " array[null::uuid], array[false], array[0::bigint], array[null::timestamptz], array['x'], array[null::text],"
    " array[null::text], array['client:me'], 1::smallint, '4000-01-01 BC', '{{}}')",
    "a policy changed": "update tenure.policies set lease_ms = 1",
    "a policy removed": "delete from tenure.policies",
    "a job without its event": "insert into tenure.jobs (id, created_at, policy_id, priority, kind, queue, payload,"
    " status, rev, transition_count, attempt, failures, losses, lost, updated_at, due_at)"
    " values (gen_random_uuid(), now(), 1, 0, 'mail', 'default', '1', 'queued', 1, 1, 0, 0, 0, false, now(),"
    " now())",
    "a job born finished": "insert into tenure.jobs (id, created_at, policy_id, priority, kind, queue, payload,"
    " status, rev, transition_count, attempt, failures, losses, lost, updated_at, finished_at,"
    " committed_at, result)"
    " values (gen_random_uuid(), now(), 1, 0, 'mail', 'default', '1', 'succeeded', 1, 1, 0, 0, 0, false, now(),"
    " now(), now(), '1')",
}


@pytest.fixture
async def jobs(drive: Driver) -> dict[str, UUID]:
    """One job of each sort that an attack needs."""
    succeeded = await drive.running()
    await drive.apply(succeeded, Complete("1"))
    committed = await drive.running()
    await drive.apply(committed, Commit("1"))
    buried = await drive.running()
    await drive.apply(buried, DeadLetter(ReasonCode.POLICY_VIOLATION, Stage.EXEC, ERROR))
    running = await drive.running()
    queued = await drive.add()
    return {
        "succeeded": succeeded.id,
        "committed": committed.id,
        "buried": buried.id,
        "running": running.id,
        "queued": queued.id,
    }


def everything(connection: psycopg.Connection) -> list[object]:
    tables = ("jobs", "events", "claims", "dead_letters", "policies", "signals")
    return [connection.execute(f"select * from tenure.{name} order by 1, 2").fetchall() for name in tables]


@pytest.mark.requirement("LC-02", "LC-03", "LC-10", "EL-03", "WC-12")
@pytest.mark.parametrize("attack", ATTACKS)
async def test_hand_written_sql_cannot_break_the_invariants(dsn: str, jobs: dict[str, UUID], attack: str) -> None:
    with psycopg.connect(dsn) as connection:
        before = everything(connection)
        connection.commit()
        with pytest.raises(psycopg.Error) as refusal:
            connection.execute(ATTACKS[attack].format(**jobs).encode())
        connection.rollback()
        assert everything(connection) == before
    known = ("TN002", psycopg.errors.CheckViolation.sqlstate, psycopg.errors.UniqueViolation.sqlstate)
    assert refusal.value.sqlstate in known, f"refused by accident: {refusal.value}"


@pytest.mark.requirement("SM-17")
def test_the_databases_own_list_of_causes_is_the_lifecycles(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        for type_, cause in CAUSES.items():
            assert connection.execute("select tenure.usual_cause(%s)", (type_.value,)).fetchone() == (cause,)


@pytest.mark.requirement("SM-17")
async def test_the_view_of_the_log_has_the_cause_of_every_event(dsn: str, drive: Driver) -> None:
    job = await drive.apply(await drive.running(), Retry(ERROR, delay_seconds=0))
    [again] = await drive.claim(start=False)
    await drive.apply(again.id, Cancel("no need"), actor=CLIENT)
    with psycopg.connect(dsn) as connection:
        query = "select type, cause from tenure.log where job_id = %s order by rev"
        seen = connection.execute(query, (job.id,)).fetchall()
    assert seen == [(event.type.value, event.cause) for event in await drive.events_of(job.id)]
    assert [cause for _, cause in seen] == ["requested", "due", "claimed", "ValueError", "due", "no need"]


@pytest.mark.requirement("LC-03", "LC-10")
def test_the_databases_own_list_of_events_is_the_lifecycles(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        legal = {
            (type_, from_, to)
            for type_, from_, to in product(EventType, [None, *Status], Status)
            if connection.execute(LEGAL, (type_, from_, to, 1 + (type_ is not EventType.ENQUEUED), False)).fetchone()
            == (True,)
        }
        assert legal == legal_events()
        for poisoned in (
            ("enqueued", None, "queued", 2, False),
            ("claimed", "queued", "claimed", 1, False),
            ("started", "claimed", "running", 3, True),
        ):
            assert connection.execute(LEGAL, poisoned).fetchone() == (False,)


def check_refused(connection: psycopg.Connection, statement: str, words: str) -> None:
    """This must be refused, in these words, and is undone."""
    with pytest.raises(psycopg.Error, match=words) as refusal:
        connection.execute(statement.encode())
    connection.rollback()
    assert refusal.value.sqlstate == "TN002"


UNSIGNALLED = "the revision of its last signal or wake is another one"
UNWAITING = "only a waiting job waits for something"
CHILDLESS = "only a job that waits for children has a number of them"
POISONED = {
    "started_at = null": "a column that this status requires is null",
    "attempt = 0": "time and attempts never go back",
    "token = null": "jobs that are claimed or running have a lease",
    "owner = null": "jobs that are claimed or running have a lease",
    "heartbeat_deadline_at = null": "jobs that are claimed or running have a lease",
    "result = '1'": "a column of another status is set",
    "error = '1'": "a column of another status is set",
    "partial_result = '1'": "a column of another status is set",
    "reason = 'because'": "a column of another status is set",
    "finished_at = clock_timestamp()": "a column of another status is set",
    "committed_result = '1'": "a column of another status is set",
    "losses = 1": "its counters are out of range",
    "failures = 2": "its counters are out of range",
    "progress = 101": "its counters are out of range",
    "started_at = created_at - interval '1 second'": "its times are out of order",
    "signal_rev = 3": "only a new signal or wake sets the revision of the last one",
    "signal_rev = 4": UNSIGNALLED,
    "waiting_for = 'signal'": UNWAITING,
    "children_max = 0": CHILDLESS,
    "awaited = true": "what a job was enqueued with never changes",
    "erased_at = clock_timestamp()": "time and attempts never go back",
    "payload = null": "what a job was enqueued with never changes",
}


@pytest.mark.requirement("LC-02", "LC-10")
@pytest.mark.parametrize("poisoned", POISONED)
async def test_a_change_to_an_invalid_row_is_refused_with_a_message(
    dsn: str, jobs: dict[str, UUID], poisoned: str
) -> None:
    step = AS_THE_STORE + event("running", 4, "heartbeat", "running", "running")
    change = "update tenure.jobs set rev = 4, previous_status = status, transition_count = 1, updated_at = now()"
    where = " where id = '{running}'"
    with psycopg.connect(dsn) as connection:
        check_refused(connection, f"{step}{change}, {poisoned}{where}".format(**jobs), POISONED[poisoned])
        connection.execute(f"{step}{change}{where}".format(**jobs).encode())


BORN = AS_THE_STORE + (
    "with born as (insert into tenure.jobs (id, created_at, policy_id, priority, kind, queue, payload, tags, status,"
    " rev, transition_count, attempt, failures, losses, lost, updated_at, due_at) values"
    " (gen_random_uuid(), now(), {policy}, 0, 'mail', 'default', {payload}, {tags}, 'queued', 1, 1, {attempt},"
    " 0, 0, {lost}, now(),"
    " {due}) returning id, attempt)"
    " insert into tenure.events (job_id, at, rev, attempt, version, commits, type, to_status, actor, request_id)"
    " select id, now(), 1, attempt, 1, false, 'enqueued', 'queued', 'client:me', id::text from born"
)
WELL_BORN = {"policy": "1", "payload": "'1'", "tags": "null", "attempt": "0", "lost": "false", "due": "now()"}
ILL_BORN = {
    "payload": ("null", "it has no payload"),
    "tags": ("'[]'", "its tags are not an object"),
    "policy": ("999", "its policy does not exist"),
    "attempt": ("1", "a job begins queued"),
    "lost": ("true", "a job begins queued"),
    "due": ("null", "a column that this status requires is null"),
}


@pytest.mark.requirement("LC-02", "LC-10")
@pytest.mark.parametrize("column", ILL_BORN)
async def test_an_invalid_job_is_refused_with_a_message(dsn: str, jobs: dict[str, UUID], column: str) -> None:
    value, words = ILL_BORN[column]
    with psycopg.connect(dsn) as connection:
        check_refused(connection, BORN.format(**{**WELL_BORN, column: value}), words)
        connection.execute(BORN.format(**WELL_BORN).encode())


LEASE = {
    "owner": "'me'",
    "token": "gen_random_uuid()",
    "lease_expires_at": "now() + interval '1 minute'",
    "heartbeat_deadline_at": "now() + interval '1 minute'",
}
COUNTS = {"error": "null", "partial_result": "null", "reason": "null", "committed_result": "null", "progress": "null"}
COUNTS |= {"losses": "0", "failures": "0", "signal_rev": "0", "waiting_for": "null", "children_max": "null"}
TOGETHER = {
    # What a statement of the store does to many jobs at once: the event of each, and its columns.
    "claims": (
        event("it", 3, "claimed", "queued", "running"),
        {"status": "'running'", "rev": "3", "transition_count": "2", "previous_status": "status", "attempt": "1"}
        | {
            **LEASE,
            "updated_at": "now()",
            "started_at": "now()",
            "result": "null",
            "finished_at": "null",
            "committed_at": "null",
            **COUNTS,
        },
    ),
    "completions": (
        event("it", 4, "succeeded", "running", "succeeded", commits=True),
        {"status": "'succeeded'", "rev": "4", "transition_count": "1", "previous_status": "status", "attempt": "1"}
        | {**dict.fromkeys(LEASE, "null"), "updated_at": "now()", "started_at": "started_at", "result": "'1'"}
        | {"finished_at": "now()", "committed_at": "now()", **COUNTS},
    ),
}
LACKING = "a column that this status requires is null"
LEASED = "jobs that are claimed or running have a lease, and no others"
STRANGE = "a column of another status is set"
COUNTED = "its counters are out of range"
ONE_SPOILT = {
    "claims": {
        "started_at": ("null", LACKING),
        **dict.fromkeys(LEASE, ("null", LEASED)),
        **dict.fromkeys(("result", "error", "partial_result", "reason", "committed_result"), ("'1'", STRANGE)),
        "finished_at": ("now()", STRANGE),
        "losses": ("1", COUNTED),
        "failures": ("2", COUNTED),
        "progress": ("101", COUNTED),
        "signal_rev": ("2", UNSIGNALLED),
        "waiting_for": ("'signal'", UNWAITING),
        "children_max": ("0", CHILDLESS),
        "attempt": ("0", "time and attempts never go back"),
        "committed_at": ("now()", "it is committed by an event that commits"),
        "status": ("'claimed'", "its events do not lead to this row"),
        "updated_at": ("created_at - interval '1 second'", "time and attempts never go back"),
    },
    "completions": {
        "result": ("null", LACKING),
        "committed_at": ("null", "it is committed by an event that commits"),
        **{column: (value, LEASED) for column, value in LEASE.items()},
        **dict.fromkeys(("error", "partial_result", "reason", "committed_result"), ("'1'", STRANGE)),
        "finished_at": ("started_at - interval '1 second'", "its times are out of order"),
        "started_at": ("created_at - interval '1 second'", "its times are out of order"),
        "losses": ("1", COUNTED),
        "failures": ("2", COUNTED),
        "progress": ("101", COUNTED),
        "signal_rev": ("4", UNSIGNALLED),
        "waiting_for": ("'signal'", UNWAITING),
        "children_max": ("0", CHILDLESS),
        "attempt": ("2", "time and attempts never go back"),
    },
}
EACH_SPOILT = [(what, column) for what, columns in ONE_SPOILT.items() for column in columns]


async def three(drive: Driver, what: str) -> list[UUID]:
    """Jobs to which this can be done."""
    added = [await drive.add() for _ in range(3)]
    return [job.id for job in (added if what == "claims" else await drive.claim(limit=3))]


def together(
    what: str, ids: list[UUID], *, with_events: list[UUID], poisoned: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The statement that does it to all of them; the second one of them is poisoned."""
    step, columns = TOGETHER[what]
    events = "".join(step.format(it=job_id) for job_id in with_events)
    values = {
        column: f"case id when '{ids[1]}' then {poisoned[column]} else {value} end" if column in poisoned else value
        for column, value in columns.items()
    }
    assignments = ", ".join(f"{column} = {value}" for column, value in values.items())
    among = ", ".join(f"'{job_id}'" for job_id in ids)
    return f"{AS_THE_STORE}{events}update tenure.jobs set {assignments} where id in ({among})"


@pytest.mark.requirement("LC-02", "LC-10")
@pytest.mark.parametrize(("what", "column"), EACH_SPOILT)
async def test_an_invalid_row_in_a_homogeneous_batch_is_refused_with_a_message(
    dsn: str, drive: Driver, what: str, column: str
) -> None:
    ids = await three(drive, what)
    value, words = ONE_SPOILT[what][column]
    with psycopg.connect(dsn) as connection:
        check_refused(connection, together(what, ids, with_events=ids, poisoned={column: value}), words)
        connection.execute(together(what, ids, with_events=ids).encode())


@pytest.mark.requirement("LC-10")
@pytest.mark.parametrize("what", TOGETHER)
async def test_one_row_without_its_event_among_many_that_are_alike_is_refused(
    dsn: str, drive: Driver, what: str
) -> None:
    ids = await three(drive, what)
    with psycopg.connect(dsn) as connection:
        for with_events in ([ids[0], ids[2]], ids[:1], []):
            check_refused(
                connection, together(what, ids, with_events=with_events), "its events do not lead to this row"
            )


OTHERWISE = {
    "claims": event("it", 3, "claimed", "queued", "claimed"),
    "completions": event("it", 4, "heartbeat", "running", "running"),
}


@pytest.mark.requirement("LC-03", "LC-10")
@pytest.mark.parametrize("what", TOGETHER)
async def test_a_row_that_contradicts_its_event_in_a_homogeneous_batch_is_refused(
    dsn: str, drive: Driver, what: str
) -> None:
    ids = await three(drive, what)
    with psycopg.connect(dsn) as connection:
        connection.execute((AS_THE_STORE + OTHERWISE[what].format(it=ids[2])).encode())
        check_refused(
            connection, together(what, ids, with_events=ids[:2]), f"job {ids[2]} .* its events do not lead to this row"
        )


@pytest.mark.requirement("LC-10")
async def test_one_new_job_without_its_event_among_many_is_refused(dsn: str, jobs: dict[str, UUID]) -> None:
    one = BORN.format(**WELL_BORN)
    several = one.replace("values (gen_random_uuid()", "select gen_random_uuid()")
    several = several.replace(" now()) returning", " now() from generate_series(1, 3) returning")
    with psycopg.connect(dsn) as connection:
        connection.execute(several.encode())
        connection.rollback()
        check_refused(connection, f"{several} limit 2", "its events do not lead to this row")


async def test_a_poisoned_row_is_quarantined_and_its_batch_is_written(dsn: str, drive: Driver) -> None:
    await drive.store.enqueue([drive.enqueue() for _ in range(8)])
    jobs = await drive.claim(limit=8)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute(event("it", 4, "heartbeat", "running", "running").format(it=jobs[5].id).encode())
    for operation in (Heartbeat(), Progress(1), Complete("1")):
        fresh = [drive.request(job, operation, fresh=True) for job in jobs]
        outcomes = await drive.store.apply(fresh)
        assert [type(outcome) for outcome in outcomes] == [Applied] * 5 + [Failure] + [Applied] * 2
        set_aside = outcomes[5]
        assert isinstance(set_aside, Failure)
        assert isinstance(set_aside.error, RowPoisoned)
        assert str(jobs[5].id) in str(set_aside.error)
        jobs = [
            outcome.job if isinstance(outcome, Applied) else job for job, outcome in zip(jobs, outcomes, strict=True)
        ]


async def test_a_job_with_a_stray_event_is_quarantined_and_the_queue_continues(dsn: str, drive: Driver) -> None:
    poisoned = await drive.add(priority=10)
    healthy = await drive.add()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute(event("it", 2, "claimed", "queued", "claimed").format(it=poisoned.id).encode())
    assert [job.id for job in await drive.claim(limit=5)] == [healthy.id]
    assert (await drive.store.read([poisoned.id]))[poisoned.id] == poisoned
