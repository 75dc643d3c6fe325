"""The outbox processor: leases pending streams, delivers their messages in order through sinks, and records attempts.

It holds the processor's part of a store. It can neither change a job nor write a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec

from tenure.errors import InvalidInput, StoreError, StoreUnavailable
from tenure.lifecycle.json_text import check_integer, check_seconds, load
from tenure.lifecycle.records import Actor, Role
from tenure.outbox.retry import RetrySchedule, wanted_by
from tenure.outbox.sinks import Delivered, Delivery, Sink, Undelivered, error_reason
from tenure.seams import Seams
from tenure.stores.contract import Subscription
from tenure.stores.contract.outbox import (
    ClaimDeliveries,
    DeliveryAttempt,
    EndpointRecord,
    LeasedStream,
    OutboxStore,
    Settlement,
    StoredMessage,
)
from tenure.stores.group_commit import GroupCommit

LEASE_SHARE = 0.5
"""How much of a lease may pass before the processor begins no further delivery under it."""
THROTTLE_SECONDS = 60.0
WARNINGS = 5
"""Into how many parts warnings divide the time after which a failing endpoint is disabled."""
SEEN_SECONDS = 15.0
REFRESH_SECONDS = 5.0
"""How often endpoints are read while there is none to serve."""

REASON_MAX = 500

log = logging.getLogger("tenure.outbox")

SinkFor = Callable[[EndpointRecord], Sink | None]


class ProcessorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a processor. `concurrency` is the number of streams that one endpoint receives at a time."""

    concurrency: int = 20
    lease_seconds: float = 120.0
    delivery_seconds_max: float = 45.0
    messages_max: int = 100
    poll_seconds: float = 1.0
    block_seconds: float = 7 * 86_400.0
    """How long a message may hold up its aggregate, unless the subscription says otherwise."""
    disable_after_seconds: float = 5 * 86_400.0
    """An endpoint that has failed for this long is disabled. Each fifth of it is a warning in the operator log."""
    retry: RetrySchedule = RetrySchedule()

    def __post_init__(self) -> None:
        check_integer(self.concurrency, "concurrency", least=1, most=10_000)
        check_integer(self.messages_max, "messages_max", least=1, most=10_000)
        check_seconds(self.lease_seconds, "lease_seconds", least=0.001)
        check_seconds(self.poll_seconds, "poll_seconds", least=0.001)
        check_seconds(self.delivery_seconds_max, "delivery_seconds_max", least=0.001)
        check_seconds(self.block_seconds, "block_seconds")
        check_seconds(self.disable_after_seconds, "disable_after_seconds")


