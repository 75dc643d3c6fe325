"""Completing jobs: the commonest change, on the caller's own records.

It is decided and made ready before the writer has its turn, since its time is everybody's, and written without reading
the rows first: each is matched on the revision and the token that were decided upon, and on a lease that still runs.
Where one of them does not match, nothing is written, and all are judged on their rows as any other change is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from tenure.errors import Refused
from tenure.lifecycle.decide import Change, decide_chain
from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Actor, Job
from tenure.stores.contract import Applied, Outcome, Request, shown
from tenure.stores.sqlite.apply import POISON, prepare
from tenure.stores.sqlite.apply import apply as apply_each
from tenure.stores.sqlite.apply_batch import Shared, write_group
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.rows import text
from tenure.stores.sqlite.statements import Row


async def apply(connections: SqliteConnections, requests: Sequence[Request]) -> list[Outcome]:
    """The outcome of each request, in order: completions first, then all other changes."""
    completions = decided(requests)
    others = [request for place, request in enumerate(requests) if place not in completions.changes]

    def work(connection: sqlite3.Connection) -> tuple[datetime | None, list[Outcome]]:
        now, policy_of = connections.clock(), connections.policies_on(connection)
        done = completions.write(connection, now)
        rest = others if done else requests
        judged = apply_each(connection, rest, now=now, policy_of=policy_of) if rest else []
        return now if done else None, judged

    return completions.outcomes(*await connections.write(work))


class Group(msgspec.Struct, frozen=True):
    """Completions by one owner at one revision and attempt, which differ in nothing but job and result."""

    first: Change
    events: list[Row]
    rows: list[Row]

    def write(self, connection: sqlite3.Connection, at: datetime) -> int:
        """How many rows of jobs were changed."""
        # The caller's record need not have the token: it is the actor who must know it.
        held = replace(self.first.before, token=self.first.actor.token)
        whole = prepare(replace(self.first, before=held), at)
        return write_group(connection, Shared.of(whole.events, whole.row, "complete_jobs"), self.events, self.rows)


class Completions(msgspec.Struct, frozen=True):
    """What is decided, by its places among the requests, and ready to be written."""

    changes: dict[int, Change]
    groups: dict[tuple[int, int, Actor, str], Group]

    def write(self, connection: sqlite3.Connection, now: datetime) -> bool:
        """Whether all of them were written; else none was."""
        if not self.changes or any(change.before.updated_at > now for change in self.changes.values()):
            # With a clock that went back each has a moment of its own.
            return False
        connection.execute("savepoint completions")
        try:
            done = sum(group.write(connection, now) for group in self.groups.values()) == len(self.changes)
        except (*POISON, OverflowError, UnicodeError):
            done = False
        if not done:
            connection.execute("rollback to completions")
        connection.execute("release completions")
        return done

    def outcomes(self, at: datetime | None, others: Sequence[Outcome]) -> list[Outcome]:
        """What is said of all requests: of these, if they were written at this moment, and of all others in order."""
        if at is None:
            return list(others)
        rest, total = iter(others), len(self.changes) + len(others)
        return [
            next(rest) if (change := self.changes.get(place)) is None else Applied(shown(change), at)
            for place in range(total)
        ]


def decided(requests: Sequence[Request]) -> Completions:
    """Those that complete jobs which were not committed before. None where a job is asked for twice: its second request
    depends on what becomes of the first."""
    completions = Completions({}, {})
    if len({request.job_id for request in requests}) < len(requests):
        return completions
    for place, request in enumerate(requests):
        change = _completion(request)
        if change is None:
            continue
        completions.changes[place] = change
        before, step = change.before, change.planned[0]
        key = before.rev, before.attempt, change.actor, change.request_id
        group = completions.groups.get(key)
        if group is None:
            group = completions.groups[key] = Group(change, [], [])
        job_id = text(before.origin.id)
        group.events.append((job_id, step.digest))
        group.rows.append((job_id, step.content))
    return completions


def _completion(request: Request) -> Change | None:
    operations = request.operations
    if not (request.fresh and isinstance(request.job, Job) and len(operations) == 1):
        return None
    if not isinstance(operations[0], Complete):
        return None
    try:
        change = decide_chain(request.job, operations, request.actor, request_id=request.request_id)
    except Refused:
        return None
    return change if change.planned[0].commits else None
