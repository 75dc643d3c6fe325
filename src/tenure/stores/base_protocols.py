"""What a store passes to `BaseStore`: the parts that work on its own database."""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from uuid import UUID

from tenure.errors import RowPoisoned
from tenure.lifecycle.records import Job
from tenure.stores.contract import ReadStore, Subscription


class StoreReads(ReadStore, Protocol):
    """The reads of a store on its own database."""

    async def recoverable(self, *, limit: int, after: UUID | None) -> Sequence[Job | RowPoisoned]:
        """Up to `limit` jobs that need recovery, and rows between them that cannot be decoded."""
        ...

    async def wakeable(self, job_ids: Sequence[UUID]) -> Sequence[Job | RowPoisoned]:
        """Those of these jobs that wait for children, are not due, and have at most `children_max` live awaited ones,
        in the order of ids; and rows that cannot be decoded."""
        ...


class Notifier(Protocol):
    """Sends wake-ups to subscriptions of this process and of others."""

    def subscribe(self, names: Sequence[str]) -> AbstractAsyncContextManager[Subscription]:
        """A subscription to these queues and workers for as long as the context lasts."""
        ...

    def send(self, names: Set[str], *, notified: bool = False) -> None:
        """Wake the subscriptions to these queues and workers. Does not wait, and does not raise. Other processes are
        `notified` already where the write did that."""
        ...

    def send_here(self, names: Set[str]) -> None:
        """Wake only the subscriptions of this process."""
        ...
