"""Delivers the leased streams of one endpoint with a bounded number of workers. It settles nothing itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from tenure.outbox.processor_options import ProcessorOptions
from tenure.outbox.stream_delivery import StreamDelivery
from tenure.seams import Seams

STEPS_BETWEEN_YIELDS = 10
"""After so many steps a worker yields to other tasks: a sink that never awaits would block them."""


class EndpointWorkers:
    """At most `options.concurrency` deliveries at once. After each message a stream queues behind the waiting ones.

    `ended` is called with each stream that is to be settled, and with the error if its delivery failed. Workers are
    tasks, and end when no stream waits.
    """

    def __init__(
        self,
        options: ProcessorOptions,
        seams: Seams,
        tasks: set[asyncio.Task[None]],
        *,
        ended: Callable[[StreamDelivery, BaseException | None], None],
    ) -> None:
        self._options, self._seams, self._tasks, self._ended = options, seams, tasks, ended
        self._waiting: deque[StreamDelivery] = deque()
        self._workers = self._delivering = 0

    @property
    def are_busy(self) -> bool:
        """Whether there is a stream for each worker."""
        return self._delivering + len(self._waiting) >= self._options.concurrency

    def add(self, deliveries: Iterable[StreamDelivery]) -> None:
        """Deliver these streams too."""
        self._waiting.extend(deliveries)
        self._start()

    def _start(self) -> None:
        for _ in range(min(self._options.concurrency - self._workers, len(self._waiting))):
            task = self._seams.spawn.task(self._work(), name="tenure-outbox-worker")
            self._workers += 1
            self._tasks.add(task)
            task.add_done_callback(self._worker_ended)

    async def _work(self) -> None:
        steps = 0
        while self._waiting:
            await self._step(self._waiting.popleft())
            steps += 1
            if steps % STEPS_BETWEEN_YIELDS == 0:
                await self._seams.clock.sleep(0)

    async def _step(self, delivery: StreamDelivery) -> None:
        self._delivering += 1
        try:
            more = await delivery.step()
        except BaseException as error:
            self._delivering -= 1
            self._ended(delivery, error)
            if not isinstance(error, Exception):
                raise
            return
        self._delivering -= 1
        if more:
            self._waiting.append(delivery)
        else:
            self._ended(delivery, None)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._workers -= 1
        if not task.cancelled():
            # Streams may have been added after the worker had found none waiting.
            self._start()
        elif self._workers == 0:
            # The streams that no worker has begun are due again when their leases end.
            while self._waiting:
                self._ended(self._waiting.popleft(), asyncio.CancelledError())
