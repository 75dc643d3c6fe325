"""A circuit breaker: no requests to an endpoint that fails every time, then one at a time."""

from __future__ import annotations

import asyncio

from tenure.outbox.circuit_breaker import CircuitBreaker
from tenure.outbox.sinks import Delivered, Delivery, Undelivered
from tenure.testing.clock import ManualClock
from tests.outbox.test_sinks import DELIVERY

FAILED = Undelivered(reason="HTTP 500", status=500)


class ScriptedSink:
    """Returns `outcome`, at first a failure, and counts its requests."""

    def __init__(self) -> None:
        self.outcome: Delivered | Undelivered = FAILED
        self.requests = 0
        self.closed = False
        self.go_on: asyncio.Event | None = None

    async def deliver(self, delivery: Delivery) -> Delivered | Undelivered:
        self.requests += 1
        if self.go_on is not None:
            await self.go_on.wait()
        return self.outcome

    async def close(self) -> None:
        self.closed = True


async def opened() -> tuple[CircuitBreaker, ScriptedSink, ManualClock]:
    sink, clock = ScriptedSink(), ManualClock()
    breaker = CircuitBreaker(sink, failures_max=3, pause_seconds=10, pause_seconds_max=30, clock=clock)
    for _ in range(3):
        assert await breaker.deliver(DELIVERY) == FAILED
    return breaker, sink, clock


async def test_after_failures_in_a_row_no_request_is_made_and_no_attempt_counted() -> None:
    breaker, sink, clock = await opened()
    clock.advance(4)
    refused = await breaker.deliver(DELIVERY)
    assert refused == Undelivered(
        reason="not attempted: the endpoint failed 3 times in a row",
        retry_after_seconds=6,
        throttle=True,
        attempted=False,
    )
    assert sink.requests == 3


async def test_a_success_in_between_keeps_the_circuit_closed() -> None:
    sink = ScriptedSink()
    breaker = CircuitBreaker(sink, failures_max=2, clock=ManualClock())
    for outcome in (FAILED, Delivered(), FAILED, Delivered(), FAILED):
        sink.outcome = outcome
        assert await breaker.deliver(DELIVERY) == outcome
    assert sink.requests == 5


async def test_after_the_pause_one_request_is_made_while_the_others_wait() -> None:
    breaker, sink, clock = await opened()
    clock.advance(10)
    sink.go_on, sink.outcome = asyncio.Event(), Delivered()
    probe = asyncio.ensure_future(breaker.deliver(DELIVERY))
    await asyncio.sleep(0)
    refused = await breaker.deliver(DELIVERY)
    assert isinstance(refused, Undelivered)
    assert not refused.attempted
    sink.go_on.set()
    assert await probe == Delivered()
    assert await breaker.deliver(DELIVERY) == Delivered()
    assert sink.requests == 5


async def test_each_failed_request_after_a_pause_doubles_it_up_to_a_maximum() -> None:
    breaker, sink, clock = await opened()
    pauses: list[float | None] = []
    for _ in range(4):
        refused = await breaker.deliver(DELIVERY)
        assert isinstance(refused, Undelivered)
        pauses.append(refused.retry_after_seconds)
        clock.advance(refused.retry_after_seconds or 0)
        assert await breaker.deliver(DELIVERY) == FAILED
    assert pauses == [10, 20, 30, 30]
    assert sink.requests == 7


async def test_a_cancelled_request_after_a_pause_leaves_room_for_the_next() -> None:
    breaker, sink, clock = await opened()
    clock.advance(10)
    sink.go_on = asyncio.Event()
    probe = asyncio.ensure_future(breaker.deliver(DELIVERY))
    await asyncio.sleep(0)
    probe.cancel()
    await asyncio.wait([probe])
    sink.go_on, sink.outcome = None, Delivered()
    assert await breaker.deliver(DELIVERY) == Delivered()


async def test_closing_it_closes_the_sink() -> None:
    breaker, sink, _ = await opened()
    await breaker.close()
    assert sink.closed
