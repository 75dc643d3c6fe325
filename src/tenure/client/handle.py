"""The handle of an enqueued job: wait for it, read its result and events, cancel it."""

from __future__ import annotations

import asyncio
import logging
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload
from uuid import UUID

import msgspec

from tenure.errors import JobCancelled, JobEnded, JobFailed, JobHalted, JobNotFound
from tenure.jobs.context import current_context
from tenure.jobs.step_codec import decode
from tenure.lifecycle.continuations import continued_as
from tenure.lifecycle.json_text import load
from tenure.lifecycle.provenance import Provenance
from tenure.lifecycle.records import Event, Job
from tenure.lifecycle.statuses import CANCELLED, FAILED, HALTED, SUCCEEDED
from tenure.observe.log_context import job_fields
from tenure.observe.log_format import counted

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.jobs.definition import JobDefinition

R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger("tenure")

WAITS = (
    "job %s (%s) waits for job %s (%s), and holds a slot of its worker meanwhile; a workflow waits without one: "
    "`await run.spawn(…)`"
)

POLL_SECONDS_MIN, POLL_SECONDS_MAX = 0.005, 0.25
"""The interval between two reads of a waiting handle doubles from the minimum to the maximum."""


class Handle(msgspec.Struct, Generic[R], eq=False, gc=False):
    """One job. `created` is False if the dedupe key or request id belongs to a job that existed before."""

    _app: App
    job: Job
    _definition: JobDefinition[..., R] | None
    """None: this app does not declare the kind, and the result is returned as plain JSON values."""
    created: bool

    def __repr__(self) -> str:
        return f"Handle({self.job!r})"

    @property
    def id(self) -> UUID:
        return self.job.id

    async def refresh(self) -> Job:
        """Read the current record."""
        store = await self._app.store()
        job = (await store.read([self.id])).get(self.id)
        if job is None:
            raise JobNotFound(self.id)
        self.job = job
        return job

    async def wait(self, timeout_seconds: float | None = None) -> Job:
        """Wait until the job has ended, and return its record. TimeoutError: the job is still live, and continues."""
        # The app's clock may be manual in a test; the timeout on real time covers a database that does not respond.
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._wait_until_ended(timeout_seconds)
        except TimeoutError:
            raise TimeoutError(still_live(self.job, timeout_seconds)) from None
        return self.job

    async def _wait_until_ended(self, timeout_seconds: float | None) -> None:
        clock = self._app.seams.clock
        ends_at_seconds = inf if timeout_seconds is None else clock.monotonic_seconds() + timeout_seconds
        pause = POLL_SECONDS_MIN
        if (await self.refresh()).live and (context := current_context.get()) is not None:
            log.warning(WAITS, context.id, context.job.kind, self.id, self.job.kind, extra=job_fields(context.job))
        while (await self.refresh()).live:
            left_seconds = ends_at_seconds - clock.monotonic_seconds()
            if left_seconds <= 0:
                raise TimeoutError
            await clock.sleep(min(pause, left_seconds))
            pause = min(2 * pause, POLL_SECONDS_MAX)

    async def result(self, timeout_seconds: float | None = None) -> R:
        """Wait, and return the result of the function. JobEnded: the job has ended without a result.

        Of a run that went on as another one (`run.continue_as`), it is the result of the last run.
        """
        clock = self._app.seams.clock
        began_at_seconds = clock.monotonic_seconds()
        job = await self.wait(timeout_seconds)
        while (successor_id := continued_as(job)) is not None:
            passed_seconds = clock.monotonic_seconds() - began_at_seconds
            left_seconds = None if timeout_seconds is None else max(0.0, timeout_seconds - passed_seconds)
            job = await (await self._app.get(successor_id)).wait(left_seconds)
        if job.status is SUCCEEDED and job.result is not None:
            if self._definition is None:
                value: R = load(job.result)
                return value
            return self._definition.decode_result(job.result, job_id=job.id)
        raise end_error(job)

    async def events(self) -> list[Event]:
        """Read all events of the job, in order."""
        return (await (await self._app.store()).history([self.id]))[self.id]

    async def provenance(self) -> Provenance:
        """Return inputs, attempts, code versions and outcome of the ended job. NotYet: it is live."""
        return await (await self._app.admin()).provenance(self.id)

    @overload
    async def state(self, type: None = None, /) -> Any: ...
    @overload
    async def state(self, type: type[T], /) -> T | None: ...
    async def state(self, type: Any = None, /) -> Any:
        """Read what the run has last set with `run.state(…)`, in this type. None: it has set nothing.

        progress = await (await app.get(run_id)).state(Progress)
        """
        text = await (await self._app.store()).run_state(self.id)
        return None if text is None else decode(text, Any if type is None else type, step="run.state")

    async def signal(self, name: str, value: Any = None, *, request_id: str | None = None) -> Job:
        """Send the job a signal as `App.signal` does."""
        self.job = await self._app.signal(self.id, name, value, request_id=request_id)
        return self.job

    async def cancel(self, *, hard: bool = False, reason: str = "requested") -> Job:
        """Cancel the job as `App.cancel` does."""
        self.job = await self._app.cancel(self.id, hard=hard, reason=reason)
        return self.job

    # The same for code without an event loop.

    def refresh_sync(self) -> Job:
        """Read the current record."""
        return self._app.background.run(self.refresh)

    def wait_sync(self, timeout_seconds: float | None = None) -> Job:
        """Block until the job has ended, and return its record, as `wait` does."""
        return self._app.background.run(lambda: self.wait(timeout_seconds))

    def result_sync(self, timeout_seconds: float | None = None) -> R:
        """Block until the job has ended, and return its result, as `result` does."""
        return self._app.background.run(lambda: self.result(timeout_seconds))

    def cancel_sync(self, *, hard: bool = False, reason: str = "requested") -> Job:
        """Cancel the job as `App.cancel` does."""
        return self._app.background.run(lambda: self.cancel(hard=hard, reason=reason))

    def state_sync(self) -> Any:
        """Read what the run has last set with `run.state(…)`, as `state` does, as JSON values."""
        return self._app.background.run(self.state)

    def signal_sync(self, name: str, value: Any = None, *, request_id: str | None = None) -> Job:
        """Send the job a signal as `App.signal` does."""
        return self._app.background.run(lambda: self.signal(name, value, request_id=request_id))


