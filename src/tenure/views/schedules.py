"""Schedules as plain data. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.lifecycle.schedules import ScheduleRecord


def schedule_view(record: ScheduleRecord) -> dict[str, Any]:
    """A schedule and its state as one flat object, with its payload as JSON."""
    state = {name: getattr(record, name) for name in ("rev", "next_at", "last_at", "paused_at", "updated_at")}
    payload = msgspec.Raw(record.schedule.payload.encode())
    return {**msgspec.structs.asdict(record.schedule), "payload": payload, **state}
