"""Batches of changes. Completions, the most frequent change, are decided on the worker's own records.

They are decided and encoded before the writer thread runs, since all writers wait for it, and written without reading
the rows first: each row is matched on the revision and the token that were decided upon, and on an unexpired lease.
If one does not match, nothing is written, and all requests are decided on their rows like any other change.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from tenure.errors import Refused
from tenure.lifecycle.decide import Change, decide_chain
from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Actor, Job
from tenure.stores.contract import Applied, Outcome, Request, redacted
from tenure.stores.sqlite.apply import POISON, SharedWrite, apply, prepare
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import Row, json_list, text


async def apply_batch(connections: SqliteConnections, requests: Sequence[Request]) -> list[Outcome]:
    """The outcome of each request, in order."""
    completions = decide_completions(requests)
    others = [request for index, request in enumerate(requests) if index not in completions.changes]
    at, outcomes = await connections.write(_apply_batch, requests, completions, others)
    if at is None:
        return outcomes
    rest = iter(outcomes)
    return [
        next(rest) if (change := completions.changes.get(index)) is None else Applied(redacted(change), at)
        for index in range(len(requests))
    ]


def _apply_batch(
    session: Session, requests: Sequence[Request], completions: Completions, others: Sequence[Request]
) -> tuple[datetime | None, list[Outcome]]:
    """When the completions were written, and the outcomes of the others; or None, and the outcomes of all requests."""
    if completions.write(session):
        return session.now, apply(session, others) if others else []
    return None, apply(session, requests)


class CompletionBatch(msgspec.Struct, frozen=True):
    """Completions by one owner at one revision and attempt, which differ only in job and result."""

    first: Change
    events: list[Row]
    rows: list[Row]

    def write(self, session: Session) -> int:
        """Returns how many rows of jobs changed."""
        # The request's record need not have the token: the actor must have it.
        before = replace(self.first.before, token=self.first.actor.token)
        first = prepare(replace(self.first, before=before), session.now)
        return SharedWrite.of(first, "jobs/complete").write(session, self.events, self.rows)


class Completions(msgspec.Struct, frozen=True):
    """Completions that are decided and encoded. `changes` has them by their indexes among the requests."""

    changes: dict[int, Change]
    batches: dict[tuple[int, int, Actor, str], CompletionBatch]
    counted: list[str]
    """The jobs whose steps are to be counted: earlier attempts may have saved some."""

    def write(self, session: Session) -> bool:
        """Whether all completions were written; else none was."""
        if not self.changes or any(change.before.updated_at > session.now for change in self.changes.values()):
            # After a clock step backwards each change has its own time.
            return False
        if self.counted and session.execute("steps/count", {"ids": json_list(self.counted)}).fetchone() is not None:
            # The event of a job with steps has their digest.
            return False
        session.savepoint("completions")
        try:
            written = sum(batch.write(session) for batch in self.batches.values()) == len(self.changes)
        except POISON:
            written = False
        session.release("completions", undo=not written)
        return written


def decide_completions(requests: Sequence[Request]) -> Completions:
    """The completions of jobs that are not committed yet. None if a job has two requests, since the second depends on
    the outcome of the first."""
    completions = Completions({}, {}, [])
    if len({request.job_id for request in requests}) < len(requests):
        return completions
    for index, request in enumerate(requests):
        change = _completion(request)
        if change is None:
            continue
        completions.changes[index] = change
        before, step = change.before, change.planned[0]
        key = before.rev, before.attempt, change.actor, change.request_id
        batch = completions.batches.get(key)
        if batch is None:
            batch = completions.batches[key] = CompletionBatch(change, [], [])
        job_id = text(before.origin.id)
        if change.counts_steps:
            completions.counted.append(job_id)
        batch.events.append((job_id, step.digest))
        batch.rows.append((job_id, step.content))
    return completions


def _completion(request: Request) -> Change | None:
    operations = request.operations
    if not (request.fresh and isinstance(request.job, Job) and len(operations) == 1):
        return None
    if not isinstance(operations[0], Complete) or request.steps is not None:
        return None
    try:
        change = decide_chain(request.job, operations, request.actor, request_id=request.request_id)
    except Refused:
        return None
    return change if change.planned[0].commits else None
