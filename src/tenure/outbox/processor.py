"""The outbox processor: leases pending streams, delivers their messages in order through sinks, and records attempts.

It has only the part of a store that it needs. It can neither change a job nor write a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tenure.errors import InvalidInput, StoreError, StoreUnavailable
from tenure.jobs.middleware import Middleware, delivering
from tenure.lifecycle.records import Actor, Role
from tenure.outbox.endpoint_health import EndpointHealth
from tenure.outbox.endpoint_slots import EndpointSlots
from tenure.outbox.endpoint_workers import EndpointWorkers
from tenure.outbox.observed_delivery import deliver_within
from tenure.outbox.processor_options import ProcessorOptions
from tenure.outbox.settlement_writer import SettlementWriter
from tenure.outbox.sinks import Delivered, Delivery, Sink, Undelivered, error_reason
from tenure.outbox.stream_delivery import StreamDelivery
from tenure.outbox.time_limit import TimeLimit
from tenure.seams import Seams
from tenure.stores.contract import Subscription
from tenure.stores.contract.outbox import ClaimDeliveries, EndpointRecord, LeasedStream, OutboxStore
from tenure.workers.reconnect import DatabaseAvailability

__all__ = ["OutboxProcessor", "ProcessorOptions"]

SEEN_SECONDS = 15.0
REFRESH_SECONDS = 5.0
"""How often endpoints are read while there is none to serve."""
MESSAGES_PER_CLAIM = 4000

log = logging.getLogger("tenure.outbox")

SinkFor = Callable[[EndpointRecord], Sink | None]


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
        middleware: Sequence[Middleware] = (),
        availability: DatabaseAvailability | None = None,
    ) -> None:
        self._store, self._sink_for, self._seams, self.name = store, sink_for, seams, name
        self._options = options or ProcessorOptions()
        self._availability = availability or DatabaseAvailability(seams)
        self._wakeups, self._middleware = wakeups, delivering(middleware)
        self._settlements = SettlementWriter(store, seams, settled=self._settled)
        self._sinks: dict[str, tuple[str, Sink | None]] = {}
        self._endpoints: Mapping[str, EndpointRecord] = {}
        self._slots: dict[str, EndpointSlots] = {}
        self._health = EndpointHealth(store, seams.clock, self._options, Actor(Role.OUTBOX, name))
        self._workers: dict[str, EndpointWorkers] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._leased = 0
        self._limit = TimeLimit(self._options.delivery_seconds_max)
        self._freed = asyncio.Event()
        self._stop = asyncio.Event()
        self._seen_at_seconds = float("-inf")
        self._served: list[str] = []
        self._refresh_at_seconds = float("-inf")
        self.counts: Counter[str] = Counter()

    @property
    def delivering(self) -> int:
        """How many streams are leased at present."""
        return self._leased

    @property
    def stopping(self) -> bool:
        """Whether the processor claims no more, and begins no further delivery."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Claim no more. Deliveries under way end first; what is leased besides is released for other processors."""
        self._stop.set()
        self._freed.set()

    async def run(self) -> None:
        """Deliver until stopped."""
        try:
            while not self._stop.is_set():
                try:
                    claimed = await self.step()
                    self._availability.replied(self)
                except StoreUnavailable as problem:
                    what = f"outbox claim failed, retrying in {self._options.poll_seconds:.3g} s"
                    self._availability.failed(self, what, problem)
                    claimed = 0
                if not claimed:
                    await self._wait()
        finally:
            await self.settled()
            self._limit.close()
            for _, sink in self._sinks.values():
                if sink is not None:
                    await sink.close()

    async def drain(self) -> None:
        """Deliver all that is due now, and return when no stream is due and none is being delivered."""
        while not self.stopping and (await self.step() or self._leased):
            if self._leased:
                await self._freed.wait()

    async def settled(self) -> None:
        """Wait until no stream is leased."""
        while self._leased:
            self._freed.clear()
            await self._freed.wait()

    async def step(self) -> int:
        """Lease due streams for free slots, and start their deliveries. Returns how many."""
        self._freed.clear()
        await self._refresh()
        served = [name for name in self._endpoints if self._sink(name) is not None]
        if served != self._served:
            self._served = served
            log.info("outbox processor %s delivers to %s", self.name, ", ".join(served) or "no endpoint")
        limits = {name: free for name in served if (free := self._slots_of(name).free)}
        if not limits:
            return 0
        request = ClaimDeliveries(
            owner=self.name,
            token=self._seams.random.token(),
            lease_seconds=self._options.lease_seconds,
            limits=limits,
            messages_max=max(1, min(self._options.messages_max, MESSAGES_PER_CLAIM // sum(limits.values()))),
        )
        sent_at_seconds = self._seams.clock.monotonic_seconds()
        streams = await self._store.claim(request)
        leased = Counter(stream.endpoint for stream in streams)
        for name, asked in limits.items():
            self._slots_of(name).claimed(leased[name], asked=asked)
        for name in leased:
            self._health.leased(name)
            self._deliver(name, [one for one in streams if one.endpoint == name], sent_at_seconds)
        if not streams:
            self._refresh_at_seconds = float("-inf")
        return len(streams)

    async def _refresh(self) -> None:
        """Read the endpoints when the poll time has passed or a claim returned nothing; record every 15 s that they are
        served."""
        now_seconds = self._seams.clock.monotonic_seconds()
        if now_seconds < self._refresh_at_seconds:
            return
        self._endpoints = {one.name: one for one in await self._store.endpoints()}
        self._health.read(self._endpoints.values())
        self._refresh_at_seconds = now_seconds + self._options.poll_seconds
        if now_seconds - self._seen_at_seconds >= SEEN_SECONDS:
            self._seen_at_seconds = now_seconds
            if served := [name for name in self._endpoints if self._sink(name) is not None]:
                await self._store.mark_seen(served)

    def _slots_of(self, endpoint: str) -> EndpointSlots:
        if endpoint not in self._slots:
            self._slots[endpoint] = EndpointSlots(self._options.concurrency)
        return self._slots[endpoint]

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
        seconds = self._options.poll_seconds if self._served else max(self._options.poll_seconds, REFRESH_SECONDS)
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

    # Leased streams.

    def _deliver(self, endpoint: str, streams: Sequence[LeasedStream], sent_at_seconds: float) -> None:
        if endpoint not in self._workers:
            self._workers[endpoint] = EndpointWorkers(self._options, self._seams, self._tasks, ended=self._settle)
        subscriptions = self._endpoints[endpoint].subscriptions
        self._leased += len(streams)
        self._workers[endpoint].add(
            StreamDelivery(
                self,
                stream,
                subscriptions,
                clock=self._seams.clock,
                options=self._options,
                sent_at_seconds=sent_at_seconds,
            )
            for stream in streams
        )

    def _settle(self, delivery: StreamDelivery, error: BaseException | None) -> None:
        """Write the settlement of a stream. After an error there is none: the stream is due when its lease ends."""
        if error is not None:
            self._close(delivery, error)
            return
        # While all workers are busy, an early write frees no worker sooner.
        self._settlements.add(delivery, may_wait=self._workers[delivery.endpoint].are_busy)

    def _settled(self, delivery: StreamDelivery, written: bool | BaseException) -> None:
        """A settlement was written or refused, or failed. One that could not reach the database is repeated until the
        lease ends. One whose reply was lost has released the lease, and is refused the second time."""
        if isinstance(written, BaseException):
            self._unsettled(delivery, written)
            return
        for made in delivery.attempts:
            self.counts[made.outcome] += 1
        if not written:
            self.counts["lost"] += 1
            log.warning("endpoint %s: lease lost; its deliveries will be repeated", delivery.endpoint)
        self._close(delivery, None)

    def _unsettled(self, delivery: StreamDelivery, error: BaseException) -> None:
        now_seconds = self._seams.clock.monotonic_seconds()
        repeat = isinstance(error, StoreUnavailable) and now_seconds < delivery.lease_ends_at_seconds
        if not repeat or self._stop.is_set():
            self._close(delivery, error)
            return
        log.warning("outbox settlement failed, retrying: %s", error)
        task = self._seams.spawn.task(self._settle_again(delivery), name="tenure-outbox-retry")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle_again(self, delivery: StreamDelivery) -> None:
        try:
            await self._seams.clock.sleep(self._options.poll_seconds)
        except asyncio.CancelledError as cancelled:
            self._close(delivery, cancelled)
            raise
        self._settle(delivery, None)

    def _close(self, delivery: StreamDelivery, error: BaseException | None) -> None:
        """Free the slot of a stream that is settled, or that is due again when its lease ends."""
        if error is not None:
            self._log_unsettled(delivery, error)
        self._leased -= 1
        self._slots_of(delivery.endpoint).ended(self._seams.clock.monotonic_seconds() - delivery.sent_at_seconds)
        self._freed.set()

    def _log_unsettled(self, delivery: StreamDelivery, error: BaseException) -> None:
        if isinstance(error, StoreUnavailable | StoreError):
            log.warning("endpoint %s: deliveries not recorded, they will be repeated: %s", delivery.endpoint, error)
        elif isinstance(error, Exception):
            log.error("endpoint %s: stream failed, retrying when its lease ends", delivery.endpoint, exc_info=error)

    # `MessageSender`, for the streams.

    def pause_seconds(self, endpoint: str) -> float:
        """For how long nothing may be sent to the endpoint."""
        return self._health.pause_seconds(endpoint)

    def is_health_recorded(self, endpoint: str, answer: Delivered | Undelivered) -> bool:
        """Whether the database already has the health that follows from the answer."""
        return self._health.is_recorded(endpoint, answer)

    async def record_health(self, endpoint: str, answer: Delivered | Undelivered) -> None:
        """Write the health of the endpoint that follows from the answer."""
        await self._health.record(endpoint, answer)

    async def deliver(self, endpoint: str, delivery: Delivery) -> Delivered | Undelivered:
        """One attempt, within the time that a delivery may take."""
        sink = self._sinks[endpoint][1]
        assert sink is not None, "streams are leased only for endpoints with a sink"
        answer: Delivered | Undelivered
        try:
            with self._limit.call():
                if self._middleware:
                    answer = await deliver_within(self._middleware, sink, delivery, endpoint=endpoint)
                else:
                    answer = await sink.deliver(delivery)
        except TimeoutError:
            answer = Undelivered(reason=f"no answer within {self._options.delivery_seconds_max:g} s")
        except Exception as error:  # noqa: BLE001 - a sink of the user may raise anything
            answer = Undelivered(reason=error_reason(error))
        self._health.pause_after(endpoint, answer)
        return answer
