"""Plans, not times: what a claim and the look-ups read does not grow with what lies around them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import UNSUCCESSFUL
from tenure.stores.postgres.connections import PACKAGE, PLANNED_ONCE, Address, Connections
from tenure.stores.postgres.reads import UNUSUAL
from tenure.stores.sql_files import numbered
from tenure.testing.driver import Driver
from tests.support.postgres import Postgres

BATCH = 100
BLOCKS_A_JOB = 60
"""Pages touched for each claimed job, writing its row, its entry of the log and their index entries included."""

LANE = {
    "queue": "'default'",
    "priority": "0",
    "watermark_due_at": "'2000-01-01 00:00+00'",
    "watermark_id": "'00000000-0000-0000-0000-000000000000'",
}

FILL = """
set session_replication_role = replica;
insert into tenure.policies (body, lease_ms, heartbeat_ms) values ('{{}}', 60000, 20000);
insert into tenure.jobs (id, created_at, policy_id, priority, kind, queue, payload, status, rev,
    transition_count, attempt, failures, losses, lost, updated_at, due_at, finished_at,
    committed_at, result, correlation_id,
    partition_key)
select gen_random_uuid(), now() - interval '1 day', 1,
    case sort when 'future' then 10 else n % 3 end,
    'mail', 'queue-' || n % 4, '{{}}',
    case sort when 'finished' then 'succeeded' else 'queued' end, 1, 1,
    0, 0, 0, false, now(),
    case sort when 'future' then now() + n * interval '1 second' else now() - n * interval '1 millisecond' end,
    case sort when 'finished' then now() end, case sort when 'finished' then now() end,
    case sort when 'finished' then '1' end, case when n % 1000 = 0 then 'c' || n end,
    case sort when 'ready' then 'key-' || n % 10000 end
from generate_series(1, {each}) n, unnest(array['ready', 'future', 'finished']) sort;
insert into tenure.events (job_id, at, rev, attempt, version, commits, type, from_status, to_status, actor, request_id)
select id, created_at + (row_number() over ()) * interval '80 milliseconds', 1, 0, 1, false, 'enqueued', null, 'queued',
    'client:me', 'x'
from tenure.jobs order by created_at limit 1000000;
set session_replication_role = origin;
"""


@pytest.fixture(
    scope="module", params=[40_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])]
)
def crowded(request: pytest.FixtureRequest, postgres_server: Postgres, migrated_template: str) -> Iterator[str]:
    """As many ready, far-future (at a higher priority) and finished jobs over four queues and three priorities."""
    dsn = postgres_server.create_database(template=migrated_template)
    with psycopg.connect(dsn, autocommit=True) as connection:
        # One by one: in a single transaction they would hold back the log of every database of the server.
        for statement in FILL.format(each=request.param).split(";\n"):
            connection.execute(statement.encode())
    yield dsn
    postgres_server.drop_database(dsn)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def plan_after_warm_up(connection: psycopg.Connection, name: str, values: dict[str, str]) -> dict[str, Any]:
    """The plan that the store's connections get: one for all values, or one for these, as the statement is meant."""
    mode = "force_generic_plan" if name in PLANNED_ONCE else "force_custom_plan"
    connection.execute(f"set plan_cache_mode = {mode}".encode())
    connection.execute(f"set enable_seqscan = {'off' if name in PLANNED_ONCE else 'on'}".encode())
    connection.commit()
    statement = numbered(PACKAGE, name)
    connection.execute(f"prepare it as {statement.sql}".encode())
    call = f"execute it({', '.join(values[parameter] for parameter in statement.parameters)})"
    for _ in range(6):
        connection.execute(call.encode())
        connection.rollback()
    [[plan]] = connection.execute(f"explain (analyze, buffers, format json) {call}".encode()).fetchone() or [[{}]]
    connection.rollback()
    connection.execute("deallocate it")
    found = plan if isinstance(plan, dict) else json.loads(plan)
    root: dict[str, Any] = found["Plan"]
    return root


