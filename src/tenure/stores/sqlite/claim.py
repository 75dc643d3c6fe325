"""Claiming: choose the due jobs in claim order, lease them, record the claim.

Each lane is read along its index, so that jobs that are not due cost nothing. A poisoned row is quarantined, and the
claim continues with the next row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from itertools import takewhile

import msgspec
from msgspec.structs import replace

from tenure.errors import Refused, RequestIdReused, RowPoisoned, StoreUnavailable
from tenure.lifecycle.claim_order import batch, claim_order
from tenure.lifecycle.decide import decide_chain
from tenure.lifecycle.operations import Claim, Operation, Start
from tenure.lifecycle.records import Job, Policy
from tenure.stores.base import ClaimResult
from tenure.stores.contract import ClaimRequest, without_token
from tenure.stores.limited_claim import LimitedQueue
from tenure.stores.quarantine import Quarantine
from tenure.stores.sqlite.apply import (
    AnyWrite,
    HomogeneousWrite,
    SharedWrite,
    Write,
    prepare,
    read_row,
    write_changes,
)
from tenure.stores.sqlite.lanes import lanes
from tenure.stores.sqlite.limited_claim import choose_within_limits, limited_queues, record_usage
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import json_list, micros, text

_ids = msgspec.json.Decoder(list[str]).decode


def claim(
    session: Session, request: ClaimRequest, quarantine: Quarantine, waited_seconds: Callable[[], float]
) -> ClaimResult:
    """The claimed jobs with their tokens: those that the same request claimed before, or else new ones.

    A claim that waited too long for the write lock takes nothing: its worker may have abandoned it.
    """
    earlier = session.execute("claims/select", {"request_id": request.request_id}).fetchone()
    if earlier is not None:
        return ClaimResult(_repeated(session, request, body=earlier[0], ids=earlier[1]))
    if (seconds := waited_seconds()) > request.wait_seconds_max:
        raise StoreUnavailable(f"the claim waited {seconds:.1f} s for the write lock of the file and took nothing")
    run = _ClaimRun(session, request, quarantine)
    while len(run.claimed) < request.limit:
        before = len(run.claimed)
        poisoned = run.claim_next()
        if not poisoned or (len(run.claimed) > before and run.claimed[-1].losses):
            break
    if run.claimed:
        _record_claim(session, request, run.claimed)
    return ClaimResult(run.claimed, run.limited_queues, run.retry_after_seconds)


class _ClaimRun:
    """One claim: the jobs claimed so far, and the limits that it met."""

    def __init__(self, session: Session, request: ClaimRequest, quarantine: Quarantine) -> None:
        self._session, self._request, self._quarantine = session, request, quarantine
        self.claimed: list[Job] = []
        self.limited_queues: frozenset[str] = frozenset()
        self.retry_after_seconds: float | None = None

    def claim_next(self) -> bool:
        """Claim the next jobs. True if a row was poisoned, so that another job may take its place."""
        limited = limited_queues(self._session, self._request.queues)
        self.limited_queues = frozenset(limited)
        return self._claim_within_limits(limited) if limited else self._lease(self._choose())

    def _claim_within_limits(self, limited: dict[str, LimitedQueue]) -> bool:
        now, room = self._session.now, self._request.limit - len(self.claimed)
        choice = choose_within_limits(self._session, self._request, room, limited, self._quarantine)
        if choice.retry_at is not None:
            self.retry_after_seconds = (choice.retry_at - now).total_seconds()
        before = len(self.claimed)
        poisoned = self._lease(self._fitting(self._read([text(one.id) for one in choice.chosen])))
        new = self.claimed[before:]
        at = max((job.updated_at for job in new), default=now)
        record_usage(self._session, choice.usage((job.id for job in new), at))
        return poisoned

    def _read(self, ids: list[str]) -> list[Job]:
        jobs: dict[str, Job] = {}
        for row in self._session.select_jobs(ids) if ids else ():
            job = read_row(self._session, row)
            if isinstance(job, RowPoisoned):
                self._quarantine.put(job)
            else:
                jobs[row[0]] = job
        return [jobs[id_] for id_ in ids if id_ in jobs]

    def _choose(self) -> list[Job]:
        """The next jobs in claim order."""
        wanted = self._request.limit - len(self.claimed)
        ordered: list[Job] = []
        for priority, queues in lanes(self._session, self._request.queues):
            room = wanted - len(ordered)
            alone = len(queues) == 1
            ordered += self._due(queues[0], priority, room) if alone else self._due_across(queues, priority, room)
            if len(ordered) >= wanted:
                # The next priority is not looked up: that takes an index step for each queue.
                break
        if pinned := self._pinned(wanted):
            ordered = sorted([*ordered, *pinned], key=claim_order)
        return batch(self._fitting(ordered), wanted)

    def _pinned(self, limit: int) -> list[Job]:
        """The due jobs that are pinned to the version of the claimer's code."""
        if self._request.code_version is None:
            return []
        parameters = {
            "code_version": self._request.code_version,
            "queues": json_list(self._request.queues),
            "limit": limit,
            **self._claimable(),
        }
        return self._read([row[0] for row in self._session.execute("jobs/select_due_pinned", parameters).fetchall()])

    def _fitting(self, ordered: list[Job]) -> list[Job]:
        """A job that was lost before is claimed alone, so that it cannot join jobs that are claimed already."""
        return list(takewhile(lambda job: not job.losses, ordered)) if self.claimed else ordered

    def _due(self, queue: str, priority: int, limit: int) -> list[Job]:
        """The due jobs of one lane."""
        found: list[Job] = []
        parameters = {"queue": queue, "priority": priority, **self._claimable()}
        with closing(self._session.execute("jobs/select_due", parameters)) as rows:
            for row in rows:
                job = read_row(self._session, row)
                if isinstance(job, RowPoisoned):
                    self._quarantine.put(job)
                    continue
                found.append(job)
                if len(found) == limit:
                    break
        return found

    def _due_across(self, queues: Sequence[str], priority: int, limit: int) -> list[Job]:
        """The due jobs of several lanes of one priority. First only their ids, so that whole rows are read only of
        the jobs that are claimed."""
        names = json_list(queues)
        while True:
            excluded = len(self._quarantine.ids())
            parameters = {"queues": names, "priority": priority, "limit": limit, **self._claimable()}
            ids = [id_ for (id_,) in self._session.execute("jobs/select_due_across_queues", parameters)]
            found = self._read(ids)
            if len(found) == len(ids) or len(self._quarantine.ids()) == excluded:
                return found
            # Poisoned rows are quarantined by now, and other jobs take their places.

    def _claimable(self) -> dict[str, object]:
        return {
            "now": micros(self._session.now),
            "kinds": json_list(self._request.kinds),
            "quarantined": json_list(self._quarantine.ids()),
        }

    def _lease(self, chosen: Sequence[Job]) -> bool:
        """Lease these jobs. True if a row was poisoned."""
        poisoned = False
        writes: list[AnyWrite] = []
        leased: list[Job] = []
        decisions = _ClaimDecisions(self._request, self._session.now)
        for job in chosen:
            try:
                after, write = decisions.decide(job)
            except Refused as refusal:
                self._quarantine.put(RowPoisoned(job.id, f"it is due, and yet: {refusal}"))
                poisoned = True
            else:
                leased.append(after)
                writes.append(write)
        for after, problem in zip(leased, write_changes(self._session, writes), strict=True):
            if problem is None:
                self.claimed.append(after)
            else:
                self._quarantine.put(problem)
                poisoned = True
        return poisoned


