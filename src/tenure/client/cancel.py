"""Cancelling jobs: at once, or by a request to the worker that holds the lease."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

from tenure.errors import IllegalTransition, RevisionConflict, StoreError
from tenure.lifecycle.operations import Cancel, Operation, RequestCancel
from tenure.lifecycle.records import Actor, Job
from tenure.seams import Seams
from tenure.stores.contract import Applied, ApplyStore, Busy, Failure, Outcome, ReadStore, Repeated, Request
from tenure.stores.contract.steps import ends_on_a_worker
from tenure.workers.maintenance.cancel_children import cancel_children

ROUNDS_MAX = 10


class CancelStore(ApplyStore, ReadStore, Protocol):
    """The roles of a store that a cancel needs."""


class Canceller:
    """Cancels jobs under the name of one client."""

    def __init__(self, store: CancelStore, *, actor: Actor, seams: Seams) -> None:
        self._store, self._actor, self._seams = store, actor, seams

    async def cancel(self, jobs: Sequence[Job], *, hard: bool, reason: str) -> list[Outcome]:
        """Return the final outcome of each job, in the order of the jobs."""
        outcomes: dict[UUID, Outcome] = {}
        open_, recorded = {job.id: job for job in jobs}, set[UUID]()
        for parent in jobs if hard else ():
            if parent.live and not parent.committed:
                await cancel_children(self._store, parent, reason="its parent was cancelled")
        for _ in range(ROUNDS_MAX):
            to_worker = set() if hard else await self._ending_on_a_worker(open_.values())
            requests = [
                self._cancel_request(job, hard=hard, to_worker=job.id in to_worker, reason=reason)
                for job in open_.values()
            ]
            for job_id, outcome in zip(open_, await self._store.apply(requests), strict=True):
                outcomes[job_id] = _ended_since(outcome) if job_id in recorded else outcome
                if isinstance(outcome, Applied):
                    recorded.add(job_id)
            # Such a run is due now, and any worker claims it.
            left = [one for one in open_ if one not in to_worker or isinstance(outcomes[one], Failure)]
            open_ = {job_id: job for job_id in left if (job := _to_retry(outcomes[job_id])) is not None}
            if not open_:
                break
        for job_id in open_:
            problem = f"job {job_id} was claimed or released {ROUNDS_MAX} times during its cancel; try again"
            outcomes[job_id] = Failure(StoreError(problem))
        return [outcomes[job.id] for job in jobs]

    async def _ending_on_a_worker(self, jobs: Iterable[Job]) -> set[UUID]:
        """The jobs that are not leased, and that a worker must end."""
        return {job.id for job in jobs if not job.leased and await ends_on_a_worker(self._store, job)}

    def _cancel_request(self, job: Job, *, hard: bool, to_worker: bool, reason: str) -> Request:
        operations: tuple[Operation, ...] = (RequestCancel(reason), Cancel(reason))
        if hard:
            operations = (Cancel(reason),)
        elif job.leased or to_worker:
            operations = (RequestCancel(reason),)
        # A soft cancel may end the job only while it is not leased. The others hold for any revision, so that
        # heartbeats of a busy worker cannot keep them out.
        expected_rev = None if hard or job.leased else job.rev
        return Request(
            job=job.id,
            operations=operations,
            actor=self._actor,
            request_id=f"cancel-{self._seams.random.name()}",
            expected_rev=expected_rev,
        )


def _ended_since(outcome: Outcome) -> Outcome:
    """The outcome for a job whose cancel request was recorded before: that it has ended since is no failure."""
    if isinstance(outcome, Failure) and isinstance(outcome.error, IllegalTransition | RevisionConflict):
        current = outcome.error.current
        return Repeated(current) if isinstance(current, Job) and not current.live else outcome
    return outcome


def _to_retry(outcome: Outcome) -> Job | None:
    """Return the job if it must be decided again: it was claimed before it was ended, or released since."""
    if isinstance(outcome, Failure):
        return outcome.error.current if isinstance(outcome.error, RevisionConflict) else None
    assert not isinstance(outcome, Busy), "a client's request waits for a locked row"
    return outcome.job if outcome.job.live and not outcome.job.leased else None