CLAIM = {
    "request_id": "'again'",
    "body": "'b'",
    "queues": "'{queue-0,queue-1,queue-2,queue-3}'",
    "within_limits": "false",
    "wait_ms": "60000",
    "detail": "null",
    "code_version": "null",
    "chosen": "'{}'",
    "gap_queues": "'{queue-0,queue-1,queue-2,queue-3}'",
    "gap_lows": "'{-32769,-32769,-32769,-32769}'",
    "gap_highs": "'{32768,32768,32768,32768}'",
    "lane_queues": "'{}'",
    "lane_priorities": "'{}'",
    "lane_dues": "'{}'",
    "lane_ids": "'{}'",
    "kinds": "'{mail}'",
    "excluded": "'{}'",
    "limit": str(BATCH),
    "transition_count": "2",
    "worker": "'w'",
    "token": "'00000000-0000-4000-8000-000000000000'",
    "actor": "'pool:w'",
    "version": "1",
}


WHERE = {
    "one queue": {"gap_queues": "'{queue-1}'", "gap_lows": "'{-32769}'", "gap_highs": "'{32768}'"},
    "four queues": {},
    "known lanes": {
        "gap_queues": "'{queue-1,queue-1}'",
        "gap_lows": "'{-32769,2}'",
        "gap_highs": "'{0,32768}'",
        "lane_queues": "'{queue-1,queue-1,queue-1}'",
        "lane_priorities": "'{0,1,2}'",
        "lane_dues": "array_fill(now() - interval '20 seconds', '{3}')",
        "lane_ids": "array_fill('00000000-0000-0000-0000-000000000000'::uuid, '{3}')",
    },
}


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("where", ["one queue", "four queues", "known lanes"])
@pytest.mark.requirement("WC-02", "SM-13")
def test_a_claim_reads_in_the_order_of_its_batch(crowded: str, where: str, analysed: bool) -> None:
    with psycopg.connect(crowded) as connection:
        if analysed:
            connection.execute("analyze tenure.jobs")
            connection.commit()
        plan = plan_after_warm_up(connection, "jobs/claim", {**CLAIM, **WHERE[where]})
    scans = [node for node in nodes(plan) if node.get("Relation Name") in ("jobs", "events")]
    assert not [node for node in scans if node["Node Type"] == "Seq Scan" and node["Actual Loops"]]
    lanes = 4 * 4
    read = sum(node["Actual Rows"] * node["Actual Loops"] for node in scans if "Scan" in node["Node Type"])
    assert read <= BATCH * (lanes + 2) + 4 * lanes
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= BATCH * BLOCKS_A_JOB
    assert any(node.get("Index Name") == "jobs_ready" and node["Actual Rows"] for node in scans)


@pytest.mark.parametrize("analysed", [False, True])
async def test_a_claim_from_one_lane_reads_its_batch_and_no_more(dsn: str, drive: Driver, analysed: bool) -> None:
    for _ in range(3):
        await drive.store.enqueue([drive.enqueue() for _ in range(1000)])
    with psycopg.connect(dsn) as connection:
        if analysed:
            connection.execute("analyze tenure.jobs")
            connection.commit()
        plan = plan_after_warm_up(connection, "jobs/claim_lane", {**CLAIM, **LANE})
    scans = [node for node in nodes(plan) if node.get("Relation Name") in ("jobs", "events")]
    assert not [node for node in scans if node["Node Type"] == "Seq Scan" and node["Actual Loops"]]
    read = sum(node["Actual Rows"] * node["Actual Loops"] for node in scans if "Scan" in node["Node Type"])
    assert 2 * BATCH <= read <= 2 * BATCH + 4
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= BATCH * BLOCKS_A_JOB