def _repeated(session: Session, request: ClaimRequest, *, body: str, ids: str) -> list[Job]:
    """The jobs of an earlier claim, as they are now."""
    if body != request.body():
        raise RequestIdReused(request.request_id)
    jobs: dict[str, Job] = {}
    for row in session.execute("jobs/select", {"ids": ids}):
        job = read_row(session, row)
        if isinstance(job, Job):
            jobs[row[0]] = without_token(job, request.actor)
    return [jobs[id_] for id_ in _ids(ids) if id_ in jobs]


class _ClaimDecisions:
    """The decision for each job of a claim, and what is written for it.

    Jobs at revision 1 of one policy differ only in their origin and due time: the decision for the first of them holds
    for all, and they are written as a homogeneous batch.
    """

    def __init__(self, request: ClaimRequest, now: datetime) -> None:
        self._now = now
        self._actor, self._request_id = request.actor, request.request_id
        claim = Claim(request.token, request.code_version)
        self._operations: tuple[Operation, ...] = (claim, Start()) if request.start else (claim,)
        self._first: dict[Policy, tuple[Job, SharedWrite]] = {}

    def decide(self, job: Job) -> tuple[Job, AnyWrite]:
        if job.rev > 1 or job.updated_at > self._now:
            write = self._decide_one(job)
            return write.after, write
        first = self._first.get(job.policy)
        if first is None:
            write = self._decide_one(job)
            first = self._first[job.policy] = write.after, SharedWrite.of(write, "jobs/claim")
        after = replace(first[0], origin=job.origin, created_at=job.created_at, due_at=job.due_at)
        job_id = text(job.id)
        return after, HomogeneousWrite(job.id, first[1], (job_id, None), (job_id,))

    def _decide_one(self, job: Job) -> Write:
        change = decide_chain(job, self._operations, self._actor, request_id=self._request_id)
        return prepare(change, max(self._now, job.updated_at))


def _record_claim(session: Session, request: ClaimRequest, claimed: Sequence[Job]) -> None:
    session.execute(
        "claims/insert",
        {
            "request_id": request.request_id,
            "body": request.body(),
            "job_ids": json_list([text(job.id) for job in claimed]),
            "at": micros(session.now),
        },
    )
