"""Checks that a store's log and rows agree, which must hold of every store at any time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from tenure.lifecycle.fold import contents_of, differences, executions, fold
from tenure.lifecycle.invariants import violations
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import DEAD_LETTERED, LEASED, rank
from tenure.lifecycle.verify import content_problems
from tenure.seams import SYSTEM, Clock
from tenure.stores.contract import JobFilter, Store
from tenure.vocabularies import ALL, Vocabulary, transition_problems

TAIL_SECONDS_MAX = 60.0

_CONTENT = frozenset(
    {"result", "partial_result", "error", "last_error", "committed_result", "progress", "progress_message"}
)


async def check_store(store: Store, *, vocabularies: Iterable[Vocabulary] = ALL) -> None:
    """Every job's events fold to its row, with the digests of the rows beside it; the tail has each event once, and no
    read shows a token. These vocabularies report every log as their sources allow."""
    jobs = await all_jobs(store)
    by_job: dict[UUID, list[Event]] = {}
    for event in await whole_tail(store, expected=sum(job.rev for job in jobs)):
        by_job.setdefault(event.job_id, []).append(event)
    assert set(by_job) == {job.id for job in jobs}, "the tail and the list of jobs disagree"
    for job in jobs:
        events = (await store.history([job.id]))[job.id]
        assert by_job[job.id] == events, f"the tail and the history of job {job.id} disagree"
        check_job(job, events, vocabularies=vocabularies)
        assert await store.executions(job.id) == executions(events)
        assert (await store.dead_letter(job.id) is not None) == (job.status is DEAD_LETTERED)
        problems = content_problems(job, events, (await store.content([job.id]))[job.id])
        assert problems == [], f"job {job.id}: {problems}"


def check_job(job: Job, events: Sequence[Event], *, vocabularies: Iterable[Vocabulary] = ALL) -> None:
    """One job: its log is a legal chain that ends in its row; time, attempts and leases are in order."""
    folded = fold(job.origin, events, contents_of(job))
    wrong = differences(job, folded)
    if job.erased_at is not None:
        wrong = {name: values for name, values in wrong.items() if name not in _CONTENT}
    assert wrong == {}, f"job {job.id}: stored and replayed differ: {wrong}"
    assert violations(job) == []
    assert job.token is None, "a read shows the token"
    assert [event.rev for event in events] == list(range(1, job.rev + 1))
    assert all(event.cause for event in events), "an event has no cause"
    assert {event.correlation_id for event in events} == {job.correlation_id}, "an event has another correlation id"
    check_monotonic(events)
    check_leases(events)
    assert sum(event.commits for event in events) == int(job.committed)
    reported = transition_problems(vocabularies, job, events)
    assert reported == [], f"job {job.id}: {'; '.join(map(str, reported))}"


def check_monotonic(events: Sequence[Event]) -> None:
    """Time and (attempt, rank) never fall, and only a claim counts an attempt."""
    times = [event.at for event in events]
    assert times == sorted(times), "timestamps go back"
    steps: list[tuple[int, int]] = []
    requeued = False
    for event in events:
        requeued = event.type is EventType.REQUEUED or (requeued and event.type is not EventType.CLAIMED)
        steps.append((event.attempt, rank(event.to_status, requeued=requeued)))
    assert steps == sorted(steps), f"(attempt, rank) falls: {steps}"
    claims = sum(event.type is EventType.CLAIMED for event in events)
    assert events[-1].attempt == claims


def check_leases(events: Sequence[Event]) -> None:
    """A lease begins only after the previous one has ended, so that two are never active at once."""
    held = False
    for event in events:
        if event.type is EventType.CLAIMED:
            assert not held, f"job {event.job_id} was claimed at revision {event.rev} while it was held"
        held = event.to_status in LEASED


async def all_jobs(store: Store, *, limit: int = 500) -> list[Job]:
    """Every job, page by page."""
    page = await store.find(JobFilter(), limit=limit)
    jobs = list(page.jobs)
    while page.after is not None:
        page = await store.find(JobFilter(), after=page.after, limit=limit)
        jobs += page.jobs
    return jobs


async def whole_tail(
    store: Store,
    *,
    after: str | None = None,
    limit: int = 1000,
    expected: int = 0,
    clock: Clock = SYSTEM.clock,
) -> list[Event]:
    """The log from its beginning, or from a position, to its present end, page by page.

    A tail holds back events that an open transaction may precede, so an expected number is waited for, with a limit.
    """
    events: list[Event] = []
    position = after
    deadline_seconds = clock.monotonic_seconds() + TAIL_SECONDS_MAX
    while True:
        page = await store.tail(after=position, limit=limit)
        events += page.events
        position = page.position
        if not page.events:
            if len(events) >= expected or clock.monotonic_seconds() > deadline_seconds:
                return events
            await clock.sleep(0.01)
