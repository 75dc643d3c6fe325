"""Claiming jobs, inside the write transaction: choose the due ones in order, take them, remember the claim.

Each queue is walked priority by priority along its index, so that a million jobs that are not due yet cost nothing. A
row that cannot be taken is set aside for a while, and the claim goes on with the next: one poisoned row wedges nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from itertools import takewhile

import msgspec
from msgspec.structs import replace

from tenure.errors import Refused, RequestIdReused, RowPoisoned
from tenure.lifecycle.claim_order import batch
from tenure.lifecycle.decide import decide_chain
from tenure.lifecycle.operations import Claim, Operation, Start
from tenure.lifecycle.records import Job, Policy
from tenure.stores.base import ClaimResult
from tenure.stores.contract import ClaimRequest, without_secret
from tenure.stores.limits import RuledQueue
from tenure.stores.quarantine import Quarantine
from tenure.stores.sqlite.apply import AnyWrite, Write, prepare, read_row, write_changes
from tenure.stores.sqlite.apply_batch import Alike, Shared
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.limited_claim import choice_by_rules, note, ruled_queues
from tenure.stores.sqlite.priorities import levels
from tenure.stores.sqlite.rows import PolicyOf, json_list, micros, text
from tenure.stores.sqlite.statements import sql

_ids = msgspec.json.Decoder(list[str]).decode


async def claim_jobs(connections: SqliteConnections, request: ClaimRequest, quarantine: Quarantine) -> ClaimResult:
    """Claim in a writing transaction."""
    return await connections.write(
        lambda connection: claim(
            connection,
            request,
            now=connections.clock(),
            policy_of=connections.policies_on(connection),
            quarantine=quarantine,
        )
    )


def claim(
    connection: sqlite3.Connection, request: ClaimRequest, *, now: datetime, policy_of: PolicyOf, quarantine: Quarantine
) -> ClaimResult:
    """The jobs won, each with its token: those that the same request won before, or else new ones."""
    won = connection.execute(sql("claim_won"), {"request_id": request.request_id}).fetchone()
    if won is not None:
        return ClaimResult(_again(connection, request, body=won[0], ids=won[1], policy_of=policy_of))
    claiming = _Claiming(connection, request, now=now, policy_of=policy_of, quarantine=quarantine)
    while len(claiming.taken) < request.limit:
        before = len(claiming.taken)
        spoilt = claiming.take_some()
        if not spoilt or (len(claiming.taken) > before and claiming.taken[-1].losses):
            break
    if claiming.taken:
        _remember(connection, request, claiming.taken, now=now)
    return ClaimResult(claiming.taken, claiming.ruled, claiming.again_seconds)


class _Claiming:
    """One claim under way: what it has taken so far, and by which rules."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        request: ClaimRequest,
        *,
        now: datetime,
        policy_of: PolicyOf,
        quarantine: Quarantine,
    ) -> None:
        self._connection, self._request, self._now = connection, request, now
        self._policy_of, self._quarantine = policy_of, quarantine
        self.taken: list[Job] = []
        self.ruled: frozenset[str] = frozenset()
        self.again_seconds: float | None = None

    def take_some(self) -> bool:
        """Take the next jobs that may go. True when one could not be taken, so that there is room for another."""
        ruled = ruled_queues(self._connection, self._request.queues)
        self.ruled = frozenset(ruled)
        return self._take_by_rules(ruled) if ruled else self._take(self._chosen())

    def _take_by_rules(self, ruled: dict[str, RuledQueue]) -> bool:
        choice = choice_by_rules(
            self._connection,
            self._request,
            limit=self._request.limit - len(self.taken),
            ruled=ruled,
            now=self._now,
            quarantine=self._quarantine,
        )
        if choice.again_at is not None:
            self.again_seconds = (choice.again_at - self._now).total_seconds()
        before = len(self.taken)
        spoilt = self._take(self._fitting(self._read([text(one.id) for one in choice.chosen])))
        new = self.taken[before:]
        at = max((job.updated_at for job in new), default=self._now)
        note(self._connection, choice.notes((job.id for job in new), at), self._now)
        return spoilt

    def _read(self, ids: list[str]) -> list[Job]:
        jobs: dict[str, Job] = {}
        for row in self._connection.execute(sql("jobs_by_id"), {"ids": json_list(ids)}) if ids else ():
            job = read_row(row, self._policy_of)
            if isinstance(job, RowPoisoned):
                self._quarantine.put(job)
            else:
                jobs[row[0]] = job
        return [jobs[id_] for id_ in ids if id_ in jobs]

    def _chosen(self) -> list[Job]:
        """The next jobs in the order of claiming."""
        wanted = self._request.limit - len(self.taken)
        ordered: list[Job] = []
        for priority, queues in levels(self._connection, self._request.queues):
            room = wanted - len(ordered)
            alone = len(queues) == 1
            ordered += self._due(queues[0], priority, room) if alone else self._due_across(queues, priority, room)
            if len(ordered) >= wanted:
                # The next level is not even looked for: that takes a step along the index for each queue.
                break
        return batch(self._fitting(ordered), wanted)

    def _fitting(self, ordered: list[Job]) -> list[Job]:
        """A job that was lost before goes alone, so it cannot join those that are taken already."""
        return list(takewhile(lambda job: not job.losses, ordered)) if self.taken else ordered

    def _due(self, queue: str, priority: int, limit: int) -> list[Job]:
        found: list[Job] = []
        with closing(self._connection.execute(sql("due_jobs"), {"queue": queue, **self._claimable(priority)})) as rows:
            for row in rows:
                job = read_row(row, self._policy_of)
                if isinstance(job, RowPoisoned):
                    self._quarantine.put(job)
                    continue
                found.append(job)
                if len(found) == limit:
                    break
        return found

    def _due_across(self, queues: Sequence[str], priority: int, limit: int) -> list[Job]:
        """The same of several queues together. First only the ids, so that whole rows are read only of what goes."""
        names = json_list(queues)
        while True:
            asked = {"queues": names, "limit": limit, **self._claimable(priority)}
            ids = [id_ for (id_,) in self._connection.execute(sql("due_across"), asked)]
            found = self._read(ids)
            if len(found) == len(ids):
                return found
            # What cannot be read is set aside by now, so that others take its place.

    def _claimable(self, priority: int) -> dict[str, object]:
        return {
            "priority": priority,
            "now": micros(self._now),
            "kinds": json_list(self._request.kinds),
            "set_aside": json_list(self._quarantine.ids()),
        }

    def _take(self, chosen: Sequence[Job]) -> bool:
        """Take these jobs. True when one could not be taken."""
        spoilt = False
        writes: list[AnyWrite] = []
        afterwards: list[Job] = []
        taking = Taking(self._request, self._now)
        for job in chosen:
            try:
                after, write = taking.taken(job)
            except Refused as refusal:
                self._quarantine.put(RowPoisoned(job.id, f"it is due, and yet: {refusal}"))
                spoilt = True
            else:
                afterwards.append(after)
                writes.append(write)
        for after, problem in zip(afterwards, write_changes(self._connection, writes), strict=True):
            if problem is None:
                self.taken.append(after)
            else:
                self._quarantine.put(problem)
                spoilt = True
        return spoilt


