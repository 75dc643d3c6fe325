"""One worker process of a benchmark: `python -m benchmarks.measuring.worker_process DESCRIPTOR`.

It opens the database and reports that it is ready. After GO it works and sends reports, until STOP or until the
benchmark's end of the socket is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.measuring.channel import GO, RELEASE, BenchmarkReport, WorkerOptions, lines
from benchmarks.measuring.jobs import app, release
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.seams import SYSTEM

if TYPE_CHECKING:
    from tenure.workers.worker import Worker

LOOK_SECONDS = 0.005
"""How exactly the time of the last success is known."""
REPORT_SECONDS = 0.25
GRACE_SECONDS = 5.0
STATM = Path("/proc/self/statm")


class BenchmarkWorker:
    """A worker, and its end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._go, self._stop = asyncio.Event(), asyncio.Event()
        self._succeeded, self._at_seconds = 0, 0.0
        self._reported, self._reported_at_seconds = -1, 0.0

    async def run(self) -> None:
        """Wait for the options, then for GO; work until STOP."""
        received = lines(self._connection)
        options = msgspec.json.decode(await anext(received), type=WorkerOptions)
        app.database = options.database
        await (await app.open_store()).close()
        worker = app.worker(queues=(options.queue,), concurrency=options.concurrency, grace_seconds=GRACE_SECONDS)
        receiving = SYSTEM.spawn.task(self._receive(received), name="tenure-bench-commands")
        await self._report(worker)
        await self._go.wait()
        if not self._stop.is_set():
            await self._work(worker)
        receiving.cancel()

    async def _work(self, worker: Worker) -> None:
        working = SYSTEM.spawn.task(worker.run(), name="tenure-bench-worker")
        while not (self._stop.is_set() or working.done()):
            await self._look(worker)
            await SYSTEM.clock.sleep(LOOK_SECONDS)
        worker.stop()
        await working

    async def _look(self, worker: Worker) -> None:
        """Count the successes, and report them once no more follow at once: a report takes time as well."""
        now, succeeded = SYSTEM.clock.monotonic_seconds(), worker.counts[SUCCEEDED]
        settled = succeeded == self._succeeded
        if not settled:
            self._succeeded, self._at_seconds = succeeded, now
        if (settled and succeeded != self._reported) or now - self._reported_at_seconds > REPORT_SECONDS:
            self._reported, self._reported_at_seconds = succeeded, now
            await self._report(worker)

    async def _report(self, worker: Worker) -> None:
        report = BenchmarkReport(
            pid=os.getpid(),
            running=worker.running,
            succeeded=self._succeeded,
            at_seconds=self._at_seconds,
            rss_bytes=rss_bytes(),
        )
        await asyncio.get_running_loop().sock_sendall(self._connection, msgspec.json.encode(report) + b"\n")

    async def _receive(self, received: AsyncIterator[bytes]) -> None:
        """Execute each command. The end of the socket, and an unknown command, mean STOP."""
        async for command in received:
            if command == GO:
                self._go.set()
            elif command == RELEASE:
                release.set()
            else:
                break
        self._stop.set()
        self._go.set()


def rss_bytes() -> int:
    """The memory that this process has now; without /proc, its peak."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def main() -> None:
    """Run the worker on the socket whose descriptor is the one argument."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with socket.socket(fileno=int(sys.argv[1])) as inherited, inherited.dup() as connection:
        # Programs that jobs start do not inherit the copy: the socket must be closed when this process ends.
        connection.settimeout(0)
        asyncio.run(BenchmarkWorker(connection).run())


if __name__ == "__main__":
    main()
