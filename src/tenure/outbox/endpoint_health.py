"""The health of a processor's endpoints: since when each one fails, and until when it is paused.

An endpoint that fails for too long is disabled, and so is one whose answer is `gone`; an answer may also throttle its
endpoint. The database's clock measures how long an endpoint has failed.
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
"""How many warnings there may be before a failing endpoint is disabled, at equal intervals."""
REASON_MAX = 500

log = logging.getLogger("tenure.outbox")


class EndpointHealth:
    """The health of all endpoints: as last read from the database, changed by the answers since."""

    def __init__(self, store: OutboxStore, clock: Clock, options: ProcessorOptions, actor: Actor) -> None:
        self._store, self._clock, self._options, self._actor = store, clock, options, actor
        self._endpoints: Mapping[str, EndpointRecord] = {}
        self._failing: set[str] = set()
        self._paused_until_seconds: dict[str, float] = {}
        self._warnings: dict[tuple[str, datetime], int] = {}

    def read(self, endpoints: Iterable[EndpointRecord]) -> None:
        """The endpoints as they are now in the database."""
        self._endpoints = {one.name: one for one in endpoints}
        self._failing = {one.name for one in self._endpoints.values() if one.failing_since_at is not None}
        now_seconds = self._clock.monotonic_seconds()
        # An endpoint that this processor disabled or throttled may have been enabled since: the claim decides.
        self._paused_until_seconds = {n: at for n, at in self._paused_until_seconds.items() if at > now_seconds}

    def leased(self, endpoint: str) -> None:
        """The database has leased streams of this endpoint, so it is neither disabled nor throttled."""
        self._paused_until_seconds.pop(endpoint, None)

    def pause_seconds(self, endpoint: str) -> float:
        """For how long nothing may be sent to the endpoint. Its leased streams are released."""
        until_seconds = self._paused_until_seconds.get(endpoint)
        return 0.0 if until_seconds is None else max(0.0, until_seconds - self._clock.monotonic_seconds())

    def pause_after(self, endpoint: str, answer: Delivered | Undelivered) -> None:
        """Pause the endpoint if the answer disables or throttles it: at once, before the next delivery begins."""
        if isinstance(answer, Undelivered) and (answer.gone or answer.throttle):
            seconds = THROTTLE_SECONDS if answer.gone else answer.retry_after_seconds or THROTTLE_SECONDS
            if not answer.gone and not self.pause_seconds(endpoint):
                log.warning("endpoint %s paused for %.3g s: %s", endpoint, seconds, answer.reason)
            until_seconds = self._clock.monotonic_seconds() + seconds
            self._paused_until_seconds[endpoint] = max(self._paused_until_seconds.get(endpoint, 0.0), until_seconds)

    def is_recorded(self, endpoint: str, answer: Delivered | Undelivered) -> bool:
        """Whether the database already has the health that follows from the answer."""
        return isinstance(answer, Delivered) and endpoint not in self._failing

    async def record(self, endpoint: str, answer: Delivered | Undelivered) -> None:
        """Write the health of an endpoint, and disable or throttle it if the answer does."""
        known = self._endpoints.get(endpoint)
        if known is None:
            return
        if isinstance(answer, Delivered):
            if endpoint in self._failing:
                self._failing.discard(endpoint)
                await self._store.mark_failing(endpoint, failing=False)
                log.info("endpoint %s accepts messages again", endpoint)
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
        """Warn or disable, if the endpoint has failed since then: another processor may have delivered meanwhile."""
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
