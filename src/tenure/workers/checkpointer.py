"""Saves the steps of running jobs in batches: all that end at the same time are written by one statement.

A step is saved again until the store replies, also when the database was unavailable: its key lets the first write
win, so that a repetition returns what was recorded. The checkpointer decides nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from tenure.errors import CheckpointNotSaved, LeaseLost, StoreError, StoreUnavailable
from tenure.jobs.context import current_context
from tenure.lifecycle.continuations import begins_with_steps
from tenure.lifecycle.steps import NewStep, StepRecord, StepsDigest
from tenure.seams import Seams
from tenure.stores.contract import Busy, Charge, Failure, SaveStep, StepExists, StepOutcome, StepSaved, StepStore
from tenure.stores.contract.steps import all_steps
from tenure.workers.leases import Lease
from tenure.workers.reconnect import DatabaseAvailability, ReconnectBackoff

BATCH_MAX = 500
LOCKED_PAUSE_SECONDS = 0.01


class _Submission:
    """One step to be saved, and the future of its record for the caller. The step is saved also if the caller is
    cancelled."""

    __slots__ = ("charge", "lease", "reply", "step")

    def __init__(self, lease: Lease, step: NewStep, charge: Charge | None = None) -> None:
        self.lease, self.step, self.charge = lease, step, charge
        self.reply: asyncio.Future[StepRecord] = asyncio.get_running_loop().create_future()

    def succeed(self, record: StepRecord) -> None:
        if not self.reply.done():
            self.reply.set_result(record)

    def fail(self, error: BaseException) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)


class Checkpointer:
    """Saves and reads the steps of this process's leases. One task writes for all callers."""

    def __init__(self, store: StepStore, seams: Seams, availability: DatabaseAvailability | None = None) -> None:
        self._store, self._seams = store, seams
        self._backoff = ReconnectBackoff(seams, availability)
        self._waiting: list[_Submission] = []
        self._unsaved: Counter[Lease] = Counter()
        """How many steps of each lease are being saved; leases without such steps are left out."""
        self._all_saved: dict[Lease, asyncio.Event] = {}
        """Set once no step of this lease is being saved. Only for leases for which a caller waits."""
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    def is_saving(self, lease: Lease) -> bool:
        """Whether steps of this lease are not saved yet. The digest of its steps is complete once they are."""
        return lease in self._unsaved

    async def saved(self, lease: Lease) -> None:
        """Wait until no step of this lease is being saved."""
        while lease in self._unsaved:
            await self._all_saved.setdefault(lease, asyncio.Event()).wait()

    async def load_at_start(self, lease: Lease) -> list[StepRecord]:
        """The steps recorded before the attempt, which has saved none. Nothing is read if there can be none."""
        if begins_with_steps(lease.job):
            return await self.load(lease)
        lease.steps = StepsDigest()
        return []

    async def load(self, lease: Lease) -> list[StepRecord]:
        """All recorded steps of the job, in the order of their completion."""
        records = await all_steps(self._store, lease.job.id)
        lease.steps = StepsDigest.of(record.digest for record in records)
        return records

    async def save(self, lease: Lease, step: NewStep, charge: Charge | None = None) -> StepRecord:
        """Save the step with the next batch, and charge a budget with it. Its key must not be among those that
        `load` returned.

        LeaseLost: the lease is not the current one. CheckpointNotSaved: the store refused the step.
        """
        if self._closed:
            raise StoreError(f"the worker has stopped; no step of job {lease.job.id} is saved any more")
        submission = _Submission(lease, step, charge)
        self._waiting.append(submission)
        self._unsaved[lease] += 1
        if self._writing is None or self._writing.done():
            self._writing = self._seams.spawn.task(self._write_batches(), name="tenure-checkpointer")
        return await submission.reply

    def _forget(self, submission: _Submission) -> None:
        """The step is saved, or will not be saved."""
        lease = submission.lease
        self._unsaved[lease] -= 1
        if not self._unsaved[lease]:
            del self._unsaved[lease]
            if (all_saved := self._all_saved.pop(lease, None)) is not None:
                all_saved.set()

    async def close(self) -> None:
        """Save nothing more. The next attempts run the steps that are not saved."""
        self._closed = True
        if self._writing is not None and not self._writing.done():
            self._writing.cancel()
            await asyncio.wait([self._writing], timeout=2.0)
        unsaved, self._waiting = self._waiting, []
        for submission in unsaved:
            submission.reply.cancel()
            self._forget(submission)

    async def _write_batches(self) -> None:
        # The task was started by one job, and writes for all.
        current_context.set(None)
        while self._waiting:
            # Steps that end in this iteration of the event loop join the batch.
            await self._seams.clock.sleep(0)
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            try:
                outcomes = await self._save(batch)
            except BaseException as error:
                for submission in batch:
                    submission.fail(error if isinstance(error, Exception) else asyncio.CancelledError())
                    self._forget(submission)
                if not isinstance(error, Exception):
                    raise
                continue
            locked = []
            for submission, outcome in zip(batch, outcomes, strict=True):
                if _resolve(submission, outcome):
                    self._forget(submission)
                else:
                    locked.append(submission)
            if locked:
                await self._seams.clock.sleep(LOCKED_PAUSE_SECONDS)
                self._waiting += locked

    async def _save(self, batch: list[_Submission]) -> list[StepOutcome]:
        requests = [SaveStep(one.lease.job, one.step, one.lease.actor, one.charge) for one in batch]
        while True:
            try:
                outcomes = await self._store.save_steps(requests)
            except StoreUnavailable as error:
                if all(one.lease.lost for one in batch):
                    raise
                await self._seams.clock.sleep(self._backoff.failed(f"save of {len(batch)} steps", error))
            else:
                self._backoff.reset()
                return outcomes


def _resolve(submission: _Submission, outcome: StepOutcome) -> bool:
    """Pass the outcome on. False: the row of the job is locked, and the step must be saved later."""
    lease = submission.lease
    match outcome:
        case StepSaved(step) | StepExists(step):
            # It exists only if an earlier try was written and its reply was lost: the lease excludes other writers.
            if lease.steps is not None:
                lease.steps = lease.steps.plus(step.digest)
            submission.succeed(step)
        case Busy() if not lease.lost:
            return False
        case Busy():
            submission.fail(LeaseLost(lease.job, "save_step"))
        case Failure(LeaseLost() as refusal):
            lease.lose()
            submission.fail(refusal)
        case Failure(error):
            submission.fail(CheckpointNotSaved(submission.step.key, str(error)))
    return True
