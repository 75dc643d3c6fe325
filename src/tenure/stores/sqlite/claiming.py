"""Claiming jobs, inside the write transaction: choose the due ones in order, take them, remember the claim.

Each queue is walked priority by priority along its index, so that a million jobs that are not due yet cost nothing. A
row that cannot be taken is set aside for a while, and the claim goes on with the next: one poisoned row wedges nothing.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from tenure.errors import Refused, RequestIdReused, RowPoisoned
from tenure.lifecycle.claiming import batch, claim_order
from tenure.lifecycle.decide import decide_chain
from tenure.lifecycle.operations import Claim, Operation, Start
from tenure.lifecycle.records import Job, Policy
from tenure.stores.checks import PRIORITY_MOST
from tenure.stores.contract import ClaimRequest, without_secret
from tenure.stores.sqlite.changing import Write, apply, prepare, read_row
from tenure.stores.sqlite.rows import PolicyOf, maybe_micros, micros, text
from tenure.stores.sqlite.statements import parameters, sql

SET_ASIDE_FOR = timedelta(seconds=60)
"""After this a row that could not be taken is tried again: somebody may have mended it."""

_ID, _DUE_AT = (parameters("update_jobs").index(name) for name in ("id", "due_at"))
_encode = msgspec.json.encode
_ids = msgspec.json.Decoder(list[str]).decode
_log = logging.getLogger("tenure.stores.sqlite")


class SetAside:
    """The rows that could not be taken of late, and why."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[datetime, RowPoisoned]] = {}

    def put(self, poisoned: RowPoisoned, now: datetime) -> None:
        self._until[str(poisoned.job_id)] = (now + SET_ASIDE_FOR, poisoned)
        _log.error("%s", poisoned)

    def ids(self, now: datetime) -> list[str]:
        """Those that are not to be tried now."""
        for id_, (until, _) in list(self._until.items()):
            if until <= now:
                del self._until[id_]
        return list(self._until)

    def problems(self) -> list[RowPoisoned]:
        return [poisoned for _, poisoned in list(self._until.values())]


def claim(
    connection: sqlite3.Connection, request: ClaimRequest, *, now: datetime, policy_of: PolicyOf, set_aside: SetAside
) -> list[Job]:
    """The jobs won, each with its token: those that the same request won before, or else new ones."""
    won = connection.execute(sql("claim_won"), {"request_id": request.request_id}).fetchone()
    if won is not None:
        return _again(connection, request, body=won[0], ids=won[1], policy_of=policy_of)
    taken: list[Job] = []
    while len(taken) < request.limit:
        chosen = _choose(connection, request, now=now, policy_of=policy_of, set_aside=set_aside, taken=taken)
        if not chosen:
            break
        before = len(taken)
        spoilt = _take(connection, request, chosen, now=now, set_aside=set_aside, taken=taken)
        if not spoilt or (len(taken) > before and taken[-1].losses):
            break
    if taken:
        _remember(connection, request, taken, now=now)
    return taken


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


def _choose(
    connection: sqlite3.Connection,
    request: ClaimRequest,
    *,
    now: datetime,
    policy_of: PolicyOf,
    set_aside: SetAside,
    taken: Sequence[Job],
) -> list[Job]:
    """The next jobs that may go together with those taken, in the order of claiming."""
    wanted = request.limit - len(taken)
    ordered: list[Job] = []
    for priority, queues in _levels(connection, request.queues):
        if len(ordered) >= wanted:
            break
        level: list[Job] = []
        for queue in queues:
            level += _due(
                connection,
                queue,
                priority,
                kinds=request.kinds,
                limit=wanted - len(ordered),
                now=now,
                policy_of=policy_of,
                set_aside=set_aside,
            )
        ordered += level if len(queues) == 1 else sorted(level, key=claim_order)
    if taken:
        # A job that was lost before goes alone, so it cannot join those that are taken already.
        ordered = list(_until_lost(ordered))
    return batch(ordered, wanted)


def _until_lost(ordered: Sequence[Job]) -> Iterator[Job]:
    for job in ordered:
        if job.losses:
            return
        yield job


