"""Delivers the messages of one leased stream to one endpoint, in order. It writes nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from tenure.lifecycle.json_text import load
from tenure.observe.log_context import trace_id
from tenure.outbox.endpoint_health import THROTTLE_SECONDS
from tenure.outbox.processor_options import LEASE_SHARE, ProcessorOptions
from tenure.outbox.sinks import Delivered, Delivery, Undelivered
from tenure.outbox.subscriptions import matching_subscriptions
from tenure.seams import Clock
from tenure.stores.contract.outbox import (
    DeliveryAttempt,
    LeasedStream,
    Settlement,
    StoredMessage,
    SubscriptionRecord,
)

log = logging.getLogger("tenure.outbox")


class NotSent(NamedTuple):
    """Nothing was sent. The stream is due again after so many seconds."""

    due_seconds: float


class MessageSender(Protocol):
    """The part of the processor that delivers one message for a stream, under the processor's name."""

    @property
    def name(self) -> str: ...

    @property
    def stopping(self) -> bool:
        """Whether no further delivery may begin."""
        ...

    def pause_seconds(self, endpoint: str) -> float:
        """For how long nothing may be sent to the endpoint."""
        ...

    async def deliver(self, endpoint: str, delivery: Delivery) -> Delivered | Undelivered:
        """One attempt, within the time that a delivery may take."""
        ...

    def is_health_recorded(self, endpoint: str, answer: Delivered | Undelivered) -> bool:
        """Whether the database already has the health that follows from the answer."""
        ...

    async def record_health(self, endpoint: str, answer: Delivered | Undelivered) -> None:
        """Write the health of the endpoint that follows from the answer."""
        ...


