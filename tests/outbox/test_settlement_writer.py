"""Settlements of streams are written in groups, and each one's fate reaches its stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from simulation.model.store import ModelStore
from tenure.errors import StoreUnavailable
from tenure.outbox.processor import ProcessorOptions
from tenure.outbox.settlement_writer import WRITE_AT, SettlementWriter
from tenure.outbox.stream_delivery import StreamDelivery
from tenure.seams import SYSTEM
from tenure.stores.contract.outbox import Settlement
from tenure.testing.clock import ManualClock
from tenure.testing.contract.outbox import claim, endpoint, post
from tenure.testing.driver import Driver

LIMIT_SECONDS = 30.0


class Sender:
    """The part of a processor that a settlement needs."""

    name = "p"


class Written:
    """A writer for the streams of a store, and the result of each."""

    def __init__(self, store: Any, streams: Sequence[StreamDelivery]) -> None:
        self._store, self.streams = store, streams
        self.groups: list[int] = []
        self.unreachable = False
        self.results: dict[str, bool | BaseException] = {}
        self.done = asyncio.Event()
        outbox: Any = self
        self.writer = SettlementWriter(outbox, SYSTEM, settled=self._settled)

    @classmethod
    async def of(cls, count: int) -> Written:
        store: Any = ModelStore(ManualClock())
        await endpoint(store)
        drive: Any = Driver(store)
        await post(drive, *(("paid", f"a{number}") for number in range(count)))
        sender: Any = Sender()
        leased = await claim(store, limit=count)
        assert len(leased) == count
        made = [
            StreamDelivery(sender, one, (), clock=SYSTEM.clock, options=ProcessorOptions(), sent_at_seconds=0.0)
            for one in leased
        ]
        return cls(store, made)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        self.groups.append(len(settlements))
        if self.unreachable:
            raise StoreUnavailable("restarting")
        written: list[bool] = await self._store.outbox.settle(settlements)
        return written

    def _settled(self, delivery: StreamDelivery, fate: bool | BaseException) -> None:
        self.results[delivery.settlement().aggregate] = fate
        if len(self.results) == len(self.streams):
            self.done.set()

    async def ended(self) -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await self.done.wait()


async def test_settlements_that_may_wait_go_with_the_first_that_may_not() -> None:
    made = await Written.of(4)
    for one in made.streams[:3]:
        made.writer.add(one, may_wait=True)
    made.writer.add(made.streams[3], may_wait=False)
    await made.ended()
    assert made.groups == [4]
    assert list(made.results.values()) == [True] * 4


async def test_a_settlement_that_may_wait_is_written_without_others_too() -> None:
    made = await Written.of(1)
    made.writer.add(made.streams[0], may_wait=True)
    await made.ended()
    assert made.groups == [1]


async def test_enough_settlements_wait_for_no_others() -> None:
    made = await Written.of(WRITE_AT)
    for one in made.streams:
        made.writer.add(one, may_wait=True)
    assert made.writer._due.is_set()
    await made.ended()
    assert made.groups == [WRITE_AT]


async def test_a_settlement_that_comes_as_the_writer_ends_is_written() -> None:
    """It comes after the writer has seen that nothing is pending, and before the end of its task is known."""
    made, loop = await Written.of(2), asyncio.get_running_loop()
    settled = made._settled

    def then(delivery: StreamDelivery, fate: bool | BaseException) -> None:
        settled(delivery, fate)
        if len(made.results) == 1:
            loop.call_soon(lambda: made.writer.add(made.streams[1], may_wait=True))

    made.writer._settled = then
    made.writer.add(made.streams[0], may_wait=False)
    await made.ended()
    assert made.groups == [1, 1]


async def test_a_settlement_that_is_refused_leaves_the_others_of_its_group_written() -> None:
    made = await Written.of(3)
    invalid = made.streams[1]
    whole = invalid.settlement
    invalid.settlement = lambda: msgspec.structs.replace(whole(), due_seconds=-1.0)  # type: ignore[method-assign]
    for one in made.streams:
        made.writer.add(one, may_wait=False)
    await made.ended()
    first, refused, last = made.results.values()
    assert (first, last) == (True, True)
    assert "due_seconds" in str(refused)


async def test_a_database_that_cannot_be_reached_is_asked_once_for_the_whole_group() -> None:
    made = await Written.of(3)
    made.unreachable = True
    for one in made.streams:
        made.writer.add(one, may_wait=False)
    await made.ended()
    assert made.groups == [3]
    assert all(isinstance(fate, StoreUnavailable) for fate in made.results.values())
