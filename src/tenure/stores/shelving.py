"""How the records beside the jobs lie in rows that are the same in every store, and how they come back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tenure.lifecycle.records import Policy
from tenure.lifecycle.schedules import Schedule, ScheduleRecord
from tenure.stores.contract.archive import KeySpent, QueueState, Shelved

_RATES = ("rate", "key_rate")
_LIMITS = ("concurrency_max", "key_concurrency_max")
_PLAIN = tuple(name for name in Schedule.__struct_fields__ if name not in ("policy", "tags"))
_MOVING = tuple(name for name in ScheduleRecord.__struct_fields__ if name != "schedule")

_encode = msgspec.json.encode


def columns_of(record: Shelved) -> dict[str, Any]:
    """The columns of a record; a schedule's policy is still the policy itself."""
    match record:
        case QueueState():
            return _queue_columns(record)
        case KeySpent():
            return msgspec.structs.asdict(record) | {"spent": _encode(record.spent).decode()}
        case ScheduleRecord(schedule=schedule):
            tags = None if schedule.tags is None else _encode(schedule.tags, order="sorted").decode()
            facts = {name: getattr(schedule, name) for name in _PLAIN} | {"policy": schedule.policy, "tags": tags}
            return facts | {name: getattr(record, name) for name in _MOVING}
    return msgspec.structs.asdict(record)


def facts_of(kind: type[Shelved], row: Mapping[str, Any], policy: Policy | None) -> dict[str, Any]:
    """The fields of a record, from a row whose moments are moments."""
    if kind is QueueState:
        return _queue_facts(row)
    facts = dict(row)
    if kind is KeySpent:
        facts["spent"] = msgspec.json.decode(row["spent"])
    if kind is ScheduleRecord:
        tags = None if row["tags"] is None else msgspec.json.decode(row["tags"])
        schedule = {name: row[name] for name in _PLAIN} | {"policy": policy, "tags": tags}
        facts = {name: row[name] for name in _MOVING} | {"schedule": schedule}
    return {name: facts[name] for name in kind.__struct_fields__}


def _queue_columns(state: QueueState) -> dict[str, Any]:
    facts: dict[str, Any] = {name: getattr(state, name) for name in ("name", "paused_at", "turn", "updated_at")}
    facts |= {name: getattr(state.rules, name) for name in (*_LIMITS, "fair")}
    for name in _RATES:
        rate = getattr(state.rules, name)
        facts |= {f"{name}_count": rate and rate.count, f"{name}_seconds": rate and rate.seconds}
    return facts | {"spent": None if state.spent is None else _encode(state.spent).decode()}


def _queue_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    rules: dict[str, Any] = {name: row[name] for name in _LIMITS} | {"fair": bool(row["fair"])}
    for name in _RATES:
        count, seconds = row[f"{name}_count"], row[f"{name}_seconds"]
        rules[name] = None if count is None else {"count": count, "seconds": seconds}
    facts = {name: row[name] for name in ("name", "paused_at", "turn", "updated_at")}
    return facts | {"rules": rules, "spent": None if row["spent"] is None else msgspec.json.decode(row["spent"])}
