"""How the records beside the jobs lie in rows that are the same in every store, and how they come back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tenure.lifecycle.records import Policy
from tenure.lifecycle.schedules import Schedule, ScheduleRecord
from tenure.stores.contract.archive import (
    ArchiveRecord,
    ClaimRecord,
    KeyRateUsage,
    MessageRecord,
    OperatorRecord,
    QueueState,
    StreamRecord,
)
from tenure.stores.limits import LIMIT_COLUMNS, decode_limits, decode_usage, encode_usage, limit_columns

FIRST_PAGES: Mapping[type[ArchiveRecord], tuple[str, dict[str, object]]] = {
    OperatorRecord: ("operators_page", {"id": 0}),
    ClaimRecord: ("claims_page", {"request_id": ""}),
    QueueState: ("queues_page", {"name": ""}),
    KeyRateUsage: ("limits_page", {"queue": "", "key": ""}),
    ScheduleRecord: ("schedules_page", {"name": ""}),
    StreamRecord: ("streams_page", {"aggregate": ""}),
    MessageRecord: ("messages_page", {"aggregate": "", "sequence": 0}),
}
"""The statement that reads the pages of each shelf, and the place before the first."""

_OF_QUEUE = ("name", "paused_at", "turn", "updated_at")
_PLAIN = tuple(name for name in Schedule.__struct_fields__ if name not in ("policy", "tags"))
_MOVING = tuple(name for name in ScheduleRecord.__struct_fields__ if name != "schedule")

_encode = msgspec.json.encode


def columns_of(record: ArchiveRecord) -> dict[str, Any]:
    """The columns of a record; a schedule's policy is still the policy itself."""
    match record:
        case QueueState():
            return _queue_columns(record)
        case KeyRateUsage():
            return msgspec.structs.asdict(record) | {"spent": encode_usage(record.spent)}
        case ScheduleRecord(schedule=schedule):
            tags = None if schedule.tags is None else _encode(schedule.tags, order="sorted").decode()
            facts = {name: getattr(schedule, name) for name in _PLAIN} | {"policy": schedule.policy, "tags": tags}
            return facts | {name: getattr(record, name) for name in _MOVING}
    return msgspec.structs.asdict(record)


def facts_of(kind: type[ArchiveRecord], row: Mapping[str, Any], policy: Policy | None) -> dict[str, Any]:
    """The fields of a record, from a row whose moments are moments."""
    if kind is QueueState:
        return _queue_facts(row)
    facts = dict(row)
    if kind is KeyRateUsage:
        facts["spent"] = decode_usage(row["spent"])
    if kind is ScheduleRecord:
        tags = None if row["tags"] is None else msgspec.json.decode(row["tags"])
        schedule = {name: row[name] for name in _PLAIN} | {"policy": policy, "tags": tags}
        facts = {name: row[name] for name in _MOVING} | {"schedule": schedule}
    return {name: facts[name] for name in kind.__struct_fields__}


def _queue_columns(state: QueueState) -> dict[str, Any]:
    facts = {name: getattr(state, name) for name in _OF_QUEUE} | limit_columns(state.limits)
    return facts | {"spent": None if state.spent is None else encode_usage(state.spent)}


def _queue_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    facts = {name: row[name] for name in _OF_QUEUE} | {"limits": decode_limits([row[name] for name in LIMIT_COLUMNS])}
    return facts | {"spent": None if row["spent"] is None else decode_usage(row["spent"])}
