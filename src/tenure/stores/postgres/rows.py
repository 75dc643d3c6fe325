"""Decodes rows into records, and encodes batches as arrays. It reads and writes no row itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar, get_args
from uuid import UUID

import asyncpg
import msgspec

from tenure.errors import RowPoisoned
from tenure.lifecycle.dead_letter import DeadLetterRecord, ReasonCode, Stage
from tenure.lifecycle.evolve import LeaseEnds
from tenure.lifecycle.executions import Execution, ExecutionStatus
from tenure.lifecycle.records import EndsAs, Event, EventType, Job, Origin, Policy
from tenure.lifecycle.statuses import RUNNING, Status
from tenure.lifecycle.steps import StepKind, StepRecord, StoredStep
from tenure.stores.contract import ArtifactRecord, SignalRecord, Tally, UnreadableRow, WorkerRecord
from tenure.stores.postgres.connections import is_unreadable
from tenure.stores.quarantine import decode_each

T = TypeVar("T")

_STATUS = {status.value: status for status in Status}
_ORIGIN = tuple(name for name in Origin.__struct_fields__ if name not in ("policy", "payload", "tags"))
_MUTABLE = tuple(
    name for name in Job.__struct_fields__ if name not in ("origin", "status", "token", "created_at", "updated_at")
)
_JOB_TIMES = ("created_at", "updated_at", *(name for name in _MUTABLE if name.endswith("_at")))
_EVENT_TIMES = ("at", "until_at")
_SQL_TYPE = {bool: "boolean", int: "integer"}
CHANGING = {
    field.name: "bigint"
    if datetime in kinds
    else next((_SQL_TYPE[kind] for kind in kinds if kind in _SQL_TYPE), "text")
    for field in msgspec.structs.fields(Job)
    if field.name not in ("origin", "rev", "created_at", "updated_at", "token", "erased_at")
    for kinds in [(field.type, *get_args(field.type))]
}
"""The columns that `jobs/apply.sql` writes, and the types in which a change has them: a time is an offset."""
TIMES = tuple(name for name, type_ in CHANGING.items() if type_ == "bigint")


class ClaimedRow(msgspec.Struct, frozen=True, gc=False):
    """The columns that `queries/parts/claimed.sql` returns first, in this order. The last one is computed."""

    id: UUID
    kind: str
    queue: str
    priority: int
    payload: str | None
    policy_id: int
    dedupe_key: str | None
    request_id: str | None
    correlation_id: str | None
    trace: str | None
    submitted_by: str | None
    tags: str | None
    partition_key: str | None
    parent_id: UUID | None
    redrive_of: UUID | None
    awaited: bool
    created_at: datetime
    updated_at: datetime
    rev: int
    attempt: int
    failures: int
    losses: int
    due_at: datetime
    cancel_reason: str | None
    signal_rev: int
    last_error: str | None
    ends_as: EndsAs | None
    ends_because: str | None
    failures_before_undo: int
    pinned_version: str | None
    started_before: datetime | None


CLAIMED = tuple(name for name in ClaimedRow.__struct_fields__ if name != "started_before")
"""The columns of `jobs` that a claim returns."""
COLUMNS: Mapping[str, Iterable[str]] = {
    "changing": CHANGING,
    "plain": tuple(name for name in CHANGING if name not in TIMES),
    "time": tuple(name for name in TIMES if name not in ("lease_expires_at", "timeout_at")),
    "claimed": CLAIMED,
}
"""The lists that a statement's line `-- each … column: …` names."""

_names = msgspec.json.Decoder(tuple[str, ...]).decode

Policies = Mapping[int, Policy]

log = logging.getLogger("tenure.stores.postgres")


def _origin(row: asyncpg.Record, policies: Policies) -> Origin:
    tags, policy = row["tags"], policies.get(row["policy_id"])
    if policy is None:
        raise RowPoisoned(row["id"], f"its row cannot be read: there is no policy {row['policy_id']}")
    return Origin(
        policy=policy,
        payload=row["payload"] or "null",
        tags=None if tags is None else _tags(row["id"], tags),
        **{name: row[name] for name in _ORIGIN},
    )


