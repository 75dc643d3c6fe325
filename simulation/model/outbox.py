"""The model's outbox: dictionaries of messages, endpoints, pending streams and deliveries."""

# ruff: noqa: SLF001 - the outbox is a part of the model

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from tenure.lifecycle.json_text import check_name, check_seconds, check_text
from tenure.lifecycle.records import Actor, Role
from tenure.stores.contract import Resolution
from tenure.stores.contract.outbox import (
    ClaimDeliveries,
    DeliveryAttempt,
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
from tenure.stores.outbox_validation import validate_claim_deliveries, validate_endpoint, validate_settlements
from tenure.stores.validation import validate_page

if TYPE_CHECKING:
    from simulation.model.content import ModelContent


class PendingRow(PendingRecord, frozen=True, kw_only=True):
    """A pending stream with its lease."""

    token: UUID | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.endpoint, self.aggregate, self.only_sequence

    def covers(self, message: StoredMessage) -> bool:
        if self.only_sequence:
            return message.sequence == self.only_sequence
        return message.aggregate == self.aggregate and self.position < message.sequence


class ModelOutbox:
    """The outbox of a model."""

    def __init__(self, model: ModelContent) -> None:
        self._model = model

    @property
    def _now(self) -> datetime:
        return self._model._clock.now()

    async def endpoints(self) -> list[EndpointRecord]:
        known = [self._model._endpoints[name] for name in sorted(self._model._endpoints)]
        return [
            msgspec.structs.replace(one, failing_seconds=self._seconds_since(one.failing_since_at)) for one in known
        ]

    def _seconds_since(self, at: datetime | None) -> float | None:
        return None if at is None else (self._now - at).total_seconds()

    async def claim(self, request: ClaimDeliveries) -> list[LeasedStream]:
        validate_claim_deliveries(request)
        leased = []
        for name in sorted(request.limits):
            endpoint = self._model._endpoints.get(name)
            if endpoint is None or endpoint.disabled_at is not None:
                continue
            if endpoint.throttled_until_at is not None and endpoint.throttled_until_at > self._now:
                continue
            due = [row for row in self._model._pending.values() if row.endpoint == name and row.due_at <= self._now]
            due.sort(key=lambda row: row.due_at)
            leased += sorted(due[: request.limits[name]], key=lambda row: row.key)
        return [self._lease(row, request) for row in leased]

    def _lease(self, row: PendingRow, request: ClaimDeliveries) -> LeasedStream:
        until = self._now + timedelta(seconds=request.lease_seconds)
        self._put(msgspec.structs.replace(row, token=request.token, due_at=until))
        messages = [one for one in self._model._messages() if row.covers(one) and one.sequence <= row.last_sequence]
        previous = None
        if messages and messages[0].aggregate is not None:
            earlier = (one.sequence for one in self._model._deliveries if self._is_before(one, row, messages[0]))
            previous = max(earlier, default=None)
        return LeasedStream(
            endpoint=row.endpoint,
            aggregate=row.aggregate,
            only_sequence=row.only_sequence,
            token=request.token,
            position=row.position,
            last_sequence=row.last_sequence,
            attempts=row.attempts,
            blocked_seconds=0.0 if row.head_at is None else (self._now - row.head_at).total_seconds(),
            previous=previous,
            messages=tuple(messages[: request.messages_max]),
        )

    def _is_before(self, made: DeliveryRecord, row: PendingRow, message: StoredMessage) -> bool:
        same = made.endpoint == row.endpoint and made.aggregate == message.aggregate
        return same and made.sequence < message.sequence

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        validate_settlements(settlements)
        return [self._settle(one) for one in settlements]

    def _settle(self, one: Settlement) -> bool:
        row = self._model._pending.get((one.endpoint, one.aggregate, one.only_sequence))
        if row is None or row.token != one.token or row.due_at <= self._now:
            return False
        for made in one.deliveries:
            facts = msgspec.structs.asdict(made) | {"aggregate": made.aggregate or "", "endpoint": one.endpoint}
            number = len(self._model._deliveries) + 1
            self._model._deliveries.append(DeliveryRecord(number=number, at=self._now, **facts))
            if made.outcome == "dead":
                self._log_dead_letter(one.endpoint, made, one.owner)
        if one.position >= row.last_sequence:
            del self._model._pending[row.key]
            return True
        since = self._now if row.position < one.position else row.head_at or self._now
        seconds = one.due_seconds if one.lease_seconds is None else one.lease_seconds
        self._put(
            msgspec.structs.replace(
                row,
                position=max(row.position, one.position),
                attempts=one.attempts,
                head_at=None if one.attempts == 0 else since,
                token=None if one.lease_seconds is None else row.token,
                due_at=self._now + timedelta(seconds=seconds),
            )
        )
        return True

    def _log_dead_letter(self, endpoint: str, made: DeliveryAttempt, owner: str) -> None:
        found = next((one for one in self._model._messages() if one.sequence == made.sequence), None)
        self._model._log_operator(
            "dead_letter_message",
            Actor(Role.OUTBOX, owner),
            endpoint=endpoint,
            sequence=made.sequence,
            message=None if found is None else str(found.id),
            topic=None if found is None else found.topic,
            attempt=made.attempt,
            error=made.error,
        )

    def _put(self, row: PendingRow) -> None:
        self._model._pending[row.key] = row

    async def mark_seen(self, endpoints: Sequence[str]) -> None:
        for name in endpoints:
            self._replace(name, seen_at=self._now)

    async def mark_failing(self, endpoint: str, *, failing: bool) -> None:
        known = self._model._endpoints.get(endpoint)
        if known is not None and (known.failing_since_at is None) is failing:
            self._replace(endpoint, failing_since_at=self._now if failing else None, warned_at=None)

    async def throttle(self, endpoint: str, *, seconds: float) -> None:
        check_seconds(seconds, "seconds")
        known = self._model._endpoints.get(endpoint)
        until = self._now + timedelta(seconds=seconds)
        if known is not None:
            self._replace(endpoint, throttled_until_at=max(known.throttled_until_at or until, until))

    async def warn(
        self, endpoint: str, *, failing_since: datetime, every_seconds: float, because: str, actor: Actor
    ) -> bool:
        check_text(because, "because")
        check_seconds(every_seconds, "every_seconds")
        known = self._model._endpoints.get(endpoint)
        if known is None or known.disabled_at is not None or known.failing_since_at != failing_since:
            return False
        if max(failing_since, known.warned_at or failing_since) > self._now - timedelta(seconds=every_seconds):
            return False
        self._replace(endpoint, warned_at=self._now)
        self._model._log_operator("warn_endpoint", actor, endpoint=endpoint, because=because)
        return True

    async def disable(
        self, endpoint: str, *, because: str, actor: Actor, failing_since: datetime | None = None
    ) -> bool:
        check_text(because, "because")
        check_name(endpoint, "endpoint")
        known = self._model._endpoints.get(endpoint)
        if known is None or known.disabled_at is not None or failing_since not in (None, known.failing_since_at):
            return False
        self._replace(endpoint, disabled_at=self._now, disabled_because=because, updated_at=self._now)
        self._model._log_operator("disable_endpoint", actor, endpoint=endpoint, because=because)
        return True

    async def enable(self, endpoint: str, *, actor: Actor) -> bool:
        check_name(endpoint, "endpoint")
        known = self._model._endpoints.get(endpoint)
        if known is None or known.disabled_at is None:
            return False
        blank = ("disabled_at", "disabled_because", "failing_since_at", "warned_at", "throttled_until_at")
        self._replace(endpoint, **dict.fromkeys(blank), updated_at=self._now)
        self._model._log_operator("enable_endpoint", actor, endpoint=endpoint)
        return True

    def _replace(self, name: str, **facts: object) -> None:
        if name in self._model._endpoints:
            self._model._endpoints[name] = msgspec.structs.replace(self._model._endpoints[name], **facts)

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
        known = self._model._endpoints.get(name)
        if known is None:
            known = EndpointRecord(name=name, kind=kind, source=source, created_at=self._now, updated_at=self._now)
        elif (known.kind, known.config, known.source) != (kind, config, source):
            known = msgspec.structs.replace(known, updated_at=self._now)
        ordered = tuple(sorted(subscriptions, key=lambda one: one.topic))
        facts = {"kind": kind, "config": config, "source": source, "subscriptions": ordered}
        self._model._endpoints[name] = msgspec.structs.replace(known, **facts)
        return self._model._endpoints[name]

    async def delete_endpoint(self, name: str, *, actor: Actor) -> bool:
        check_name(name, "endpoint")
        for key in [key for key in self._model._pending if key[0] == name]:
            del self._model._pending[key]
        return self._model._endpoints.pop(name, None) is not None

    async def depth(self) -> OutboxDepth:
        messages = self._model._messages()
        endpoints = tuple(self._depth_of(name, messages) for name in sorted(self._model._endpoints))
        return OutboxDepth(at=self._now, endpoints=endpoints, unserved=sum(not m.endpoint_count for m in messages))

    def _depth_of(self, name: str, messages: Iterable[StoredMessage]) -> EndpointDepth:
        rows = [row for row in self._model._pending.values() if row.endpoint == name]
        waiting = [m for row in rows for m in messages if row.covers(m) and m.sequence <= row.last_sequence]
        dead = sum(self._is_open(one, name) for one in self._model._deliveries)
        oldest_at = min((one.at for one in waiting), default=None)
        return EndpointDepth(endpoint=name, streams=len(rows), messages=len(waiting), dead=dead, oldest_at=oldest_at)

    def _is_open(self, made: DeliveryRecord, endpoint: str | None) -> bool:
        return made.outcome == "dead" and made.handled_at is None and endpoint in (None, made.endpoint)

    async def messages(self, wanted: MessageFilter, *, after: int = 0, limit: int = 100) -> list[StoredMessage]:
        validate_page(limit)
        found = [one for one in self._model._messages() if one.sequence > after and self._is_wanted(one, wanted)]
        return found[:limit]

    def _is_wanted(self, message: StoredMessage, wanted: MessageFilter) -> bool:
        if wanted.aggregate is not None and message.aggregate != wanted.aggregate:
            return False
        if wanted.topic is not None and not topic_matches(message.topic, wanted.topic):
            return False
        if wanted.job_id is not None and message.job_id != wanted.job_id:
            return False
        subscribed = {
            name
            for name, one in self._model._endpoints.items()
            if any(topic_matches(message.topic, sub.topic) for sub in one.subscriptions)
        }
        match wanted.state:
            case "unserved":
                return message.endpoint_count == 0
            case "dead":
                letters = (one for one in self._model._deliveries if one.sequence == message.sequence)
                return any(self._is_open(one, wanted.endpoint) for one in letters)
            case "pending":
                rows = (row for row in self._model._pending.values() if row.covers(message))
                return any(row.endpoint in subscribed and wanted.endpoint in (None, row.endpoint) for row in rows)
        return wanted.endpoint is None or wanted.endpoint in subscribed

    async def message(self, message_id: UUID) -> StoredMessage | None:
        return next((one for one in self._model._messages() if one.id == message_id), None)

    async def deliveries(self, sequence: int) -> list[DeliveryRecord]:
        return [one for one in self._model._deliveries if one.sequence == sequence]

    async def pending(self, sequence: int) -> list[PendingRecord]:
        message = next(one for one in self._model._messages() if one.sequence == sequence)
        rows = sorted((row for row in self._model._pending.values() if row.covers(message)), key=lambda row: row.key)
        names = PendingRecord.__struct_fields__
        return [PendingRecord(**{name: getattr(row, name) for name in names}) for row in rows]

    async def resolve(
        self, endpoint: str, *, how: Resolution, sequences: Sequence[int] | None = None, actor: Actor
    ) -> int:
        check_name(endpoint, "endpoint")
        count = 0
        for place, made in enumerate(self._model._deliveries):
            if self._is_open(made, endpoint) and (sequences is None or made.sequence in sequences):
                handled = msgspec.structs.replace(made, handled_at=self._now, handled_as=how)
                self._model._deliveries[place] = handled
                count += 1
                if how == "redriven":
                    self._pend(endpoint, "", made.sequence, made.sequence)
        return count

    def _pend(self, endpoint: str, aggregate: str, first: int, last: int) -> None:
        only = 0 if aggregate else first
        row = PendingRow(
            endpoint=endpoint,
            aggregate=aggregate,
            only_sequence=only,
            position=first - 1,
            last_sequence=last,
            due_at=self._now,
        )
        self._model._pending.setdefault(row.key, row)

    async def replay(self, endpoint: str, *, since: datetime, actor: Actor) -> int:
        check_name(endpoint, "endpoint")
        known = self._model._endpoints.get(endpoint)
        wanted = MessageFilter(endpoint=endpoint)
        found = [one for one in self._model._messages() if one.at >= since and self._is_wanted(one, wanted)]
        for message in found if known is not None else ():
            aggregate = message.aggregate or ""
            self._pend(endpoint, aggregate, message.sequence, message.sequence)
            row = self._model._pending[endpoint, aggregate, 0 if aggregate else message.sequence]
            last, position = max(row.last_sequence, message.sequence), min(row.position, message.sequence - 1)
            self._put(
                msgspec.structs.replace(
                    row, position=position, last_sequence=last, due_at=self._now, attempts=0, head_at=None, token=None
                )
            )
            self._model._endpoint_counts[message.id] = max(1, message.endpoint_count)
        return len(found)


def topic_matches(topic: str, pattern: str) -> bool:
    """Whether a topic is the pattern of a subscription, or has its prefix."""
    return topic == pattern or (pattern.endswith("*") and topic.startswith(pattern[:-1]))
