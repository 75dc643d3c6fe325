"""Changes that are alike, as claims of new jobs are, and completions of jobs that were claimed together.

What they have in common is worked out once, and handed to SQLite once: for each of them that costs more than the
writing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from tenure.stores.sqlite.statements import Row, by_name, write_rows


class Shared(msgspec.Struct, frozen=True):
    """What changes have in common: each of their events, the statement for their rows, and what it takes."""

    events: list[Mapping[str, object]]
    statement: str
    parameters: Mapping[str, object]

    @classmethod
    def of(cls, events: Sequence[Row], row: Row, statement: str) -> Shared:
        """From the events and the row of one of them, as `insert_events` and `update_jobs` would take these."""
        return cls([by_name("insert_events", event) for event in events], statement, by_name("update_jobs", row))


class Alike(msgspec.Struct, frozen=True, gc=False):
    """One of these changes: what is its own, as the statements for events and for rows take it."""

    job_id: UUID
    shared: Shared
    event: Row
    row: Row


def write_alike(connection: sqlite3.Connection, writes: Sequence[Alike]) -> int:
    """Write them, in groups that share. How many rows of jobs were changed."""
    groups: dict[int, list[Alike]] = {}
    for write in writes:
        groups.setdefault(id(write.shared), []).append(write)
    return sum(
        write_group(connection, group[0].shared, [write.event for write in group], [write.row for write in group])
        for group in groups.values()
    )


def write_group(connection: sqlite3.Connection, shared: Shared, events: Sequence[Row], rows: Sequence[Row]) -> int:
    """Write changes that share all but this. How many rows of jobs were changed."""
    for event in shared.events:
        write_rows(connection, "insert_events_alike", events, event)
    return write_rows(connection, shared.statement, rows, shared.parameters)
