"""Saves the steps of running jobs in batches: all that end at the same time are written by one statement.

A step is saved again until the store replies, also when the database was unavailable: its key lets the first write
win, so that a repetition returns what was recorded. The checkpointer decides nothing.
"""

from __future__ import annotations

import asyncio
from functools import partial

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
    """One step to be saved, and the future of its record."""

    __slots__ = ("charge", "lease", "saved", "step")

    def __init__(self, lease: Lease, step: NewStep, charge: Charge | None = None) -> None:
        self.lease, self.step, self.charge = lease, step, charge
        self.saved: asyncio.Future[StepRecord] = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        if not self.saved.done():
            self.saved.set_exception(error)


class Checkpointer:
    """Saves and reads the steps of this process's leases. One task writes for all callers."""

    def __init__(self, store: StepStore, seams: Seams, availability: DatabaseAvailability | None = None) -> None:
        self._store, self._seams = store, seams
        self._backoff = ReconnectBackoff(seams, availability)
        self._waiting: list[_Submission] = []
        self._unsaved: dict[Lease, set[asyncio.Future[StepRecord]]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    def is_saving(self, lease: Lease) -> bool:
        """Whether steps of this lease are not saved yet. The digest of its steps is complete once they are."""
        return lease in self._unsaved

    async def saved(self, lease: Lease) -> None:
        """Wait until no step of this lease is being saved."""
        while unsaved := self._unsaved.get(lease):
            await asyncio.wait(unsaved)

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
        submission = _Submission(lease, step, charge)
        if self._closed:
            submission.fail(StoreError(f"the worker has stopped; no step of job {lease.job.id} is saved any more"))
        else:
            self._waiting.append(submission)
            self._unsaved.setdefault(lease, set()).add(submission.saved)
            submission.saved.add_done_callback(partial(self._forget, lease))
            if self._writing is None or self._writing.done():
                self._writing = self._seams.spawn.task(self._write_batches(), name="tenure-checkpointer")
        # Shielded: a cancelled caller must not cancel the future that the batch resolves.
        return await asyncio.shield(submission.saved)

    def _forget(self, lease: Lease, saved: asyncio.Future[StepRecord]) -> None:
        unsaved = self._unsaved[lease]
        unsaved.discard(saved)
        if not unsaved:
            del self._unsaved[lease]
        if not saved.cancelled():
            # Retrieved here as well, since a cancelled caller does not.
            saved.exception()

    async def close(self) -> None:
        """Save nothing more. The next attempts run the steps that are not saved."""
        self._closed = True
        if self._writing is not None and not self._writing.done():
            self._writing.cancel()
            await asyncio.wait([self._writing], timeout=2.0)
        unsaved, self._waiting = self._waiting, []
        for submission in unsaved:
            submission.saved.cancel()

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
                if not isinstance(error, Exception):
                    raise
                continue
            locked = [one for one, outcome in zip(batch, outcomes, strict=True) if not _resolve(one, outcome)]
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
            # It exists only if an earlier try was written whose reply was lost: the lease fences off other writers.
            if lease.steps is not None:
                lease.steps = lease.steps.plus(step.digest)
            if not submission.saved.done():
                submission.saved.set_result(step)
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
