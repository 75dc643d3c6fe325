"""Queue limits in some of the runs: no limit is ever exceeded, and none blocks a job for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from simulation.invariants import InvariantViolated
from simulation.random_streams import RandomStream
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Actor, Event, EventType, Origin, Role
from tenure.lifecycle.statuses import LEASED
from tenure.stores.contract import Store

SHARE = 1 / 4
"""The share of runs with limits."""
QUEUE = "default"
KEYS = ["", "a", "b", "c"]
"""The empty one means no limits."""
FATE = Actor(Role.CLIENT, "fate")


class Limits:
    """The limits of one run, and their usage by the log."""

    def __init__(self, chance: RandomStream) -> None:
        self.hold = chance.happens(SHARE)
        concurrency, of_key, count = chance.whole(3, 6), chance.whole(1, 2), chance.whole(4, 8)
        by_key, rated, fair = chance.happens(0.5), chance.happens(0.5), chance.happens(0.5)
        self.rules = QueueLimits(
            concurrency_max=concurrency,
            key_concurrency_max=of_key if by_key else None,
            rate=Rate(count, 2.0) if rated else None,
            fair=fair,
        )
        self._pauses = chance.happens(0.4)
        self._pause_at, self._pause_seconds = chance.between(1.0, 15.0), chance.between(1.0, 8.0)
        self._chance = chance
        self._keys: dict[UUID, str | None] = {}
        self._held: dict[UUID, str | None] = {}
        self._starts: list[datetime] = []
        self.reached = 0
        """How often a limit was reached, so that a claim had to wait."""

    async def begin(self, store: Store) -> None:
        if self.hold:
            await store.queues.put(QUEUE, self.rules, actor=FATE)

    async def pause(self, store: Store, sleep: Callable[[float], Awaitable[None]]) -> bool:
        """Pause the queue for a while, in some of the runs; whether this was one."""
        if not (self.hold and self._pauses):
            return False
        await sleep(self._pause_at)
        await store.queues.pause(QUEUE, actor=FATE)
        await sleep(self._pause_seconds)
        await store.queues.resume(QUEUE, actor=FATE)
        return True

    def keyed(self, origin: Origin) -> Origin:
        """The call with a random key, if the run has limits."""
        if not self.hold:
            return origin
        self._keys[origin.id] = key = self._chance.pick(KEYS) or None
        return msgspec.structs.replace(origin, partition_key=key)

    def check_event(self, event: Event) -> None:
        """Apply the next event of the log, or raise InvariantViolated for the limit that it exceeds."""
        if not self.hold:
            return
        if event.type is EventType.CLAIMED:
            self._held[event.job_id] = self._keys.get(event.job_id)
            self._starts.append(event.at)
            self._check()
        elif event.to_status not in LEASED:
            self._held.pop(event.job_id, None)

    def _check(self) -> None:
        most, of_key = self.rules.concurrency_max, self.rules.key_concurrency_max
        by_key = Counter(key for key in self._held.values() if key is not None)
        if most is not None and len(self._held) > most:
            raise InvariantViolated(f"{len(self._held)} jobs are leased at once, and {most} may be")
        if of_key is not None and by_key and max(by_key.values()) > of_key:
            raise InvariantViolated(f"of one key {max(by_key.values())} jobs are leased at once, and {of_key} may be")
        self.reached += len(self._held) == most or of_key in by_key.values()

    def check_rate(self) -> None:
        """No period of the rate limit had more starts than allowed. Only for runs whose clock never jumped."""
        rate = self.rules.rate
        if not self.hold or rate is None:
            return
        starts, stretch = sorted(self._starts), timedelta(seconds=rate.seconds)
        for first, last in zip(starts, starts[rate.count :], strict=False):
            if last - first < stretch:
                raise InvariantViolated(
                    f"{rate.count + 1} jobs started between {first} and {last}, and {rate.count} may"
                )
