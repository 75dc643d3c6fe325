"""What becomes of a request, who may see what of it, and who should be told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from tenure.errors import JobNotFound, Refused, RequestIdReused, TenureError
from tenure.lifecycle.decide import Change, decide_at, same_request
from tenure.lifecycle.records import Actor, Event, Job
from tenure.lifecycle.statuses import LEASED, READY, Status
from tenure.lifecycle.transitions import ClockGuard
from tenure.stores.contract.requests import Request


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The change was written. `renewed` says whether a heartbeat moved the lease's end."""

    change: Change
    at: datetime
    renewed: bool = False

    @property
    def status(self) -> Status:
        """The job's status after the change, for whoever need not know the whole record."""
        return self.change.planned[-1].to_status

    @property
    def job(self) -> Job:
        """The record after the change, as its actor may see it."""
        return without_token(self.change.after(self.at, renewed=self.renewed), self.change.actor)


class Repeated(msgspec.Struct, frozen=True, gc=False):
    """This request was applied before; nothing was written now."""

    job: Job

    @property
    def status(self) -> Status:
        return self.job.status


class Busy(msgspec.Struct, frozen=True, gc=False):
    """Somebody else has the row locked, and a heartbeat does not wait: send the next one."""

    job: Job


class Failure(msgspec.Struct, frozen=True):
    """Nothing was written, and this is why."""

    error: TenureError


Outcome = Applied | Repeated | Busy | Failure


def decide_request(
    current: Job | None, request: Request, *, logged: Sequence[Event], now: datetime
) -> Change | Outcome:
    """The verdict on the current row (with its token): the change to write, or the answer to give instead.

    A request id that the log knows wins over everything else: what was applied is a success for ever.
    """
    if current is None:
        return Failure(JobNotFound(request.job_id))
    if logged:
        seen = without_token(current, request.actor)
        if same_request(request.operations, logged):
            return Repeated(seen)
        return Failure(RequestIdReused(request.request_id, current=seen))
    try:
        return decide_at(
            current,
            request.operations,
            request.actor,
            request_id=request.request_id,
            now=now,
            expected_rev=request.rev,
        )
    except Refused as refusal:
        if refusal.current is not None:
            refusal.current = without_token(refusal.current, request.actor)
        return Failure(refusal)


def redacted(change: Change) -> Change:
    """The change as its actor may see it: the token of somebody else's lease is not part of it."""
    seen = without_token(change.before, change.actor)
    return change if seen is change.before else msgspec.structs.replace(change, before=seen)


def without_token(job: Job, actor: Actor | None = None) -> Job:
    """The record as this actor may see it: the token only if it is their own."""
    token = job.token
    if token is None or (actor is not None and (actor.token is token or actor.token == token)):
        return job
    return msgspec.structs.replace(job, token=None)


def wakeups_of(outcomes: Iterable[Outcome]) -> set[str]:
    """Who should look: the queues in which a change left a job that a claim may take, and the workers whose job was
    changed by somebody else, under the name that `worker_wakeup` gives them."""
    names: set[str] = set()
    for outcome in outcomes:
        if isinstance(outcome, Applied):
            before, change = outcome.change.before, outcome.change
            if change.planned[-1].to_status in READY:
                names.add(before.queue)
            if before.owner is not None and change.guard is not ClockGuard.LIVE_LEASE:
                names.add(worker_wakeup(before.owner))
    return names


def released_queues(outcomes: Iterable[Outcome]) -> set[str]:
    """The queues in which a change has let go of a job that was held."""
    return {
        outcome.change.before.queue
        for outcome in outcomes
        if isinstance(outcome, Applied) and outcome.change.before.leased and outcome.status not in LEASED
    }


def worker_wakeup(worker: str) -> str:
    """The name under which a worker is told that somebody changed a job of its own: a cancel, or a lease revoked."""
    return f"worker:{worker}"
