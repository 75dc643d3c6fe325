"""Decodes rows into records, and encodes batches as arrays. It reads and writes no row itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from tenure.errors import RowPoisoned
from tenure.lifecycle.dead_letter import DeadLetterRecord, ReasonCode, Stage
from tenure.lifecycle.evolve import LeaseEnds
from tenure.lifecycle.records import Event, EventType, Execution, ExecutionStatus, Job, Origin, Policy
from tenure.lifecycle.statuses import RUNNING, Status
from tenure.stores.contract import ArtifactRecord, SignalRecord, Tally, WorkerRecord

T = TypeVar("T")

_STATUS = {status.value: status for status in Status}
_TYPE = {type_.value: type_ for type_ in EventType}
_ORIGIN = tuple(name for name in Origin.__struct_fields__ if name not in ("policy", "payload", "tags"))
_MUTABLE = tuple(
    name for name in Job.__struct_fields__ if name not in ("origin", "status", "token", "created_at", "updated_at")
)

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
    return Job(
        origin=origin,
        status=status,
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        token=row["token"] if with_token else None,
        **{name: row[name] for name in _MUTABLE},
    )


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

    def job(self, row: asyncpg.Record) -> Job:
        # By position in `parts/claimed.sql`, which is much faster than by name.
        (
            job_id, kind, queue, priority, payload, policy_id, dedupe_key, request_id, correlation_id, trace,
            submitted_by, tags, partition_key, parent_id, redrive_of, created_at, at, rev, attempt, failures, losses,
            due_at, cancel_requested, last_error, started_before,
        ) = row[:25]  # fmt: skip
        ends = self._ends.get((at, policy_id))
        if ends is None:
            ends = self._ends[at, policy_id] = self._ends_of(row, at)
        return Job(
            origin=Origin(
                id=job_id,
                kind=kind,
                payload=payload or "null",
                policy=self._policies[policy_id],
                queue=queue,
                priority=priority,
                dedupe_key=dedupe_key,
                request_id=request_id,
                correlation_id=correlation_id,
                trace=trace,
                submitted_by=submitted_by,
                tags=None if tags is None else _tags(job_id, tags),
                partition_key=partition_key,
                parent_id=parent_id,
                redrive_of=redrive_of,
            ),
            status=self._status,
            rev=rev,
            created_at=created_at,
            updated_at=at,
            attempt=attempt,
            failures=failures,
            losses=losses,
            due_at=due_at,
            owner=self._owner,
            token=self._token,
            lease_expires_at=ends.lease_expires_at,
            heartbeat_deadline_at=ends.heartbeat_deadline_at,
            timeout_at=ends.timeout_at,
            started_at=at if self._status is RUNNING else started_before,
            cancel_requested=cancel_requested,
            last_error=last_error,
        )

    def _ends_of(self, row: asyncpg.Record, at: datetime) -> LeaseEnds:
        policy = self._policies.get(row["policy_id"])
        if policy is None:
            raise RowPoisoned(row["id"], f"its row cannot be read: there is no policy {row['policy_id']}")
        return LeaseEnds.of(policy, at, started=self._status is RUNNING)


def event_from(row: asyncpg.Record) -> Event:
    from_status = row["from_status"]
    return Event(
        job_id=row["job_id"],
        rev=row["rev"],
        type=_TYPE[row["type"]],
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
        version=row["version"],
        correlation_id=row["correlation_id"],
        trace=row["trace"],
        position=f"{row['tx']}/{row['job_id']}/{row['rev']}",
    )


def logged_from(row: asyncpg.Record) -> Event:
    """The event half of a row that joins a job with what its request id has written."""
    from_status = row["from_status"]
    return Event(
        job_id=row["id"],
        rev=row["event_rev"],
        type=_TYPE[row["event_type"]],
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


def worker_from(row: asyncpg.Record) -> WorkerRecord:
    facts = {name: row[name] for name in WorkerRecord.__struct_fields__}
    return WorkerRecord(**{**facts, "queues": _names(row["queues"]), "kinds": _names(row["kinds"])})


def tally_from(row: asyncpg.Record) -> Tally:
    facts = {name: row[name] for name in Tally.__struct_fields__}
    return Tally(**{**facts, "status": _STATUS[row["status"]]})


def signal_from(row: asyncpg.Record) -> SignalRecord:
    return SignalRecord(
        job_id=row["job_id"], rev=row["rev"], name=row["name"], payload=row["payload"] or "null", at=row["at"]
    )


def arrays(rows: list[tuple[Any, ...]], names: tuple[str, ...]) -> dict[str, list[Any]]:
    """Rows as one array per column, which is how a batch reaches PostgreSQL."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


def once(column: list[T]) -> list[T]:
    """The column, or its first value alone where all are the same."""
    return column[:1] if column.count(column[0]) == len(column) else column
