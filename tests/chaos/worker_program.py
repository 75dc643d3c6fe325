"""The program that these tests start, stop and kill: a real worker, with jobs to try it on.

    python -m tests.chaos.worker_program '{"database": "sqlite:///jobs.db", "folder": "/tmp/notes", …}'

It tells the test how far it is by leaving notes in a folder, and waits for notes from there. Where it should die or
wait at a point that no test could hit from outside, its store does so (`tests.chaos.troubled`).
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
from tests.chaos.jobs import declare
from tests.chaos.mutants import MUTANTS
from tests.chaos.program import Program
from tests.chaos.troubled import TroubledStore

LIFETIME_SECONDS = 150
"""However a test ends, what it has started ends too."""


class ShiftedClock(SystemClock):
    """A wall clock that goes wrong by so much. The monotonic one is right, as it is on a machine whose time is off."""

    def __init__(self, off_seconds: float) -> None:
        self._off = timedelta(seconds=off_seconds)

    def now(self) -> datetime:
        return super().now() + self._off


def seams_of(program: Program) -> Seams:
    return Seams(clock=ShiftedClock(program.clock_off_seconds))


async def open_store(program: Program, seams: Seams) -> Store:
    store = TroubledStore(program.store(seams), program)
    await store.open()
    return store


async def work(program: Program) -> None:
    seams = seams_of(program)
    app = App(program.database, seams=seams)
    declare(app, program.notes)
    worker = Worker(
        definitions=app.kinds,
        open_store=lambda: open_store(program, seams),
        seams=seams,
        options=WorkerOptions(
            queues=program.queues,
            concurrency=program.concurrency,
            grace_seconds=program.grace_seconds,
            poll_seconds=program.poll_seconds,
            scan_seconds=program.scan_seconds,
        ),
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    program.notes.leave(f"{program.name}-is-up")
    await worker.run()


def main(arguments: str) -> None:
    signal.alarm(LIFETIME_SECONDS)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    program = msgspec.json.decode(arguments, type=Program)
    if program.mutant is not None:
        MUTANTS[program.mutant]()
    asyncio.run(work(program))


if __name__ == "__main__":
    main(sys.argv[1])
