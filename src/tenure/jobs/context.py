"""The context that a job function receives: its attempt, and what it may do in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, MutableMapping
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID

from tenure.errors import CancelRequested, LeaseLost
from tenure.lifecycle.json_text import BYTES_PER_CHARACTER, clean_text
from tenure.lifecycle.records import Job
from tenure.lifecycle.size_limits import PROGRESS_LENGTH_MAX
from tenure.stores.contract import Artifact

if TYPE_CHECKING:
    from tenure.workers.commit.commit import CommitBlock


P = ParamSpec("P")
R = TypeVar("R")


class StepRunner(Protocol):
    """Executes the steps of an attempt that are not recorded, and records them."""

    async def step(self, key: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...

    def step_sync(self, key: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...


class AttemptHandle(Protocol):
    """An attempt on the side of its worker. `job` is the record that the worker has read last."""

    @property
    def job(self) -> Job: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def lost(self) -> bool: ...

    @property
    def stopping(self) -> bool: ...

    @property
    def database(self) -> str:
        """The `where` of the store that the job is in."""
        ...

    def raised_in_commit(self, error: BaseException) -> bool:
        """Whether a commit block of this attempt raised the error, or what led to it."""
        ...

    @property
    def steps(self) -> StepRunner:
        """Executes and records steps. InvalidInput where the attempt cannot have any."""
        ...

    def report(self, percent: int, message: str | None) -> None: ...

    def attach(self, artifact: Artifact) -> None: ...

    def commit(self, *, result: Any, connection: Any, deadline_seconds: float | None) -> CommitBlock: ...


class Context:
    """The attempt that calls the function. A first parameter annotated with this class receives it.

    @app.job()
    async def send(ctx: tenure.Context, to: str) -> str:
        return f"{to}: attempt {ctx.attempt} of job {ctx.id}"

    It is the same for async and sync functions. Only `async with ctx.commit()` needs an event loop.
    """

    def __init__(self, attempt: AttemptHandle) -> None:
        self._attempt = attempt
        self._job = attempt.job

    @cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger of `tenure.job` whose records have the job's id, kind, attempt and correlation id as fields."""
        return _JobLogger(self._job)

    @property
    def job(self) -> Job:
        """The record of the job at the start of this attempt."""
        return self._job

    @property
    def id(self) -> UUID:
        return self._job.id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._job.attempt

    @property
    def is_async(self) -> bool:
        """Whether the function is async. Middleware asks this."""
        return self._attempt.is_async

    @property
    def cancel_requested(self) -> bool:
        """Whether a cancel was requested. Clean up, then `raise tenure.CancelRequested`."""
        return self._attempt.job.cancel_requested

    @property
    def lease_lost(self) -> bool:
        """Whether this attempt has lost its lease: its outcome cannot be recorded. Stop."""
        return self._attempt.lost

    @property
    def stopping(self) -> bool:
        """Whether the worker is stopping. It releases jobs that are not done by the end of its grace time."""
        return self._attempt.stopping

    def check(self) -> None:
        """Raise LeaseLost if the lease was lost, and CancelRequested if a cancel was requested.

        for page in pages:
            ctx.check()
            index(page)
        """
        if self._attempt.lost:
            raise LeaseLost(self._attempt.job, "continue")
        if self._attempt.job.cancel_requested:
            raise CancelRequested("the job ends because a cancel was requested")

    def progress(self, percent: float, message: str | None = None) -> None:
        """Report progress from 0 to 100 percent. Returns at once; of several reports in a row the last is written.

        for number, page in enumerate(pages):
            ctx.progress(100 * number / len(pages), f"page {number}")

        It never fails the job: a fraction is rounded, a number outside of the range becomes 0 or 100, a message is
        cut to 2000 characters, and what is not a number is logged and dropped.
        """
        rounded = whole_percent(percent)
        if rounded is None:
            self.logger.warning("progress %r is not a number; it is not recorded", percent)
        else:
            self._attempt.report(rounded, short_message(message))

    @overload
    async def step(
        self, key: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def step(self, key: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, key: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, async or plain, and record its result under this key: a later attempt of the job returns the
        recorded result instead of calling it again. A step that raises is not recorded.

        page = await ctx.step("page", fetch, url)
        """
        return await self._attempt.steps.step(key, function, args, kwargs)

    def step_sync(self, key: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same in a plain job: `page = ctx.step_sync("page", fetch, url)`."""
        result: R = self._attempt.steps.step_sync(key, function, args, kwargs)
        return result

    def attach(self, name: str, body: bytes | str, *, media_type: str | None = None) -> None:
        """Attach a named artifact. It is written with the commit or completion of this attempt, or dropped."""
        text = isinstance(body, str)
        data = body.encode() if isinstance(body, str) else bytes(body)
        kind = media_type or ("text/plain; charset=utf-8" if text else "application/octet-stream")
        self._attempt.attach(Artifact(name=name, media_type=kind, body=data))

    def commit(self, *, result: Any = None, conn: Any = None, deadline_seconds: float | None = None) -> CommitBlock:
        """Open a commit block: all writes in it are committed with the job's commit mark, at most once, or rolled back.

        async with ctx.commit(result=draft.id) as tx:
            await tx.execute("insert into sent(address) values ($1)", to)
            tx.outbox("mail.sent", {"to": to}, aggregate=to)

        Sync functions write `with ctx.commit(...) as tx:` and `tx.execute(...)`. With `conn` the commit mark is written
        on the user's own connection or session, which is then committed. A block that is not left within
        `deadline_seconds`, or before the lease ends, is rolled back.
        """
        return self._attempt.commit(result=result, connection=conn, deadline_seconds=deadline_seconds)


def whole_percent(percent: Any) -> int | None:
    """The nearest percent from 0 to 100; None if it is not a number.

    >>> whole_percent(33.3), whole_percent(101), whole_percent(float("nan"))
    (33, 100, None)
    """
    try:
        return round(min(max(float(percent), 0.0), 100.0))
    except (TypeError, ValueError, OverflowError):
        return None


def short_message(message: Any) -> str | None:
    """A progress message that every store can hold; None if it is empty."""
    text = "" if message is None else clean_text(str(message))
    if len(text) > PROGRESS_LENGTH_MAX or not text.isascii():
        # The limit in bytes is two per character.
        cut = text[:PROGRESS_LENGTH_MAX].encode()[: BYTES_PER_CHARACTER * PROGRESS_LENGTH_MAX].decode(errors="ignore")
        text = cut if cut == text else f"{cut[:-2]}…"
    return text or None


current_context: ContextVar[Context | None] = ContextVar("tenure_context", default=None)
"""The context of the attempt that runs this code. Jobs that it enqueues inherit trace and correlation id."""


inside_commit: ContextVar[CommitBlock | None] = ContextVar("tenure_inside_commit", default=None)
"""The commit block that this code is in. Calls of the app are refused there: they would not use its transaction."""


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, job: Job) -> None:
        facts = {
            "job_id": str(job.id),
            "job_kind": job.kind,
            "job_attempt": job.attempt,
            "correlation_id": job.correlation_id,
        }
        super().__init__(logging.getLogger("tenure.job"), facts)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        given = kwargs.get("extra") or {}
        kwargs["extra"] = {**(self.extra or {}), **given}
        return f"[{self.extra['job_kind']} {self.extra['job_id']}] {msg}" if self.extra else msg, kwargs
