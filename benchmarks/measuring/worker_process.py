"""One worker process of a benchmark: `python -m benchmarks.measuring.worker_process DESCRIPTOR`.

It opens the database and reports that it is ready. On GO it works and reports its standing, until STOP or until the
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

from benchmarks.measuring.channel import GO, RELEASE, Orders, Standing, lines
from benchmarks.measuring.jobs import app, release
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.seams import SYSTEM

if TYPE_CHECKING:
    from tenure.workers.worker import Worker

LOOK_SECONDS = 0.005
"""How exactly the moment of the last success is known."""
TELL_SECONDS = 0.25
GRACE_SECONDS = 5.0
STATM = Path("/proc/self/statm")


class BenchmarkWorker:
    """A worker, and its end of the line."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._go, self._stop = asyncio.Event(), asyncio.Event()
        self._succeeded, self._at_seconds = 0, 0.0
        self._told, self._told_at_seconds = -1, 0.0

    async def run(self) -> None:
        """Wait for orders, then for the word to go; work; stop when told to."""
        heard = lines(self._line)
        orders = msgspec.json.decode(await anext(heard), type=Orders)
        app.database = orders.database
        await (await app.open_store()).close()
        worker = app.worker(queues=(orders.queue,), concurrency=orders.concurrency, grace_seconds=GRACE_SECONDS)
        listening = SYSTEM.spawn.task(self._listen(heard), name="tenure-bench-line")
        await self._tell(worker)
        await self._go.wait()
        if not self._stop.is_set():
            await self._work(worker)
        listening.cancel()

    async def _work(self, worker: Worker) -> None:
        working = SYSTEM.spawn.task(worker.run(), name="tenure-bench-worker")
        while not (self._stop.is_set() or working.done()):
            await self._look(worker)
            await SYSTEM.clock.sleep(LOOK_SECONDS)
        worker.stop()
        await working

    async def _look(self, worker: Worker) -> None:
        """Take note of what has succeeded. It is told once nothing more comes at once: telling takes time as well."""
        now, succeeded = SYSTEM.clock.monotonic_seconds(), worker.counts[SUCCEEDED]
        settled = succeeded == self._succeeded
        if not settled:
            self._succeeded, self._at_seconds = succeeded, now
        if (settled and succeeded != self._told) or now - self._told_at_seconds > TELL_SECONDS:
            self._told, self._told_at_seconds = succeeded, now
            await self._tell(worker)

    async def _tell(self, worker: Worker) -> None:
        standing = Standing(
            pid=os.getpid(),
            running=worker.running,
            succeeded=self._succeeded,
            at_seconds=self._at_seconds,
            rss_bytes=rss_bytes(),
        )
        await asyncio.get_running_loop().sock_sendall(self._line, msgspec.json.encode(standing) + b"\n")

    async def _listen(self, heard: AsyncIterator[bytes]) -> None:
        """Obey each word. The line's end is the word to stop, and so is any word that is not known."""
        async for word in heard:
            if word == GO:
                self._go.set()
            elif word == RELEASE:
                release.set()
            else:
                break
        self._stop.set()
        self._go.set()


def rss_bytes() -> int:
    """The memory that this process has now; where the system does not tell, the most that it ever had."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def main() -> None:
    """Work on the line whose descriptor is the one argument."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with socket.socket(fileno=int(sys.argv[1])) as given, given.dup() as line:
        # The copy is not handed down to what jobs start: the line must end when this process does.
        line.settimeout(0)
        asyncio.run(BenchmarkWorker(line).run())


if __name__ == "__main__":
    main()
