"""Runs one job from `running` to its end: call, outcome, settle.

A job that never waits does not even cost a task. Everything around the call is callbacks: an interruption, the answer
of the store; whichever ends the attempt first, its outcome is recorded once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from tenure.errors import LeaseLost, TenureError
from tenure.jobs.definition import Isolation, JobDefinition
from tenure.lifecycle.json_text import load
from tenure.lifecycle.operations import Operation
from tenure.lifecycle.records import Job
from tenure.observe.log_context import job_fields
from tenure.stores.contract import Applied, Repeated
from tenure.workers.execution.attempt import AttemptRun, Site
from tenure.workers.execution.executors import Executor
from tenure.workers.execution.outcomes import Lost, Outcome, Raised, Returned, Stopped, described, settlement
from tenure.workers.execution.task_sharing import SharedTasks
from tenure.workers.leases import Interruption, Lease

TIDY_SECONDS = 5.0
"""How long a function that was told to stop is waited for."""

RESCUES_MAX = 2
"""How many jobs that were lost before are run in processes at once, where their kinds do not ask for processes."""

log = logging.getLogger("tenure.workers")

Ended = Callable[[Lease, Applied | Repeated | None], None]
"""Told once, when an attempt is over: what was written, or None where it was no longer ours to write."""


class Runner:
    """Owns jobs from the moment they run to their end."""

    def __init__(
        self, *, kinds: Mapping[str, JobDefinition[..., Any]], isolations: Mapping[Isolation, Executor], site: Site
    ) -> None:
        self._kinds, self._isolations, self._site = kinds, isolations, site
        self._rescues = asyncio.Semaphore(RESCUES_MAX)
        self._turns = SharedTasks(site.seams.spawn)

    def begin(self, held: Lease, ended: Ended) -> None:
        """Start the attempt. It needs nothing more from whoever began it, and tells them when it is over."""
        run = AttemptRun(held, self._kinds[held.job.origin.kind], self._site)
        attempt = _Attempt(run, self._site, self._isolation(run), ended)
        held.when_interrupted(attempt.told)
        self._turns.add(attempt)

    def _isolation(self, run: AttemptRun) -> Executor:
        """A job that was lost before, and may have taken its process down, runs where it can take down nothing but
        itself; few at a time, since each of these is an interpreter of its own."""
        place = run.kind.isolation
        suspect = run.held.job.losses > 0 and place != "process"
        if suspect and "process" in self._isolations and run.kind.import_path is not None:
            return _Rationed(self._isolations["process"], self._rescues)
        return self._isolations[place]


class _Rationed:
    def __init__(self, inner: Executor, ration: asyncio.Semaphore) -> None:
        self._inner, self._ration = inner, ration

    async def outcome(self, run: AttemptRun) -> Outcome:
        async with self._ration:
            return await self._inner.outcome(run)

    async def close(self) -> None:
        return None


class _Attempt:
    """One job under way, until its outcome is written or refused."""

    __slots__ = (
        "_ended", "_isolation", "_outcome", "_patience", "_run", "_site", "_slow", "_task", "_why", "held",
        "request_id",
    )  # fmt: skip

    request_id: str

    def __init__(self, run: AttemptRun, site: Site, isolation: Executor, ended: Ended) -> None:
        self.held = run.held
        self._run, self._site, self._isolation, self._ended = run, site, isolation, ended
        self._task: asyncio.Task[None] | None = None
        self._outcome: Outcome | None = None
        self._why: Interruption | None = None
        self._patience: asyncio.TimerHandle | None = None

    async def live(self, task: asyncio.Task[None]) -> None:
        """Whatever the function does, its attempt has an outcome; unless it was given up on before."""
        self._task = task
        outcome: Outcome
        try:
            outcome = Stopped() if self._why is not None else await self._isolation.outcome(self._run)
        except asyncio.CancelledError as cancelled:
            outcome = Stopped() if self._why is not None else _cancelled_within(cancelled)
        except Exception as error:
            # A bug of ours, which must not leave the job without an end.
            log.exception("a job could not be run", exc_info=error)
            outcome = Raised(described(error))
        self._task = None
        if self._patience is not None:
            self._patience.cancel()
        if self._outcome is None:
            self._settle(Lost() if self._why is Interruption.LOST else outcome)

    # What may end it.

    def told(self, why: Interruption) -> None:
        """From any thread. A request to cancel is left to the function, which may answer it in its own time."""
        if why is not Interruption.CANCEL_REQUESTED:
            try:
                self._site.loop.call_soon_threadsafe(self._interrupt, why)
            except RuntimeError:
                # The worker's loop is closed: there is nothing left to stop.
                return

    def _interrupt(self, why: Interruption) -> None:
        if self._why is not None or self._outcome is not None:
            return
        self._why = why
        # One that has not begun will see it when it does.
        if self._task is not None:
            self._task.cancel()
            self._patience = self._site.loop.call_later(TIDY_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self._outcome is None:
            job = self._run.job
            log.warning(
                "job %s was told to stop and goes on; nothing it does is recorded", job.id, extra=job_fields(job)
            )
            self._settle(Lost() if self._why is Interruption.LOST else Stopped())

    # What is recorded.

    def _settle(self, outcome: Outcome) -> None:
        self._outcome = outcome
        run = self._run
        if run.undisturbed:
            self._record(outcome)
        else:
            # Kept, since an event loop holds its tasks only weakly; and we are kept by the job that is held.
            self._slow = self._site.seams.spawn.task(self._settle_slowly(outcome), name=run.kind.name)

    async def _settle_slowly(self, outcome: Outcome) -> None:
        """What was reported is written first; and artifacts go along with the job's end, in one transaction."""
        run = self._run
        try:
            await run.reported()
            if not (isinstance(outcome, Returned) and run.artifacts) or run.job.committed or run.held.lost:
                self._record(outcome)
                return
            run.held.closing = True
            job = await run.committer.complete(outcome.result)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whoever waits for the job must hear of it
            self._refused(error)
        else:
            self._written(Repeated(job))

    def _record(self, outcome: Outcome) -> None:
        held = self.held
        held.closing = True
        if held.lost or isinstance(outcome, Lost):
            job = held.job
            log.warning(
                "job %s: its lease is lost, so that nothing of attempt %s is recorded",
                job.id,
                job.attempt,
                extra=job_fields(job),
            )
            self._ended(held, None)
        else:
            self.request_id = held.request_id("end")
            self._site.settler.submit(self)

    # What the settler asks.

    def decide(self, job: Job) -> Operation:
        assert self._outcome is not None, "an attempt is settled once its outcome is known"
        operation = settlement(job, self._outcome)
        assert operation is not None, "a lost lease is handled before"
        return operation

    def answered(self, answer: Applied | Repeated | BaseException) -> None:
        if isinstance(answer, BaseException):
            self._refused(answer)
        else:
            self._written(answer)

    def _written(self, written: Applied | Repeated) -> None:
        assert self._outcome is not None, "what is written has an outcome"
        if not isinstance(self._outcome, Returned) or self.held.job.committed:
            _say(self.held.job, written, self._outcome)
        self._ended(self.held, written)

    def _refused(self, error: BaseException) -> None:
        job = self._run.job
        if isinstance(error, LeaseLost):
            log.warning("lease lost: the outcome of job %s was refused: %s", job.id, error, extra=job_fields(job))
        elif isinstance(error, TenureError):
            log.error("the outcome of job %s could not be recorded: %s", job.id, error, extra=job_fields(job))
        elif isinstance(error, Exception):
            said = "job %s could not be seen to its end; recovery will take it"
            log.error(said, job.id, exc_info=error, extra=job_fields(job))
        self._ended(self.held, None)


def _cancelled_within(cancelled: asyncio.CancelledError) -> Raised:
    said = str(cancelled) or "the job's function was cancelled from within"
    return Raised(described(asyncio.CancelledError(said)))


def _say(job: Job, written: Applied | Repeated, outcome: Outcome) -> None:
    """No failure is silent: each has its line, with what was raised. The traceback is kept with the job."""
    if isinstance(outcome, Raised):
        error = load(outcome.error)
        says = f"{error.get('type')}: {error.get('message')}"
        said = "job %s (%s) at attempt %s: %s; it is %s now"
        log.warning(said, job.id, job.kind, job.attempt, says, written.status, extra=job_fields(job))
    elif isinstance(outcome, Returned) and job.committed and job.committed_result != outcome.result:
        said = "job %s (%s) committed one result and returned another; the committed one stands"
        log.error(said, job.id, job.kind, extra=job_fields(job))
