"""The outbox on PostgreSQL: leases streams to processors, and records deliveries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tenure.lifecycle.json_text import check_name, check_seconds, check_text, encode
from tenure.lifecycle.records import Actor
from tenure.stores.contract import Resolution, UnreadableRow
from tenure.stores.contract.outbox import (
    ClaimDeliveries,
    DeliveryRecord,
    EndpointDepth,
    EndpointRecord,
    EndpointSource,
    LeasedStream,
    MessageFilter,
    OutboxDepth,
    PendingRecord,
    Settlement,
    StoredMessage,
    SubscriptionRecord,
)
from tenure.stores.outbox_rows import MESSAGE, stored_message
from tenure.stores.outbox_validation import validate_claim_deliveries, validate_endpoint, validate_settlements
from tenure.stores.postgres.connections import Connections, Session, fetch
from tenure.stores.postgres.rows import require_times
from tenure.stores.quarantine import decode_each
from tenure.stores.validation import validate_page

_subscriptions = msgspec.json.Decoder(tuple[SubscriptionRecord, ...]).decode


class PostgresOutbox:
    """The outbox of one database, for processors and operators."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    # The processor's part.

    async def endpoints(self) -> list[EndpointRecord]:
        return endpoints_from(await self._connections.fetch("endpoints/select", {"name": None}))

    async def claim(self, request: ClaimDeliveries) -> list[LeasedStream]:
        validate_claim_deliveries(request)
        if not request.limits:
            return []
        values = {
            "endpoints": list(request.limits),
            "limits": list(request.limits.values()),
            "owner": request.owner,
            "token": request.token,
            "lease_ms": _ms(request.lease_seconds),
            "messages_max": request.messages_max,
        }
        rows = await self._connections.fetch("pending/claim", values)
        return _leased_streams(rows, request.token)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        validate_settlements(settlements)
        if not settlements:
            return []
        values = _settlement_arrays(settlements)
        rows = await self._connections.write("store", lambda session: fetch(session, "pending/settle", values))
        written = {row["place"] for row in rows}
        return [place in written for place in range(1, len(settlements) + 1)]

    async def mark_seen(self, endpoints: Sequence[str]) -> None:
        await self._connections.fetch("endpoints/mark_seen", {"names": list(endpoints)})

    async def mark_failing(self, endpoint: str, *, failing: bool) -> None:
        await self._connections.fetch("endpoints/mark_failing", {"name": endpoint, "failing": failing})

    async def throttle(self, endpoint: str, *, seconds: float) -> None:
        check_seconds(seconds, "seconds")
        await self._connections.fetch("endpoints/throttle", {"name": endpoint, "pause_ms": _ms(seconds)})

    async def warn(
        self, endpoint: str, *, failing_since: datetime, every_seconds: float, because: str, actor: Actor
    ) -> bool:
        check_text(because, "because")
        check_seconds(every_seconds, "every_seconds")
        guard = {"failing_since": failing_since, "every_ms": _ms(every_seconds)}
        return await self._change("endpoints/warn", endpoint, actor, guard, because=because)

    async def disable(
        self, endpoint: str, *, because: str, actor: Actor, failing_since: datetime | None = None
    ) -> bool:
        check_text(because, "because")
        guard = {"failing_since": failing_since, "because": because}
        return await self._change("endpoints/disable", endpoint, actor, guard, because=because)

    # The operator's part.

    async def enable(self, endpoint: str, *, actor: Actor) -> bool:
        return await self._change("endpoints/enable", endpoint, actor)

    async def put_endpoint(
        self,
        name: str,
        *,
        kind: str,
        config: str | None = None,
        source: EndpointSource = "operator",
        subscriptions: Sequence[SubscriptionRecord],
        actor: Actor,
    ) -> EndpointRecord:
        validate_endpoint(name, kind=kind, config=config, subscriptions=subscriptions)
        topics = [one.topic for one in subscriptions]
        detail = encode({"endpoint": name, "kind": kind, "topics": topics})
        endpoint = {"name": name, "kind": kind, "config": config, "source": source, "actor": str(actor)}
        rows = {
            "endpoint": name,
            "topics": topics,
            "filters": [one.filters for one in subscriptions],
            "block_seconds": [one.block_seconds for one in subscriptions],
        }

        async def work(session: Session) -> EndpointRecord:
            await fetch(session, "endpoints/put", {**endpoint, "detail": detail})
            await fetch(session, "subscriptions/delete_others", rows)
            await fetch(session, "subscriptions/put", rows)
            [row] = await fetch(session, "endpoints/select", {"name": name})
            return _endpoint(row)

        return await self._connections.write("store", work)

    async def delete_endpoint(self, name: str, *, actor: Actor) -> bool:
        check_name(name, "endpoint")

        async def work(session: Session) -> bool:
            values = {"name": name, "actor": str(actor), "detail": encode({"endpoint": name})}
            deleted = await fetch(session, "endpoints/delete", values)
            await fetch(session, "pending/delete_of_endpoint", {"endpoint": name})
            return bool(deleted)

        return await self._connections.write("store", work)

    async def depth(self) -> OutboxDepth:
        [unserved] = await self._connections.fetch("outbox/count_unserved", {})
        depths = await self._connections.fetch("outbox/count_depth", {})
        endpoints = tuple(EndpointDepth(**row) for row in depths)
        return OutboxDepth(at=unserved["at"], endpoints=endpoints, unserved=unserved["unserved"])

    async def messages(self, wanted: MessageFilter, *, after: int = 0, limit: int = 100) -> list[StoredMessage]:
        validate_page(limit)
        values = {**msgspec.structs.asdict(wanted), "after": after, "limit": limit}
        return [_message(tuple(row)) for row in await self._connections.fetch("outbox/select_page", values)]

    async def message(self, message_id: UUID) -> StoredMessage | None:
        rows = await self._connections.fetch("outbox/select", {"id": message_id})
        return _message(tuple(rows[0])) if rows else None

    async def deliveries(self, sequence: int) -> list[DeliveryRecord]:
        rows = await self._connections.fetch("deliveries/select_of_message", {"sequence": sequence})
        return [DeliveryRecord(**row) for row in rows]

    async def pending(self, sequence: int) -> list[PendingRecord]:
        rows = await self._connections.fetch("pending/select_of_message", {"sequence": sequence})
        return [PendingRecord(**row) for row in rows]

    async def resolve(
        self, endpoint: str, *, how: Resolution, sequences: Sequence[int] | None = None, actor: Actor
    ) -> int:
        check_name(endpoint, "endpoint")
        values = {
            "endpoint": endpoint,
            "sequences": None if sequences is None else list(sequences),
            "how": how,
            "actor": str(actor),
            "action": f"{'redrive' if how == 'redriven' else 'discard'}_outbox",
            "detail": encode({"endpoint": endpoint}),
        }
        return await self._count("deliveries/resolve", values)

    async def replay(self, endpoint: str, *, since: datetime, actor: Actor) -> int:
        check_name(endpoint, "endpoint")
        detail = encode({"endpoint": endpoint, "since": since.isoformat()})
        values = {"endpoint": endpoint, "since": since, "actor": str(actor), "detail": detail}
        return await self._count("pending/replay", values)

    async def _count(self, statement: str, values: dict[str, Any]) -> int:
        [row] = await self._connections.write("store", lambda session: fetch(session, statement, values))
        return int(row[0])

    async def _change(
        self, statement: str, name: str, actor: Actor, guard: Mapping[str, Any] | None = None, **facts: str
    ) -> bool:
        check_name(name, "endpoint")
        detail = encode({"endpoint": name, **facts})
        values = {"name": name, "actor": str(actor), "detail": detail, **(guard or {})}
        return bool(await self._connections.write("store", lambda session: fetch(session, statement, values)))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def endpoints_from(
    rows: Iterable[asyncpg.Record], unreadable: list[UnreadableRow] | None = None
) -> list[EndpointRecord]:
    return decode_each(rows, _endpoint, lambda row: f"endpoint {row['name']!r}", unreadable)


