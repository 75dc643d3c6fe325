"""The process that these tests start, stop and kill: a real worker with test jobs.

    python -m tests.chaos.worker_process '{"database": "sqlite:///jobs.db", "folder": "/tmp/notes", …}'

It reports its progress as notes in a folder, and waits for notes of the test there. Its store kills it or makes it wait
at points that a test could not reach from outside (`tests.chaos.faulty_store`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from datetime import datetime, timedelta

import msgspec

from tenure.app import App
from tenure.seams import Seams, SystemClock
from tenure.stores import Store
from tenure.workers.worker import Worker, WorkerOptions
from tests.chaos.faulty_store import FaultyStore
from tests.chaos.jobs import declare
from tests.chaos.mutants import MUTANTS
from tests.chaos.process_options import ProcessOptions

LIFETIME_SECONDS = 150
"""A process that hangs ends after this time."""


class ShiftedClock(SystemClock):
    """A wall clock that is off by so much. The monotonic clock is right, as on a machine whose time is off."""

    def __init__(self, off_seconds: float) -> None:
        self._off = timedelta(seconds=off_seconds)

    def now(self) -> datetime:
        return super().now() + self._off


def seams_of(options: ProcessOptions) -> Seams:
    return Seams(clock=ShiftedClock(options.clock_off_seconds))


async def open_store(options: ProcessOptions, seams: Seams) -> Store:
    store = FaultyStore(options.store(seams), options)
    await store.open()
    return store


async def work(options: ProcessOptions) -> None:
    seams = seams_of(options)
    app = App(options.database, seams=seams)
    declare(app, options.notes)
    worker = Worker(
        definitions=app.kinds,
        open_store=lambda: open_store(options, seams),
        seams=seams,
        options=WorkerOptions(
            queues=options.queues,
            concurrency=options.concurrency,
            grace_seconds=options.grace_seconds,
            poll_seconds=options.poll_seconds,
            scan_seconds=options.scan_seconds,
        ),
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    options.notes.leave(f"{options.name}-is-up")
    await worker.run()


def main(arguments: str) -> None:
    signal.alarm(LIFETIME_SECONDS)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    options = msgspec.json.decode(arguments, type=ProcessOptions)
    if options.mutant is not None:
        MUTANTS[options.mutant]()
    asyncio.run(work(options))


if __name__ == "__main__":
    main(sys.argv[1])