def _tags(job_id: UUID, tags: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(tags, type=dict[str, str])
    except msgspec.MsgspecError as problem:
        raise RowPoisoned(job_id, f"its row cannot be read: {problem!r}") from problem


def job_from(row: asyncpg.Record, policies: Policies, *, with_token: bool = False) -> Job:
    """The record of a row. The token stays behind unless it is asked for."""
    origin = _origin(row, policies)
    status = _STATUS.get(row["status"])
    if status is None:
        raise RowPoisoned(row["id"], f"its row cannot be read: its status is {row['status']!r}")
    if unreadable := _unreadable_time(row, _JOB_TIMES):
        raise RowPoisoned(row["id"], f"its row cannot be read: {unreadable}")
    return Job(
        origin=origin,
        status=status,
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        token=row["token"] if with_token else None,
        **{name: row[name] for name in _MUTABLE},
    )


def _unreadable_time(row: asyncpg.Record, names: Iterable[str]) -> str | None:
    """What is wrong with the times in these columns."""
    for name in names:
        at = row[name]
        if at is not None and at.tzinfo is None:
            return f"{name} is not a time between the years 1 and 9999"
    return None


def require_times(row: asyncpg.Record, names: Iterable[str]) -> None:
    """ValueError: one of these columns has a time that cannot be represented."""
    if problem := _unreadable_time(row, names):
        raise ValueError(problem)


def decoded(rows: Iterable[asyncpg.Record], decode: Callable[[asyncpg.Record], Job]) -> list[Job | RowPoisoned]:
    """The record of each row, or why it cannot be decoded."""
    found: list[Job | RowPoisoned] = []
    for row in rows:
        try:
            found.append(decode(row))
        except RowPoisoned as problem:
            found.append(problem)
    return found


class Claimed:
    """Decodes the rows that one claim has won: a column that is not returned is null, or follows from the time of the
    claim, which nearly all rows share."""

    def __init__(self, policies: Policies, status: Status, *, owner: str, token: UUID) -> None:
        self._policies, self._status, self._owner, self._token = policies, status, owner, token
        self._ends: dict[tuple[datetime, int], LeaseEnds] = {}

    def job(self, record: asyncpg.Record) -> Job:
        # Fields of a struct are read four times as fast as columns of a record.
        row = ClaimedRow(*record[: len(CLAIMED) + 1])
        if row.due_at.tzinfo is None:
            raise RowPoisoned(row.id, "its row cannot be read: due_at is not a time between the years 1 and 9999")
        at = row.updated_at
        ends = self._ends.get((at, row.policy_id))
        if ends is None:
            ends = self._ends[at, row.policy_id] = self._ends_of(row, at)
        return Job(
            origin=Origin(
                id=row.id,
                kind=row.kind,
                payload=row.payload or "null",
                policy=self._policies[row.policy_id],
                queue=row.queue,
                priority=row.priority,
                dedupe_key=row.dedupe_key,
                request_id=row.request_id,
                correlation_id=row.correlation_id,
                trace=row.trace,
                submitted_by=row.submitted_by,
                tags=None if row.tags is None else _tags(row.id, row.tags),
                partition_key=row.partition_key,
                parent_id=row.parent_id,
                redrive_of=row.redrive_of,
                awaited=row.awaited,
            ),
            status=self._status,
            rev=row.rev,
            created_at=row.created_at,
            updated_at=at,
            attempt=row.attempt,
            failures=row.failures,
            losses=row.losses,
            due_at=row.due_at,
            owner=self._owner,
            token=self._token,
            lease_expires_at=ends.lease_expires_at,
            heartbeat_deadline_at=ends.heartbeat_deadline_at,
            timeout_at=ends.timeout_at,
            started_at=at if self._status is RUNNING else row.started_before,
            cancel_reason=row.cancel_reason,
            signal_rev=row.signal_rev,
            last_error=row.last_error,
            ends_as=row.ends_as,
            ends_because=row.ends_because,
            failures_before_undo=row.failures_before_undo,
            pinned_version=row.pinned_version,
        )

    def _ends_of(self, row: ClaimedRow, at: datetime) -> LeaseEnds:
        policy = self._policies.get(row.policy_id)
        if policy is None:
            raise RowPoisoned(row.id, f"its row cannot be read: there is no policy {row.policy_id}")
        return LeaseEnds.of(policy, at, started=self._status is RUNNING)


def read_event(row: asyncpg.Record) -> Event | UnreadableRow:
    """The event of a row, or why it cannot be decoded."""
    try:
        return event_from(row)
    except (RowPoisoned, LookupError, ValueError) as problem:
        why = problem.problem if isinstance(problem, RowPoisoned) else repr(problem)
        return UnreadableRow(f"event {row['rev']} of job {row['job_id']}", why, row["job_id"])


def unreadable_job(problem: RowPoisoned) -> UnreadableRow:
    return UnreadableRow(f"job {problem.job_id}", problem.problem, UUID(str(problem.job_id)))


def event_from(row: asyncpg.Record) -> Event:
    from_status = row["from_status"]
    if unreadable := _unreadable_time(row, _EVENT_TIMES):
        raise RowPoisoned(row["job_id"], f"its event {row['rev']} cannot be read: {unreadable}")
    return Event(
        job_id=row["job_id"],
        rev=row["rev"],
        type=EventType.of(row["type"]),
        from_status=None if from_status is None else _STATUS[from_status],
        to_status=_STATUS[row["to_status"]],
        at=row["at"],
        attempt=row["attempt"],
        actor=row["actor"],
        request_id=row["request_id"],
        cause=row["cause"],
        detail=row["detail"],
        digest=row["digest"],
        until_at=row["until_at"],
        commits=row["commits"],
        steps=row["steps"],
        version=row["version"],
        correlation_id=row["correlation_id"] or str(row["job_id"]),
        trace=row["trace"],
        position=position_of(row),
    )


def position_of(row: asyncpg.Record) -> str:
    return f"{row['tx']}/{row['job_id']}/{row['rev']}"


def logged_from(row: asyncpg.Record) -> Event:
    """The event half of a row that joins a job with what its request id has written."""
    from_status = row["from_status"]
    return Event(
        job_id=row["id"],
        rev=row["event_rev"],
        type=EventType.of(row["event_type"]),
        from_status=None if from_status is None else _STATUS[from_status],
        to_status=_STATUS[row["to_status"]],
        at=row["event_at"],
        attempt=row["event_attempt"],
        actor=row["actor"],
        request_id=row["event_request_id"],
        cause=row["cause"],
        detail=row["detail"],
        digest=row["digest"],
        until_at=row["until_at"],
        commits=row["commits"],
        version=row["version"],
    )


def execution_from(row: asyncpg.Record) -> Execution:
    status = ExecutionStatus(row["status"])
    return Execution(status=status, **{name: row[name] for name in Execution.__struct_fields__ if name != "status"})


def dead_letter_from(row: asyncpg.Record) -> DeadLetterRecord:
    facts = {name: row[name] for name in DeadLetterRecord.__struct_fields__}
    codes = {"reason_code": ReasonCode(row["reason_code"]), "stage": Stage(row["stage"])}
    return DeadLetterRecord(**{**facts, **codes, "last_error": row["last_error"] or "null"})


def artifact_from(row: asyncpg.Record) -> ArtifactRecord:
    return ArtifactRecord(**{name: row[name] for name in ArtifactRecord.__struct_fields__})


def workers_from(rows: Iterable[asyncpg.Record], unreadable: list[UnreadableRow] | None = None) -> list[WorkerRecord]:
    return decode_each(rows, _worker_from, lambda row: f"worker {row['id']!r}", unreadable)


def _worker_from(row: asyncpg.Record) -> WorkerRecord:
    require_times(row, ("started_at", "seen_at", "stopped_at"))
    facts = {name: row[name] for name in WorkerRecord.__struct_fields__}
    return WorkerRecord(**{**facts, "queues": _names(row["queues"]), "kinds": _names(row["kinds"])})


def tally_from(row: asyncpg.Record) -> Tally:
    facts = {name: row[name] for name in Tally.__struct_fields__}
    oldest_due_at = None if is_unreadable(row["oldest_due_at"]) else row["oldest_due_at"]
    return Tally(**{**facts, "status": _STATUS.get(row["status"], row["status"]), "oldest_due_at": oldest_due_at})


def signal_from(row: asyncpg.Record) -> SignalRecord:
    return SignalRecord(
        job_id=row["job_id"], rev=row["rev"], name=row["name"], payload=row["payload"] or "null", at=row["at"]
    )


def _whole(number: Decimal) -> str:
    """The digits of a whole number. `str` would write trailing zeros as an exponent."""
    return str(int(number))


def step_from(row: asyncpg.Record) -> StepRecord:
    facts = {name: row[name] for name in StepRecord.__struct_fields__}
    return StepRecord(**{**facts, "kind": StepKind(row["kind"]), "digest": _whole(row["digest"])})


def stored_step_from(row: asyncpg.Record) -> StoredStep:
    """A row without its content, of which the database gives the digest."""
    content = {"result": None, "error": None, "undo": None}
    facts = {name: row[name] for name in StepRecord.__struct_fields__ if name not in content}
    step = StepRecord(**{**facts, **content, "kind": StepKind(row["kind"]), "digest": _whole(row["digest"])})
    return StoredStep.of(step, content_digest=row["stored_digest"])


def arrays(rows: list[tuple[Any, ...]], names: tuple[str, ...]) -> dict[str, list[Any]]:
    """Rows as one array per column, which is how a batch reaches PostgreSQL."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


def once(column: list[T]) -> list[T]:
    """The column, or its first value alone where all are the same."""
    return column[:1] if column.count(column[0]) == len(column) else column
