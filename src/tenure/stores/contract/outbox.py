"""The outbox of a store: the part of the processor and the part of an operator. Transactions write the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol
from uuid import UUID

import msgspec

from tenure.lifecycle.records import Actor
from tenure.stores.contract.records import Resolution

DeliveryOutcome = Literal["delivered", "failed", "dead"]
EndpointSource = Literal["code", "operator"]

OUTBOX_WAKEUP = "tenure-outbox:"
"""The name of the wake-ups that processors subscribe to. No queue has this name."""


class SubscriptionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages an endpoint receives: those of a topic (`mail.sent`), or of all topics with a prefix (`mail.*`,
    `*`), whose body has the fields in `filters` (a JSON object: dotted path → value, or list of values).

    `block_seconds` is how long a message may hold up the ones after it in its aggregate before it is a dead letter.
    """

    endpoint: str
    topic: str
    filters: str | None = None
    block_seconds: float | None = None


class ArchivedEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where messages are delivered to. `config` is a JSON object that refers to secrets, and contains none."""

    name: str
    kind: str
    config: str | None = None
    source: EndpointSource
    created_at: datetime
    updated_at: datetime
    failing_since_at: datetime | None = None
    warned_at: datetime | None = None
    """When a warning that it fails was last recorded."""
    throttled_until_at: datetime | None = None
    disabled_at: datetime | None = None
    disabled_because: str | None = None


class EndpointRecord(ArchivedEndpoint, frozen=True, kw_only=True):
    """The same with its subscriptions, when a processor that serves it was last seen, and for how long it has failed by
    the database's clock."""

    seen_at: datetime | None = None
    failing_seconds: float | None = None
    subscriptions: tuple[SubscriptionRecord, ...] = ()


class MessageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the outbox. Nothing of it ever changes; erasure of its job empties the body and the headers."""

    sequence: int
    id: UUID
    aggregate: str | None = None
    topic: str
    body: str
    headers: str | None = None
    job_id: UUID | None = None
    correlation_id: str
    trace: str | None = None
    at: datetime
    endpoint_count: int = 0
    """How many endpoints subscribed to it when it was committed, or to how many it was replayed."""


class StoredMessage(MessageRecord, frozen=True, kw_only=True):
    """A message whose row may have no readable time: `at` is then the Unix epoch, and the message is listed and not
    delivered."""

    unreadable: str | None = None
    """Why the row cannot be read."""


class ClaimDeliveries(msgspec.Struct, frozen=True, kw_only=True):
    """Leases due streams of these endpoints, up to the limit of each."""

    owner: str
    token: UUID
    lease_seconds: float
    limits: Mapping[str, int]
    messages_max: int = 100


class LeasedStream(msgspec.Struct, frozen=True, kw_only=True):
    """What one endpoint has yet to receive of one aggregate, or one message: leased, with its next messages in order.

    `position` is the sequence up to which it is done. `previous` is the sequence before, of the last message of the
    aggregate that was attempted for this endpoint. `attempts` is how often the first message has failed, since
    `blocked_seconds`.
    """

    endpoint: str
    aggregate: str
    only_sequence: int
    token: UUID
    position: int
    last_sequence: int
    attempts: int
    blocked_seconds: float
    previous: int | None
    messages: tuple[StoredMessage, ...]

    @property
    def key(self) -> tuple[str, str, int]:
        return self.endpoint, self.aggregate, self.only_sequence


class DeliveryAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to deliver a message, as the processor records it."""

    sequence: int
    aggregate: str | None
    attempt: int
    outcome: DeliveryOutcome
    status: int | None = None
    duration_ms: int = 0
    error: str | None = None


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What a processor has done under a lease: attempts, and the position up to which the stream is done.

    With `lease_seconds` the lease is renewed; without, it is released, and the stream is due after `due_seconds`.
    """

    endpoint: str
    aggregate: str
    only_sequence: int
    token: UUID
    owner: str
    """The name of the processor, which the operator log has for dead letters."""
    position: int
    attempts: int = 0
    """How often the message after the position has failed."""
    deliveries: tuple[DeliveryAttempt, ...] = ()
    lease_seconds: float | None = None
    due_seconds: float = 0.0


class ArchivedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt as it is kept. A dead one that is redriven or discarded has that in `handled_as`."""

    endpoint: str
    aggregate: str
    sequence: int
    attempt: int
    at: datetime
    outcome: DeliveryOutcome
    status: int | None = None
    duration_ms: int
    error: str | None = None
    handled_at: datetime | None = None
    handled_as: Resolution | None = None


class DeliveryRecord(ArchivedDelivery, frozen=True, kw_only=True):
    """The same with its place in the order in which the attempts of a database were recorded."""

    number: int


class PendingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint has yet to receive. A lease is not part of it."""

    endpoint: str
    aggregate: str
    only_sequence: int
    position: int
    last_sequence: int
    due_at: datetime
    attempts: int = 0
    head_at: datetime | None = None


class EndpointDepth(msgspec.Struct, frozen=True, kw_only=True):
    """How much an endpoint has yet to receive. `oldest_at` is when the oldest pending message was written."""

    endpoint: str
    streams: int
    messages: int
    dead: int
    oldest_at: datetime | None = None


class OutboxDepth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the outbox. `unserved` messages had no endpoint that subscribes to them."""

    at: datetime
    endpoints: tuple[EndpointDepth, ...]
    unserved: int


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages to list. `pending` are those that `endpoint` has yet to receive, `dead` its dead letters."""

    endpoint: str | None = None
    aggregate: str | None = None
    topic: str | None = None
    job_id: UUID | None = None
    state: Literal["pending", "dead", "unserved"] | None = None


class OutboxStore(Protocol):
    """The processor's part. It reads messages, leases streams and records deliveries. It has no way to change a job or
    to write a message."""

    async def endpoints(self) -> list[EndpointRecord]:
        """All endpoints with their subscriptions, in the order of names."""
        ...

    async def claim(self, request: ClaimDeliveries) -> list[LeasedStream]:
        """Lease due streams of endpoints that are neither disabled nor throttled, those that are due longest first.

        Streams that other transactions have locked are skipped. A stream whose lease has ended is due."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Record attempts and positions, each under its lease; at most one settlement per stream.

        False: the lease is lost, and nothing of this settlement was written. A stream that is done is removed."""
        ...

    async def mark_seen(self, endpoints: Sequence[str]) -> None:
        """Record that a processor serves these endpoints."""
        ...

    async def mark_failing(self, endpoint: str, *, failing: bool) -> None:
        """Record since when the endpoint fails, or that it does not."""
        ...

    async def throttle(self, endpoint: str, *, seconds: float) -> None:
        """Claim nothing for this endpoint for a time. A later end that is recorded stays."""
        ...

    async def warn(
        self, endpoint: str, *, failing_since: datetime, every_seconds: float, because: str, actor: Actor
    ) -> bool:
        """Record in the operator log that the endpoint has failed since then, and may be disabled.

        False: it no longer fails since then, or the last warning is less than `every_seconds` ago."""
        ...

    async def disable(
        self, endpoint: str, *, because: str, actor: Actor, failing_since: datetime | None = None
    ) -> bool:
        """Claim nothing more for this endpoint. What comes in stays pending. False: it is disabled, or unknown; or with
        `failing_since`, it no longer fails since then.

        The operator log records it."""
        ...


class OutboxOperatorStore(Protocol):
    """The operator's part: endpoints, subscriptions, and what happens to messages that were not delivered. The operator
    log records each change."""

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
        """Create or replace an endpoint and all of its subscriptions. It receives what is committed from now on."""
        ...

    async def delete_endpoint(self, name: str, *, actor: Actor) -> bool:
        """Remove an endpoint, its subscriptions, and what it has yet to receive. The record of deliveries stays."""
        ...

    async def disable(
        self, endpoint: str, *, because: str, actor: Actor, failing_since: datetime | None = None
    ) -> bool: ...

    async def enable(self, endpoint: str, *, actor: Actor) -> bool:
        """Deliver again, beginning with what is pending. False: it is not disabled, or unknown."""
        ...

    async def endpoints(self) -> list[EndpointRecord]: ...

    async def depth(self) -> OutboxDepth: ...

    async def messages(self, wanted: MessageFilter, *, after: int = 0, limit: int = 100) -> list[StoredMessage]:
        """A page of messages in the order of sequences, after the given one."""
        ...

    async def message(self, message_id: UUID) -> StoredMessage | None: ...

    async def deliveries(self, sequence: int) -> list[DeliveryRecord]:
        """All attempts to deliver this message, in their order."""
        ...

    async def pending(self, sequence: int) -> list[PendingRecord]:
        """What is pending of this message, for each endpoint that has yet to receive it."""
        ...

    async def resolve(
        self, endpoint: str, *, how: Resolution, sequences: Sequence[int] | None = None, actor: Actor
    ) -> int:
        """Redrive dead letters of an endpoint, or discard them: all, or those of these messages. Returns how many.

        A redriven message is delivered on its own: the messages after it may have been delivered already."""
        ...

    async def replay(self, endpoint: str, *, since: datetime, actor: Actor) -> int:
        """Deliver again, in order, all messages since then that the endpoint subscribes to. Returns how many."""
        ...


class OutboxPart(OutboxStore, OutboxOperatorStore, Protocol):
    """Both parts, for the component that opens the store."""
