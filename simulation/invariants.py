"""Checks every event as it is written, and raises InvariantViolated at the first violation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Event, EventType, Job, Role
from tenure.lifecycle.statuses import LEASED, WAITING, Status, rank
from tenure.lifecycle.transitions import legal_events
from tenure.stores.contract import ReadStore

LEGAL = legal_events()
OWNERS = frozenset({EventType.HEARTBEAT, EventType.PROGRESS, EventType.COMMITTED, EventType.RETRY_SCHEDULED})
"""Events that only the holder of a running lease can cause."""
WAKE_UPS = frozenset({EventType.SIGNALLED, EventType.WOKEN})


class InvariantViolated(Exception):
    """An invariant does not hold. The message names it and its place in the log."""


class JobInvariants:
    """The state of one job, folded from its events."""

    __slots__ = ("at", "commits", "lease_until", "owner", "rev", "seen_rev", "signal_rev", "status", "step")

    def __init__(self) -> None:
        self.rev = 0
        self.status: Status | None = None
        self.step = (0, 0, 0)
        self.at: datetime | None = None
        self.commits = 0
        self.lease_until: datetime | None = None
        self.owner: str | None = None
        self.signal_rev = 0
        self.seen_rev = 0

    def check_event(self, event: Event) -> None:
        """Apply the next event, or raise InvariantViolated."""
        _require(event.rev == self.rev + 1, event, f"revision {event.rev} follows {self.rev}")
        _require(event.from_status == self.status, event, f"it starts from {event.from_status}, not {self.status}")
        _require((event.type, event.from_status, event.to_status) in LEGAL, event, "the table has no such transition")
        _require(self.at is None or event.at >= self.at, event, "time goes back")
        _require(event.type is not EventType.CLAIMED or self.status not in LEASED, event, "it is claimed while leased")
        self._see_lease(event)
        self._see_step(event)
        self.commits += event.commits
        _require(self.commits <= 1, event, "it is committed twice")
        self.rev, self.status, self.at = event.rev, event.to_status, event.at
        if event.type in WAKE_UPS:
            self.signal_rev = event.rev
        elif event.type is EventType.SUSPENDED:
            self.seen_rev = load(event.detail or "{}")["seen_rev"]

    def _see_lease(self, event: Event) -> None:
        if event.type is EventType.CLAIMED:
            self.owner = event.owner
        if event.actor.startswith(f"{Role.RUNNER}:") and event.type is not EventType.WOKEN:
            _require(event.owner == self.owner, event, f"{self.owner} holds the lease")
        if event.type in OWNERS or (event.type is EventType.SUCCEEDED and event.cause != "reconciled"):
            ends = self.lease_until
            _require(ends is not None and event.at < ends, event, f"its lease ended at {ends}")
        if event.type is EventType.CLAIMED or (event.type is EventType.HEARTBEAT and event.until_at is not None):
            self.lease_until = event.until_at
        elif event.to_status not in LEASED:
            self.lease_until = None

    def _see_step(self, event: Event) -> None:
        requeued = event.type is EventType.REQUEUED or (self.step[2] == 1 and event.type is not EventType.CLAIMED)
        step = (event.attempt, rank(event.to_status, requeued=requeued))
        _require(step >= self.step[:2], event, f"(attempt, rank) falls from {self.step[:2]} to {step}")
        _require(
            event.attempt == self.step[0] + (event.type is EventType.CLAIMED), event, "an attempt is counted wrongly"
        )
        self.step = (*step, int(requeued))

    def check_wait(self, job: Job) -> None:
        """No job waits without a due time while a signal or wake is newer than what it has seen."""
        unseen = job.status is WAITING and self.signal_rev > self.seen_rev
        if unseen and job.rev == self.rev and (job.due_at is None or job.due_at > job.updated_at):
            raise InvariantViolated(
                f"job {job.id} waits until {job.due_at}: it has seen revision {self.seen_rev}, and revision "
                f"{self.signal_rev} woke it"
            )


class LogInvariants:
    """All jobs of a log."""

    def __init__(self) -> None:
        self.by_job: dict[UUID, JobInvariants] = {}

    def check_event(self, event: Event) -> None:
        self.by_job.setdefault(event.job_id, JobInvariants()).check_event(event)

    async def check_waits(self, store: ReadStore, events: Sequence[Event]) -> None:
        """Called after all events were checked: while the rows are read, others may be written."""
        waiting = dict.fromkeys(event.job_id for event in events if event.to_status is WAITING)
        for job in (await store.read(list(waiting))).values() if waiting else ():
            self.by_job[job.id].check_wait(job)


def _require(holds: bool, event: Event, problem: str) -> None:
    if not holds:
        raise InvariantViolated(
            f"job {event.job_id}, revision {event.rev} ({event.type} by {event.actor} at {event.at}): {problem}"
        )