@pytest.mark.parametrize("analysed", [False, True])
def test_a_claim_of_chosen_jobs_reads_those_alone(crowded: str, analysed: bool) -> None:
    with psycopg.connect(crowded) as connection:
        if analysed:
            connection.execute("analyze tenure.jobs")
            connection.commit()
        ready = "select id from tenure.jobs where status = 'queued' and due_at <= now() limit 100"
        ids = [str(row[0]) for row in connection.execute(ready.encode())]
        empty = {name: "'{}'" for name in CLAIM if name.startswith(("gap_", "lane_"))}
        chosen = {**CLAIM, **empty, "within_limits": "true", "chosen": f"'{{{','.join(ids)}}}'"}
        plan = plan_after_warm_up(connection, "jobs/claim", chosen)
    scans = [node for node in nodes(plan) if node.get("Relation Name") == "jobs"]
    assert not [node for node in scans if node["Node Type"] == "Seq Scan" and node["Actual Loops"]]
    read = sum(node["Actual Rows"] * node["Actual Loops"] for node in scans if "Scan" in node["Node Type"])
    assert BATCH <= read <= 2 * BATCH


WITHIN_LIMITS = {
    "jobs/select_due_candidates": ("jobs_ready", 4 * 3 + 4 * 100),
    "jobs/select_partitions": ("jobs_partitioned", 200),
    "jobs/select_due_of_partitions": ("jobs_partitioned", 300),
    "jobs/count_leased_by_partition": ("jobs_leased", 0),
    "jobs/select_recoverable": ("jobs_leased", 0),
}
"""The index by which each of these finds what it looks for, and how many rows it reads at most."""


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("name", WITHIN_LIMITS)
def test_what_a_choice_within_limits_asks_for_is_found_by_its_index(crowded: str, name: str, analysed: bool) -> None:
    values = {
        "queue": "'queue-1'",
        "kinds": "'{mail}'",
        "excluded": "'{}'",
        "limit": "100",
        "after": "null" if name == "jobs/select_recoverable" else "'key-5'",
        "keys": "'{key-1,key-5,key-9}'",
        "each": "100",
    }
    with psycopg.connect(crowded) as connection:
        if analysed:
            connection.execute("analyze tenure.jobs")
            connection.commit()
        plan = plan_after_warm_up(connection, name, values)
    index, most = WITHIN_LIMITS[name]
    scans = [node for node in nodes(plan) if node.get("Relation Name") == "jobs" and node["Actual Loops"]]
    assert index in {node.get("Index Name") for node in nodes(plan)}
    assert not [node for node in scans if node["Node Type"] == "Seq Scan"]
    walked = sum((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in scans)
    assert walked <= most


LOOK_UPS = {
    "events/select_by_job": "events_key",
    "events/select_by_correlation": "jobs_correlation",
    "jobs/select_page": "jobs_pkey",
    "jobs/select_page_by_correlation": "jobs_correlation",
    "events/select_by_time": "events_at",
    "events/select_tail": "events_position",
    "events/select_history": "events_key",
    "jobs/select": "jobs_pkey",
}


@pytest.mark.requirement("SM-12")
@pytest.mark.parametrize("type_", sorted(UNUSUAL))
def test_events_of_a_type_of_which_there_are_few_are_found_over_all_time_by_an_index(crowded: str, type_: str) -> None:
    values = {
        "types": f"'{{{type_}}}'",
        "since": "'0001-01-01 00:00+00'",
        "until": "'9999-01-01 00:00+00'",
        "job_id": "'00000000-0000-0000-0000-000000000000'",
        "rev": "0",
        "limit": "100",
    }
    with psycopg.connect(crowded) as connection:
        plan = plan_after_warm_up(connection, "events/select_by_unusual_type", values)
    assert "events_unusual" in {node.get("Index Name") for node in nodes(plan)}
    assert not [node for node in nodes(plan) if node["Node Type"] == "Seq Scan"]


def test_the_index_of_unusual_events_has_the_types_that_are_looked_up_in_it(crowded: str) -> None:
    with psycopg.connect(crowded) as connection:
        predicate = "select pg_get_expr(indpred, indrelid) from pg_index where indexrelid = %s::regclass"
        [words] = connection.execute(predicate, ["tenure.events_unusual"]).fetchone() or ("",)
    assert {EventType(word) for word in re.findall(r"'(\w+)'", words)} == UNUSUAL


@pytest.mark.requirement("SM-12")
@pytest.mark.parametrize("status", [*sorted(UNSUCCESSFUL), "failed,halted"])
def test_jobs_of_a_status_in_which_few_end_are_listed_without_reading_the_others(crowded: str, status: str) -> None:
    values = dict.fromkeys(("after", "queues", "kinds", "dedupe_key", "submitted_by", "tags"), "null")
    values |= dict.fromkeys(("created_from", "created_until", "reasons"), "null")
    values |= {"statuses": f"'{{{status}}}'", "limit": "100"}
    with psycopg.connect(crowded) as connection:
        connection.execute("analyze tenure.jobs")
        plan = plan_after_warm_up(connection, "jobs/select_page", values)
    assert {node.get("Index Name") for node in nodes(plan)} - {None} == {"jobs_unsuccessful"}
    assert not [node for node in nodes(plan) if node["Node Type"] == "Seq Scan"]


@pytest.mark.requirement("SM-12")
@pytest.mark.parametrize("name", LOOK_UPS)
def test_look_ups_use_their_index(crowded: str, name: str) -> None:
    with psycopg.connect(crowded) as connection:
        connection.execute("analyze tenure.events")
        [job_id, at] = connection.execute("select job_id, at from tenure.events offset 500 limit 1").fetchone() or ()
        connection.commit()
        values = {
            "job_id": f"'{job_id}'" if name == "events/select_by_job" else "'00000000-0000-0000-0000-000000000000'",
            "ids": f"'{{{job_id}}}'",
            "rev": "0",
            "tx": "'0'",
            "limit": "100",
            "types": "'{enqueued}'" if name == "events/select_by_time" else "null",
            "since": f"'{at}'" if name == "events/select_by_time" else "null",
            "until": f"timestamptz '{at}' + interval '30 seconds'" if name == "events/select_by_time" else "null",
            "correlation_id": "'c1000'",
            "root": "null",
            **dict.fromkeys(("after", "statuses", "queues", "kinds", "dedupe_key", "submitted_by", "tags"), "null"),
            **dict.fromkeys(("created_from", "created_until", "reasons"), "null"),
        }
        plan = plan_after_warm_up(connection, name, values)
    used = {node.get("Index Name") for node in nodes(plan)}
    assert LOOK_UPS[name] in used
    assert not [node for node in nodes(plan) if node["Node Type"] == "Seq Scan" and node.get("Relation Name") != "meta"]


def test_a_heartbeat_touches_no_index(crowded: str) -> None:
    """A renewal must stay a heap-only update: no index may have the end of a lease, heartbeats or revisions."""
    with psycopg.connect(crowded) as connection:
        names = connection.execute(
            "select distinct attname from pg_index join pg_attribute on attrelid = indexrelid"
            " where indrelid = 'tenure.jobs'::regclass"
        ).fetchall()
    touched = {"rev", "transition_count", "previous_status", "updated_at", "heartbeat_deadline_at", "lease_expires_at"}
    assert touched.isdisjoint({name for (name,) in names})


@pytest.mark.parametrize("name", sorted(PLANNED_ONCE))
def test_a_plan_that_is_made_for_empty_tables_does_not_read_all_of_them(dsn: str, name: str) -> None:
    """As the store's connections make it: before anything is known of the tables."""
    settings = Connections(Address.from_url(dsn))._settings()["server_settings"]
    with psycopg.connect(dsn) as connection:
        for setting, value in settings.items():
            connection.execute("select set_config(%s, %s, false)", (setting, value))
        explained = connection.execute(f"explain (generic_plan) {numbered(PACKAGE, name).sql}".encode())
        lines = [line for (line,) in explained]
    assert not [line for line in lines if "Seq Scan on jobs" in line or "Seq Scan on events" in line], "\n".join(lines)


WAITING = """
set session_replication_role = replica;
insert into tenure.policies (body, lease_ms, heartbeat_ms) values ('{{}}', 60000, 20000);
insert into tenure.jobs (id, created_at, policy_id, priority, kind, queue, payload, status, rev,
    transition_count, attempt, failures, losses, lost, updated_at, due_at, waiting_for, children_max)
select gen_random_uuid(), now(), 1, 0, 'wait', 'waiting', '{{}}', 'waiting', 4, 1, 1, 0, 0, false, now(), null,
    case when n % 100 = 0 then 'children' else 'signal' end, case when n % 100 = 0 then n % 2 end
from generate_series(1, {waiting}) n;
insert into tenure.jobs (id, created_at, policy_id, priority, kind, queue, payload, status, rev,
    transition_count, attempt, failures, losses, lost, updated_at, due_at, parent_id, awaited, finished_at)
select gen_random_uuid(), now(), 1, 0, 'child', 'children', '{{}}', case when n <= 3 then 'queued' else 'failed' end, 1,
    1, 0, 0, 0, false, now(), now(), parent.id, true, case when n > 3 then now() end
from tenure.jobs parent, generate_series(1, 20) n
where parent.children_max is not null;
set session_replication_role = origin;
"""


@pytest.fixture(scope="module")
def with_waiting_jobs(postgres_server: Postgres, migrated_template: str) -> Iterator[str]:
    """100,000 waiting jobs. A thousand of them wait for children, of which three are live and seventeen have ended."""
    dsn = postgres_server.create_database(template=migrated_template)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in WAITING.format(waiting=100_000).split(";\n"):
            connection.execute(statement.encode())
    yield dsn
    postgres_server.drop_database(dsn)


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.requirement("WC-10")
def test_a_scan_of_recovery_reads_jobs_that_wait_for_children_and_their_live_children_alone(
    with_waiting_jobs: str, analysed: bool
) -> None:
    with psycopg.connect(with_waiting_jobs) as connection:
        if analysed:
            connection.execute("analyze tenure.jobs")
            connection.commit()
        plan = plan_after_warm_up(connection, "jobs/select_recoverable", {"limit": "500", "after": "null"})
    scans = [node for node in nodes(plan) if node.get("Relation Name") == "jobs" and node["Actual Loops"]]
    assert {node.get("Index Name") for node in nodes(plan)} >= {"jobs_awaiting", "jobs_awaited"}
    assert not [node for node in scans if node["Node Type"] == "Seq Scan"]
    walked = sum((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in scans)
    # Of the children of each it reads one more than may be live.
    assert walked <= 1000 * (1 + 2)


@pytest.mark.parametrize("analysed", [False, True])
def test_whether_a_job_is_to_be_woken_is_read_from_its_live_children(with_waiting_jobs: str, analysed: bool) -> None:
    with psycopg.connect(with_waiting_jobs) as connection:
        if analysed:
            connection.execute("analyze tenure.jobs")
            connection.commit()
        [[parent]] = connection.execute("select id from tenure.jobs where children_max = 0 limit 1").fetchall()
        plan = plan_after_warm_up(connection, "jobs/select_wakeable", {"ids": f"'{{{parent}}}'"})
        children = plan_after_warm_up(
            connection,
            "jobs/select_children",
            {
                "parent_id": f"'{parent}'",
                "after": "'00000000-0000-0000-0000-000000000000'",
                "live_only": "true",
                "limit": "100",
            },
        )
    assert {node.get("Index Name") for node in nodes(plan)} >= {"jobs_awaiting", "jobs_awaited"}
    assert "jobs_children" in {node.get("Index Name") for node in nodes(children)}
    for root in (plan, children):
        assert not [node for node in nodes(root) if node["Node Type"] == "Seq Scan" and node["Actual Loops"]]
