"""Administration of queues: pause, resume, limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Actor
from tenure.stores import Store
from tenure.stores.contract import QueueRecord

__all__ = ["AppQueues", "QueueLimits", "QueueRecord", "Rate"]


class AppQueues:
    """Pauses and limits of queues. They apply to all workers from their next claim on.

    >>> from tenure import App, Rate
    >>> async def limit(app: App) -> None:
    ...     await app.queues.put("default", concurrency_max=10, rate=Rate(100, 60), fair=True)
    """

    def __init__(self, store: Callable[[], Awaitable[Store]], actor: Actor) -> None:
        self._store, self._actor = store, actor

    async def put(
        self,
        name: str,
        *,
        concurrency_max: int | None = None,
        key_concurrency_max: int | None = None,
        rate: Rate | None = None,
        key_rate: Rate | None = None,
        fair: bool = False,
    ) -> QueueRecord:
        """Replace the limits of a queue.

        At most `concurrency_max` of its jobs are leased at once, and `key_concurrency_max` of each `partition_key`. At
        most `rate.count` start in any `rate.seconds`, and `key_rate` limits each key in the same way. A `fair` queue
        alternates between keys. Limits for keys do not apply to jobs without a key.
        """
        limits = QueueLimits(
            concurrency_max=concurrency_max,
            key_concurrency_max=key_concurrency_max,
            rate=rate,
            key_rate=key_rate,
            fair=fair,
        )
        return await (await self._store()).queues.put(name, limits, actor=self._actor)

    async def pause(self, name: str) -> QueueRecord:
        """Stop claims from a queue. Running jobs continue, and jobs can be enqueued."""
        return await (await self._store()).queues.pause(name, actor=self._actor)

    async def resume(self, name: str) -> QueueRecord | None:
        """Allow claims again. None: the queue has no record."""
        return await (await self._store()).queues.resume(name, actor=self._actor)

    async def forget(self, name: str) -> bool:
        """Remove the record of a queue, and with it its limits and its pause. False: there was none."""
        return await (await self._store()).queues.forget(name, actor=self._actor)

    async def list(self) -> Sequence[QueueRecord]:
        """Return the queues that are paused or have limits, with the numbers of their leased jobs."""
        return await (await self._store()).queues.known()
