"""The steps of a job's log, with the facts that decide its word before and after each event. Pure.

A status alone does not decide the word. A stalled job that will not run again (it is committed, or its policy ends it)
keeps the status that it had before the stall: the stall and the end that follows are one change for a reader. A queued
job may have had attempts, and a claimed one may have been acknowledged or not.
"""

from __future__ import annotations

import msgspec

from tenure.lifecycle.enqueue import enqueued_job
from tenure.lifecycle.evolve import evolve
from tenure.lifecycle.records import Event, EventType, Job, Origin
from tenure.lifecycle.statuses import RUNNING, STALLED, SUCCEEDED, Status


class WordFacts(msgspec.Struct, frozen=True, gc=False):
    """What the word for a job depends on. `acked`: the owner of this attempt has acknowledged or started the job."""

    status: Status
    attempt: int
    committed: bool = False
    acked: bool = False


class Step(msgspec.Struct, frozen=True):
    """One event of a log, and the facts before and after it. `record` is the job after it, without its content.

    `before` is None for the first event. `record` is None where the origin or the events before this one are unknown.
    """

    event: Event
    before: WordFacts | None
    after: WordFacts
    record: Job | None = None


def first_step(origin: Origin | None, event: Event) -> Step:
    """The step of the first known event. Where that is not the enqueue, what came before is assumed from it alone."""
    if event.from_status is None:
        record = None if origin is None else enqueued_job(origin, at=event.at, due_at=event.until_at)
        return Step(event, None, WordFacts(event.to_status, event.attempt), record)
    before = _assumed(event, event.from_status)
    return Step(event, before, _facts_after(before, event, None))


def next_step(previous: Step, event: Event) -> Step:
    """The step of the event that follows."""
    record = None if previous.record is None else evolve(previous.record, event)
    return Step(event, previous.after, _facts_after(previous.after, event, record), record)


def _facts_after(before: WordFacts, event: Event, record: Job | None) -> WordFacts:
    committed = before.committed or event.commits
    will_end = committed or (record is not None and record.ends_by_policy)
    keeps_status = event.to_status is STALLED and will_end
    acked = event.type in (EventType.ACKED, EventType.STARTED) or (before.acked and event.type is not EventType.CLAIMED)
    return WordFacts(before.status if keeps_status else event.to_status, event.attempt, committed, acked)


def _assumed(event: Event, from_status: Status) -> WordFacts:
    reconciled = from_status is STALLED and event.to_status is SUCCEEDED
    status = RUNNING if reconciled else from_status
    attempt = event.attempt - 1 if event.type is EventType.CLAIMED else event.attempt
    return WordFacts(status, attempt, committed=reconciled, acked=status is RUNNING)
