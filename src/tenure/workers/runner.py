"""Runs one job from `running` to its end: call, outcome, settle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from tenure.errors import LeaseLost, TenureError
from tenure.kinds import Isolation as Place
from tenure.kinds import Kind
from tenure.lifecycle.content import load
from tenure.lifecycle.operations import Complete, Operation
from tenure.lifecycle.records import Job
from tenure.seams import Seams
from tenure.workers.held import Held, Interruption
from tenure.workers.isolation import Isolation
from tenure.workers.outcomes import Lost, Outcome, Raised, Returned, Stopped, described, settlement
from tenure.workers.runs import HeldRun
from tenure.workers.settling import Settler

TIDY_SECONDS = 5.0
"""How long a function that was told to stop is waited for."""

RESCUES_MAX = 2
"""How many jobs that were lost before are run in processes at once, where their kinds do not ask for processes."""

log = logging.getLogger("tenure.workers")


class Runner:
    """Owns jobs from the moment they run to their end."""

    def __init__(
        self,
        *,
        kinds: Mapping[str, Kind[..., Any]],
        isolations: Mapping[Place, Isolation],
        new_run: Callable[[Held, Kind[..., Any]], HeldRun],
        settler: Settler,
        seams: Seams,
    ) -> None:
        self._kinds, self._isolations, self._new_run = kinds, isolations, new_run
        self._settler, self._seams = settler, seams
        self._rescues = asyncio.Semaphore(RESCUES_MAX)

    async def run(self, held: Held) -> Job | None:
        """The record as it was left, or None where it was no longer ours to write."""
        run = self._new_run(held, self._kinds[held.job.kind])
        outcome = await self._outcome(run)
        await run.reported()
        held.closing = True
        return await self._settle(run, outcome)

    async def _outcome(self, run: HeldRun) -> Outcome:
        """What the function came to, or what it was interrupted for, if that comes first."""
        interrupted: asyncio.Future[Interruption] = asyncio.get_running_loop().create_future()
        run.held.when_interrupted(_passed_on(interrupted))
        work = self._seams.spawn.task(self._work(run), name=f"tenure-job-{run.job.id}")
        either: set[asyncio.Future[Any]] = {work, interrupted}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=TIDY_SECONDS)
            if not work.done():
                log.warning("job %s was told to stop and goes on; nothing it does is recorded", run.job.id)
        if interrupted.done():
            return _after_interruption(interrupted.result(), work)
        interrupted.cancel()
        return _ended(work)

    async def _work(self, run: HeldRun) -> Outcome:
        """A job that was lost before, and may have taken its process down, runs where it can take down nothing but
        itself; few at a time, since each of these is an interpreter of its own."""
        place = run.kind.isolation
        suspect = run.job.losses > 0 and place != "process"
        if suspect and "process" in self._isolations and run.kind.home is not None:
            async with self._rescues:
                return await self._isolations["process"].outcome(run)
        return await self._isolations[place].outcome(run)

    async def _settle(self, run: HeldRun, outcome: Outcome) -> Job | None:
        if run.held.lost or isinstance(outcome, Lost):
            log.warning(
                "job %s: its lease is lost, so that nothing of attempt %s is recorded", run.job.id, run.job.attempt
            )
            return None

        def decided(job: Job) -> Operation:
            operation = settlement(job, outcome)
            assert operation is not None, "a lost lease is handled above"
            return operation

        operation = decided(run.job)
        try:
            if run.committer.artifacts and isinstance(operation, Complete) and not run.job.committed:
                return await run.committer.complete(operation.result)
            job = await self._settler.settle(run.held, operation.verb, decided)
        except LeaseLost as refusal:
            log.warning("lease lost: the outcome of job %s was refused: %s", run.job.id, refusal)
            return None
        except TenureError as refusal:
            log.error("the outcome of job %s could not be recorded: %s", run.job.id, refusal)
            return None
        _say(job, outcome)
        return job


def _passed_on(interrupted: asyncio.Future[Interruption]) -> Callable[[Interruption], None]:
    loop = interrupted.get_loop()

    def tell(why: Interruption) -> None:
        if why is not Interruption.CANCEL_REQUESTED:
            try:
                loop.call_soon_threadsafe(_resolve, interrupted, why)
            except RuntimeError:
                # The worker's loop is closed: there is nothing left to stop.
                return

    return tell


def _resolve(interrupted: asyncio.Future[Interruption], why: Interruption) -> None:
    if not interrupted.done():
        interrupted.set_result(why)


def _after_interruption(why: Interruption, work: asyncio.Task[Outcome]) -> Outcome:
    if why is Interruption.LOST:
        return Lost()
    if work.done() and not work.cancelled() and work.exception() is None:
        # It came to an end after all, in the time that it was given to tidy up.
        return work.result()
    return Stopped()


def _ended(work: asyncio.Task[Outcome]) -> Outcome:
    """An outcome is a value; an exception here is a cancellation that nobody asked for, or a bug of ours."""
    if work.cancelled():
        return Raised(described(asyncio.CancelledError("the job's function was cancelled from within")))
    error = work.exception()
    if error is None:
        return work.result()
    log.error("a job could not be run", exc_info=error)
    return Raised(described(error))


def _say(job: Job, outcome: Outcome) -> None:
    """No failure is silent: each has its line, with what was raised. The traceback is kept with the job."""
    if isinstance(outcome, Raised):
        error = load(outcome.error)
        says = f"{error.get('type')}: {error.get('message')}"
        log.warning("job %s (%s) at attempt %s: %s; it is %s now", job.id, job.kind, job.attempt, says, job.status)
    elif isinstance(outcome, Returned) and job.result is not None and job.result != outcome.result:
        log.error("job %s (%s) committed one result and returned another; the committed one stands", job.id, job.kind)
