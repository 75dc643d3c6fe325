"""Saves and reads the steps of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from tenure.errors import RowPoisoned
from tenure.lifecycle.decide import effective_at
from tenure.lifecycle.records import Job
from tenure.lifecycle.steps import STATE_NAME, StepRecord
from tenure.stores.contract import (
    Failure,
    SaveStep,
    StepOutcome,
    StepSaved,
    decide_save,
    distinct_saves,
)
from tenure.stores.quarantine import Bisection
from tenure.stores.sqlite.apply import POISON, read_row
from tenure.stores.sqlite.budgets import settle
from tenure.stores.sqlite.rows import decode_step, encode_step
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import id_of, json_list, text


def save_steps(session: Session, requests: Sequence[SaveStep]) -> list[StepOutcome]:
    """The outcome of each request, in order. Of two with the same key the first wins."""
    outcomes: dict[int, StepOutcome] = {}
    for batch in distinct_saves(requests):
        outcomes.update(_save(session, batch))
    return [outcomes[index] for index in range(len(requests))]


def _save(session: Session, batch: Sequence[tuple[int, SaveStep]]) -> dict[int, StepOutcome]:
    requests_by_index = dict(batch)
    requests = list(requests_by_index.values())
    ids = {text(request.job.id) for request in requests}
    jobs = {id_of(row[0]): read_row(session, row) for row in session.select_jobs(ids)}
    recorded = _recorded(session, requests)
    [number] = session.execute("steps/select_last_number").fetchone()
    outcomes: dict[int, StepOutcome] = {}
    written: dict[int, StepRecord] = {}
    for index, request in batch:
        job = jobs.get(request.job.id)
        if isinstance(job, RowPoisoned):
            outcomes[index] = Failure(job)
            continue
        outcome = decide_save(job, request, recorded.get(request.place), now=session.now)
        if outcome is None and job is not None:
            number += 1
            written[index] = request.record(number=number, at=effective_at(job, session.now))
        elif outcome is not None:
            outcomes[index] = outcome
    problems = _write(session, list(written.values()))
    for index, step in written.items():
        problem = problems.get(step.number)
        outcomes[index] = StepSaved(step) if problem is None else Failure(problem)
        if problem is None:
            settle(session, requests_by_index[index])
    return outcomes


def _write(session: Session, steps: Sequence[StepRecord]) -> dict[int, RowPoisoned]:
    """Write all but poisoned rows. Returns what is wrong with those, by their numbers."""
    problems: dict[int, RowPoisoned] = {}
    batches = Bisection(steps)
    for batch in batches:
        session.savepoint("steps")
        try:
            session.write_rows("steps/insert", [encode_step(step) for step in batch])
        except POISON as problem:
            session.release("steps", undo=True)
            if batches.isolates(batch):
                step = batch[0]
                problems[step.number] = RowPoisoned(step.job_id, f"step {step.key!r}: {problem}")
        else:
            session.release("steps")
    return problems


def write_copies(session: Session, job: Job, steps: Sequence[StepRecord]) -> int:
    """Write copies of steps for a job at its first revision. Returns how many."""
    if session.job(text(job.id)).rev != 1:
        return 0
    [number] = session.execute("steps/select_last_number").fetchone()
    numbered = (msgspec.structs.replace(step, number=number + place) for place, step in enumerate(steps, 1))
    session.write_rows("steps/insert", [encode_step(step) for step in numbered])
    return len(steps)


def _recorded(session: Session, requests: Sequence[SaveStep]) -> dict[tuple[UUID, str], StepRecord]:
    places = json_list([[text(request.job.id), request.step.key] for request in requests])
    steps = map(decode_step, session.execute("steps/select_recorded", {"places": places}))
    return {(step.job_id, step.key): step for step in steps}


def list_steps(session: Session, job_id: UUID, *, after: int, limit: int) -> list[StepRecord]:
    """A page of a job's steps, in the order of completion."""
    rows = session.execute("steps/select", {"job_id": text(job_id), "after": after, "limit": limit})
    return [decode_step(row) for row in rows]


def read_state(session: Session, job_id: UUID) -> str | None:
    """What a run has last set with `run.state`."""
    row = session.execute("steps/select_state", {"job_id": text(job_id), "name": STATE_NAME}).fetchone()
    return None if row is None else row[0]
