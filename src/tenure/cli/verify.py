"""`tenure verify`: replay the whole log, and report records, contents and events that differ.

It reads page by page by key, so that memory does not grow with the database. It runs beside writers: a job with a
problem is read again until its record did not change while its events were read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import click
import msgspec

from tenure.cli.database import common_options, in_store
from tenure.cli.output import Exit, ProgressDisplay, counted, print_json, print_line, progress
from tenure.errors import RowPoisoned
from tenure.lifecycle.content import StoredContent
from tenure.lifecycle.records import Event, Job
from tenure.lifecycle.statuses import DEAD_LETTERED
from tenure.lifecycle.verify import Problem, ProblemType, content_problems, dead_letter_problems, problems_of
from tenure.stores import EventFilter, EventPage, JobFilter
from tenure.stores.contract.archive import ARCHIVE_RECORDS
from tenure.stores.database_url import shown_url

if TYPE_CHECKING:
    from tenure.stores.contract import ArchiveStore, ReadStore, Store, UnreadableRow
    from tenure.stores.contract.archive import ArchiveRecord

JOBS_PER_PAGE = 100
EVENTS_PER_PAGE = 500
EVENTS_PER_BATCH = 2000
RECORDS_PER_PAGE = 500
READS_MAX = 5

UNREADABLE = (RowPoisoned, ValueError, TypeError, LookupError, ArithmeticError, msgspec.MsgspecError)
"""The errors of reading a row that tenure did not write."""


@dataclass(slots=True)
class VerifyResult:
    """The problems, and how much was read. `later_events` are those with a type of a later version.

    Not `complete` if it stopped at the maximum of problems.
    """

    jobs: int = 0
    events: int = 0
    later_events: int = 0
    problems: list[Problem] = field(default_factory=list)
    complete: bool = True


@click.command()
@common_options
@click.option(
    "--max-problems",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Stop after this many problems.",
)
def verify(*, database: str, as_json: bool, max_problems: int) -> int:
    """Replay every job's events and compare the result with its record.

    Exit code 1 if anything differs.
    """
    with progress(as_json=as_json) as display:
        result = in_store(database, lambda store: verify_store(store, display, problems_max=max_problems))
    if as_json:
        fields = {"complete": result.complete, "jobs": result.jobs, "events": result.events}
        fields["later_events"] = result.later_events
        print_json({"database": shown_url(database), "ok": not result.problems, **fields, "problems": result.problems})
    else:
        _print(result)
    return Exit.PROBLEMS if result.problems else Exit.OK


async def verify_store(store: Store, display: ProgressDisplay, *, problems_max: int) -> VerifyResult:
    """Compare every job with its events, find events without a job, then other records that cannot be read."""
    result = VerifyResult()
    state = VerifyState(display, result, until=await store.now())
    steps = (jobs_against_events(store, state), events_against_jobs(store, state), unreadable_records(store.archive))
    for step in steps:
        async with aclosing(step) as problems:
            async for problem in problems:
                if len(result.problems) == problems_max:
                    result.complete = False
                    return result
                result.problems.append(problem)
    return result


class VerifyState:
    """Result so far and progress, which is estimated from timestamps: counting rows first would be slow.

    `reported` are the jobs with a reported problem: at most as many as the maximum of problems.
    """

    def __init__(self, display: ProgressDisplay, result: VerifyResult, *, until: datetime) -> None:
        self._display, self.result, self._until = display, result, until
        self.reported: set[UUID] = set()
        self._steps: list[str] = []
        self._since: datetime | None = None

    def start(self, step: str) -> None:
        """Start one of the two steps, which count as half of the work each."""
        self._steps.append(step)
        self._since = None

    def reached(self, at: datetime, label: str) -> None:
        self._since = self._since or at
        total_seconds = (self._until - self._since).total_seconds()
        done_seconds = (at - self._since).total_seconds()
        fraction = min(max(done_seconds / total_seconds, 0.0), 1.0) if total_seconds > 0 else 1.0
        self._display.show(f"{self._steps[-1]}: {label}", (len(self._steps) - 1 + fraction) / 2)


async def jobs_against_events(store: ReadStore, state: VerifyState) -> AsyncGenerator[Problem, None]:
    """Compare each job, in the order of ids, with its events."""
    state.start("records")
    after: UUID | None = None
    while True:
        page = await store.find(JobFilter(), after=after, limit=JOBS_PER_PAGE)
        for row in page.unreadable:
            state.reported.update({row.job_id} if row.job_id else ())
            yield Problem(row.job_id, ProblemType.UNREADABLE, str(row))
        for batch in _batches(page.jobs):
            for problem in await _verify_jobs(store, batch, state.result):
                if problem.type is ProblemType.UNREADABLE and problem.job_id is not None:
                    state.reported.add(problem.job_id)
                yield problem
        if page.jobs:
            label = f"{counted(state.result.jobs, 'job')}, {counted(state.result.events, 'event')}"
            state.reached(page.jobs[-1].created_at, label)
        if (after := page.after) is None:
            return


async def events_against_jobs(store: ReadStore, state: VerifyState) -> AsyncGenerator[Problem, None]:
    """Find events whose job is missing or unreadable: first in the settled log, then by time in the events after it,
    which the log does not show yet because an open transaction on the server might still precede them."""
    state.start("log")
    last: Event | None = None
    passed = 0

    def unsettled(*, after: str | None, limit: int) -> Awaitable[EventPage]:
        return store.events(EventFilter(since=None if last is None else last.at), after=after, limit=limit)

    for read in (store.tail, unsettled):
        position: str | None = None
        while True:
            page = await read(after=position, limit=EVENTS_PER_PAGE)
            for row in page.unreadable:
                if row.job_id not in state.reported:
                    state.reported.update({row.job_id} if row.job_id else ())
                    yield Problem(row.job_id, ProblemType.UNREADABLE, str(row))
            if not page.events and (not page.unreadable or page.position == position):
                break
            if not page.events:
                position = page.position
                continue
            for problem in await _missing_jobs(store, {event.job_id for event in page.events} - state.reported):
                state.reported.update({problem.job_id} if problem.job_id else ())
                yield problem
            position, last = page.position, page.events[-1]
            # The unsettled events start with the last settled ones, which are counted once.
            passed += len(page.events) if read == store.tail else 0
            state.reached(last.at, counted(passed, "event"))


async def unreadable_records(archive: ArchiveStore) -> AsyncGenerator[Problem, None]:
    """Find records beside jobs and events that cannot be read: of queues, schedules, claims, messages and operators."""
    for row in await unreadable_rows(archive, ARCHIVE_RECORDS):
        yield Problem(None, ProblemType.UNREADABLE, str(row))


async def unreadable_rows(archive: ArchiveStore, kinds: Iterable[type[ArchiveRecord]]) -> Sequence[UnreadableRow]:
    """The records of these types that cannot be decoded."""
    async with archive.snapshot() as snapshot:
        for kind in kinds:
            async for _ in snapshot.records(kind, limit=RECORDS_PER_PAGE):
                pass
        return tuple(snapshot.unreadable)


def _batches(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Jobs whose events are read together; a record's revision is the number of its events."""
    batch: list[Job] = []
    events = 0
    for job in jobs:
        if batch and events + job.rev > EVENTS_PER_BATCH:
            yield batch
            batch, events = [], 0
        batch.append(job)
        events += job.rev
    if batch:
        yield batch