def _levels(connection: sqlite3.Connection, queues: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Each priority at which some queue has jobs that nobody holds, the highest first, and those queues."""
    below = dict.fromkeys(queues, PRIORITY_MOST + 1)
    tops = _tops(connection, list(below), PRIORITY_MOST + 1)
    while tops:
        priority = max(tops.values())
        here = [queue for queue, top in tops.items() if top == priority]
        yield priority, here
        lower = _tops(connection, here, priority)
        tops = {queue: top for queue, top in tops.items() if queue not in here} | lower


def _tops(connection: sqlite3.Connection, queues: Sequence[str], below: int) -> dict[str, int]:
    parameters = {"queues": _json(queues), "below": below}
    return {queue: top for queue, top in connection.execute(sql("next_level"), parameters) if top is not None}


def _due(
    connection: sqlite3.Connection,
    queue: str,
    priority: int,
    *,
    kinds: Sequence[str],
    limit: int,
    now: datetime,
    policy_of: PolicyOf,
    set_aside: SetAside,
) -> list[Job]:
    parameters = {
        "queue": queue,
        "priority": priority,
        "now": micros(now),
        "kinds": _json(kinds),
        "set_aside": _json(set_aside.ids(now)),
    }
    found: list[Job] = []
    with closing(connection.execute(sql("due_jobs"), parameters)) as rows:
        for row in rows:
            job = read_row(row, policy_of)
            if isinstance(job, RowPoisoned):
                set_aside.put(job, now)
                continue
            found.append(job)
            if len(found) == limit:
                break
    return found


def _take(
    connection: sqlite3.Connection,
    request: ClaimRequest,
    chosen: Sequence[Job],
    *,
    now: datetime,
    set_aside: SetAside,
    taken: list[Job],
) -> bool:
    """Take these jobs. True when one could not be taken, so that there is room for another."""
    spoilt = False
    writes: list[Write] = []
    taking = Taking(request, now)
    for job in chosen:
        try:
            writes.append(taking.write(job))
        except Refused as refusal:
            set_aside.put(RowPoisoned(job.id, f"it is due, and yet: {refusal}"), now)
            spoilt = True
    for write, problem in zip(writes, apply(connection, writes), strict=True):
        if problem is None:
            taken.append(write.after)
        else:
            set_aside.put(problem, now)
            spoilt = True
    return spoilt


class Taking:
    """What a claim writes for each job.

    Jobs at their first revision differ from others of their policy in nothing but what they were added with: what was
    decided for one of them is decided for all, and only the names and times that remain are put in their place.
    """

    def __init__(self, request: ClaimRequest, now: datetime) -> None:
        self._now = now
        self._actor, self._request_id = request.actor, request.request_id
        claim = Claim(request.token)
        self._operations: tuple[Operation, ...] = (claim, Start()) if request.start else (claim,)
        self._first: dict[Policy, Write] = {}

    def write(self, job: Job) -> Write:
        if job.rev > 1 or job.updated_at > self._now:
            return self._decide(job)
        alike = self._first.get(job.policy)
        if alike is None:
            alike = self._first[job.policy] = self._decide(job)
            return alike
        return _renamed(alike, job)

    def _decide(self, job: Job) -> Write:
        change = decide_chain(job, self._operations, self._actor, request_id=self._request_id)
        return prepare(change, max(self._now, job.updated_at))


def _renamed(alike: Write, job: Job) -> Write:
    """The same write for another job at its first revision, under the same policy."""
    job_id = text(job.id)
    after = replace(alike.after, origin=job.origin, created_at=job.created_at, due_at=job.due_at)
    row = list(alike.row)
    row[_ID], row[_DUE_AT] = job_id, maybe_micros(job.due_at)
    return Write(after, [(job_id, *event[1:]) for event in alike.events], tuple(row), [])


def _remember(connection: sqlite3.Connection, request: ClaimRequest, taken: Sequence[Job], *, now: datetime) -> None:
    connection.execute(
        sql("insert_claim"),
        {
            "request_id": request.request_id,
            "body": request.body(),
            "job_ids": _json([text(job.id) for job in taken]),
            "at": micros(now),
        },
    )


def _json(values: Sequence[str]) -> str:
    return _encode(values).decode()
