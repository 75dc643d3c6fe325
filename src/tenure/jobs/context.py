"""What a job's function is told about its own run, and what it may do with it."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from tenure.errors import CancelRequested, LeaseLost
from tenure.lifecycle.records import Job
from tenure.stores.contract import Artifact

if TYPE_CHECKING:
    from tenure.workers.commit.commit import CommitBlock


class AttemptHandle(Protocol):
    """One attempt as its worker knows it. `job` is the record as last heard of."""

    @property
    def job(self) -> Job: ...

    @property
    def lost(self) -> bool: ...

    @property
    def stopping(self) -> bool: ...

    def report(self, percent: int, message: str | None) -> None: ...

    def attach(self, artifact: Artifact) -> None: ...

    def commit(self, *, result: Any, connection: Any, deadline_seconds: float | None) -> CommitBlock: ...


class Context:
    """The run that a function is part of: a first parameter annotated with this class receives it.

    @app.job()
    async def send(ctx: tenure.Context, to: str) -> str:
        return f"{to}: attempt {ctx.attempt} of job {ctx.id}"

    It is the same for async and for plain functions; nothing in it needs an event loop but `async with ctx.commit()`.
    """

    def __init__(self, run: AttemptHandle) -> None:
        self._run = run
        self._job = run.job

    @cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Writes to the log `tenure.job`, with the job, its attempt and its correlation id in each record."""
        return _JobLogger(self._job)

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

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody has asked for the job's end. Tidy up, then `raise tenure.CancelRequested`."""
        return self._run.job.cancel_requested

    @property
    def lease_lost(self) -> bool:
        """Whether the job is no longer ours: nothing that this run does can be recorded. Stop."""
        return self._run.lost

    @property
    def stopping(self) -> bool:
        """Whether the worker is about to stop. What is not done by the end of its grace time is handed back."""
        return self._run.stopping

    def check(self) -> None:
        """Raise where the run should end: LeaseLost when the job is no longer ours, CancelRequested when asked for.

        for page in pages:
            ctx.check()
            index(page)
        """
        if self._run.lost:
            raise LeaseLost(self._run.job, "go on")
        if self._run.job.cancel_requested:
            raise CancelRequested("the job gives way to a request to cancel")

    def progress(self, percent: int, message: str | None = None) -> None:
        """Say how far the work has come, from 0 to 100. Returns at once; of several in a row the last is written."""
        self._run.report(percent, message)

    def attach(self, name: str, body: bytes | str, *, media_type: str | None = None) -> None:
        """Keep a named artifact. It becomes visible with the job's commit, and is dropped if there is none."""
        text = isinstance(body, str)
        data = body.encode() if isinstance(body, str) else bytes(body)
        kind = media_type or ("text/plain; charset=utf-8" if text else "application/octet-stream")
        self._run.attach(Artifact(name=name, media_type=kind, body=data))

    def commit(self, *, result: Any = None, conn: Any = None, deadline_seconds: float | None = None) -> CommitBlock:
        """The boundary: everything inside takes effect together with the job's commit, at most once, or not at all.

        async with ctx.commit(result=draft.id) as tx:
            await tx.execute("insert into sent(address) values ($1)", to)
            tx.outbox("mail.sent", {"to": to}, aggregate=to)

        Plain functions write `with ctx.commit(...) as tx:` and `tx.execute(...)`. With `conn` the mark goes into the
        caller's own connection or session, which is then committed. The block must be left within `deadline_seconds`,
        and always before the lease ends; otherwise it is rolled back whole.
        """
        return self._run.commit(result=result, connection=conn, deadline_seconds=deadline_seconds)


current_context: ContextVar[Context | None] = ContextVar("tenure_context", default=None)
"""The run that this code is part of, if it is part of one: what it enqueues belongs to the same trace."""


inside_commit: ContextVar[CommitBlock | None] = ContextVar("tenure_inside_commit", default=None)
"""The commit block that this code is inside of, if any: there, the app's own calls would miss the transaction."""


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, job: Job) -> None:
        facts = {
            "job_id": str(job.id),
            "job_kind": job.kind,
            "job_attempt": job.attempt,
            "correlation_id": job.origin.correlation_id,
        }
        super().__init__(logging.getLogger("tenure.job"), facts)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        given = kwargs.get("extra") or {}
        kwargs["extra"] = {**(self.extra or {}), **given}
        return f"[{self.extra['job_kind']} {self.extra['job_id']}] {msg}" if self.extra else msg, kwargs
