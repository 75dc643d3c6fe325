"""An app's queues: pausing them, and the rules by which they let jobs through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tenure.lifecycle.limits import QueueLimits, Rate
from tenure.lifecycle.records import Actor
from tenure.stores import Store
from tenure.stores.contract import QueueRecord

__all__ = ["AppQueues", "QueueLimits", "QueueRecord", "Rate"]


class AppQueues:
    """What operators say about queues, for all workers and from the next claim on.

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
        """Give a queue these rules instead of those that it had.

        At most `concurrency_max` of its jobs are held at once, and `key_concurrency_max` of each `partition_key`; at
        most `rate.count` start in any `rate.seconds`, and `key_rate` says the same for each key. In a `fair` queue keys
        take turns. Jobs without a key are not concerned by the rules for keys.
        """
        rules = QueueLimits(
            concurrency_max=concurrency_max,
            key_concurrency_max=key_concurrency_max,
            rate=rate,
            key_rate=key_rate,
            fair=fair,
        )
        return await (await self._store()).queues.put(name, rules, actor=self._actor)

    async def pause(self, name: str) -> QueueRecord:
        """Let nothing more be claimed from a queue. What runs goes on, and so does enqueuing."""
        return await (await self._store()).queues.pause(name, actor=self._actor)

    async def resume(self, name: str) -> QueueRecord | None:
        """Let a paused queue go on. None when nothing was known of it."""
        return await (await self._store()).queues.resume(name, actor=self._actor)

    async def forget(self, name: str) -> bool:
        """Remove a queue's rules, and let it go on if it was paused. Whether there was anything to remove."""
        return await (await self._store()).queues.forget(name, actor=self._actor)

    async def list(self) -> Sequence[QueueRecord]:
        """The queues that are paused or have rules, and how many of their jobs are held."""
        return await (await self._store()).queues.known()
