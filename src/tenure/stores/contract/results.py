"""The outcomes of requests, what their actors may see, and the wake-ups that follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import msgspec

from tenure.errors import JobNotFound, Refused, RequestIdReused, TenureError, TooManySignals
from tenure.lifecycle.decide import Change, decide_at, same_request
from tenure.lifecycle.records import Actor, Event, Job
from tenure.lifecycle.statuses import LEASED, READY, Status
from tenure.lifecycle.transitions import ClockGuard
from tenure.stores.contract.requests import Request


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The change was written. `renewed`: a heartbeat extended the lease. `notified`: the write itself has notified the
    other processes that wait for jobs of the queue."""

    change: Change
    at: datetime
    renewed: bool = False
    notified: bool = False

    @property
    def status(self) -> Status:
        """The job's status after the change, without computing the whole record."""
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
    """Another transaction has locked the row, so nothing was written: send the request again later.

    A client's request waits instead (`BaseStore.apply`). SQLite has no locks on rows.
    """

    job: Job
    holder: str | None = None
    """The session that has locked the row, where the database shows it."""


class Failure(msgspec.Struct, frozen=True):
    """Nothing was written, for this reason."""

    error: TenureError


Outcome = Applied | Repeated | Busy | Failure


def decide_request(
    current: Job | None, request: Request, *, logged: Sequence[Event], now: datetime, signals: int = 0
) -> Change | Outcome:
    """The decision on the current record (with its token): the change to write, or the outcome to return.

    `signals` is how many the job was sent, which matters to a request that sends one.
    A request id that the log has takes precedence: a request that was applied stays a success.
    """
    if current is None:
        return Failure(JobNotFound(request.job_id))
    if logged:
        seen = without_token(current, request.actor)
        if same_request(request.operations, logged):
            return Repeated(seen)
        return Failure(RequestIdReused(request.request_id, current=seen))
    try:
        change = decide_at(
            current,
            request.operations,
            request.actor,
            request_id=request.request_id,
            now=now,
            expected_rev=request.rev,
        )
        if request.signal_count and signals + request.signal_count > current.policy.signal_limit:
            raise TooManySignals(current, signals_max=current.policy.signal_limit)
        return change.with_owner_steps(request.steps)
    except Refused as refusal:
        if refusal.current is not None:
            refusal.current = without_token(refusal.current, request.actor)
        return Failure(refusal)


def redacted(change: Change) -> Change:
    """The change as its actor may see it, without the token of another owner's lease."""
    seen = without_token(change.before, change.actor)
    return change if seen is change.before else msgspec.structs.replace(change, before=seen)


def without_token(job: Job, actor: Actor | None = None) -> Job:
    """The record as this actor may see it: with the token only if it is the actor's own."""
    token = job.token
    if token is None or (actor is not None and (actor.token is token or actor.token == token)):
        return job
    return msgspec.structs.replace(job, token=None)


def due_later(outcomes: Iterable[Outcome]) -> Iterator[tuple[str, float]]:
    """The queues in which a change made a job claimable later, such as a retry, and after how many seconds."""
    for outcome in outcomes:
        if isinstance(outcome, Applied) and outcome.status in READY and (due_at := outcome.job.due_at) is not None:
            seconds = (due_at - outcome.at).total_seconds()
            if seconds > 0:
                yield outcome.change.before.queue, seconds


def wakeups_of(outcomes: Iterable[Outcome]) -> set[str]:
    """The names to wake: queues in which a change made a job claimable, and workers whose job another actor changed,
    by their `worker_wakeup`."""
    names: set[str] = set()
    for outcome in outcomes:
        if isinstance(outcome, Applied):
            before, change = outcome.change.before, outcome.change
            if change.planned[-1].to_status in READY:
                names.add(before.queue)
            if before.owner is not None and change.guard is not ClockGuard.LIVE_LEASE:
                names.add(worker_wakeup(before.owner))
    return names


def have_notified(outcomes: Iterable[Outcome]) -> bool:
    """Whether the writes themselves have notified other processes of all that `wakeups_of` names."""
    return all(isinstance(outcome, Applied) and outcome.notified for outcome in outcomes)


def released_queues(outcomes: Iterable[Outcome]) -> set[str]:
    """The queues in which a change ended a lease."""
    return {
        outcome.change.before.queue
        for outcome in outcomes
        if isinstance(outcome, Applied) and outcome.change.before.leased and outcome.status not in LEASED
    }


def worker_wakeup(worker: str) -> str:
    """The name that wakes a worker when another actor changed its job: a cancel request, or a revoked lease."""
    return f"worker:{worker}"
