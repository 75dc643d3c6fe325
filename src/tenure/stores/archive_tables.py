"""The tables of the records of an archive besides jobs and events."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.schedules import ScheduleRecord
from tenure.stores.contract import ArtifactRecord, SignalRecord
from tenure.stores.contract.archive import (
    ArchivedSubscription,
    ArchiveRecord,
    ClaimRecord,
    DeduplicatedRequest,
    KeyRateUsage,
    OperatorRecord,
    QueueState,
    StreamRecord,
)
from tenure.stores.contract.budgets import BudgetRecord, ReservationRecord
from tenure.stores.contract.outbox import ArchivedDelivery, ArchivedEndpoint, MessageRecord, PendingRecord

NO_ID = str(UUID(int=0))


class ArchiveTable(msgspec.Struct, frozen=True):
    """The table of one type of record."""

    name: str
    first_key: Mapping[str, object]
    """The key that is before the first row, by column."""
    row: str
    """How a row is named."""


ARCHIVE_TABLES: Mapping[type[ArchiveRecord], ArchiveTable] = {
    OperatorRecord: ArchiveTable("operator_log", {"id": 0}, "entry {id} of the operator log"),
    ClaimRecord: ArchiveTable("claims", {"request_id": ""}, "claim {request_id!r}"),
    QueueState: ArchiveTable("queues", {"name": ""}, "queue {name!r}"),
    KeyRateUsage: ArchiveTable(
        "rate_usage", {"queue": "", "key": ""}, "rate usage of partition {key!r} of queue {queue!r}"
    ),
    ScheduleRecord: ArchiveTable("schedules", {"name": ""}, "schedule {name!r}"),
    StreamRecord: ArchiveTable("streams", {"aggregate": ""}, "stream {aggregate!r}"),
    MessageRecord: ArchiveTable("outbox", {"sequence": 0}, "message {sequence}"),
    ArchivedEndpoint: ArchiveTable("endpoints", {"name": ""}, "endpoint {name!r}"),
    ArchivedSubscription: ArchiveTable(
        "subscriptions", {"endpoint": "", "topic": ""}, "subscription of endpoint {endpoint!r} to {topic!r}"
    ),
    PendingRecord: ArchiveTable(
        "pending",
        {"endpoint": "", "aggregate": "", "only_sequence": 0},
        "pending stream {aggregate!r} {only_sequence} of endpoint {endpoint!r}",
    ),
    ArchivedDelivery: ArchiveTable("deliveries", {"number": 0}, "delivery {number} of message {sequence}"),
    BudgetRecord: ArchiveTable("budgets", {"root_id": NO_ID, "unit": ""}, "budget of run {root_id}, unit {unit!r}"),
    ReservationRecord: ArchiveTable(
        "reservations",
        {"root_id": NO_ID, "unit": "", "job_id": NO_ID, "attempt": 0, "key": ""},
        "reservation {key!r} of job {job_id}, unit {unit!r}",
    ),
}
TABLES_OF_JOBS: Mapping[type[msgspec.Struct], str] = {
    DeadLetterRecord: "dead_letters",
    SignalRecord: "signals",
    DeduplicatedRequest: "deduplicated_requests",
    ArtifactRecord: "artifacts",
}
"""The tables of the records that an archive holds with their jobs."""
