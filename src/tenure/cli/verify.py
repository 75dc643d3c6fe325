"""`tenure verify`: replay the whole log, and say where a record, its content or its events differ.

It walks in pages by key and forgets each page, so that memory does not grow with the database. It reads while others
write: a job that looks wrong is looked at again, until its record did not move while its events were read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import click
import msgspec

from tenure.cli.database import common_options, opened, run, without_password
from tenure.cli.output import Exit, Progress, counted, progress, say, say_json
from tenure.errors import RowPoisoned
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import DEAD_LETTERED
from tenure.lifecycle.verify import Problem, ProblemType, dead_letter_problems, problems_of, signal_problems
from tenure.stores import EventFilter, EventPage, JobFilter

if TYPE_CHECKING:
    from tenure.stores.contract import ReadStore

T = TypeVar("T")

JOBS_PER_PAGE = 100
EVENTS_PER_PAGE = 500
EVENTS_PER_BATCH = 2000
LOOKS_MAX = 5

UNREADABLE = (RowPoisoned, ValueError, TypeError, LookupError, ArithmeticError, msgspec.MsgspecError)
"""What a store raises on a row that no tenure has written."""


@dataclass(slots=True)
class Tally:
    """What has been looked at so far, and what was found."""

    jobs: int = 0
    events: int = 0
    problems: list[Problem] = field(default_factory=list)
    complete: bool = True


@click.command()
@common_options
@click.option(
    "--max-problems",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Stop after this many.",
)
def verify(*, database: str, as_json: bool, max_problems: int) -> int:
    """Replay every job's events and compare with its record.

    Exit code 1 and a list when anything differs.
    """
    with progress(as_json=as_json) as shown:
        tally = run(_verify(database, shown, problems_max=max_problems))
    if as_json:
        say_json({"database": without_password(database), "ok": not tally.problems, **_facts(tally)})
    else:
        _report(tally)
    return Exit.PROBLEMS if tally.problems else Exit.OK


async def _verify(database: str, shown: Progress, *, problems_max: int) -> Tally:
    async with opened(database) as store:
        return await audit(store, shown, problems_max=problems_max)


async def audit(store: ReadStore, shown: Progress, *, problems_max: int) -> Tally:
    """Every job against its events, then every event against its job."""
    tally = Tally()
    way = Way(shown, tally, until=await store.now())
    for walk in (jobs_against_events(store, way), events_against_jobs(store, way)):
        async with aclosing(walk) as problems:
            async for problem in problems:
                if len(tally.problems) == problems_max:
                    tally.complete = False
                    return tally
                tally.problems.append(problem)
    return tally


class Way:
    """How far the walk has come, judged by the moments that it passes: nobody counts the rows first.

    `named` are the jobs of which enough has been said; there are at most as many as problems may be listed.
    """

    def __init__(self, shown: Progress, tally: Tally, *, until: datetime) -> None:
        self._shown, self.tally, self._until = shown, tally, until
        self.named: set[UUID] = set()
        self._stages: list[str] = []
        self._since: datetime | None = None

    def start(self, stage: str) -> None:
        """Of two stages each is half of the way."""
        self._stages.append(stage)
        self._since = None

    def reached(self, moment: datetime, seen: str) -> None:
        self._since = self._since or moment
        whole = (self._until - self._since).total_seconds()
        gone = (moment - self._since).total_seconds()
        fraction = min(max(gone / whole, 0.0), 1.0) if whole > 0 else 1.0
        self._shown.show(f"{self._stages[-1]}: {seen}", (len(self._stages) - 1 + fraction) / 2)


async def jobs_against_events(store: ReadStore, way: Way) -> AsyncGenerator[Problem, None]:
    """Each job, in the order of ids, against its own history."""
    way.start("records")
    after: UUID | None = None
    while True:
        try:
            jobs = await _page_of_jobs(store, after)
        except RowPoisoned as unread:
            after = UUID(str(unread.job_id))
            way.named.add(after)
            yield Problem(after, ProblemType.UNREADABLE, f"its record cannot be read: {_why(unread)}")
            continue
        except UNREADABLE as unread:
            where = "the first record" if after is None else f"the record after job {after}"
            yield Problem(
                None, ProblemType.UNREADABLE, f"{where} cannot be read, nor any that follow it: {_why(unread)}"
            )
            return
        if not jobs:
            return
        for batch in _batches(jobs):
            for problem in await _look_at(store, batch, way.tally):
                yield problem
        after = jobs[-1].id
        seen = f"{counted(way.tally.jobs, 'job')}, {counted(way.tally.events, 'event')}"
        way.reached(jobs[-1].created_at, seen)


async def events_against_jobs(store: ReadStore, way: Way) -> AsyncGenerator[Problem, None]:
    """Each event for one whose job is gone or cannot be read: the log in its order, and then by time what the log holds
    back because a transaction elsewhere in the server might still precede it."""
    way.start("log")
    last: Event | None = None
    passed = 0

    def held_back(*, after: str | None, limit: int) -> Awaitable[EventPage]:
        return store.events(EventFilter(since=None if last is None else last.at), after=after, limit=limit)

    for walk in (store.tail, held_back):
        position: str | None = None
        while True:
            try:
                page = await _narrowing(partial(walk, after=position), EVENTS_PER_PAGE)
            except UNREADABLE as unread:
                where = "the first event" if position is None else f"the event after position {position}"
                yield Problem(
                    None, ProblemType.UNREADABLE, f"{where} cannot be read, nor any that follow it: {_why(unread)}"
                )
                return
            if not page.events:
                break
            for problem in await _jobs_behind(store, {event.job_id for event in page.events} - way.named):
                way.named.update({problem.job_id} if problem.job_id else ())
                yield problem
            position, last = page.position, page.events[-1]
            # What was held back begins with what the log has just shown last, and that is counted once.
            passed += len(page.events) if walk == store.tail else 0
            way.reached(last.at, counted(passed, "event"))


async def _page_of_jobs(store: ReadStore, after: UUID | None) -> list[Job]:
    page = await _narrowing(partial(store.find, JobFilter(), after=after), JOBS_PER_PAGE)
    return page.jobs


async def _narrowing(read: Callable[..., Awaitable[T]], limit: int) -> T:
    """A page of at most this many; a smaller one where a row in it cannot be read, down to that row alone."""
    try:
        return await read(limit=limit)
    except UNREADABLE:
        if limit == 1:
            raise
        return await _narrowing(read, limit // 2)


def _batches(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Jobs whose histories are read together: a record's revision says how many events it should have."""
    batch: list[Job] = []
    events = 0
    for job in jobs:
        if batch and events + job.rev > EVENTS_PER_BATCH:
            yield batch
            batch, events = [], 0
        batch.append(job)
        events += job.rev
    yield batch


