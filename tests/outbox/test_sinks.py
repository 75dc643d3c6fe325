"""A sink of a Python function: what it receives, and what its end means."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from uuid import UUID

import pytest

from tenure.errors import TransientError
from tenure.outbox.sinks import REASON_LENGTH_MAX, CallableSink, Delivered, Delivery, Sink, Undelivered

DELIVERY = Delivery(
    id=UUID(int=7),
    topic="mail.sent",
    body='{"to":"ada"}',
    at=datetime(2030, 1, 1, tzinfo=UTC),
    correlation_id="order-1",
    attempt=1,
    aggregate="ada",
    sequence=3,
    previous=2,
)


async def deliver(sink: Sink) -> Delivered | Undelivered:
    try:
        return await asyncio.wait_for(sink.deliver(DELIVERY), 30)
    finally:
        await sink.close()


async def test_an_async_function_receives_the_delivery_on_the_event_loop() -> None:
    received: list[tuple[Delivery, int]] = []

    async def receive(delivery: Delivery) -> None:
        received.append((delivery, threading.get_ident()))

    assert await deliver(CallableSink(receive)) == Delivered()
    assert received == [(DELIVERY, threading.get_ident())]


async def test_a_plain_function_receives_the_delivery_in_a_thread() -> None:
    received: list[tuple[Delivery, int]] = []
    sink = CallableSink(lambda delivery: received.append((delivery, threading.get_ident())))
    assert await deliver(sink) == Delivered()
    ((delivery, thread),) = received
    assert delivery == DELIVERY
    assert thread != threading.get_ident()


async def test_an_object_with_an_async_call_is_awaited() -> None:
    class Receiver:
        received: Delivery | None = None

        async def __call__(self, delivery: Delivery) -> None:
            self.received = delivery

    receiver = Receiver()
    assert await deliver(CallableSink(receiver)) == Delivered()
    assert receiver.received == DELIVERY


def plain_failure(delivery: Delivery) -> None:
    raise ValueError(f"no account {delivery.aggregate}")


async def async_failure(delivery: Delivery) -> None:
    raise ValueError(f"no account {delivery.aggregate}")


@pytest.mark.parametrize("function", [plain_failure, async_failure])
async def test_an_exception_means_undelivered_and_is_the_reason(function: object) -> None:
    assert callable(function)
    assert await deliver(CallableSink(function)) == Undelivered(reason="ValueError: no account ada")


async def test_a_transient_error_decides_when_the_next_attempt_is_made() -> None:
    def receive(delivery: Delivery) -> None:
        raise TransientError("busy", delay_seconds=90)

    undelivered = await deliver(CallableSink(receive))
    assert undelivered == Undelivered(reason="TransientError: busy", retry_after_seconds=90)


@pytest.mark.parametrize("delay", [-1.0, float("nan"), float("inf")])
async def test_an_invalid_delay_is_ignored(delay: float) -> None:
    def receive(delivery: Delivery) -> None:
        raise TransientError("busy", delay_seconds=delay)

    assert await deliver(CallableSink(receive)) == Undelivered(reason="TransientError: busy")


async def test_a_reason_is_bounded_and_can_be_stored() -> None:
    def receive(delivery: Delivery) -> None:
        raise ValueError("\0\ud800" * REASON_LENGTH_MAX)

    undelivered = await deliver(CallableSink(receive))
    assert isinstance(undelivered, Undelivered)
    assert len(undelivered.reason) == REASON_LENGTH_MAX
    assert "\0" not in undelivered.reason
    undelivered.reason.encode()


async def test_an_error_without_a_message_that_can_be_read_is_named_by_its_type() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def receive(delivery: Delivery) -> None:
        raise Unprintable

    assert await deliver(CallableSink(receive)) == Undelivered(reason="Unprintable")


async def test_a_function_that_does_not_return_in_time_is_undelivered() -> None:
    released = threading.Event()
    try:
        sink = CallableSink(lambda _: released.wait(30), timeout_seconds=0.05)
        assert await deliver(sink) == Undelivered(reason="no return within 0.05 s")
    finally:
        released.set()


async def test_a_timeout_that_the_function_raises_is_not_that_of_the_sink() -> None:
    async def receive(delivery: Delivery) -> None:
        raise TimeoutError("the bank")

    assert await deliver(CallableSink(receive)) == Undelivered(reason="TimeoutError: the bank")


async def test_a_cancelled_delivery_is_cancelled_and_not_undelivered() -> None:
    started = asyncio.Event()

    async def receive(delivery: Delivery) -> None:
        started.set()
        await asyncio.Event().wait()

    sink = CallableSink(receive)
    task = asyncio.ensure_future(sink.deliver(DELIVERY))
    await asyncio.wait_for(started.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await sink.close()
