"""Calls a sink within the middleware of the app."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.jobs.middleware import MessageAttempt, Middleware, around_delivery
from tenure.outbox.sinks import Delivered, Delivery, Sink, Undelivered


class DeliveryFailed(Exception):
    """The receiver did not accept a message. Only middleware sees it."""

    def __init__(self, answer: Undelivered) -> None:
        self.answer = answer
        super().__init__(answer.reason)


async def deliver_within(
    layers: Sequence[Middleware], sink: Sink, delivery: Delivery, *, endpoint: str
) -> Delivered | Undelivered:
    """One attempt. An attempt that failed leaves the middleware with an error."""
    message = MessageAttempt(
        endpoint=endpoint,
        id=delivery.id,
        topic=delivery.topic,
        attempt=delivery.attempt,
        correlation_id=delivery.correlation_id,
        aggregate=delivery.aggregate,
        job_id=delivery.job_id,
        trace=delivery.trace,
    )
    try:
        with around_delivery(layers, message):
            answer = await sink.deliver(delivery)
            if isinstance(answer, Undelivered):
                raise DeliveryFailed(answer)
            return answer
    except DeliveryFailed as failed:
        return failed.answer
