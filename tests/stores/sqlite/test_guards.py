"""SQL typed into the sqlite3 shell that violates the lifecycle: it is refused with a message, and nothing changes."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tenure.lifecycle.causes import CAUSES
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import Commit, Complete, DeadLetter, Fail, Signal
from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import Status
from tenure.lifecycle.transitions import legal_events
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, Driver

Jobs = dict[str, str]

TABLES = (
    *("jobs", "events", "claims", "deduplicated_requests", "signals", "dead_letters", "policies", "operator_log"),
    *("writer", "meta", "migrations"),
)

LATER = 2_000_000_000_000_000


def event(
    job: str, rev: int, type_: str, source: str, target: str, *, attempt: int = 1, commits: int = 0, at: int = LATER
) -> str:
    """The statement that writes an event of the job in the status of that name."""
    values = f":{job}, {rev}, '{type_}', '{source}', '{target}', {at}, {attempt}, 'a', 'r', {commits}, 1"
    return f"insert into tenure_events ({EVENT_COLUMNS}) values ({values})"


def change(job: str, columns: str = "", *, rev: int, transitions: int = 1, previous: str = "running") -> str:
    """The statement that brings that job to a revision."""
    sets = f"rev = {rev}, transition_count = {transitions}, previous_status = '{previous}', updated_at = {LATER}"
    return f"update tenure_jobs set {sets}{columns and ', '}{columns} where id = :{job}"


def new_job(source: str, *, replacing: bool = False, columns: str = "") -> str:
    """The statement that adds a job whose columns come from there."""
    verb = "insert or replace" if replacing else "insert"
    return f"{verb} into tenure_jobs ({JOB_COLUMNS}{columns and ', '}{columns}) {source}"


def replacing(statement: str) -> str:
    """The same statement, which would rather remove what is there than fail."""
    return statement.replace("insert", "insert or replace", 1)


EVENT_COLUMNS = "job_id, rev, type, from_status, to_status, at, attempt, actor, request_id, commits, version"
JOB_COLUMNS = "id, kind, policy_id, queue, priority, status, rev, created_at, updated_at, payload"
NO_LEASE = "owner = null, token = null, lease_expires_at = null, heartbeat_deadline_at = null"
LEASE = "attempt, owner, token, lease_expires_at, heartbeat_deadline_at"
NEW_EVENT = (
    f"insert into tenure_events ({EVENT_COLUMNS})"
    f" values ('new', 1, 'enqueued', null, 'queued', {LATER}, 0, 'a', 'r', 0, 1)"
)
NEW_JOB = f"'new', 'mail', 1, 'default', 0, 'queued', 1, {LATER}, {LATER}, '1'"
MARK = f"update tenure_dead_letters set handled_at = {LATER}, handled_as = '{{}}'"
STRAY_EVENT = event("running", 4, "heartbeat", "running", "running")
CLAIM_WITH_START = event("queued", 3, "claimed", "queued", "running")
A_LEASE = f"owner = 'w', token = 't', lease_expires_at = {LATER}, heartbeat_deadline_at = {LATER}"

# The SQL, and the message. The parameters are the ids of jobs in the status of that name.
ATTACKS = {
    # The row without its events.
    "a status set by hand": (
        "update tenure_jobs set status = 'queued' where id = :running",
        "rev must grow by transition_count",
    ),
    "a job ended by hand": (
        change("running", f"{NO_LEASE}, status = 'failed', error = '1', finished_at = {LATER}", rev=4),
        "there is none that leads to this revision",
    ),
    "a revision without its event": (
        "update tenure_jobs set rev = rev + 1, transition_count = 1, previous_status = status where id = :running",
        "there is none that leads to this revision",
    ),
    "two revisions without their events": (
        "update tenure_jobs set rev = rev + 2, transition_count = 2, previous_status = status where id = :running",
        "there are not two that lead to this revision",
    ),
    "three revisions without their events": (
        "update tenure_jobs set rev = rev + 3, transition_count = 3, previous_status = status where id = :running",
        "do not form a chain",
    ),
    "five revisions at once": (
        "update tenure_jobs set rev = rev + 5, transition_count = 5, previous_status = status where id = :running",
        "one to four revisions at a time",
    ),
    "a revision that goes back": (
        "update tenure_jobs set rev = rev - 1, transition_count = -1, previous_status = status where id = :running",
        "one to four revisions at a time",
    ),
    "a change that names no revision": (
        "update tenure_jobs set due_at = 0 where id = :queued",
        "rev must grow by transition_count",
    ),
    "a lease taken over": (
        "update tenure_jobs set owner = 'me', token = 'x' where id = :running",
        "rev must grow by transition_count",
    ),
    "a lease made longer": (
        "update tenure_jobs set lease_expires_at = lease_expires_at + 1 where id = :running",
        "rev must grow by transition_count",
    ),
    "an attempt more": (
        "update tenure_jobs set attempt = attempt + 1 where id = :running",
        "rev must grow by transition_count",
    ),
    "a commit taken back": (
        "update tenure_jobs set committed_at = null, committed_result = null where id = :committed",
        "rev must grow by transition_count",
    ),
    "another committed result": (
        "update tenure_jobs set committed_result = '2' where id = :committed",
        "rev must grow by transition_count",
    ),
    # What has ended.
    "an ended job brought back": (
        "update tenure_jobs set status = 'queued', finished_at = null, error = null where id = :failed",
        "a job that has ended does not change",
    ),
    "another result": (
        "update tenure_jobs set result = '2' where id = :succeeded",
        "a job that has ended does not change",
    ),
    "another error": (
        "update tenure_jobs set error = '2' where id = :failed",
        "a job that has ended does not change",
    ),
    "an erasure by hand": (
        "update tenure_jobs set payload = 'null', result = null, erased_at = 1 where id = :succeeded",
        "only erasure changes a job that has ended",
    ),
    "the erasure of a live job": (
        "update tenure_jobs set erased_at = 1 where id = :running",
        "only erasure changes a job that has ended",
    ),
    "an erased job filled again": (
        "update tenure_jobs set result = '2' where id = :erased",
        "a job that has ended does not change",
    ),
    "an erasure taken back": (
        "update tenure_jobs set erased_at = null, result = '2' where id = :erased",
        "a job that has ended does not change",
    ),
    "an erasure at another time": (
        "update tenure_jobs set erased_at = erased_at + 1 where id = :erased",
        "a job that has ended does not change|only erasure changes a job that has ended",
    ),
    # What a job was added with.
    "another payload": ("update tenure_jobs set payload = '2' where id = :queued", "payload and the tags"),
    "other tags": ("update tenure_jobs set tags = '{}' where id = :queued", "payload and the tags"),
    "another kind": ("update tenure_jobs set kind = 'other' where id = :queued", "what a job was added with"),
    "another queue": ("update tenure_jobs set queue = 'other' where id = :queued", "what a job was added with"),
    "another priority": ("update tenure_jobs set priority = 9 where id = :queued", "what a job was added with"),
    "another policy": ("update tenure_jobs set policy_id = 9 where id = :queued", "what a job was added with"),
    "another birthday": ("update tenure_jobs set created_at = 0 where id = :queued", "what a job was added with"),
    "another id": ("update tenure_jobs set id = 'x' where id = :queued", "what a job was added with"),
    # Adding and removing.
    "a job without its event": (
        new_job("values ('x', 'mail', 1, 'default', 0, 'queued', 1, 1, 1, '{}')"),
        "added together with its enqueued event",
    ),
    "a job that begins as running": (
        new_job("values ('x', 'm', 1, 'q', 0, 'running', 1, 1, 1, '{}', 1, 'w', 't', 1, 1)", columns=LEASE),
        "begins as queued",
    ),
    "a job put in the place of another": (
        new_job(f"select {JOB_COLUMNS} from tenure_jobs where id = :queued", replacing=True),
        "nothing replaces it",
    ),
    "a live job removed": ("delete from tenure_jobs where id = :queued", "only retention removes a job"),
    "an ended job removed": ("delete from tenure_jobs where id = :succeeded", "only retention removes a job"),
    "all jobs removed": ("delete from tenure_jobs", "only retention removes a job"),
    # The log.
    "a stray event": (STRAY_EVENT, "only the store writes events"),
    "an event put in the place of another": (
        "insert or replace into tenure_events select * from tenure_events where job_id = :running",
        "only the store writes events",
    ),
    "an event made another": (
        "update tenure_events set type = 'heartbeat' where job_id = :running and rev = 3",
        "the log never changes",
    ),
    "an event at another time": (
        "update tenure_events set at = at - 1 where job_id = :running",
        "the log never changes",
    ),
    "an event by another actor": (
        "update tenure_events set actor = 'client:eve' where job_id = :running",
        "the log never changes",
    ),
    "an event's detail changed": (
        "update tenure_events set detail = '{}' where job_id = :failed",
        "the log never changes",
    ),
    "an event's detail emptied": (
        "update tenure_events set detail = null where job_id = :failed",
        "the log never changes",
    ),
    "an event removed": (
        "delete from tenure_events where job_id = :running and rev = 3",
        "only retention removes events",
    ),
    "the whole log removed": ("delete from tenure_events", "only retention removes events"),
    # The same by the names under which SQLite knows a row's number.
    "the log hidden before its first position": (
        "update tenure_events set rowid = rowid - 1000",
        "the log never changes",
    ),
    "an event moved by its position": ("update tenure_events set position = position + 1000", "the log never changes"),
    "an event moved by its oid": ("update tenure_events set oid = oid + 1000", "the log never changes"),
    "an event moved over another": (
        "update or replace tenure_events set rowid = 1 where rowid = 2",
        "the log never changes",
    ),
    "an event moved under the name of another column": (
        "update or replace tenure_events set _rowid_ = 1, detail = null where rowid = 2",
        "the log never changes",
    ),
    "a job moved over another": (
        (
            "update or replace tenure_jobs set rowid = (select rowid from tenure_jobs where id = :queued)"
            " where id = :running"
        ),
        "a job changes only with its events",
    ),
    "an ended job moved over another": (
        (
            "update or replace tenure_jobs set rowid = (select rowid from tenure_jobs where id = :queued)"
            " where id = :failed"
        ),
        "a job that has ended does not change",
    ),
    # What is kept besides.
    "a policy changed": ("update tenure_policies set body = '{}'", "a policy never changes"),
    "a policy removed": ("delete from tenure_policies", "a policy is never removed"),
    "a policy added": ("insert into tenure_policies (id, body) values (1, '{}')", "only the store adds a policy"),
    "a policy replaced": (
        "insert or replace into tenure_policies (id, body) select id, '{}' from tenure_policies",
        "nothing replaces one",
    ),
    "a claim changed": ("update tenure_claims set job_ids = '[]'", "a claim never changes"),
    "a claim removed": ("delete from tenure_claims", "only retention removes claims"),
    "a claim added": (
        "insert or replace into tenure_claims (request_id, body, job_ids, at) values ('x', '', '[]', 1)",
        "only the store writes claims",
    ),
    "a signal changed": ("update tenure_signals set payload = '2'", "a signal never changes"),
    "a signal removed": ("delete from tenure_signals", "only retention removes signals"),
    "a signal added": (
        "insert into tenure_signals (job_id, rev, name, payload, at) values (:running, 9, 'x', '1', 1)",
        "only the store writes signals",
    ),
    "a dead letter changed": ("update tenure_dead_letters set stage = 'input'", "a dead letter never changes"),
    "a dead letter marked": (
        "update tenure_dead_letters set handled_at = 1, handled_as = 'discarded'",
        "a dead letter never changes",
    ),
    "a dead letter removed": ("delete from tenure_dead_letters", "only retention removes dead letters"),
    "a dead letter added": (
        "insert into tenure_dead_letters select :running, 'timeout', 'exec', '1', 1, 1, null, null, null, null, null",
        "only the store writes dead letters",
    ),
    "a deduplicated request changed": (
        "update tenure_deduplicated_requests set job_id = :queued",
        "a deduplicated request never changes",
    ),
    "a deduplicated request removed": (
        "delete from tenure_deduplicated_requests",
        "only retention removes deduplicated requests",
    ),
    "a deduplicated request added": (
        "insert into tenure_deduplicated_requests (request_id, digest, job_id, at) values ('x', 'x', :running, 1)",
        "only the store writes deduplicated requests",
    ),
    "the operators' log changed": ("update tenure_operator_log set actor = 'eve'", "operators' log never changes"),
    "the operators' log removed": ("delete from tenure_operator_log", "operators' log never changes"),
    "an entry of the operators' log moved": (
        "update or replace tenure_operator_log set rowid = rowid + 1",
        "operators' log never changes",
    ),
    "an entry of the operators' log added": (
        "insert into tenure_operator_log (at, actor, action) values (1, 'eve', 'prune')",
        "only the store writes the operators' log",
    ),
    "the writer row removed": ("delete from tenure_writer", "tenure_writer keeps its one row"),
    "a second writer row": (
        "insert into tenure_writer (only, writer) values (2, 'store')",
        "tenure_writer keeps its one row",
    ),
    "another writer row in its place": (
        "replace into tenure_writer (only, writer) values (1, 'store')",
        "tenure_writer keeps its one row",
    ),
    "the writer row moved": ("update tenure_writer set rowid = 2", "tenure_writer has one row"),
}

# The same with the writer set: the rules themselves, below the check of the writer. Each ends in a
# refusal; the statements before it are those that would make it possible.
AS_WRITER = {
    "a transition that the lifecycle does not have": (
        [event("queued", 2, "succeeded", "queued", "succeeded", attempt=0)],
        "the lifecycle has no such event",
    ),
    "an unknown event": (
        [event("queued", 2, "vanished", "queued", "queued", attempt=0)],
        "the lifecycle has no such event",
    ),
    "a second event for a revision": (
        [event("running", 3, "heartbeat", "running", "running")],
        "nothing replaces an event",
    ),
    "a second commit": (
        [event("committed", 5, "committed", "running", "running", commits=1)],
        "nothing replaces an event",
    ),
    "a commit by an event that cannot commit": (
        [event("running", 4, "heartbeat", "running", "running", commits=1)],
        "only committed and succeeded events commit",
    ),
    "a row that goes elsewhere than its event": (
        [STRAY_EVENT, change("running", f"status = 'stalled', {NO_LEASE}", rev=4)],
        "there is none that leads to this revision",
    ),
    "a row that is dated otherwise than its event": (
        [event("running", 4, "heartbeat", "running", "running", at=LATER - 1), change("running", rev=4)],
        "there is none that leads to this revision",
    ),
    "a chain whose links do not meet": (
        [
            event("running", 4, "stalled", "running", "stalled"),
            event("running", 5, "heartbeat", "running", "running"),
            change("running", rev=5, transitions=2),
        ],
        "there are not two that lead to this revision",
    ),
    "a chain of three whose links do not meet": (
        [
            event("running", 4, "heartbeat", "running", "running"),
            event("running", 5, "stalled", "running", "stalled"),
            event("running", 6, "heartbeat", "running", "running"),
            change("running", rev=6, transitions=3),
        ],
        "do not form a chain",
    ),
    "a chain of three with a gap": (
        [STRAY_EVENT, event("running", 6, "heartbeat", "running", "running"), change("running", rev=6, transitions=3)],
        "do not form a chain",
    ),
    # A claim and its start are one event row, which has two revisions.
    "a claim with its start as one revision": (
        [CLAIM_WITH_START, change("queued", f"status = 'running', attempt = 1, {A_LEASE}", rev=2, previous="queued")],
        "there is none that leads to this revision",
    ),
    "a claim with its start whose row is not started": (
        [
            CLAIM_WITH_START,
            change("queued", f"status = 'claimed', attempt = 1, {A_LEASE}", rev=3, transitions=2, previous="queued"),
        ],
        "there are not two that lead to this revision",
    ),
    "a claim with its start that counts no attempt": (
        [
            event("queued", 3, "claimed", "queued", "running", attempt=0),
            change("queued", f"status = 'running', {A_LEASE}", rev=3, transitions=2, previous="queued"),
        ],
        "there are not two that lead to this revision",
    ),
    "a claim with its start that is dated otherwise": (
        [
            event("queued", 3, "claimed", "queued", "running", at=LATER - 1),
            change("queued", f"status = 'running', attempt = 1, {A_LEASE}", rev=3, transitions=2, previous="queued"),
        ],
        "there are not two that lead to this revision",
    ),
    "a claim with its start that ends a chain of three": (
        [
            event("queued", 2, "signalled", "queued", "queued", attempt=0),
            event("queued", 4, "claimed", "queued", "running"),
            change(
                "queued",
                f"status = 'running', attempt = 1, signal_rev = 2, {A_LEASE}",
                rev=4,
                transitions=3,
                previous="queued",
            ),
        ],
        "do not form a chain",
    ),
    "an event at the revision of a claim that is in one row with its start": (
        [event("running", 2, "signalled", "queued", "queued", attempt=0)],
        "a revision has one event",
    ),
    "a claim with its start at the revision of another event": (
        [
            event("queued", 2, "signalled", "queued", "queued", attempt=0),
            event("queued", 3, "claimed", "queued", "running"),
        ],
        "a revision has one event",
    ),
    "a claim with its start that has the first revision": (
        [event("queued", 2, "claimed", "queued", "running")],
        "the lifecycle has no such event|a revision has one event",
    ),
    "a signal that leaves its revision unsaid": (
        [event("running", 4, "signalled", "running", "running"), change("running", rev=4)],
        "there is none that leads to this revision",
    ),
    "the revision of a signal without the signal": (
        [STRAY_EVENT, change("running", "signal_rev = 4", rev=4)],
        "there is none that leads to this revision",
    ),
    "the revision of a signal in a chain that has none": (
        [
            STRAY_EVENT,
            event("running", 5, "heartbeat", "running", "running"),
            change("running", "signal_rev = 4", rev=5, transitions=2),
        ],
        "there are not two that lead to this revision",
    ),
    "the revision of a signal in a chain of three that has none": (
        [
            STRAY_EVENT,
            event("running", 5, "heartbeat", "running", "running"),
            event("running", 6, "heartbeat", "running", "running"),
            change("running", "signal_rev = 5", rev=6, transitions=3),
        ],
        "do not form a chain",
    ),
    "a wake in a chain of three that leaves its revision unsaid": (
        [
            STRAY_EVENT,
            event("running", 5, "woken", "running", "running"),
            event("running", 6, "heartbeat", "running", "running"),
            change("running", rev=6, transitions=3),
        ],
        "do not form a chain",
    ),
    "a wait for nothing": (
        [
            event("running", 4, "suspended", "running", "waiting"),
            change("running", f"status = 'waiting', {NO_LEASE}", rev=4),
        ],
        "a waiting job has what it waits for",
    ),
    "a wait for a time without one": (
        [
            event("running", 4, "suspended", "running", "waiting"),
            change("running", f"status = 'waiting', waiting_for = 'time', due_at = null, {NO_LEASE}", rev=4),
        ],
        "a waiting job has what it waits for",
    ),
    "a running job that waits": (
        [STRAY_EVENT, change("running", "waiting_for = 'signal'", rev=4)],
        "a waiting job has what it waits for, and no other has",
    ),
    "a running job that waits for children": (
        [STRAY_EVENT, change("running", "children_max = 0", rev=4)],
        "only a job that waits for children has a number of them",
    ),
    "a job that is awaited from now on": (
        [STRAY_EVENT, change("running", "awaited = 1", rev=4)],
        "what a job was added with never changes",
    ),
    "an attempt that grows without a claim": (
        [event("running", 4, "heartbeat", "running", "running", attempt=2), change("running", "attempt = 2", rev=4)],
        "there is none that leads to this revision",
    ),
    "a change that leaves the old status unsaid": (
        [STRAY_EVENT, change("running", rev=4, previous="queued")],
        "previous_status must be the old status",
    ),
    "a committed job that is let go": (
        [
            event("committed", 5, "released", "running", "stalled"),
            change("committed", f"status = 'stalled', {NO_LEASE}", rev=5),
        ],
        "a committed job can only be finished",
    ),
    "a committed job that ends with another result": (
        [
            event("committed", 5, "succeeded", "running", "succeeded"),
            change(
                "committed",
                f"status = 'succeeded', result = '2', committed_result = null, finished_at = {LATER}, {NO_LEASE}",
                rev=5,
            ),
        ],
        "with the result that was committed",
    ),
    "a job that is committed by an event that does not commit": (
        [STRAY_EVENT, change("running", f"committed_at = {LATER}, committed_result = '1'", rev=4)],
        "only by an event that commits",
    ),
    "a dead letter that is not written": (
        [
            event("queued", 2, "dead_lettered", "queued", "dead_lettered", attempt=0),
            change(
                "queued",
                f"status = 'dead_lettered', reason = 'timeout', finished_at = {LATER}",
                rev=2,
                previous="queued",
            ),
        ],
        "together with its dead letter",
    ),
    "a live job removed by retention": (
        ["update tenure_writer set writer = 'retention'", "delete from tenure_jobs where id = :queued"],
        "only a job that has ended can be removed",
    ),
    "a live job erased": (
        ["update tenure_writer set writer = 'erasure'", "update tenure_jobs set erased_at = 1 where id = :queued"],
        "only a job that has ended can be erased",
    ),
    "an erasure that changes history": (
        [
            "update tenure_writer set writer = 'erasure'",
            "update tenure_jobs set erased_at = 1, error = null, failures = 0, payload = 'null' where id = :failed",
        ],
        "erasure empties the content of a job, and changes nothing else",
    ),
    "an erasure that writes": (
        [
            "update tenure_writer set writer = 'erasure'",
            "update tenure_jobs set erased_at = 1, result = '2' where id = :succeeded",
        ],
        "erasure empties the content of a job, and changes nothing else",
    ),
    "a blanked event that is filled instead": (
        [
            "update tenure_writer set writer = 'retention'",
            "update tenure_events set detail = '{}' where job_id = :failed",
        ],
        "the log never changes",
    ),
    "a blanked event that is moved": (
        [
            "update tenure_writer set writer = 'retention'",
            "update or replace tenure_events set detail = null, rowid = 1 where rowid = 2",
        ],
        "the log never changes",
    ),
    "an event put in the place of the same revision's": (
        [replacing(event("running", 3, "heartbeat", "running", "running"))],
        "nothing replaces an event",
    ),
    "an event put in the place of a commit": (
        [replacing(event("committed", 5, "committed", "running", "running", commits=1))],
        "nothing replaces an event",
    ),
    "an event put at the position of another": (
        [
            (
                f"replace into tenure_events (position, {EVENT_COLUMNS})"
                f" values (1, 'x', 1, 'enqueued', null, 'queued', 1, 0, 'a', 'r', 0, 1)"
            ),
        ],
        "nothing replaces an event",
    ),
    "an event before the first position": (
        [
            (
                f"insert into tenure_events (position, {EVENT_COLUMNS})"
                f" values (-9, 'x', 1, 'enqueued', null, 'queued', 1, 0, 'a', 'r', 0, 1)"
            ),
        ],
        "positions count from 1",
    ),
    "a job put in the place of its request's": (
        [NEW_EVENT, new_job(f"values ({NEW_JOB}, 'asked', null)", replacing=True, columns="request_id, dedupe_key")],
        "there is a job with this request id",
    ),
    "a job put in the place of its dedupe key's": (
        [NEW_EVENT, new_job(f"values ({NEW_JOB}, null, 'only')", replacing=True, columns="request_id, dedupe_key")],
        "there is a live job with this dedupe key",
    ),
    "a job put at the place of another": (
        [
            NEW_EVENT,
            new_job(f"select {NEW_JOB}, rowid from tenure_jobs where id = :running", replacing=True, columns="rowid"),
        ],
        "nothing replaces it",
    ),
    "a job moved over another with its event": (
        [
            STRAY_EVENT,
            change("running", "rowid = (select rowid from tenure_jobs where id = :queued)", rev=4).replace(
                "update", "update or replace", 1
            ),
        ],
        "the rowid of a job never changes",
    ),
    "an erasure that changes the reason": (
        [
            "update tenure_writer set writer = 'erasure'",
            (
                "update tenure_jobs set erased_at = 1, error = null, last_error = null, payload = 'null', reason = 'x'"
                " where id = :dead_lettered"
            ),
        ],
        "erasure empties the content of a job, and changes nothing else",
    ),
    "an erased job moved over another": (
        [
            "update tenure_writer set writer = 'erasure'",
            (
                "update or replace tenure_jobs set erased_at = 1, error = null, last_error = null, payload = 'null',"
                " rowid = (select rowid from tenure_jobs where id = :queued) where id = :failed"
            ),
        ],
        "erasure empties the content of a job, and changes nothing else",
    ),
    "a job for a request that was deduplicated to another": (
        [
            NEW_EVENT,
            new_job(f"values ({NEW_JOB}, 'asked again')", columns="request_id"),
        ],
        "this request was deduplicated to another job",
    ),
    "a claim put in the place of another": (
        ["insert or replace into tenure_claims select request_id, '', '[]', 1 from tenure_claims"],
        "nothing replaces one",
    ),
    "a deduplicated request put in the place of another": (
        [
            (
                "insert or replace into tenure_deduplicated_requests "
                "select request_id, '', null, :queued, 1 from tenure_deduplicated_requests"
            )
        ],
        "nothing replaces one",
    ),
    "a signal put in the place of another": (
        ["insert or replace into tenure_signals select job_id, rev, 'x', '2', 1 from tenure_signals"],
        "nothing replaces one",
    ),
    "a dead letter put in the place of another": (
        [
            (
                "insert or replace into tenure_dead_letters"
                " select job_id, 'timeout', 'exec', '2', 1, 1, null, null, null, null, null from tenure_dead_letters"
            ),
        ],
        "nothing replaces one",
    ),
    "a dead letter that begins marked": (
        [
            (
                "insert into tenure_dead_letters"
                " values (:failed, 'timeout', 'exec', '2', 1, 1, null, null, null, 1, 'discarded')"
            ),
        ],
        "only the store writes dead letters",
    ),
    "a dead letter marked twice": (
        [MARK.format("redriven"), MARK.format("discarded")],
        "marked as handled once",
    ),
    "a dead letter whose mark is taken back": (
        [MARK.format("redriven"), "update tenure_dead_letters set handled_at = null, handled_as = null"],
        "marked as handled once",
    ),
    "a dead letter marked and rewritten": (
        [MARK.format("redriven") + ", last_error = '2'"],
        "marked as handled once",
    ),
    "a dead letter marked and redated": (
        [MARK.format("redriven") + ", at = 1"],
        "marked as handled once",
    ),
    "a dead letter rewritten without a mark": (
        ["update tenure_dead_letters set last_error = 'null'"],
        "marked as handled once",
    ),
    "a dead letter marked with a word of one's own": (
        [MARK.format("forgotten")],
        "has handled_at and handled_as",
    ),
    "a dead letter with a resolution and no time": (
        ["update tenure_writer set writer = 'store'", MARK.format("redriven") + ", handled_as = null"],
        "has handled_at and handled_as",
    ),
    "an erasure that marks a dead letter": (
        ["update tenure_writer set writer = 'erasure'", MARK.format("redriven") + ", last_error = 'null'"],
        "marked as handled once",
    ),
    "an entry put in the place of another in the operators' log": (
        ["replace into tenure_operator_log select id, 1, 'eve', 'prune', null, null, null from tenure_operator_log"],
        "nothing replaces an entry",
    ),
    "a policy put in the place of another": (
        ["replace into tenure_policies (id, body) select id + 1, body from tenure_policies"],
        "nothing replaces one",
    ),
    "an erasure that rewrites a signal": (
        ["update tenure_writer set writer = 'erasure'", "update tenure_signals set payload = '2'"],
        "only erasure empties it",
    ),
    "an erasure that renames a signal": (
        ["update tenure_writer set writer = 'erasure'", "update tenure_signals set payload = 'null', name = 'x'"],
        "only erasure empties it",
    ),
    "an erasure that rewrites a dead letter": (
        ["update tenure_writer set writer = 'erasure'", "update tenure_dead_letters set last_error = '2'"],
        "only erasure empties it",
    ),
    "an erasure that redates a dead letter": (
        ["update tenure_writer set writer = 'erasure'", "update tenure_dead_letters set last_error = 'null', at = 1"],
        "only erasure empties it",
    ),
}

# One row of each kind that no job may be: what is changed of a sound row, and the name of the constraint.
UNSOUND = {
    "queued with an owner": ("queued", "owner = 'w'", "has an owner, a lease and its token"),
    "running without a lease": ("running", "lease_expires_at = null", "has an owner, a lease and its token"),
    "running without a token": ("running", "token = null", "has an owner, a lease and its token"),
    "queued with a result": ("queued", "result = '1'", "a succeeded job has a result"),
    "queued with an error": ("queued", "error = '1'", "a failed job has an error"),
    "queued with a partial result": ("queued", "partial_result = '1'", "a halted job has its partial result"),
    "queued with a reason": ("queued", "reason = 'x'", "has a reason, and no other has"),
    "queued and finished": ("queued", "finished_at = updated_at", "has finished when it is terminal"),
    "succeeded without a result": ("succeeded", "result = null", "a succeeded job has a result"),
    "succeeded without a commit": ("succeeded", "committed_at = null", "a succeeded job is committed"),
    "succeeded with an error": ("succeeded", "error = '1'", "a failed job has an error"),
    "failed without an error": ("failed", "error = null", "a failed job has an error"),
    "failed and committed": ("failed", "committed_at = updated_at", "a committed job that ended has succeeded"),
    "dead-lettered without a reason": ("dead_lettered", "reason = null", "has a reason"),
    "ended and not finished": ("failed", "finished_at = null", "has finished when it is terminal"),
    "running before its first attempt": ("running", "attempt = 0", "an attempt is counted by its claim"),
    "more failures than attempts": ("queued", "failures = 1", "failures do not exceed attempts"),
    "more losses than failures": ("running", "losses = 1", "failures do not exceed attempts"),
    "an unknown status": ("queued", "status = 'lost'", "the status is one of the eleven"),
    "revision nought": ("queued", "rev = 0", "revisions count from 1"),
    "started before it was created": ("running", "started_at = created_at - 1", "are in order"),
    "finished after its last change": ("failed", "finished_at = updated_at + 1", "are in order"),
    "a committed result without a commit": ("running", "committed_result = '1'", "keeps a committed result"),
}


@pytest.fixture
async def jobs(tmp_path: Path) -> Jobs:
    """A file with jobs in several statuses, written by the store and closed again."""
    store = SqliteStore(tmp_path / "jobs.db")
    await store.migrate()
    await store.open()
    drive = Driver(store)
    ids = {"running": (await drive.running()).id}
    committed = await drive.running()
    ids["committed"] = (await drive.apply(committed, Commit("1"))).id
    ids["succeeded"] = (await drive.apply(await drive.running(), Complete("1"))).id
    ids["failed"] = (await drive.apply(await drive.running(), Fail(ERROR))).id
    buried = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR)
    ids["dead_lettered"] = (await drive.apply(await drive.running(), buried)).id
    erased = await drive.apply(await drive.running(), Complete("1"))
    ids["erased"] = (await store.erase(erased.id, reason="asked for", actor=OPERATOR)).id
    ids["signalled"] = (await drive.apply((await drive.add()).id, Signal("go"), actor=CLIENT)).id
    ids["queued"] = (await drive.add(request_id="asked", dedupe_key="only")).id
    await drive.add(request_id="asked again", dedupe_key="only")
    await store.close()
    return {name: str(id_) for name, id_ in ids.items()}


@pytest.fixture
def shell(tmp_path: Path, jobs: Jobs) -> Iterator[sqlite3.Connection]:
    """A plain connection, as the sqlite3 shell has it."""
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        yield connection


def everything(connection: sqlite3.Connection) -> dict[str, list[Any]]:
    """All that the tables hold."""
    return {table: connection.execute(f"select * from tenure_{table} order by 1").fetchall() for table in TABLES}


@pytest.mark.requirement("LC-03")
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_typed_by_hand_is_refused_and_changes_nothing(
    attack: str, shell: sqlite3.Connection, jobs: Jobs
) -> None:
    statement, expected_text = ATTACKS[attack]
    before = everything(shell)
    with pytest.raises(sqlite3.IntegrityError, match=expected_text) as refusal:
        shell.execute(statement, jobs)
    assert "tenure" in str(refusal.value)
    assert everything(shell) == before


@pytest.mark.requirement("LC-03")
@pytest.mark.requirement("EL-03")
@pytest.mark.parametrize("attack", AS_WRITER)
def test_the_guards_apply_to_the_store_too(attack: str, shell: sqlite3.Connection, jobs: Jobs) -> None:
    statements, expected_text = AS_WRITER[attack]
    before = everything(shell)
    shell.execute("begin")
    shell.execute("update tenure_writer set writer = 'store'")
    for statement in statements[:-1]:
        shell.execute(statement, jobs)
    with pytest.raises(sqlite3.IntegrityError, match=expected_text):
        shell.execute(statements[-1], jobs)
    shell.execute("rollback")
    assert everything(shell) == before


@pytest.mark.requirement("LC-02")
@pytest.mark.parametrize("flaw", UNSOUND)
def test_no_row_breaks_the_invariants_of_its_status(flaw: str, shell: sqlite3.Connection, jobs: Jobs) -> None:
    """The triggers are taken away, so that it is the constraints that answer."""
    status, change, expected_text = UNSOUND[flaw]
    for (trigger,) in shell.execute("select name from sqlite_master where type = 'trigger'").fetchall():
        shell.execute(f"drop trigger {trigger}")
    with pytest.raises(sqlite3.IntegrityError, match=expected_text):
        shell.execute(f"update tenure_jobs set {change} where id = :{status}", jobs)


def test_the_sound_rows_pass_the_constraints_that_the_unsound_ones_break(shell: sqlite3.Connection, jobs: Jobs) -> None:
    for (trigger,) in shell.execute("select name from sqlite_master where type = 'trigger'").fetchall():
        shell.execute(f"drop trigger {trigger}")
    columns = ", ".join(f"{row[1]} = {row[1]}" for row in shell.execute("pragma table_info(tenure_jobs)"))
    assert shell.execute(f"update tenure_jobs set {columns}").rowcount == len(jobs)


def takes(shell: sqlite3.Connection, type_: str, source: str | None, target: str) -> bool:
    """Whether the log takes such an event."""
    rev = 1 if type_ == "enqueued" else 2
    values = (f"{type_} {source} {target}", rev, type_, source, target, 1, 0, "a", "r", 0, 1)
    try:
        shell.execute(f"insert into tenure_events ({EVENT_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    except sqlite3.IntegrityError as refusal:
        return "the lifecycle has no such event" not in str(refusal)
    return True


@pytest.mark.requirement("SM-17")
def test_the_view_of_the_log_has_the_usual_cause_of_every_event(shell: sqlite3.Connection) -> None:
    shell.execute("begin")
    shell.execute("update tenure_writer set writer = 'store'")
    legal = sorted({type_.value: (source, target) for type_, source, target in legal_events()}.items())
    for rev, (type_, (source, target)) in enumerate(legal, start=2):
        values = ("x", 1 if source is None else rev, type_, source, target, 1, 0, "a", "r", 0, 1)
        shell.execute(f"insert into tenure_events ({EVENT_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    seen = dict(shell.execute("select type, cause from tenure_log where job_id = 'x'").fetchall())
    shell.execute("rollback")
    assert seen == {type_.value: cause for type_, cause in CAUSES.items()}


@pytest.mark.requirement("LC-03")
@pytest.mark.requirement("LC-10")
def test_the_log_takes_exactly_the_arrows_of_the_table(shell: sqlite3.Connection) -> None:
    """Every event between every two statuses, also those that do not exist."""
    legal = {(event.value, source and source.value, target.value) for event, source, target in legal_events()}
    shell.execute("begin")
    shell.execute("update tenure_writer set writer = 'store'")
    statuses = [*(status.value for status in Status), "lost"]
    types = [*(type_.value for type_ in EventType), "unheard_of"]
    taken = {
        (type_, source, target)
        for type_, source, target in itertools.product(types, [None, *statuses], statuses)
        if takes(shell, type_, source, target)
    }
    shell.execute("rollback")
    assert taken == legal


def test_a_refused_statement_leaves_the_users_transaction_open(shell: sqlite3.Connection, jobs: Jobs) -> None:
    """RAISE(ROLLBACK) would end it, and what the user types next would commit by itself."""
    shell.execute("create table mine (x)")
    shell.execute("begin")
    shell.execute("insert into mine values (1)")
    with pytest.raises(sqlite3.IntegrityError):
        shell.execute("update tenure_jobs set status = 'queued' where id = :running", jobs)
    assert shell.in_transaction
    shell.execute("insert into mine values (2)")
    shell.execute("rollback")
    assert shell.execute("select count(*) from mine").fetchone() == (0,)


def test_the_writer_is_cleared_in_everything_that_is_committed(shell: sqlite3.Connection) -> None:
    assert shell.execute("select writer from tenure_writer").fetchall() == [(None,)]


def test_the_executions_view_agrees_with_the_log(shell: sqlite3.Connection, jobs: Jobs) -> None:
    found = dict(shell.execute("select job_id, status from tenure_executions").fetchall())
    expected = {
        "running": "in_progress",
        "committed": "committed",
        "succeeded": "done",
        "failed": "aborted",
        "dead_lettered": "aborted",
        "erased": "done",
    }
    assert found == {jobs[name]: status for name, status in expected.items()}
