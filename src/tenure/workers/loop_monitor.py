"""Watches the worker's event loop from a thread, and logs which job blocks it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable

from tenure.lifecycle.records import Job
from tenure.observe.log_context import job_fields
from tenure.seams import Seams

TICK_SECONDS = 0.25
BLOCKED_SECONDS = 1.0
"""A loop that runs nothing else for longer than this is reported, once per blockage."""

log = logging.getLogger("tenure.workers")

JobOfTask = Callable[["asyncio.Task[object] | None"], Job | None]
"""The job whose function runs in this task. Called from the monitor's thread."""


class LoopMonitor:
    """Reports blockages of the event loop that it was started on, while they last. It interrupts nothing."""

    def __init__(self, seams: Seams, job_of: JobOfTask) -> None:
        self._seams, self._job_of = seams, job_of
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_at_seconds = 0.0

    def start(self) -> None:
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._tick()
        self._seams.spawn.thread(self._watch, name="tenure-loop-monitor")

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._ticked_at_seconds = self._seams.clock.monotonic_seconds()
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    def _watch(self) -> None:
        reported_at_seconds = 0.0
        while not self._stopped.wait(TICK_SECONDS):
            ticked_at_seconds = self._ticked_at_seconds
            seconds = self._seams.clock.monotonic_seconds() - ticked_at_seconds
            if seconds > BLOCKED_SECONDS and reported_at_seconds != ticked_at_seconds:
                reported_at_seconds = ticked_at_seconds
                self._report(seconds)

    def _report(self, seconds: float) -> None:
        job = self._job_of(asyncio.current_task(self._loop))
        remedy = "await in it, or declare a plain function, which runs on a thread"
        if job is None:
            log.warning("the event loop has been blocked for %.1f s%s", seconds, self._place())
            return
        template = "job %s (%s) has blocked the event loop for %.1f s, and no other job runs meanwhile; %s%s"
        log.warning(template, job.id, job.kind, seconds, remedy, self._place(), extra=job_fields(job))

    def _place(self) -> str:
        """The line that the loop's thread executes."""
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - the only way to another thread's stack
        if frame is None:
            return ""
        last = traceback.extract_stack(frame, limit=1)[-1]
        return f" (at {last.filename}:{last.lineno} in {last.name})"
