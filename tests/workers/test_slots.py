"""A slot is free when the function of its job has ended: the next job is claimed while the outcome is written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tenure import App
from tenure.seams import SYSTEM
from tenure.stores.contract import Request, Store
from tenure.workers.pool import Slots

LIMIT_SECONDS = 30


def test_a_slot_is_free_from_the_end_of_the_function_on() -> None:
    slots = Slots(2)
    slots.take()
    slots.take()
    assert (slots.free, slots.taken) == (0, 2)
    slots.function_ended()
    assert (slots.free, slots.taken, slots.changed.is_set()) == (1, 2, True)
    slots.release(after_function=True)
    assert (slots.free, slots.taken) == (1, 1)
    slots.release()
    assert (slots.free, slots.taken, slots.idle.is_set()) == (2, 0, True)


def test_as_many_outcomes_may_be_unwritten_as_there_are_slots() -> None:
    slots = Slots(2)
    for _ in range(4):
        assert slots.free > 0
        slots.take()
        slots.function_ended()
    assert slots.free == 0
    assert not slots.idle.is_set()
    slots.release(after_function=True)
    assert slots.free == 1


@pytest.mark.requirement("WC-05")
async def test_the_next_job_runs_while_an_outcome_is_written_and_no_third(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db", environment={})
    started: list[int] = []
    writable, second, third = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.job()
    async def work(number: int) -> None:
        started.append(number)
        if number > 0:
            (second, third)[number - 1].set()

    opened = app.open_store

    async def open_store() -> Store:
        store = await opened()
        apply = store.apply

        async def apply_when_writable(requests: Sequence[Request]) -> Any:
            await writable.wait()
            return await apply(requests)

        monkeypatch.setattr(store, "apply", apply_when_writable)
        return store

    async with app:
        for number in range(3):
            await work.enqueue(number)
        monkeypatch.setattr(app, "open_store", open_store)
        worker = app.worker(concurrency=1)
        running = SYSTEM.spawn.task(worker.run(), name="worker")
        async with asyncio.timeout(LIMIT_SECONDS):
            await second.wait()
            # The outcomes of both are unwritten, so that no third job is claimed, however often the pool is woken.
            worker._slots.changed.set()
            for _ in range(100):
                await asyncio.sleep(0)
            assert (started, worker._slots.free, worker.running) == ([0, 1], 0, 2)
            writable.set()
            await third.wait()
            worker.stop()
            await running
    assert (started, worker.counts["succeeded"]) == ([0, 1, 2], 3)