class OutboxProcessor:
    """Delivers until `stop` is called. `counts` has the number of deliveries by outcome.

    `sink_for` returns the sink of an endpoint, or None for an endpoint that this processor does not serve.
    """

    def __init__(
        self,
        store: OutboxStore,
        sink_for: SinkFor,
        seams: Seams,
        *,
        name: str,
        options: ProcessorOptions | None = None,
        wakeups: Subscription | None = None,
    ) -> None:
        self._store, self._sink_for, self._seams, self._name = store, sink_for, seams, name
        self._options = options or ProcessorOptions()
        self._wakeups = wakeups
        self._actor = Actor(Role.OUTBOX, name)
        self._settler: GroupCommit[Settlement, bool] = GroupCommit(store.settle, seams, name="tenure-outbox-settle")
        self._sinks: dict[str, tuple[str, Sink | None]] = {}
        self._endpoints: Mapping[str, EndpointRecord] = {}
        self._running: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._stop = asyncio.Event()
        self._seen_at_seconds = float("-inf")
        self._serves = False
        self._warnings: dict[tuple[str, datetime], int] = {}
        self.counts: Counter[str] = Counter()

    def stop(self) -> None:
        """Claim no more. Deliveries under way end first."""
        self._stop.set()
        self._freed.set()

    async def run(self) -> None:
        """Deliver until stopped."""
        try:
            while not self._stop.is_set():
                try:
                    claimed = await self.step()
                except StoreUnavailable as problem:
                    log.warning("outbox claim failed, retrying in %.3g s: %s", self._options.poll_seconds, problem)
                    claimed = 0
                if not claimed:
                    await self._wait()
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks)
            for _, sink in self._sinks.values():
                if sink is not None:
                    await sink.close()

    async def drain(self) -> None:
        """Deliver all that is due now, and return when no stream is due and none is being delivered."""
        while await self.step() or self._tasks:
            if self._tasks:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def step(self) -> int:
        """Lease due streams for free slots, and start their deliveries. Returns how many."""
        self._freed.clear()
        await self._refresh()
        most = self._options.concurrency
        limits = {
            name: most - self._running[name]
            for name in self._endpoints
            if self._sink(name) is not None and self._running[name] < most
        }
        self._serves = any(self._sink(name) is not None for name in self._endpoints)
        if not limits:
            return 0
        request = ClaimDeliveries(
            owner=self._name,
            token=self._seams.random.token(),
            lease_seconds=self._options.lease_seconds,
            limits=limits,
            messages_max=self._options.messages_max,
        )
        sent_at_seconds = self._seams.clock.monotonic_seconds()
        streams = await self._store.claim(request)
        for stream in streams:
            self._running[stream.endpoint] += 1
            task = self._seams.spawn.task(self._serve(stream, sent_at_seconds), name="tenure-outbox-stream")
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        return len(streams)

    async def _refresh(self) -> None:
        """Read the endpoints; every few seconds, record that they are served."""
        self._endpoints = {one.name: one for one in await self._store.endpoints()}
        now = self._seams.clock.monotonic_seconds()
        if now - self._seen_at_seconds >= SEEN_SECONDS:
            self._seen_at_seconds = now
            if served := [name for name in self._endpoints if self._sink(name) is not None]:
                await self._store.mark_seen(served)

    def _sink(self, name: str) -> Sink | None:
        """The sink of an endpoint; a new one when its kind or configuration has changed."""
        endpoint = self._endpoints[name]
        made_from = f"{endpoint.kind} {endpoint.config}"
        known = self._sinks.get(name)
        if known is None or known[0] != made_from:
            try:
                self._sinks[name] = made_from, self._sink_for(endpoint)
            except (InvalidInput, ImportError) as problem:
                log.error("endpoint %s is not served, its configuration is not usable: %s", name, problem)
                self._sinks[name] = made_from, None
        return self._sinks[name][1]

    async def _wait(self) -> None:
        """Until a stream has ended, new messages are announced, or the poll time has passed."""
        seconds = self._options.poll_seconds if self._serves else max(self._options.poll_seconds, REFRESH_SECONDS)
        waiting: list[asyncio.Task[bool]] = [self._seams.spawn.task(self._is_freed(), name="tenure-outbox-idle")]
        if self._wakeups is not None:
            wakeup = self._wakeups.wait(seconds)
            waiting.append(self._seams.spawn.task(wakeup, name="tenure-outbox-wakeup"))
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    async def _is_freed(self) -> bool:
        return await self._freed.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("outbox stream failed; its lease ends in time", exc_info=error)

    # One stream.

    async def _serve(self, stream: LeasedStream, sent_at_seconds: float) -> None:
        try:
            await StreamDelivery(self, stream, sent_at_seconds).run()
        except (StoreUnavailable, StoreError) as problem:
            log.warning("endpoint %s: deliveries not recorded, they will be repeated: %s", stream.endpoint, problem)
        finally:
            self._running[stream.endpoint] -= 1

    async def deliver(self, endpoint: str, delivery: Delivery) -> Delivered | Undelivered:
        """One attempt, within the time that a delivery may take."""
        sink = self._sinks[endpoint][1]
        assert sink is not None, "streams are leased only for endpoints with a sink"
        try:
            async with asyncio.timeout(self._options.delivery_seconds_max):
                return await sink.deliver(delivery)
        except TimeoutError:
            return Undelivered(reason=f"no answer within {self._options.delivery_seconds_max:g} s")
        except Exception as error:  # noqa: BLE001 - a sink of the user may raise anything
            return Undelivered(reason=error_reason(error))

    async def settle(self, settlement: Settlement) -> bool:
        """Whether the lease was held when the settlement was written."""
        return await self._settler.submit(settlement)

    async def note(self, endpoint: str, answer: Delivered | Undelivered) -> None:
        """Record the health of an endpoint, and disable or throttle it where the answer asks for that."""
        known = self._endpoints.get(endpoint)
        if known is None:
            return
        if isinstance(answer, Delivered):
            if known.failing_since_at is not None:
                await self._store.mark_failing(endpoint, failing=False)
            return
        if known.failing_since_at is None:
            await self._store.mark_failing(endpoint, failing=True)
        else:
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


