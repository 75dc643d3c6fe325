"""The handle of an enqueued job: wait for it, read its result and events, cancel it."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar
from uuid import UUID

import msgspec

from tenure.errors import JobCancelled, JobEnded, JobFailed, JobHalted, JobNotFound
from tenure.lifecycle.provenance import Provenance
from tenure.lifecycle.records import Event, Job
from tenure.lifecycle.statuses import CANCELLED, HALTED, SUCCEEDED

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.jobs.definition import JobDefinition

R = TypeVar("R")

POLL_SECONDS_MIN, POLL_SECONDS_MAX = 0.005, 0.25
"""The interval between two reads of a waiting handle doubles from the minimum to the maximum."""


class Handle(msgspec.Struct, Generic[R], eq=False, gc=False):
    """One job. `created` is False if the dedupe key or request id belongs to a job that existed before."""

    _app: App
    job: Job
    _definition: JobDefinition[..., R]
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
        clock = self._app.seams.clock
        ends_at_seconds = inf if timeout_seconds is None else clock.monotonic_seconds() + timeout_seconds
        # The app's clock may be manual in a test; the timeout on real time covers a database that does not respond.
        async with asyncio.timeout(timeout_seconds):
            pause = POLL_SECONDS_MIN
            while (await self.refresh()).live:
                left_seconds = ends_at_seconds - clock.monotonic_seconds()
                if left_seconds <= 0:
                    raise TimeoutError
                await clock.sleep(min(pause, left_seconds))
                pause = min(2 * pause, POLL_SECONDS_MAX)
        return self.job

    async def result(self, timeout_seconds: float | None = None) -> R:
        """Wait, and return the result of the function. JobEnded: the job has ended without a result."""
        job = await self.wait(timeout_seconds)
        if job.status is SUCCEEDED and job.result is not None:
            return self._definition.decode_result(job.result)
        raise end_error(job)

    async def events(self) -> list[Event]:
        """Read all events of the job, in order."""
        return (await (await self._app.store()).history([self.id]))[self.id]

    async def provenance(self) -> Provenance:
        """Return inputs, attempts, code versions and outcome of the ended job. NotYet: it is live."""
        return await (await self._app.admin()).provenance(self.id)

    async def cancel(self, *, hard: bool = False, reason: str = "requested") -> Job:
        """Cancel the job as `App.cancel` does."""
        self.job = await self._app.cancel(self.id, hard=hard, reason=reason)
        return self.job


def end_error(job: Job) -> JobEnded:
    """Return the error of a job that has ended without a result."""
    if job.status is SUCCEEDED:
        return JobEnded(job, "succeeded, but its content was erased")
    if job.status is CANCELLED:
        return JobCancelled(job, f"was cancelled: {job.reason}")
    if job.status is HALTED:
        return JobHalted(job, f"was halted: {job.reason}")
    return JobFailed(job, f"is {job.status}: {job.error or job.last_error or job.reason}")
