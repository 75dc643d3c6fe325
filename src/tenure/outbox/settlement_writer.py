"""Writes the settlements of leased streams, many in one call of the store. It delivers nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from tenure.errors import StoreUnavailable
from tenure.outbox.stream_delivery import StreamDelivery
from tenure.seams import Seams
from tenure.stores.contract.outbox import OutboxStore

GROUP_MAX = 500
WRITE_AT = 100
"""So many pending settlements are written at once."""
WAIT_SECONDS = 0.02


class SettlementWriter:
    """Writes one group of settlements at a time. A settlement that may wait is written with those of the next
    `WAIT_SECONDS`: a call of the store costs much the same for one as for many.

    `settled` is called with each stream, and with whether its settlement was written or the error. The halves of a
    refused group are written apart.
    """

    def __init__(
        self, store: OutboxStore, seams: Seams, *, settled: Callable[[StreamDelivery, bool | BaseException], None]
    ) -> None:
        self._store, self._seams, self._settled = store, seams, settled
        self._pending: deque[StreamDelivery] = deque()
        self._due = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    def add(self, delivery: StreamDelivery, *, may_wait: bool) -> None:
        """Write the settlement of this stream, at once or with others."""
        self._pending.append(delivery)
        if not may_wait or len(self._pending) >= WRITE_AT:
            self._due.set()
        if self._writer is None:
            self._writer = self._seams.spawn.task(self._write_pending(), name="tenure-outbox-settle")
            self._writer.add_done_callback(self._writer_ended)

    async def _write_pending(self) -> None:
        while self._pending:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._due.wait()
            self._due.clear()
            size = min(len(self._pending), GROUP_MAX)
            await self._write([self._pending.popleft() for _ in range(size)])

    async def _write(self, group: Sequence[StreamDelivery]) -> None:
        try:
            written = await self._store.settle([one.settlement() for one in group])
        except asyncio.CancelledError as cancelled:
            self._refuse(group, cancelled)
            raise
        except Exception as error:  # noqa: BLE001 - `settled` logs it
            if len(group) == 1 or isinstance(error, StoreUnavailable):
                self._refuse(group, error)
                return
            middle = len(group) // 2
            await self._write(group[:middle])
            await self._write(group[middle:])
            return
        for one, is_written in zip(group, written, strict=True):
            self._settled(one, is_written)

    def _refuse(self, group: Sequence[StreamDelivery], error: BaseException) -> None:
        for one in group:
            self._settled(one, error)

    def _writer_ended(self, task: asyncio.Task[None]) -> None:
        self._writer = None
        pending, self._pending = self._pending, deque()
        if task.cancelled():
            self._refuse(list(pending), asyncio.CancelledError())
            return
        for one in pending:
            # It was added after the writer had found nothing pending.
            self.add(one, may_wait=False)