async def _look_at(store: ReadStore, jobs: Sequence[Job], tally: Tally) -> list[Problem]:
    try:
        histories = await store.history([job.id for job in jobs])
    except UNREADABLE as unread:
        if len(jobs) == 1:
            tally.jobs += 1
            return [Problem(jobs[0].id, ProblemType.UNREADABLE, f"its events cannot be read: {_why(unread)}")]
        half = len(jobs) // 2
        return [*await _look_at(store, jobs[:half], tally), *await _look_at(store, jobs[half:], tally)]
    found: list[Problem] = []
    for job in jobs:
        events = histories.get(job.id, [])
        tally.jobs += 1
        tally.events += len(events)
        if await _examined(store, job, events):
            found.extend(await _look_again(store, job.id))
    return found


async def _look_again(store: ReadStore, job_id: UUID) -> list[Problem]:
    """The problems of a job whose record stayed the same while its events were read; none if it has been removed."""
    problems: list[Problem] = []
    for _ in range(LOOKS_MAX):
        before = (await store.read([job_id])).get(job_id)
        if before is None:
            return []
        events = (await store.history([job_id])).get(job_id, [])
        problems = await _examined(store, before, events)
        if not problems or (await store.read([job_id])).get(job_id) == before:
            break
    return problems


async def _examined(store: ReadStore, job: Job, events: Sequence[Event]) -> list[Problem]:
    problems = problems_of(job, events)
    if job.status is DEAD_LETTERED and events:
        problems.extend(dead_letter_problems(job, events, await store.dead_letter(job.id)))
    if any(event.type is EventType.SIGNALLED for event in events):
        kept = {signal.rev: (signal.name, signal.payload) for signal in await store.signals(job.id)}
        problems.extend(signal_problems(job, events, kept))
    return problems


async def _jobs_behind(store: ReadStore, job_ids: Set[UUID]) -> list[Problem]:
    ordered = sorted(job_ids)
    try:
        missing = job_ids - (await store.read(ordered)).keys()
    except UNREADABLE as unread:
        if len(ordered) == 1:
            return [Problem(ordered[0], ProblemType.UNREADABLE, f"its record cannot be read: {_why(unread)}")]
        half = len(ordered) // 2
        return [*await _jobs_behind(store, {*ordered[:half]}), *await _jobs_behind(store, {*ordered[half:]})]
    # Retention may have removed a job since its events were read; then it has none any more.
    left = await store.history(sorted(missing)) if missing else {}
    says = "the log has {} of it, and there is no such job"
    return [
        Problem(job_id, ProblemType.NO_JOB, says.format(counted(len(events), "event")))
        for job_id, events in left.items()
        if events
    ]


def _why(unread: Exception) -> str:
    return unread.problem if isinstance(unread, RowPoisoned) else f"{type(unread).__name__}: {unread}"


def _report(tally: Tally) -> None:
    for problem in tally.problems:
        say(str(problem), level="error")
    seen = f"{counted(tally.jobs, 'job')} and {counted(tally.events, 'event')}"
    if not tally.complete:
        say(f"stopped at {counted(len(tally.problems), 'problem')} after {seen}; --max-problems lists more")
    elif tally.problems:
        say(f"{counted(len(tally.problems), 'problem')} in {seen}")
    else:
        say(f"{seen}: every record is what its log says", level="ok")


def _facts(tally: Tally) -> dict[str, object]:
    return {"complete": tally.complete, "jobs": tally.jobs, "events": tally.events, "problems": tally.problems}
