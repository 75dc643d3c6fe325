"""Delivers the messages of one leased stream to one endpoint, in order, and settles what became of them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

import msgspec

from tenure.lifecycle.json_text import load
from tenure.outbox.endpoint_health import THROTTLE_SECONDS
from tenure.outbox.processor_options import LEASE_SHARE, ProcessorOptions
from tenure.outbox.retry import wanted_by
from tenure.outbox.sinks import Delivered, Delivery, Undelivered
from tenure.seams import Clock
from tenure.stores.contract.outbox import (
    DeliveryAttempt,
    LeasedStream,
    Settlement,
    StoredMessage,
    SubscriptionRecord,
)

log = logging.getLogger("tenure.outbox")


class Released(NamedTuple):
    """Nothing was sent. The stream is due again after so many seconds."""

    due_seconds: float


class Courier(Protocol):
    """The part of the processor that a stream uses."""

    @property
    def name(self) -> str: ...

    def slot(self, endpoint: str) -> AbstractAsyncContextManager[object]:
        """The right to one of the deliveries that the endpoint receives at once."""
        ...

    def rest_seconds(self, endpoint: str) -> float:
        """For how long nothing is to be sent to the endpoint."""
        ...

    async def deliver(self, endpoint: str, delivery: Delivery) -> Delivered | Undelivered:
        """One attempt."""
        ...

    async def note(self, endpoint: str, answer: Delivered | Undelivered) -> None:
        """Record what the answer means for the endpoint."""
        ...

    async def settle(self, settlement: Settlement, *, until_seconds: float) -> bool:
        """Whether the lease was held when the settlement was written. It is repeated until then."""
        ...


class StreamDelivery:
    """The deliveries of one leased stream, in order, until it is done, fails, or its lease may have ended."""

    def __init__(
        self,
        courier: Courier,
        stream: LeasedStream,
        subscriptions: Sequence[SubscriptionRecord],
        *,
        clock: Clock,
        options: ProcessorOptions,
        sent_at_seconds: float,
    ) -> None:
        self._courier, self._stream, self._subscriptions = courier, stream, subscriptions
        self._clock, self._options = clock, options
        self._trusted_until_seconds = sent_at_seconds + LEASE_SHARE * options.lease_seconds
        self._lease_ends_at_seconds = sent_at_seconds + options.lease_seconds
        self._position, self._previous = stream.position, stream.previous
        self._made: list[DeliveryAttempt] = []

    async def run(self) -> Counter[str]:
        """Deliver the messages and settle. The message that fails is the last one. Returns the attempts by outcome."""
        failures, delay_seconds = self._stream.attempts, 0.0
        if self._stream.only_sequence and not self._stream.messages:
            # Retention has removed the message.
            self._position = self._stream.last_sequence
        for number, message in enumerate(self._stream.messages):
            attempt = (self._stream.attempts if number == 0 else 0) + 1
            failures = attempt - 1
            if wanted := wanted_by(self._subscriptions, message.topic, message.body):
                answer = await self._attempt(message, attempt)
                if isinstance(answer, Released):
                    delay_seconds = answer.due_seconds
                    break
                if isinstance(answer, Undelivered):
                    delay = self._delay_seconds(message, attempt, answer, wanted, first=number == 0)
                    if delay is not None:
                        failures, delay_seconds = attempt, delay
                        break
                    self._bury()
                self._previous = message.sequence
            self._position, failures = message.sequence, 0
        return await self._settle(failures, delay_seconds)

    async def _attempt(self, message: StoredMessage, attempt: int) -> Delivered | Undelivered | Released:
        """Released: nothing was sent, because the lease may end or the endpoint rests."""
        endpoint = self._stream.endpoint
        async with self._courier.slot(endpoint):
            began_at_seconds = self._clock.monotonic_seconds()
            if began_at_seconds >= self._trusted_until_seconds:
                return Released(0.0)
            if rest_seconds := self._courier.rest_seconds(endpoint):
                return Released(rest_seconds)
            answer = await self._courier.deliver(endpoint, self._delivery(message, attempt))
            seconds = self._clock.monotonic_seconds() - began_at_seconds
        if isinstance(answer, Undelivered) and not answer.attempted:
            # A circuit breaker is open: this counts as no attempt of the message.
            await self._courier.note(endpoint, answer)
            return Released(answer.retry_after_seconds or THROTTLE_SECONDS)
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
        await self._courier.note(endpoint, answer)
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

    def _delay_seconds(
        self,
        message: StoredMessage,
        attempt: int,
        answer: Undelivered,
        wanted: Sequence[SubscriptionRecord],
        *,
        first: bool,
    ) -> float | None:
        """The delay before the next attempt; None if there is none, and the message is a dead letter."""
        limits = [one.block_seconds for one in wanted if one.block_seconds is not None]
        block_seconds = min(limits, default=self._options.block_seconds)
        blocked_seconds = self._stream.blocked_seconds if first else 0.0
        delay = self._options.retry.delay_seconds(
            message_id=message.id,
            endpoint=self._stream.endpoint,
            attempt=attempt,
            asked=answer.retry_after_seconds,
        )
        if delay is None or (message.aggregate is not None and blocked_seconds + delay > block_seconds):
            return None
        return delay

    def _bury(self) -> None:
        """The last attempt was the last one: the message is a dead letter, and the ones after it go on."""
        last = self._made[-1]
        self._made[-1] = msgspec.structs.replace(last, outcome="dead")
        log.error(
            "message %s dead-lettered for endpoint %s after attempt %s: %s",
            *(last.sequence, self._stream.endpoint, last.attempt, last.error),
        )

    async def _settle(self, failures: int, delay_seconds: float) -> Counter[str]:
        settlement = Settlement(
            endpoint=self._stream.endpoint,
            aggregate=self._stream.aggregate,
            only_sequence=self._stream.only_sequence,
            token=self._stream.token,
            owner=self._courier.name,
            position=self._position,
            attempts=failures,
            deliveries=tuple(self._made),
            due_seconds=delay_seconds,
        )
        counts = Counter[str](made.outcome for made in self._made)
        if not await self._courier.settle(settlement, until_seconds=self._lease_ends_at_seconds):
            counts["lost"] += 1
            log.warning("endpoint %s: lease lost; its deliveries will be repeated", self._stream.endpoint)
        return counts