class StreamDelivery:
    """The deliveries of one leased stream, in order, until it is done, fails, or its lease may have ended."""

    def __init__(self, processor: OutboxProcessor, stream: LeasedStream, sent_at_seconds: float) -> None:
        self._processor, self._stream = processor, stream
        self._options, self._clock = processor._options, processor._seams.clock  # noqa: SLF001
        self._trusted_until_seconds = sent_at_seconds + LEASE_SHARE * self._options.lease_seconds
        self._subscriptions = processor._endpoints[stream.endpoint].subscriptions  # noqa: SLF001
        self._position, self._previous = stream.position, stream.previous
        self._made: list[DeliveryAttempt] = []

    async def run(self) -> None:
        """Deliver the messages and settle. The message that fails is the last one."""
        failures, delay_seconds = 0, 0.0
        if self._stream.only_sequence and not self._stream.messages:
            # Retention has removed the message.
            self._position = self._stream.last_sequence
        for number, message in enumerate(self._stream.messages):
            if self._clock.monotonic_seconds() >= self._trusted_until_seconds:
                break
            wanted = wanted_by(self._subscriptions, message.topic, message.body)
            if wanted:
                attempt = (self._stream.attempts if number == 0 else 0) + 1
                answer = await self._attempt(message, attempt)
                if isinstance(answer, Undelivered) and not answer.attempted:
                    failures, delay_seconds = attempt - 1, answer.retry_after_seconds or THROTTLE_SECONDS
                    break
                if isinstance(answer, Undelivered):
                    limits = [one.block_seconds for one in wanted if one.block_seconds is not None]
                    block_seconds = min(limits, default=self._options.block_seconds)
                    delay = self._delay_seconds(message, attempt, answer, block_seconds, first=number == 0)
                    if delay is not None:
                        failures, delay_seconds = attempt, delay
                        break
                    self._bury()
                self._previous = message.sequence
            self._position = message.sequence
        await self._settle(failures, delay_seconds)

    async def _attempt(self, message: StoredMessage, attempt: int) -> Delivered | Undelivered:
        began_at_seconds = self._clock.monotonic_seconds()
        answer = await self._processor.deliver(self._stream.endpoint, self._delivery(message, attempt))
        if isinstance(answer, Undelivered) and not answer.attempted:
            # A circuit breaker is open: this counts as no attempt of the message.
            await self._processor.note(self._stream.endpoint, answer)
            return answer
        delivered = isinstance(answer, Delivered)
        self._processor.counts["delivered" if delivered else "failed"] += 1
        self._made.append(
            DeliveryAttempt(
                sequence=message.sequence,
                aggregate=message.aggregate,
                attempt=attempt,
                outcome="delivered" if delivered else "failed",
                status=answer.status,
                duration_ms=round(1000 * (self._clock.monotonic_seconds() - began_at_seconds)),
                error=None if isinstance(answer, Delivered) else answer.reason,
            )
        )
        await self._processor.note(self._stream.endpoint, answer)
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
        self, message: StoredMessage, attempt: int, answer: Undelivered, block_seconds: float, *, first: bool
    ) -> float | None:
        """The delay before the next attempt; None if there is none, and the message is a dead letter."""
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
        self._processor.counts["dead"] += 1
        log.error(
            "message %s dead-lettered for endpoint %s after attempt %s: %s",
            *(last.sequence, self._stream.endpoint, last.attempt, last.error),
        )

    async def _settle(self, failures: int, delay_seconds: float) -> None:
        settlement = Settlement(
            endpoint=self._stream.endpoint,
            aggregate=self._stream.aggregate,
            only_sequence=self._stream.only_sequence,
            token=self._stream.token,
            position=self._position,
            attempts=failures,
            deliveries=tuple(self._made),
            due_seconds=delay_seconds,
        )
        if not await self._processor.settle(settlement):
            self._processor.counts["lost"] += 1
            log.warning("endpoint %s: lease lost; its deliveries will be repeated", self._stream.endpoint)
