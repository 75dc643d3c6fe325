"""Stops requests to an endpoint that fails every time."""

from __future__ import annotations

from tenure.outbox.sinks import Delivered, Delivery, Sink, Undelivered
from tenure.seams import SYSTEM, Clock

FAILURES_MAX = 5
PAUSE_SECONDS = 5.0
PAUSE_SECONDS_MAX = 300.0


class CircuitBreaker:
    """A sink around another one. After `failures_max` failures in a row it makes no request for a pause, then one.

    Each failed request after a pause doubles the pause; a delivered message ends it. What is refused in a pause is
    undelivered with `attempted` False, so that it counts as no attempt of the message.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        failures_max: int = FAILURES_MAX,
        pause_seconds: float = PAUSE_SECONDS,
        pause_seconds_max: float = PAUSE_SECONDS_MAX,
        clock: Clock = SYSTEM.clock,
    ) -> None:
        self._sink, self._monotonic_seconds = sink, clock.monotonic_seconds
        self._failures_max, self._pause_seconds_max = failures_max, pause_seconds_max
        self._first_pause_seconds = self._pause_seconds = pause_seconds
        self._failures = 0
        self._paused_until_seconds: float | None = None
        self._probing = False

    async def deliver(self, delivery: Delivery) -> Delivered | Undelivered:
        refused = self._refuse()
        if refused is not None:
            return refused
        probe = self._paused_until_seconds is not None
        self._probing |= probe
        try:
            outcome = await self._sink.deliver(delivery)
        finally:
            if probe:
                self._probing = False
        if isinstance(outcome, Delivered):
            self._close_circuit()
            return outcome
        return self._count(outcome, probe=probe)

    async def close(self) -> None:
        await self._sink.close()

    def _refuse(self) -> Undelivered | None:
        if self._paused_until_seconds is None:
            return None
        remaining_seconds = self._paused_until_seconds - self._monotonic_seconds()
        if remaining_seconds <= 0 and not self._probing:
            return None
        return Undelivered(
            reason=f"not attempted: the endpoint failed {self._failures} times in a row",
            retry_after_seconds=max(remaining_seconds, 1.0),
            throttle=True,
            attempted=False,
        )

    def _count(self, outcome: Undelivered, *, probe: bool) -> Undelivered:
        self._failures += 1
        # Requests that were under way when the circuit opened do not lengthen the pause.
        if self._failures == self._failures_max or probe:
            if probe:
                self._pause_seconds = min(self._pause_seconds * 2, self._pause_seconds_max)
            self._paused_until_seconds = self._monotonic_seconds() + self._pause_seconds
        return outcome

    def _close_circuit(self) -> None:
        self._failures, self._pause_seconds = 0, self._first_pause_seconds
        self._paused_until_seconds = None