class StreamDelivery:
    """The deliveries of one leased stream, in order, until all are done, one fails, or half of the lease has passed."""

    def __init__(
        self,
        sender: MessageSender,
        stream: LeasedStream,
        subscriptions: Sequence[SubscriptionRecord],
        *,
        clock: Clock,
        options: ProcessorOptions,
        sent_at_seconds: float,
    ) -> None:
        self._sender, self._stream, self._subscriptions = sender, stream, subscriptions
        self._clock, self._options = clock, options
        self.endpoint, self.sent_at_seconds = stream.endpoint, sent_at_seconds
        self.lease_ends_at_seconds = sent_at_seconds + options.lease_seconds
        self._last_begin_at_seconds = sent_at_seconds + LEASE_SHARE * options.lease_seconds
        self._position, self._previous = stream.position, stream.previous
        if stream.only_sequence and not stream.messages:
            # Retention has removed the message.
            self._position = stream.last_sequence
        self._next = 0
        self._failures, self._delay_seconds = stream.attempts, 0.0
        self._made: list[DeliveryAttempt] = []

    async def step(self) -> bool:
        """Deliver the next message. False: the stream has ended, by its last message or by a failed one; settle it."""
        messages = self._stream.messages
        if self._next >= len(messages):
            return False
        message = messages[self._next]
        attempt = self._failures + 1
        if matching := matching_subscriptions(self._subscriptions, message.topic, message.body):
            answer = await self._attempt(message, attempt)
            if isinstance(answer, NotSent):
                self._delay_seconds = answer.due_seconds
                return False
            if isinstance(answer, Undelivered):
                delay_seconds = self._retry_seconds(message, attempt, answer, matching)
                self._log_failure(message, attempt, answer, delay_seconds)
                if delay_seconds is not None:
                    self._failures, self._delay_seconds = attempt, delay_seconds
                    return False
                self._made[-1] = msgspec.structs.replace(self._made[-1], outcome="dead")
            self._previous = message.sequence
        self._position, self._failures = message.sequence, 0
        self._next += 1
        return self._next < len(messages)

    async def _attempt(self, message: StoredMessage, attempt: int) -> Delivered | Undelivered | NotSent:
        """NotSent: nothing was sent, because the processor stops, its lease is half over, or the endpoint is paused."""
        endpoint = self.endpoint
        began_at_seconds = self._clock.monotonic_seconds()
        if self._sender.stopping or began_at_seconds >= self._last_begin_at_seconds:
            return NotSent(0.0)
        if pause_seconds := self._sender.pause_seconds(endpoint):
            return NotSent(pause_seconds)
        if message.unreadable is None:
            answer = await self._sender.deliver(endpoint, self._delivery(message, attempt))
        else:
            answer = Undelivered(reason=f"it cannot be read: {message.unreadable}")
        seconds = self._clock.monotonic_seconds() - began_at_seconds
        if isinstance(answer, Undelivered) and not answer.attempted:
            # A circuit breaker is open: this counts as no attempt of the message.
            await self._sender.record_health(endpoint, answer)
            return NotSent(answer.retry_after_seconds or THROTTLE_SECONDS)
        self._made.append(
            DeliveryAttempt(
                sequence=message.sequence,
                aggregate=message.aggregate,
                attempt=attempt,
                outcome="delivered" if isinstance(answer, Delivered) else "failed",
                status=answer.status,
                duration_ms=round(1000 * seconds),
                error=None if isinstance(answer, Delivered) else answer.reason,
            )
        )
        if message.unreadable is None and not self._sender.is_health_recorded(endpoint, answer):
            await self._sender.record_health(endpoint, answer)
        return answer

    def _delivery(self, message: StoredMessage, attempt: int) -> Delivery:
        return Delivery(
            id=message.id,
            topic=message.topic,
            body=message.body,
            at=message.at,
            correlation_id=message.correlation_id,
            attempt=attempt,
            headers={} if message.headers is None else load(message.headers),
            aggregate=message.aggregate,
            sequence=message.sequence,
            previous=self._previous,
            job_id=message.job_id,
            trace=message.trace,
        )

    def _retry_seconds(
        self, message: StoredMessage, attempt: int, answer: Undelivered, matching: Sequence[SubscriptionRecord]
    ) -> float | None:
        """The delay before the next attempt; None if there is none, and the message is a dead letter."""
        limits = [one.block_seconds for one in matching if one.block_seconds is not None]
        block_seconds = min(limits, default=self._options.block_seconds)
        blocked_seconds = 0.0 if self._next else self._stream.blocked_seconds
        delay = self._options.retry.delay_seconds(
            message_id=message.id,
            endpoint=self._stream.endpoint,
            attempt=attempt,
            asked=answer.retry_after_seconds,
        )
        if delay is None or (message.aggregate is not None and blocked_seconds + delay > block_seconds):
            return None
        return delay

    def _log_failure(
        self, message: StoredMessage, attempt: int, answer: Undelivered, delay_seconds: float | None
    ) -> None:
        """Without a delay the message is a dead letter, and the stream continues with the message after it."""
        fields = {
            "message_id": str(message.id),
            "topic": message.topic,
            "endpoint": self.endpoint,
            "attempt": attempt,
            "correlation_id": message.correlation_id,
            "trace_id": trace_id(message.trace),
        }
        level = logging.ERROR if delay_seconds is None else logging.WARNING
        follows = "it is a dead letter" if delay_seconds is None else f"retrying in {delay_seconds:.1f} s"
        template = "message %s (%s) not delivered to endpoint %s, attempt %d: %s; %s"
        log.log(
            level, template, message.id, message.topic, self.endpoint, attempt, answer.reason, follows, extra=fields
        )

    @property
    def attempts(self) -> Sequence[DeliveryAttempt]:
        """The attempts that were made, in their order."""
        return self._made

    def settlement(self) -> Settlement:
        """The recorded attempts, the position after them, and when the stream is due again."""
        return Settlement(
            endpoint=self.endpoint,
            aggregate=self._stream.aggregate,
            only_sequence=self._stream.only_sequence,
            token=self._stream.token,
            owner=self._sender.name,
            position=self._position,
            attempts=self._failures,
            deliveries=tuple(self._made),
            due_seconds=self._delay_seconds,
        )