def _again(
    connection: sqlite3.Connection, request: ClaimRequest, *, body: str, ids: str, policy_of: PolicyOf
) -> list[Job]:
    if body != request.body():
        raise RequestIdReused(request.request_id)
    jobs: dict[str, Job] = {}
    for row in connection.execute(sql("jobs_by_id"), {"ids": ids}):
        job = read_row(row, policy_of)
        if isinstance(job, Job):
            jobs[row[0]] = without_secret(job, request.actor)
    return [jobs[id_] for id_ in _ids(ids) if id_ in jobs]


class Taking:
    """What becomes of each job that is claimed, and what is written for it.

    Jobs at their first revision differ from others of their policy in nothing but what they were added with: what was
    decided for one of them is decided for all, and only the names and times that remain are put in their place.
    """

    def __init__(self, request: ClaimRequest, now: datetime) -> None:
        self._now = now
        self._actor, self._request_id = request.actor, request.request_id
        claim = Claim(request.token)
        self._operations: tuple[Operation, ...] = (claim, Start()) if request.start else (claim,)
        self._first: dict[Policy, tuple[Job, Shared]] = {}

    def taken(self, job: Job) -> tuple[Job, AnyWrite]:
        if job.rev > 1 or job.updated_at > self._now:
            write = self._decided(job)
            return write.after, write
        first = self._first.get(job.policy)
        if first is None:
            write = self._decided(job)
            first = self._first[job.policy] = write.after, Shared.of(write.events, write.row, "claim_jobs")
        after = replace(first[0], origin=job.origin, created_at=job.created_at, due_at=job.due_at)
        job_id = text(job.id)
        return after, Alike(job.id, first[1], (job_id, None), (job_id,))

    def _decided(self, job: Job) -> Write:
        change = decide_chain(job, self._operations, self._actor, request_id=self._request_id)
        return prepare(change, max(self._now, job.updated_at))


def _remember(connection: sqlite3.Connection, request: ClaimRequest, taken: Sequence[Job], *, now: datetime) -> None:
    connection.execute(
        sql("insert_claim"),
        {
            "request_id": request.request_id,
            "body": request.body(),
            "job_ids": json_list([text(job.id) for job in taken]),
            "at": micros(now),
        },
    )