def end_error(job: Job) -> JobEnded:
    """Return the error of a job that has ended without a result."""
    if job.status is SUCCEEDED:
        return JobEnded(job, "succeeded, but its content was erased")
    if job.status is CANCELLED:
        return JobCancelled(job, f"was cancelled: {job.reason}")
    if job.status is HALTED:
        return JobHalted(job, f"was halted: {job.reason}")
    how = "failed" if job.status is FAILED else f"became a dead letter ({job.reason})"
    return JobFailed(job, how, error=_error_facts(job.error or job.last_error))


def still_live(job: Job, timeout_seconds: float | None) -> str:
    """Where a job is that has not ended in time."""
    text = f"job {job.id} ({job.kind}) has not ended within {timeout_seconds or 0:g} s: it is {job.status}"
    if job.leased:
        return f"{text}, attempt {job.attempt}, on worker {job.owner}; it continues"
    due = "" if job.due_at is None else f", due at {job.due_at.isoformat(timespec='seconds')}"
    failures = f", after {counted(job.failures, 'failure')}" if job.failures else ""
    error = _error_facts(job.last_error)
    last = f" (the last: {error.get('type')}: {error.get('message')})" if failures and error else ""
    return f"{text} in queue {job.queue!r}{due}{failures}{last}; a worker that serves the queue and the kind runs it"


def _error_facts(error: str | None) -> dict[str, str]:
    """The fields of an error that is stored as JSON text."""
    found = None if error is None else load(error)
    return {name: str(value) for name, value in found.items()} if isinstance(found, dict) else {}
