"""Both stores have the same tables, columns, keys, indexes, constraints and guards in meaning.

Whatever one of them alone has stands in EXPLAINED with its reason. A difference that is not there fails, and so does an
explanation that nothing needs any more.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

import pytest

from tenure.lifecycle.operations import Commit, Suspend
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Policy
from tenure.lifecycle.schedules import Schedule
from tenure.lifecycle.statuses import TERMINAL
from tenure.lifecycle.timeouts import Timeouts
from tenure.seams import SYSTEM
from tenure.stores import Store
from tenure.stores.contract import Artifact, OutboxMessage, WorkerRecord
from tenure.testing.clock import START
from tenure.testing.contract.budgets import reserve
from tenure.testing.contract.outbox import claim, endpoint, settlement
from tenure.testing.contract.steps import save, save_request
from tenure.testing.driver import OPERATOR, Driver, runner
from tests.support.databases import Database, GuardRefused
from tests.support.sample_jobs import one_of_each

FEW = (
    *("retry_scheduled", "failed", "halted", "suspended", "signalled", "woken", "unwinding", "compensated", "released"),
    *("cancel_requested", "cancelled", "stalled", "requeued", "dead_lettered"),
)

Fact = tuple[str, ...]
"""("column", table, name, "null" or "not null"), ("index", table, columns, "unique" or ""), ("rows", table, columns,
the rows of a partial index), ("guard", table, operation)."""

UNUSUAL = f"rev > 1 and not commits and type = any array[{', '.join(map(repr, FEW))}]"
VERBOSE = "type = 'progress' and detail is not null"
ERASABLE = (("jobs", "payload"), ("signals", "payload"), ("dead_letters", "last_error"))
GUARDED = (
    "jobs",
    "events",
    "claims",
    "deduplicated_requests",
    "dead_letters",
    "signals",
    "artifacts",
    "steps",
    "budgets",
    "reservations",
    "outbox",
    "deliveries",
)

EXPLAINED: dict[str, tuple[set[Fact], set[Fact]]] = {
    "the writer is a row on SQLite, which has no settings of a session": (
        {
            ("column", "writer", "only", "not null"),
            ("column", "writer", "writer", "null"),
            ("index", "writer", "only", "unique"),
            *(("guard", "writer", operation) for operation in ("insert", "update", "delete")),
        },
        set(),
    ),
    "the order of the log is a number that SQLite's one writer draws, and the transaction's id on PostgreSQL": (
        {
            ("column", "events", "position", "not null"),
            ("index", "events", "position", "unique"),
            ("index", "events", "at, position", ""),
            ("rows", "events", "at, position", VERBOSE),
        },
        {
            ("column", "events", "tx", "not null"),
            ("index", "events", "tx", ""),
            ("index", "events", "at, job_id, rev", ""),
            ("rows", "events", "at, job_id, rev", "detail is not null and type = 'progress'"),
        },
    ),
    "a step's number is the rowid on SQLite; PostgreSQL reads the steps of a job by the job, and sorts them": (
        {("index", "steps", "number", "unique")},
        set(),
    ),
    "PostgreSQL draws the sequences of a transaction's messages at its commit, and finds them by the transaction": (
        set(),
        {
            ("column", "outbox", "tx", "null"),
            ("index", "outbox", "tx", ""),
            ("rows", "outbox", "tx", "tx is not null"),
        },
    ),
    "PostgreSQL's statements compute times, and read the durations of a policy": (
        set(),
        {("column", "policies", name, "not null") for name in ("lease_ms", "heartbeat_ms")}
        | {("column", "policies", name, "null") for name in ("queued_ms", "claimed_ms", "running_ms", "deadline_ms")},
    ),
    "erased content is null on PostgreSQL, and the text `null` on SQLite, whose columns can then be required": (
        {("column", table, column, "not null") for table, column in ERASABLE},
        {("column", table, column, "null") for table, column in ERASABLE},
    ),
    "PostgreSQL's events leave out a request id that is the job's own": (
        {("column", "events", "request_id", "not null")},
        {("column", "events", "request_id", "null")},
    ),
    "a claim on PostgreSQL reads single lanes; on SQLite it reads a queue by falling priority": (
        {("index", "jobs", "queue, priority desc, due_at, id", "")},
        {("index", "jobs", "queue, priority, due_at, id", "")},
    ),
    "SQLite's ready indexes have a short predicate, and so also jobs that wait without a due time": (
        {
            ("rows", "jobs", "queue, priority, due_at, id", "waiting"),
            ("rows", "jobs", "queue, priority, due_at, id", "waiting partition_key"),
            ("rows", "jobs", "queue, partition_key, priority, due_at, id", "waiting partition_key"),
        },
        set(),
    ),
    "SQLite finds events of all types by (type, at); PostgreSQL those of which there are few, others by time": (
        set(),
        {
            ("index", "events", "at", ""),
            (
                "rows",
                "events",
                "type, at",
                UNUSUAL,
            ),
        },
    ),
    "retention finds finished jobs on PostgreSQL by ranges of ids, since an index costs every completion an entry": (
        {
            ("index", "jobs", "status, kind, finished_at", ""),
            *(("rows", "jobs", "status, kind, finished_at", f"{status} due_at") for status in TERMINAL),
        },
        set(),
    ),
    "SQLite has no truncate": (
        set(),
        {("guard", table, "truncate") for table in (*GUARDED, "operator_log", "policies")},
    ),
}
"""The facts of SQLite alone and of PostgreSQL alone, by the reason for them."""

FACTS_OF_A_JOB = ("due_at", "timeout_at", "dedupe_key", "request_id", "correlation_id", "partition_key", "owner")


@pytest.fixture
async def databases(tmp_path: Path, postgres_dsn: str) -> AsyncIterator[dict[str, Database]]:
    """A database of each kind, with the same rows."""
    made = {"sqlite": Database(f"sqlite:///{tmp_path}/jobs.db"), "postgres": Database(postgres_dsn)}
    async with AsyncExitStack() as stack:
        for database in made.values():
            await fill(await stack.enter_async_context(database.opened()))
        yield made


async def fill(store: Store) -> None:
    """At least one row in each table that has a constraint, and jobs on both sides of each partial index."""
    drive = Driver(store)
    rate = Rate(100, 60.0)
    await store.queues.put("limited", QueueLimits(rate=rate, key_rate=rate), actor=OPERATOR)
    schedule = Schedule(name="hourly", cron="@hourly", kind="mail", payload="{}", policy=Policy())
    await store.schedules.put(schedule, next_at=SYSTEM.clock.now(), paused=False, expected_rev=0, actor=OPERATOR)
    await store.register(
        WorkerRecord(
            id="w", host="h", pid=1, version="1", queues=(), kinds=(), concurrency=1, started_at=START, seen_at=START
        )
    )
    await endpoint(store)
    job = await drive.running(queue="limited", partition_key="ada")
    async with store.transaction(deadline_seconds=30) as tx:
        await tx.attach(job, [Artifact(name="report", media_type="text/plain", body=b"1")])
        await tx.post([OutboxMessage(id=drive.random.job_id(), topic="paid", body="{}", aggregate="ada")], job=job)
        await tx.apply(drive.request(job.id, Commit("1"), actor=runner(job)))
    await save(store, save_request(await drive.running(kind="stepping"), duration_ms=7))
    await reserve(store, await drive.running(kind="spending"), cost=0.5)
    await store.log_cursors.lease("events", owner="w", token=UUID(int=1), lease_seconds=30)
    [stream] = await claim(store)
    await store.outbox.settle([settlement(stream, "dead")])
    async with store.transaction(deadline_seconds=30) as tx:
        await tx.post([OutboxMessage(id=drive.random.job_id(), topic="paid", body="{}", aggregate="ada")])
    await one_of_each(drive)
    await drive.add(partition_key="ada", dedupe_key="a", request_id="r", correlation_id="c", delay_ms=1000)
    await drive.add(partition_key="ada", dedupe_key="a", request_id="again", correlation_id="c", delay_ms=1000)
    await drive.apply(await drive.running(kind="waits", partition_key="bob"), Suspend())
    await drive.add(policy={"timeouts": Timeouts(queued_seconds=10)})
    await drive.running(kind="keyed", partition_key="bob", dedupe_key="b", request_id="s", correlation_id="d")


def facts_of(database: Database) -> set[Fact]:
    return {*columns(database), *indexes(database), *guards(database)}


def columns(database: Database) -> Iterator[Fact]:
    if database.is_sqlite:
        # An integer primary key is never null, without a declaration.
        found = database.rows(
            'select substr(t.name, 8), c.name, c."notnull" or c.pk > 0'
            " from sqlite_master t, pragma_table_info(t.name) c"
            " where t.type = 'table' and t.name like 'tenure~_%' escape '~'"
        )
    else:
        found = database.rows(
            "select table_name, column_name, is_nullable = 'NO' from information_schema.columns"
            " join pg_tables on schemaname = table_schema and tablename = table_name where table_schema = 'tenure'"
        )
    for table, column, required in found:
        yield "column", table, column, "not null" if required else "null"


def indexes(database: Database) -> Iterator[Fact]:
    for table, columns_, unique, predicate in (
        sqlite_indexes(database) if database.is_sqlite else postgres_indexes(database)
    ):
        yield "index", table, columns_, "unique" if unique else ""
        if predicate:
            for rows in selected_jobs(database, predicate) if table == "jobs" else [plain(predicate)]:
                yield "rows", table, columns_.replace(" desc", ""), rows


def sqlite_indexes(database: Database) -> Iterator[tuple[str, str, bool, str]]:
    found = database.rows(
        'select substr(t.name, 8), i.name, i."unique", m.sql from sqlite_master t, pragma_index_list(t.name) i'
        " left join sqlite_master m on m.name = i.name where t.type = 'table' and t.name like 'tenure~_%' escape '~'"
    )
    for table, name, unique, sql in found:
        keys = database.rows(f"select name, \"desc\" from pragma_index_xinfo('{name}') where key order by seqno")
        predicate = re.search(r"\bwhere (.*)", sql or "", re.DOTALL)
        yield table, listed(keys), bool(unique), predicate[1] if predicate else ""
    rowids = "select substr(t.name, 8), c.name from sqlite_master t, pragma_table_info(t.name) c"
    rowids += " where t.type = 'table' and t.name like 'tenure~_%' escape '~' and c.pk = 1 and c.type = 'INTEGER'"
    for table, column in database.rows(rowids):
        yield table, column, True, ""


def postgres_indexes(database: Database) -> Iterator[tuple[str, str, bool, str]]:
    found = database.rows(
        "select relname, indexrelid, indisunique, pg_get_expr(indpred, indrelid) from pg_index"
        " join pg_class on pg_class.oid = indrelid where relnamespace = 'tenure'::regnamespace"
    )
    for table, index, unique, predicate in found:
        keys = database.rows(
            f"select attname, (indoption[attnum - 1] & 1) = 1 from pg_index join pg_attribute on attrelid = indexrelid"
            f" where indexrelid = {index} order by attnum"
        )
        yield table, listed(keys), unique, predicate or ""


def listed(keys: list[tuple[str, bool]]) -> str:
    return ", ".join(f"{name} desc" if falling else name for name, falling in keys)


def selected_jobs(database: Database, predicate: str) -> list[str]:
    """The sorts of jobs that a predicate selects: by status, and by which columns are set."""
    sort = " || ".join(f"case when {name} is null then '' else ' {name}' end" for name in FACTS_OF_A_JOB)
    found = database.rows(f"select distinct status || {sort} from {{jobs}} where {predicate}")
    return [sort for (sort,) in found]


def plain(predicate: str) -> str:
    """A predicate without casts, brackets and letter case."""
    words = re.sub(r"::text(\[\])?|[()]", "", predicate.lower()).replace("commits = 1", "commits")
    return " ".join(words.split())


def guards(database: Database) -> Iterator[Fact]:
    if database.is_sqlite:
        for table, sql in database.rows("select substr(tbl_name, 8), sql from sqlite_master where type = 'trigger'"):
            refused = re.search(r"before (insert|update|delete)", sql)
            assert refused is not None, sql
            yield "guard", table, refused[1]
        return
    triggers = "select relname, tgtype from pg_trigger join pg_class on pg_class.oid = tgrelid"
    triggers += " where relnamespace = 'tenure'::regnamespace and not tgisinternal"
    for table, type_ in database.rows(triggers):
        for operation, bit in (("insert", 4), ("delete", 8), ("update", 16), ("truncate", 32)):
            if type_ & bit:
                yield "guard", table, operation


@pytest.mark.requirement("LC-02", "LC-03", "LC-13", "SM-12")
async def test_both_stores_have_the_same_schema_but_for_explained_differences(databases: dict[str, Database]) -> None:
    sqlite, postgres = facts_of(databases["sqlite"]), facts_of(databases["postgres"])
    sqlite_alone = set().union(*(alone for alone, _ in EXPLAINED.values()))
    postgres_alone = set().union(*(alone for _, alone in EXPLAINED.values()))
    assert sqlite - postgres == sqlite_alone
    assert postgres - sqlite == postgres_alone


ACCEPTED = {
    "queues": ("concurrency_max = 5", "paused_at = updated_at", "rate_count = 7", "last_key = 'ada'"),
    "schedules": ("rev = rev + 1, missed = 'all'", "rev = rev + 1, last_at = next_at, next_at = null"),
    "streams": ("at = at",),
    "endpoints": ("disabled_at = created_at, disabled_because = 'gone'", "config = '{}'", "seen_at = updated_at"),
    "subscriptions": ("block_seconds = 60", "filters = '{}'", "topic = 'paid'"),
    "pending": ("attempts = 3, head_at = due_at", "position = last_sequence"),
    "rate_usage": ("until_at = until_at",),
    "workers": ("stopped_at = seen_at", "queues = '[\"mail\"]'"),
    "log_cursors": ("position = '7'", "owner = null, token = null, lease_expires_at = null"),
    "budgets": ("spent = 3",),
    "outbox": ("endpoint_count = 2",),
    "deliveries": ("handled_at = at, handled_as = 'redriven'",),
    "dead_letters": ("handled_at = at, handled_as = 'discarded'",),
}
REFUSED = {
    "queues": (
        *(f"{column} = {value}" for column in ("concurrency_max", "key_concurrency_max") for value in (0, -1)),
        *(f"{column} = 0" for column in ("rate_count", "rate_seconds", "key_rate_count", "key_rate_seconds")),
        *(f"{column} = null" for column in ("rate_count", "rate_seconds", "key_rate_count", "key_rate_seconds")),
        *(f"{column} = null" for column in ("name", "fair", "last_key", "updated_at")),
    ),
    "schedules": (
        *("rev = rev + 1, missed = 'never'", "rev = rev + 1, source = 'me'", "rev = rev + 1, grace_seconds = -1"),
        *("rev = rev", "rev = rev + 2", "rev = 0", "rev = rev + 1, name = 'other'"),
        "rev = rev + 1, last_at = next_at",
        *(f"rev = rev + 1, {column} = null" for column in ("kind", "queue", "payload", "policy_id", "cron", "missed")),
    ),
    "streams": ("at = null",),
    "endpoints": (
        *("disabled_at = created_at", "disabled_because = 'gone'", "config = '[]'", "source = 'me'", "kind = null"),
    ),
    "log_cursors": ("owner = null", "token = null", "lease_expires_at = null", "updated_at = null"),
    "budgets": ("spent = -1", "limit_amount = -1", "on_lost_spend = 'forget'", "unit = null", "limit_amount = 9"),
    "reservations": ("amount = 0", "attempt = 0", "key = null"),
    "subscriptions": ("block_seconds = -1", "filters = '[]'", "topic = null"),
    "pending": ("owner = 'me'", "only_sequence = 7", "aggregate = ''", "attempts = -1", "due_at = null"),
    "deliveries": (
        *("handled_at = at", "handled_as = 'redriven'", "handled_at = at, handled_as = 'forgotten'", "attempt = 2"),
        *("outcome = 'delivered'", "error = 'other'", "status = 7", "sequence = 9", "endpoint = 'other'"),
    ),
    "rate_usage": ("usage = null", "until_at = null"),
    "workers": ("host = null", "queues = null", "seen_at = null"),
    "outbox": ("endpoint_count = -1", "topic = 'other'", "sequence = 9", "body = null", "aggregate = 'bob'"),
    "dead_letters": (
        *("handled_at = at", "handled_as = 'discarded'", "handled_at = at, handled_as = 'forgotten'"),
        *("reason_code = 'bad luck'", "stage = 'nowhere'", "attempts = 9"),
    ),
    "operator_log": ("actor = 'me'", "action = null"),
    "claims": ("body = ''",),
    "policies": ("body = '{{}}'",),
    "artifacts": ("bytes = 9",),
    "signals": ("name = 'other'",),
    "steps": (
        *("result = '2'", "result = null", "key = 'other'", "attempt = 2", "number = 9", "name = 'other'"),
        *("finished_at = started_at", "digest = '7'", "content_digest = 'x'", "spend = '1'"),
    ),
    "deduplicated_requests": ("digest = 'x'",),
}
"""What an update sets, for each table, written as the store. Jobs and events are in test_guard_verdicts.py."""


@pytest.mark.requirement("LC-02", "LC-03")
@pytest.mark.parametrize("table", REFUSED)
async def test_both_stores_refuse_the_same_rows(databases: dict[str, Database], table: str) -> None:
    wrong = [
        f"{name}: {change}: {'refused' if refused else 'accepted'}"
        for refuses, changes in ((True, REFUSED[table]), (False, ACCEPTED.get(table, ())))
        for change in changes
        for name, database in databases.items()
        if (refused := is_refused(database, f"update {{{table}}} set {change}")) is not refuses
    ]
    assert wrong == []


@pytest.mark.requirement("LC-10")
async def test_an_entry_of_the_operators_log_by_hand_is_refused_by_both_stores(databases: dict[str, Database]) -> None:
    entry = "insert into {operator_log} (at, actor, action) select at, 'eve', 'prune' from {operator_log}"
    for database in databases.values():
        with pytest.raises(GuardRefused):
            database.write_as(None, entry)
        database.write_as("store", entry)


def is_refused(database: Database, statement: str) -> bool:
    try:
        database.write_as("store", statement)
    except GuardRefused:
        return True
    return False
