"""What a processor knows of the health of its endpoints: since when they fail, and until when they rest.

It throttles and disables them where their answers ask for that. Times are compared by the database's clock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime

from tenure.lifecycle.records import Actor
from tenure.outbox.processor_options import ProcessorOptions
from tenure.outbox.sinks import Delivered, Undelivered
from tenure.seams import Clock
from tenure.stores.contract.outbox import EndpointRecord, OutboxStore

THROTTLE_SECONDS = 60.0
WARNINGS = 5
"""Into how many parts warnings divide the time after which a failing endpoint is disabled."""
REASON_MAX = 500

log = logging.getLogger("tenure.outbox")


class EndpointHealth:
    """The health of all endpoints, as they were last read and as they have answered since."""

    def __init__(self, store: OutboxStore, clock: Clock, options: ProcessorOptions, actor: Actor) -> None:
        self._store, self._clock, self._options, self._actor = store, clock, options, actor
        self._endpoints: Mapping[str, EndpointRecord] = {}
        self._failing: set[str] = set()
        self._rests_until_seconds: dict[str, float] = {}
        self._warnings: dict[tuple[str, datetime], int] = {}

    def read(self, endpoints: Iterable[EndpointRecord]) -> None:
        """The endpoints as they are now in the database."""
        self._endpoints = {one.name: one for one in endpoints}
        self._failing = {one.name for one in self._endpoints.values() if one.failing_since_at is not None}
        now_seconds = self._clock.monotonic_seconds()
        # One that was disabled or throttled here may have been enabled since: the claim decides.
        self._rests_until_seconds = {n: at for n, at in self._rests_until_seconds.items() if at > now_seconds}

    def leased(self, endpoint: str) -> None:
        """The database has leased streams of this endpoint, so it is neither disabled nor throttled."""
        self._rests_until_seconds.pop(endpoint, None)

    def rest_seconds(self, endpoint: str) -> float:
        """For how long nothing is to be sent to the endpoint. Streams that are leased already are released."""
        until_seconds = self._rests_until_seconds.get(endpoint)
        return 0.0 if until_seconds is None else max(0.0, until_seconds - self._clock.monotonic_seconds())

    def saw(self, endpoint: str, answer: Delivered | Undelivered) -> None:
        """Let the endpoint rest at once if the answer asks for that, before the next delivery begins."""
        if isinstance(answer, Undelivered) and (answer.gone or answer.throttle):
            seconds = THROTTLE_SECONDS if answer.gone else answer.retry_after_seconds or THROTTLE_SECONDS
            until_seconds = self._clock.monotonic_seconds() + seconds
            self._rests_until_seconds[endpoint] = max(self._rests_until_seconds.get(endpoint, 0.0), until_seconds)

    def is_noted(self, endpoint: str, answer: Delivered | Undelivered) -> bool:
        """Whether the answer changes nothing of what is recorded of the endpoint."""
        return isinstance(answer, Delivered) and endpoint not in self._failing

    async def note(self, endpoint: str, answer: Delivered | Undelivered) -> None:
        """Record the health of an endpoint, and disable or throttle it where the answer asks for that."""
        known = self._endpoints.get(endpoint)
        if known is None:
            return
        if isinstance(answer, Delivered):
            if endpoint in self._failing:
                self._failing.discard(endpoint)
                await self._store.mark_failing(endpoint, failing=False)
            return
        if endpoint not in self._failing:
            self._failing.add(endpoint)
            await self._store.mark_failing(endpoint, failing=True)
        elif known.failing_since_at is not None:
            await self._warn_or_disable(known, known.failing_since_at, answer.reason)
        if answer.gone:
            await self._disable(endpoint, answer.reason)
        elif answer.throttle:
            await self._store.throttle(endpoint, seconds=answer.retry_after_seconds or THROTTLE_SECONDS)

    async def _warn_or_disable(self, endpoint: EndpointRecord, since: datetime, reason: str) -> None:
        """Both apply only while the endpoint still fails since then: another processor may have delivered."""
        limit_seconds, failing_seconds = self._options.disable_after_seconds, endpoint.failing_seconds or 0.0
        if failing_seconds > limit_seconds:
            await self._disable(endpoint.name, f"failing since {since.isoformat()}: {reason}", since)
            return
        every_seconds = limit_seconds / WARNINGS
        warnings = int(failing_seconds / every_seconds) if every_seconds else 0
        if warnings <= self._warnings.get((endpoint.name, since), 0):
            return
        self._warnings[endpoint.name, since] = warnings
        left_seconds = limit_seconds - failing_seconds
        because = f"failing since {since.isoformat()}, to be disabled in {left_seconds:.0f} s: {reason}"[:REASON_MAX]
        warned = await self._store.warn(
            endpoint.name, failing_since=since, every_seconds=every_seconds, because=because, actor=self._actor
        )
        if warned:
            log.warning("endpoint %s %s", endpoint.name, because)

    async def _disable(self, endpoint: str, because: str, since: datetime | None = None) -> None:
        because = because[:REASON_MAX]
        if await self._store.disable(endpoint, because=because, actor=self._actor, failing_since=since):
            log.error("endpoint %s disabled: %s; enable it with `tenure outbox enable %s`", endpoint, because, endpoint)
