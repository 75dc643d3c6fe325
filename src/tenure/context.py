"""What a job's function is told about its own run."""

from __future__ import annotations

from uuid import UUID

from tenure.lifecycle.records import Job


class Context:
    """The run that a function is part of: a first parameter annotated with this class receives it.

    @app.job()
    async def send(ctx: tenure.Context, to: str) -> str:
        return f"{to}: attempt {ctx.attempt} of job {ctx.id}"
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def job(self) -> Job:
        """The job's record as it was when this attempt began."""
        return self._job

    @property
    def id(self) -> UUID:
        return self._job.id

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1 on."""
        return self._job.attempt