async def _verify_jobs(store: ReadStore, jobs: Sequence[Job], result: VerifyResult) -> list[Problem]:
    try:
        histories = await store.history([job.id for job in jobs])
        contents = await store.content([job.id for job in jobs])
    except UNREADABLE as unread:
        if len(jobs) == 1:
            result.jobs += 1
            what = "its events, artifacts, messages or signals cannot be read"
            return [Problem(jobs[0].id, ProblemType.UNREADABLE, f"{what}: {_why(unread)}")]
        half = len(jobs) // 2
        return [*await _verify_jobs(store, jobs[:half], result), *await _verify_jobs(store, jobs[half:], result)]
    found: list[Problem] = []
    for job in jobs:
        events = histories.get(job.id, [])
        result.jobs += 1
        result.events += len(events)
        result.later_events += sum(event.is_of_later_version for event in events)
        if await _problems(store, job, events, contents[job.id]):
            found.extend(await _reread_problems(store, job.id))
    return found


async def _reread_problems(store: ReadStore, job_id: UUID) -> list[Problem]:
    """The problems of a job whose record did not change while its events were read; none if it was removed."""
    problems: list[Problem] = []
    for _ in range(READS_MAX):
        before = (await store.read([job_id])).get(job_id)
        if before is None:
            return []
        events = (await store.history([job_id])).get(job_id, [])
        content = (await store.content([job_id]))[job_id]
        problems = await _problems(store, before, events, content)
        if not problems or (await store.read([job_id])).get(job_id) == before:
            break
    return problems


async def _problems(store: ReadStore, job: Job, events: Sequence[Event], content: StoredContent) -> list[Problem]:
    problems = problems_of(job, events)
    if job.status is DEAD_LETTERED and events:
        problems.extend(dead_letter_problems(job, events, await store.dead_letter(job.id)))
    if events:
        problems.extend(content_problems(job, events, content))
    return problems


async def _missing_jobs(store: ReadStore, job_ids: Set[UUID]) -> list[Problem]:
    ordered = sorted(job_ids)
    try:
        missing = job_ids - (await store.read(ordered)).keys()
    except UNREADABLE as unread:
        if len(ordered) == 1:
            return [Problem(ordered[0], ProblemType.UNREADABLE, f"its record cannot be read: {_why(unread)}")]
        half = len(ordered) // 2
        return [*await _missing_jobs(store, {*ordered[:half]}), *await _missing_jobs(store, {*ordered[half:]})]
    # Retention may have removed a job with its events since they were read.
    left = await store.history(sorted(missing)) if missing else {}
    text = "the log has {} of this job, which does not exist"
    return [
        Problem(job_id, ProblemType.NO_JOB, text.format(counted(len(events), "event")))
        for job_id, events in left.items()
        if events
    ]


def _why(unread: Exception) -> str:
    return unread.problem if isinstance(unread, RowPoisoned) else f"{type(unread).__name__}: {unread}"


def _print(result: VerifyResult) -> None:
    for problem in result.problems:
        print_line(str(problem), level="error")
    read = f"{counted(result.jobs, 'job')} and {counted(result.events, 'event')}"
    if result.later_events:
        later = counted(result.later_events, "event")
        print_line(f"{later} of a later version: the records of their jobs were not compared", level="warning")
    if not result.complete:
        print_line(f"stopped at {counted(len(result.problems), 'problem')} after {read}; raise --max-problems for more")
    elif result.problems:
        print_line(f"{counted(len(result.problems), 'problem')} in {read}")
    else:
        print_line(f"{read} verified: every record matches its events", level="ok")
