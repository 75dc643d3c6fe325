"""The tables of the records of an archive besides jobs and events."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.schedules import ScheduleRecord
from tenure.stores.contract import ArtifactRecord, SignalRecord
from tenure.stores.contract.archive import (
    ArchivedSubscription,
    ClaimRecord,
    DeduplicatedRequest,
    KeyRateUsage,
    OperatorRecord,
    QueueState,
    StreamRecord,
)
from tenure.stores.contract.budgets import BudgetRecord, ReservationRecord
from tenure.stores.contract.outbox import ArchivedDelivery, ArchivedEndpoint, MessageRecord, PendingRecord

ARCHIVE_TABLES: Mapping[type[msgspec.Struct], str] = {
    OperatorRecord: "operator_log",
    ClaimRecord: "claims",
    QueueState: "queues",
    KeyRateUsage: "rate_usage",
    ScheduleRecord: "schedules",
    StreamRecord: "streams",
    MessageRecord: "outbox",
    ArchivedEndpoint: "endpoints",
    ArchivedSubscription: "subscriptions",
    PendingRecord: "pending",
    ArchivedDelivery: "deliveries",
    BudgetRecord: "budgets",
    ReservationRecord: "reservations",
    DeadLetterRecord: "dead_letters",
    SignalRecord: "signals",
    DeduplicatedRequest: "deduplicated_requests",
    ArtifactRecord: "artifacts",
}
"""The table of each record that an archive holds besides jobs and events."""
