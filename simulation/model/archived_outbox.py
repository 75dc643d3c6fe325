"""Endpoints, subscriptions, pending streams and deliveries of a model, as an archive holds them."""

# ruff: noqa: SLF001 - the archive is a part of the model

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from simulation.model.outbox import PendingRow
from tenure.stores.contract.archive import ArchivedSubscription, ArchiveRecord
from tenure.stores.contract.outbox import (
    ArchivedDelivery,
    ArchivedEndpoint,
    DeliveryRecord,
    EndpointRecord,
    PendingRecord,
    SubscriptionRecord,
)

if TYPE_CHECKING:
    from simulation.model.store import ModelStore

T = TypeVar("T", bound=msgspec.Struct)

OUTBOX_RECORDS = (ArchivedEndpoint, ArchivedSubscription, PendingRecord, ArchivedDelivery)


def outbox_records(model: ModelStore, kind: type[ArchiveRecord]) -> list[ArchiveRecord]:
    """The records of one of these types."""
    if kind is ArchivedEndpoint:
        return [record_as(ArchivedEndpoint, one) for one in model._endpoints.values()]
    if kind is PendingRecord:
        return [record_as(PendingRecord, one) for one in model._pending.values()]
    if kind is ArchivedDelivery:
        return [record_as(ArchivedDelivery, one) for one in model._deliveries]
    return [
        ArchivedSubscription(**msgspec.structs.asdict(one), updated_at=endpoint.updated_at)
        for endpoint in model._endpoints.values()
        for one in endpoint.subscriptions
    ]


def restore_outbox(
    model: ModelStore, record: ArchivedEndpoint | ArchivedSubscription | PendingRecord | ArchivedDelivery
) -> None:
    """Put a record back. An endpoint comes before its subscriptions."""
    match record:
        case ArchivedEndpoint():
            model._endpoints[record.name] = record_as(EndpointRecord, record)
        case ArchivedSubscription():
            known = model._endpoints[record.endpoint]
            subscriptions = (*known.subscriptions, record_as(SubscriptionRecord, record))
            model._endpoints[record.endpoint] = msgspec.structs.replace(known, subscriptions=subscriptions)
        case PendingRecord():
            row = record_as(PendingRow, record)
            model._pending[row.key] = row
        case ArchivedDelivery():
            facts = msgspec.structs.asdict(record)
            model._deliveries.append(DeliveryRecord(number=len(model._deliveries) + 1, **facts))


def record_as(kind: type[T], record: msgspec.Struct) -> T:
    """The fields of a record that the other type has too."""
    fields = {name for name in kind.__struct_fields__ if name in record.__struct_fields__}
    return kind(**{name: getattr(record, name) for name in fields})
