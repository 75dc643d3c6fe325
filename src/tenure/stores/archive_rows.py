"""Encodes and decodes the records of an archive beside jobs and events, in the same way for every store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from tenure.errors import RowPoisoned, StoreError
from tenure.lifecycle.queue_limits import RateUsage
from tenure.lifecycle.records import Job, Policy
from tenure.lifecycle.schedules import Schedule, ScheduleRecord
from tenure.stores.archive_tables import ARCHIVE_TABLES
from tenure.stores.contract import UnreadableRow
from tenure.stores.contract.archive import (
    ArchivedJob,
    ArchiveRecord,
    KeyRateUsage,
    QueueState,
)
from tenure.stores.limited_claim import LIMIT_COLUMNS, decode_limits, encode_usage, limit_columns

_OF_QUEUE = ("name", "paused_at", "last_key", "updated_at")
_PLAIN = tuple(name for name in Schedule.__struct_fields__ if name not in ("policy", "tags"))
_MOVING = tuple(name for name in ScheduleRecord.__struct_fields__ if name != "schedule")

_encode = msgspec.json.encode
_decode_usage = msgspec.json.Decoder(RateUsage).decode


def columns_of(record: ArchiveRecord) -> dict[str, Any]:
    """The columns of a record; a schedule's policy is still the policy itself."""
    match record:
        case QueueState():
            return _queue_columns(record)
        case KeyRateUsage():
            return msgspec.structs.asdict(record) | {"usage": encode_usage(record.usage)}
        case ScheduleRecord(schedule=schedule):
            tags = None if schedule.tags is None else _encode(schedule.tags, order="sorted").decode()
            facts = {name: getattr(schedule, name) for name in _PLAIN} | {"policy": schedule.policy, "tags": tags}
            return facts | {name: getattr(record, name) for name in _MOVING}
    return msgspec.structs.asdict(record)


UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, msgspec.MsgspecError, RowPoisoned)
"""What is raised when a row cannot be decoded."""


class RowReader:
    """Decodes rows of records. Those that cannot be decoded are left out, and kept in `unreadable`."""

    def __init__(self) -> None:
        self.unreadable: list[UnreadableRow] = []

    def add(self, *rows: UnreadableRow) -> None:
        """A page that is read again meets the same rows."""
        self.unreadable += [row for row in rows if row not in self.unreadable]

    async def archived(
        self, jobs: Sequence[Job], read: Callable[[Sequence[Job]], Awaitable[list[ArchivedJob]]]
    ) -> list[ArchivedJob]:
        """The jobs with their records. A job with a record that cannot be decoded is left out."""
        try:
            return await read(jobs)
        except UNREADABLE as problem:
            if len(jobs) == 1:
                what = f"a dead letter, signal, request or artifact of job {jobs[0].id}"
                self.add(UnreadableRow(what, repr(problem), jobs[0].id))
                return []
        return [kept for job in jobs for kept in await self.archived([job], read)]

    def record(
        self, kind: type[ArchiveRecord], row: Mapping[str, Any], facts: Callable[[], dict[str, Any]]
    ) -> list[ArchiveRecord]:
        """The record of a row; none if it cannot be decoded."""
        try:
            return [msgspec.convert(facts(), kind)]
        except (*UNREADABLE, StoreError) as problem:
            self.add(UnreadableRow(ARCHIVE_TABLES[kind].row.format_map(row), _problem(problem)))
            return []

    def usage(self, written: str | None, of: str) -> RateUsage | None:
        """The usage of a queue's rate. One that cannot be decoded is counted anew; the queue's limits are kept."""
        try:
            return None if written is None else _decode_usage(written)
        except UNREADABLE as problem:
            self.add(UnreadableRow(f"rate usage of {of}", _problem(problem)))
            return None


def _problem(problem: Exception) -> str:
    return problem.problem if isinstance(problem, RowPoisoned) else f"{type(problem).__name__}: {problem}"


def facts_of(
    kind: type[ArchiveRecord], row: Mapping[str, Any], policy: Policy | None, reader: RowReader
) -> dict[str, Any]:
    """The fields of a record, from a row whose times are decoded."""
    if kind is QueueState:
        return _queue_facts(row, reader)
    facts = dict(row)
    if kind is KeyRateUsage:
        facts["usage"] = _decode_usage(row["usage"])
    if kind is ScheduleRecord:
        tags = None if row["tags"] is None else msgspec.json.decode(row["tags"])
        schedule = {name: row[name] for name in _PLAIN} | {"policy": policy, "tags": tags}
        facts = {name: row[name] for name in _MOVING} | {"schedule": schedule}
    return {name: facts[name] for name in kind.__struct_fields__}


def _queue_columns(state: QueueState) -> dict[str, Any]:
    facts = {name: getattr(state, name) for name in _OF_QUEUE} | limit_columns(state.limits)
    return facts | {"usage": None if state.usage is None else encode_usage(state.usage)}


def _queue_facts(row: Mapping[str, Any], reader: RowReader) -> dict[str, Any]:
    facts = {name: row[name] for name in _OF_QUEUE} | {"limits": decode_limits([row[name] for name in LIMIT_COLUMNS])}
    return facts | {"usage": reader.usage(row["usage"], f"queue {row['name']!r}")}
