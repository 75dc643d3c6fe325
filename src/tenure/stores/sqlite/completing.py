"""Completing jobs: the commonest change, on the caller's own records.

It is decided before the writer has its turn, since its time is everybody's, and written without reading the rows first:
each is matched on the revision and the token that were decided upon, and on a lease that still runs. Where one of them
does not match, nothing is written, and all are judged on their rows as any other change is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime

from tenure.errors import Refused
from tenure.lifecycle.decide import Change, decide_chain, moment_of
from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Actor, Job
from tenure.stores.contract import Applied, Outcome, Request, shown
from tenure.stores.sqlite.alike import Alike, Shared, write_alike
from tenure.stores.sqlite.changing import POISON, prepare
from tenure.stores.sqlite.rows import text


def decided(requests: Sequence[Request]) -> dict[int, Change]:
    """Those that complete jobs which were not committed before, by their places. None where a job is asked for twice:
    its second request depends on what becomes of the first."""
    changes: dict[int, Change] = {}
    if len({request.job_id for request in requests}) < len(requests):
        return changes
    for place, request in enumerate(requests):
        if not (request.fresh and isinstance(request.job, Job) and _completes(request)):
            continue
        try:
            change = decide_chain(request.job, request.operations, request.actor, request_id=request.request_id)
        except Refused:
            continue
        if change.steps[0].commits:
            changes[place] = change
    return changes


def _completes(request: Request) -> bool:
    return len(request.operations) == 1 and isinstance(request.operations[0], Complete)


def complete(connection: sqlite3.Connection, changes: Mapping[int, Change], *, now: datetime) -> dict[int, Outcome]:
    """What became of them: all are written, or none, and then nothing is said of any."""
    completing = Completing(now)
    writes = [completing.write(change) for change in changes.values()]
    connection.execute("savepoint completions")
    try:
        done = write_alike(connection, writes) == len(writes)
    except (*POISON, OverflowError, UnicodeError):
        done = False
    if not done:
        connection.execute("rollback to completions")
    connection.execute("release completions")
    if not done:
        return {}
    return {place: Applied(shown(change), moment_of(change.before, now)) for place, change in changes.items()}


class Completing:
    """What completions write. Those of one owner at one revision and attempt differ in nothing but job and result."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._shared: dict[tuple[int, int, datetime, Actor, str], Shared] = {}

    def write(self, change: Change) -> Alike:
        before, step = change.before, change.steps[0]
        key = before.rev, before.attempt, moment_of(before, self._now), change.actor, change.request_id
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = self._in_common(change)
        job_id = text(before.id)
        return Alike(before.id, shared, (job_id, step.digest), (job_id, step.content))

    def _in_common(self, first: Change) -> Shared:
        write = prepare(first, moment_of(first.before, self._now))
        shared = Shared.of(write.events, write.row, "complete_jobs")
        # The caller's record need not have the token: it is the actor who must know it.
        token = None if first.actor.token is None else text(first.actor.token)
        return Shared(shared.events, shared.statement, {**shared.parameters, "token_before": token})
