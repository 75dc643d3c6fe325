"""Delivers the leased streams of one endpoint with a bounded number of workers. It settles nothing itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from tenure.outbox.stream_delivery import StreamDelivery
from tenure.seams import Seams

STEPS_BETWEEN_YIELDS = 10
"""After so many steps a worker lets other tasks run, since a sink may never wait."""


class EndpointWorkers:
    """At most `concurrency` deliveries at once. A stream with further messages is continued after the waiting streams.

    `ended` is called with each stream that is to be settled, and with the error if its delivery failed. Workers are
    tasks, and end when no stream waits.
    """

    def __init__(
        self,
        concurrency: int,
        seams: Seams,
        tasks: set[asyncio.Task[None]],
        *,
        ended: Callable[[StreamDelivery, BaseException | None], None],
    ) -> None:
        self._concurrency, self._seams, self._tasks, self._ended = concurrency, seams, tasks, ended
        self._waiting: deque[StreamDelivery] = deque()
        self._workers = 0

    def add(self, deliveries: Iterable[StreamDelivery]) -> None:
        """Deliver these streams too."""
        self._waiting.extend(deliveries)
        for _ in range(min(self._concurrency - self._workers, len(self._waiting))):
            task = self._seams.spawn.task(self._work(), name="tenure-outbox-worker")
            self._workers += 1
            self._tasks.add(task)
            task.add_done_callback(self._worker_ended)

    async def _work(self) -> None:
        steps = 0
        while self._waiting:
            delivery = self._waiting.popleft()
            try:
                more = await delivery.step()
            except BaseException as error:
                self._ended(delivery, error)
                if not isinstance(error, Exception):
                    raise
                continue
            if more:
                self._waiting.append(delivery)
            else:
                self._ended(delivery, None)
            steps += 1
            if steps % STEPS_BETWEEN_YIELDS == 0:
                await self._seams.clock.sleep(0)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._workers -= 1
        if self._workers == 0:
            # Cancelled workers leave streams behind, whose leases end in time.
            while self._waiting:
                self._ended(self._waiting.popleft(), asyncio.CancelledError())