def _endpoint(row: asyncpg.Record) -> EndpointRecord:
    require_times(row, (name for name in row.keys() if name.endswith("_at")))  # noqa: SIM118
    return EndpointRecord(**{**row, "subscriptions": _subscriptions(row["subscriptions"])})


def _leased_streams(rows: Iterable[asyncpg.Record], token: UUID) -> list[LeasedStream]:
    """The streams with their messages. The columns are those of `pending/claim.sql`, in their order."""
    streams: dict[tuple[str, str, int], tuple[asyncpg.Record, list[StoredMessage]]] = {}
    for row in rows:
        key = row[0], row[1], row[2]
        if key not in streams:
            streams[key] = row, []
        if row[8] is not None:
            streams[key][1].append(_message(row[8:]))
    return [
        LeasedStream(
            endpoint=row[0],
            aggregate=row[1],
            only_sequence=row[2],
            token=token,
            position=row[3],
            last_sequence=row[4],
            attempts=row[5],
            blocked_seconds=row[6] or 0.0,
            previous=row[7],
            messages=tuple(messages),
        )
        for row, messages in streams.values()
    ]


def _message(values: Sequence[Any]) -> StoredMessage:
    return stored_message(dict(zip(MESSAGE, values, strict=True)))


def _settlement_arrays(settlements: Sequence[Settlement]) -> dict[str, list[Any]]:
    def each(values: Iterable[Any]) -> list[Any]:
        return list(values)

    attempts = [(place, made) for place, one in enumerate(settlements, 1) for made in one.deliveries]
    return {
        "endpoints": each(one.endpoint for one in settlements),
        "streams": each(one.aggregate for one in settlements),
        "only_sequences": each(one.only_sequence for one in settlements),
        "tokens": each(one.token for one in settlements),
        "positions": each(one.position for one in settlements),
        "attempts": each(one.attempts for one in settlements),
        "lease_ms": each(None if one.lease_seconds is None else _ms(one.lease_seconds) for one in settlements),
        "due_ms": each(_ms(one.due_seconds) for one in settlements),
        "owners": each(one.owner for one in settlements),
        "delivery_places": each(place for place, _ in attempts),
        "delivery_aggregates": each(made.aggregate for _, made in attempts),
        "delivery_sequences": each(made.sequence for _, made in attempts),
        "delivery_attempts": each(made.attempt for _, made in attempts),
        "delivery_outcomes": each(made.outcome for _, made in attempts),
        "delivery_statuses": each(made.status for _, made in attempts),
        "delivery_durations_ms": each(made.duration_ms for _, made in attempts),
        "delivery_errors": each(made.error for _, made in attempts),
    }
