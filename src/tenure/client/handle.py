"""A job as its caller holds it: to wait for it, to read what became of it, to cancel it."""

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

LOOK_SECONDS_LEAST, LOOK_SECONDS_MOST = 0.005, 0.25
"""How often a waiting caller looks: soon at first, then more and more seldom."""


class Handle(msgspec.Struct, Generic[R], eq=False, gc=False):
    """One job. `created` is False where its dedupe key or request id led to a job that was there before."""

    _app: App
    job: Job
    _kind: JobDefinition[..., R]
    created: bool

    def __repr__(self) -> str:
        return f"Handle({self.job!r})"

    @property
    def id(self) -> UUID:
        return self.job.id

    async def refresh(self) -> Job:
        """The record as it stands now."""
        store = await self._app.store()
        job = (await store.read([self.id])).get(self.id)
        if job is None:
            raise JobNotFound(self.id)
        self.job = job
        return job

    async def wait(self, timeout_seconds: float | None = None) -> Job:
        """The record once the job has ended; TimeoutError when that takes longer, and the job goes on."""
        clock = self._app.seams.clock
        ends_at_seconds = inf if timeout_seconds is None else clock.monotonic_seconds() + timeout_seconds
        # The app's clock may be one that a test moves; a database that does not answer takes the world's time.
        async with asyncio.timeout(timeout_seconds):
            pause = LOOK_SECONDS_LEAST
            while (await self.refresh()).live:
                left_seconds = ends_at_seconds - clock.monotonic_seconds()
                if left_seconds <= 0:
                    raise TimeoutError
                await clock.sleep(min(pause, left_seconds))
                pause = min(2 * pause, LOOK_SECONDS_MOST)
        return self.job

    async def result(self, timeout_seconds: float | None = None) -> R:
        """What the function returned; an error that says why there is nothing where the job did not succeed."""
        job = await self.wait(timeout_seconds)
        if job.status is SUCCEEDED and job.result is not None:
            return self._kind.decoded_result(job.result)
        raise ended(job)

    async def events(self) -> list[Event]:
        """Everything that happened to it, in order."""
        return (await (await self._app.store()).history([self.id]))[self.id]

    async def provenance(self) -> Provenance:
        """How it came to its end: inputs, attempts, code versions, outcome; NotYet while it lives."""
        return await (await self._app.operator()).provenance(self.id)

    async def cancel(self, *, hard: bool = False, reason: str = "requested") -> Job:
        """Ask for its end, or with `hard` end it now."""
        self.job = await self._app.cancel(self.id, hard=hard, reason=reason)
        return self.job


def ended(job: Job) -> JobEnded:
    """Why a job that has ended has no result."""
    if job.status is SUCCEEDED:
        return JobEnded(job, "succeeded, but its content was erased")
    if job.status is CANCELLED:
        return JobCancelled(job, f"was cancelled: {job.reason}")
    if job.status is HALTED:
        return JobHalted(job, f"was halted: {job.reason}")
    return JobFailed(job, f"is {job.status}: {job.error or job.last_error or job.reason}")
