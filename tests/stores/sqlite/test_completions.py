"""Completions on SQLite go another way than other changes, many at once on the caller's records: to the same place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from tenure.errors import LeaseLost, RevisionConflict
from tenure.lifecycle.decide import decide_chain, expand
from tenure.lifecycle.operations import Complete, Heartbeat, Progress, Release
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import RUNNING, SUCCEEDED
from tenure.lifecycle.steps import NewStep, StepKind, StepsDigest
from tenure.stores.contract import Applied, Failure, Repeated, Request, SaveStep, StepSaved
from tenure.stores.sqlite import apply
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.driver import Driver, runner


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def drive(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Driver]:
    store = SqliteStore(tmp_path / "jobs.db", database_clock=clock.now)
    await store.migrate()
    await store.open()
    yield Driver(store)
    await store.close()


async def running(drive: Driver, count: int) -> list[Job]:
    """Jobs that were claimed together."""
    for _ in range(count):
        await drive.add()
    jobs = await drive.claim(limit=count)
    assert len(jobs) == count
    return jobs


def completion(drive: Driver, job: Job, result: str) -> Request:
    return drive.request(job, Complete(result), actor=runner(job), fresh=True)


async def again(drive: Driver, count: int, *, with_step: bool) -> list[Job]:
    """Jobs that are claimed for the second time. The first of them may have a step of the first attempt."""
    jobs = await running(drive, count)
    for job in jobs:
        if with_step and job is jobs[0]:
            step = NewStep(key="a", kind=StepKind.STEP, name="a", result="1")
            [saved] = await drive.store.save_steps([SaveStep(job, step, runner(job))])
            assert isinstance(saved, StepSaved)
        await drive.apply(job, Release("stopping"), actor=runner(job))
    claimed = await drive.claim(limit=count)
    assert [job.attempt for job in claimed] == [2] * count
    return claimed


@pytest.mark.requirement("WC-08")
async def test_later_attempts_without_steps_are_completed_in_one_statement(
    drive: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await again(drive, 3, with_step=False)
    monkeypatch.delattr(apply, "_apply_wave")
    outcomes = await drive.store.apply([completion(drive, job, "1") for job in jobs])
    assert all(isinstance(outcome, Applied) for outcome in outcomes)
    assert [(await drive.events_of(job.id))[-1].steps for job in jobs] == [None] * 3


@pytest.mark.requirement("WC-08")
async def test_steps_of_an_earlier_attempt_are_counted_when_a_later_one_completes(drive: Driver) -> None:
    jobs = await again(drive, 3, with_step=True)
    outcomes = await drive.store.apply([completion(drive, job, "1") for job in jobs])
    assert all(isinstance(outcome, Applied) for outcome in outcomes)
    counts = []
    for job in jobs:
        recorded = (await drive.events_of(job.id))[-1].steps
        counts.append(0 if recorded is None else StepsDigest.parse(recorded).count)
    assert sorted(counts) == [0, 0, 1]


@pytest.mark.requirement("LC-03")
async def test_jobs_completed_in_one_statement_are_as_decide_would_make_them(
    drive: Driver, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await running(drive, 5)
    jobs[0] = await drive.apply(jobs[0], Progress(50), actor=runner(jobs[0]))
    assert jobs[0].token is not None
    clock.advance(1)
    requests = [completion(drive, job, f'"{number}"') for number, job in enumerate(jobs)]
    # The caller's record need not have the token.
    requests[1] = replace(requests[1], job=replace(jobs[1], token=None))
    monkeypatch.delattr(apply, "_apply_wave")
    outcomes = await drive.store.apply(requests)
    for job, request, outcome in zip(jobs, requests, outcomes, strict=True):
        change = decide_chain(job, request.operations, request.actor, request_id=request.request_id)
        events, after = expand(change, clock.now())
        assert isinstance(outcome, Applied)
        assert outcome.job == after == await drive.job(job.id)
        assert replace((await drive.events_of(job.id))[-1], position=None) == events[-1]


@pytest.mark.requirement("LC-04")
@pytest.mark.requirement("LC-05")
async def test_a_job_that_has_moved_on_does_not_keep_others_from_being_completed(drive: Driver) -> None:
    moved, taken, *others = await running(drive, 5)
    await drive.apply(moved, Heartbeat(), actor=runner(moved))
    await drive.apply(taken, Release())
    asked = [completion(drive, job, "1") for job in (others[0], moved, others[1], taken, others[2])]
    outcomes = await drive.store.apply(asked)
    assert [type(outcome) for outcome in outcomes] == [Applied, Failure, Applied, Failure, Applied]
    assert [type(one.error) for one in outcomes if isinstance(one, Failure)] == [RevisionConflict, LeaseLost]
    rows = await drive.store.read([job.id for job in (*others, moved)])
    assert [rows[job.id].status for job in (*others, moved)] == [SUCCEEDED] * 3 + [RUNNING]


@pytest.mark.requirement("LC-05")
async def test_a_lease_that_has_expired_is_not_completed_under(drive: Driver, clock: ManualClock) -> None:
    jobs = await running(drive, 2)
    clock.advance(jobs[0].policy.lease_seconds)
    outcomes = await drive.store.apply([completion(drive, job, "1") for job in jobs])
    assert [type(one.error) for one in outcomes if isinstance(one, Failure)] == [LeaseLost, LeaseLost]
    assert {job.status for job in (await drive.store.read([job.id for job in jobs])).values()} == {RUNNING}


@pytest.mark.requirement("SM-17")
async def test_a_clock_that_goes_back_completes_no_job_before_it_was_claimed(drive: Driver, clock: ManualClock) -> None:
    jobs = await running(drive, 2)
    clock.advance(-5)
    outcomes = await drive.store.apply([completion(drive, job, "1") for job in jobs])
    assert [outcome.job.finished_at for outcome in outcomes if isinstance(outcome, Applied)] == [
        job.updated_at for job in jobs
    ]


@pytest.mark.requirement("LC-07")
async def test_a_completion_that_comes_again_changes_nothing(drive: Driver) -> None:
    jobs = await running(drive, 3)
    requests = [completion(drive, job, "1") for job in jobs]
    await drive.store.apply(requests[:2])
    revs: dict[UUID, int] = {job.id: (await drive.job(job.id)).rev for job in jobs[:2]}
    outcomes = await drive.store.apply(requests)
    assert [type(outcome) for outcome in outcomes] == [Repeated, Repeated, Applied]
    assert {job.id: (await drive.job(job.id)).rev for job in jobs[:2]} == revs
