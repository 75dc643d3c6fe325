"""Runs jobs in child processes that can be killed: the worker's side.

A child is a fresh interpreter that runs one job at a time and is reused. A crash costs the attempt that the child
runs and nothing else. An abandoned job ends with its process and with all that it started.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping
from typing import Any

from tenure.jobs.definition import JobDefinition
from tenure.lifecycle.json_text import encode
from tenure.observe.log_format import current_log_style
from tenure.seams import Seams
from tenure.workers.execution.attempt import RunningAttempt
from tenure.workers.execution.outcomes import Outcome, Raised, Snoozed
from tenure.workers.execution.process import child
from tenure.workers.execution.process.import_path import check_definitions, child_import_path, import_path_of
from tenure.workers.execution.process.protocol import (
    AttemptEnded,
    CallFunction,
    RunJob,
)
from tenure.workers.execution.process.started_child import StartedChild
from tenure.workers.execution.process.watchdog import ProcessGroupWatchdog
from tenure.workers.reconnect import ReconnectBackoff
from tenure.workers.supervisor.process import describe_exit

START_SECONDS_MIN, START_SECONDS_MAX = 1.0, 60.0
"""The backoff between starts of children while they fail."""

log = logging.getLogger("tenure.workers")


class ProcessExecutor:
    """Runs each job in a child process. There are never more children than jobs at a time.

    A child that cannot be started is a problem of this worker: the job is released without a failure.
    """

    def __init__(
        self, definitions: Mapping[str, JobDefinition[..., Any]], seams: Seams, load_job: child.LoadJob
    ) -> None:
        """Raises InvalidInput for definitions that a child could not run."""
        check_definitions(definitions, load_job)
        self._seams, self._load_job = seams, load_job
        self._all: set[StartedChild] = set()
        self._idle: list[StartedChild] = []
        self._starts = ChildStarts(seams)
        self._watchdog = ProcessGroupWatchdog()
        # The interpreter waits for its children when it ends, so an executor that was not closed must kill them.
        weakref.finalize(self, _kill_all, self._all, os.getpid())

    async def invoke(self, attempt: RunningAttempt) -> Outcome:
        """The job's outcome in its process. When this is cancelled, the process is killed."""
        one = await self._acquire(attempt.definition.options.memory_bytes_max)
        if one is None:
            return self._starts.released()
        try:
            ended = await one.run(attempt, self._message(attempt))
        except BaseException:
            await self._end(one)
            raise
        if one.ready:
            self._starts.succeeded()
        if isinstance(ended, AttemptEnded):
            self._idle.append(one)
            attempt.committer.artifacts.extend(ended.artifacts)
            return ended.outcome
        await self._end(one)
        if isinstance(ended, Raised):
            return ended
        if one.ready:
            return _died(one, "job")
        self._starts.failed(f"it {describe_exit(one.exit_code)} before it was ready")
        return self._starts.released()

    async def call(self, module: str, name: str, text: str, *, job_path: tuple[str, str] | None) -> str:
        """Await an async function of the program in a child process, with this text; the text that it returns.

        When this is cancelled, the process is killed. ProcessEnded: it has died. ProcessNotStarted: there was none.
        """
        one = await self._acquire(None)
        if one is None:
            raise ProcessNotStarted(self._starts.wait_seconds)
        level, style = logging.getLogger().getEffectiveLevel(), current_log_style()
        message = CallFunction(module=module, name=name, text=text, job_path=job_path, log_level=level, log_style=style)
        try:
            ended = await one.call(message)
        except BaseException:
            await self._end(one)
            raise
        if one.ready:
            self._starts.succeeded()
        if ended is not None:
            self._idle.append(one)
            if ended.text is None:
                raise ProcessEnded(ended.error or "{}")
            return ended.text
        await self._end(one)
        if one.ready:
            raise ProcessEnded(_died(one, "step").error)
        self._starts.failed(f"it {describe_exit(one.exit_code)} before it was ready")
        raise ProcessNotStarted(self._starts.wait_seconds)

    async def close(self) -> None:
        for one in self._all:
            one.kill()
        for one in list(self._all):
            await self._end(one)
        self._watchdog.close()

    def _message(self, attempt: RunningAttempt) -> RunJob:
        module, name = child_import_path(attempt.definition)
        lease = attempt.lease
        return RunJob(
            module=module,
            name=name,
            database=self._load_job(*import_path_of(attempt.definition)).app.database,
            job=lease.job,
            worker=lease.actor.name,
            where=attempt.database,
            local_deadline_seconds=lease.local_deadline_seconds,
            log_level=logging.getLogger().getEffectiveLevel(),
            log_style=current_log_style(),
        )

    async def _acquire(self, memory_bytes_max: int | None) -> StartedChild | None:
        """An idle child with enough memory left, or a new one; None if none can be started now."""
        for one in reversed(self._idle):
            if one.alive and one.has_room(memory_bytes_max):
                self._idle.remove(one)
                return one
        if self._idle:
            # Dead, or too large: the memory that earlier jobs left allocated must not count against this one.
            await self._end(self._idle.pop())
        if self._starts.wait_seconds > 0:
            return None
        try:
            self._watchdog.ensure_started()
            one = StartedChild(self._seams, self._load_job)
        except OSError as error:
            self._starts.failed(str(error))
            return None
        self._all.add(one)
        self._watchdog.add(one.pid)
        return one

    async def _end(self, one: StartedChild) -> None:
        one.kill()
        await one.reap()
        self._watchdog.discard(one.pid)
        self._all.discard(one)
        if one in self._idle:
            self._idle.remove(one)


class ProcessEnded(Exception):
    """The process of a call has ended without a reply, or could not make the call. The error is JSON text."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


class ProcessNotStarted(Exception):
    """No child process could be started now."""

    def __init__(self, wait_seconds: float) -> None:
        super().__init__(f"no child process could be started; the next try is in {wait_seconds:.1f} s")
        self.wait_seconds = wait_seconds


class ChildStarts:
    """The backoff of a worker that cannot start children: no memory, no process, or a program that fails at import."""

    def __init__(self, seams: Seams) -> None:
        self._clock = seams.clock
        self._backoff = ReconnectBackoff(seams, seconds_min=START_SECONDS_MIN, seconds_max=START_SECONDS_MAX)
        self._next_at_seconds = float("-inf")

    @property
    def wait_seconds(self) -> float:
        """How long no child is to be started; 0 if one may be started now."""
        return max(0.0, self._next_at_seconds - self._clock.monotonic_seconds())

    def failed(self, reason: str) -> None:
        if self.wait_seconds > 0:
            # Another start, made at the same time, has failed before.
            return
        seconds = self._backoff.next_seconds()
        self._next_at_seconds = self._clock.monotonic_seconds() + seconds
        log.error("child process not started: %s; its jobs are released, retrying in %.1f s", reason, seconds)

    def succeeded(self) -> None:
        self._backoff.reset()

    def released(self) -> Snoozed:
        """The outcome of a job whose child was not started: it has not failed."""
        return Snoozed(self.wait_seconds, "process_start_failed")


def _died(one: StartedChild, what: str) -> Raised:
    message = f"the process of the {what} {describe_exit(one.exit_code)}"
    return Raised(encode({"type": "ProcessDied", "message": message}))


def _kill_all(children: set[StartedChild], owner: int) -> None:
    if os.getpid() == owner:
        for one in list(children):
            one.kill()
