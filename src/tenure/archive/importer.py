"""Reads a file of lines, and writes it into an empty database: all of it, or nothing.

The file is read twice. The first time it is only looked at, so that one that was cut off or changed is refused before
anything is written; the second time each job is replayed as `tenure verify` would, before it is written.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Generic, TypeVar, cast
from uuid import UUID

import msgspec

from tenure.archive.format import (
    FORMAT,
    ORDER,
    TOLD_FORMAT,
    VERSION,
    ArtifactLine,
    BrokenArchive,
    EventLine,
    Footer,
    Header,
    JobLine,
    Line,
    Sum,
    kind_of,
    read,
    record_of,
)
from tenure.lifecycle.records import Event, EventType
from tenure.lifecycle.statuses import DEAD_LETTERED
from tenure.lifecycle.verify import Problem, ProblemType, dead_letter_problems, problems_of, signal_problems
from tenure.stores.contract.archive import ArchiveStore, Kept, NotRestored, Restoring, Runs, Shelved

BATCH_LENGTH = 500
BATCH_BYTES = 4 * 1024 * 1024
BATCH_EVENTS = 5000
"""A batch is written when it is this long, this large, or tells of jobs with this many events."""

T = TypeVar("T")
Read = Callable[[str, float], None]
"""Is told what is being done, and which share of the file lies behind."""


class Seen(msgspec.Struct, frozen=True):
    """What a file holds that was read to its end and found whole."""

    header: Header
    footer: Footer
    runs: int


def look_at(path: Path, *, told: Read | None = None) -> Seen:
    """Read the whole file, and refuse one that no export wrote (BrokenArchive)."""
    runs = Runs()
    header: Header | None = None
    footer: Footer | None = None
    for _, line, _ in numbered(path, doing="reading", told=told):
        match line:
            case Header():
                header = line
            case EventLine(event=event):
                runs.place(event)
            case Footer():
                footer = line
    assert header is not None, "a file without a header is refused"
    assert footer is not None, "a file without a footer is refused"
    return Seen(header, footer, runs.count)


def numbered(path: Path, *, doing: str, told: Read | None = None) -> Iterator[tuple[int, Line, int]]:
    """Each line with its number and its length, in an order that an export has; the footer has summed up the others."""
    order, total = _Order(), Sum()
    size = max(path.stat().st_size, 1)
    line: Line | None = None
    with path.open("rb") as compressed, _opened(path, compressed) as file:
        for number, raw in enumerate(_raw_lines(file), 1):
            if isinstance(line, Footer):
                raise BrokenArchive(number, "stands behind the footer, which is the last line of an export")
            line = _edge(number, read(number, raw), total)
            order.admit(number, line)
            if not isinstance(line, Header | Footer):
                total.add(kind_of(line), raw)
            if told is not None:
                told(doing, compressed.tell() / size)
            yield number, line, len(raw)
    if not isinstance(line, Footer):
        raise BrokenArchive(order.number + 1, "the file ends without its footer, so it was cut off")


def _opened(path: Path, file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file


def _raw_lines(file: IO[bytes]) -> Iterator[bytes]:
    number = 0
    try:
        for number, raw in enumerate(file, 1):
            if not raw.endswith(b"\n"):
                raise BrokenArchive(number, "has no end, so the file was cut off")
            yield raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise BrokenArchive(number + 1, f"the compressed file is damaged or was cut off: {problem}") from None


def _edge(number: int, line: Line, total: Sum) -> Line:
    """Refuse a header of another kind of file, and a footer that does not sum up what came before it."""
    if isinstance(line, Header):
        if line.format == TOLD_FORMAT:
            told = ", ".join(line.vocabularies)
            problem = f"this file tells jobs in other words ({told}), and those cannot be imported"
            raise BrokenArchive(number, f"{problem}; export without --vocabulary")
        if line.format != FORMAT or line.version != VERSION:
            problem = f"this is {line.format!r} of version {line.version}, and this tenure reads {FORMAT!r} of version"
            raise BrokenArchive(number, f"{problem} {VERSION}; import with the tenure that wrote it, or a newer one")
    if isinstance(line, Footer):
        found = total.footer()
        if line.counts != found.counts:
            raise BrokenArchive(number, f"the footer counts {line.counts}, and there are {found.counts}")
        if line.sha256 != found.sha256:
            raise BrokenArchive(number, "the digest does not fit: the file was changed after it was written")
    return line


class _Order:
    """Knows what may come next. Jobs ascend, so that none comes twice, and artifacts stand behind their own."""

    def __init__(self) -> None:
        self.number = 0
        self._rank = -1
        self._job: UUID | None = None

    def admit(self, number: int, line: Line) -> None:
        self.number = number
        kind = kind_of(line)
        rank = ORDER.index("job" if kind == "artifact" else kind)
        if (rank == 0) != (number == 1):
            raise BrokenArchive(number, "an export begins with its header" if rank else "there is a second header")
        if rank < self._rank:
            raise BrokenArchive(number, f"{kind} lines come before {ORDER[self._rank]} lines")
        self._rank = rank
        if isinstance(line, JobLine):
            if self._job is not None and line.job.id <= self._job:
                raise BrokenArchive(number, f"job {line.job.id} comes twice, or after one with a higher id")
            self._job = line.job.id
        elif isinstance(line, ArtifactLine) and line.artifact.job_id != self._job:
            raise BrokenArchive(number, f"an artifact of job {line.artifact.job_id} does not stand behind its job")


class _Batch(Generic[T]):
    """Records that are written together, with the lines that they come from."""

    def __init__(self) -> None:
        self.records: list[T] = []
        self._lines: list[int] = []
        self._bytes = self._events = 0

    def add(self, record: T, line: int, size: int, *, events: int = 0) -> bool:
        """Whether it is full now."""
        self.records.append(record)
        self._lines.append(line)
        self._bytes += size
        self._events += events
        full = len(self.records) >= BATCH_LENGTH or self._bytes >= BATCH_BYTES or self._events >= BATCH_EVENTS
        return full

    def take(self) -> tuple[list[T], list[int]]:
        """What is in it; afterwards it is empty."""
        taken = self.records, self._lines
        self.records, self._lines = [], []
        self._bytes = self._events = 0
        return taken


async def import_file(archive: ArchiveStore, path: Path, *, told: Read | None = None) -> Seen:
    """Write what the file holds into an empty database. An error of any kind leaves it empty."""
    seen = look_at(path, told=told)
    await import_seen(archive, path, seen, told=told)
    return seen


async def import_seen(archive: ArchiveStore, path: Path, seen: Seen, *, told: Read | None = None) -> None:
    """The same for a file that was looked at before."""
    async with archive.restoring(runs=seen.runs) as restoring:
        writing = _Import(restoring, path)
        for number, line, size in numbered(path, doing="writing", told=told):
            await writing.take(number, line, size)
        await writing.finish()


class _Import:
    """Writes the lines of one file."""

    def __init__(self, restoring: Restoring, path: Path) -> None:
        self._restoring, self._path = restoring, path
        self._shelved: _Batch[Shelved] = _Batch()
        self._events: _Batch[Event] = _Batch()
        self._jobs: _Batch[Kept] = _Batch()
        self._of_jobs = 0
        self._of_log = 0

    async def take(self, number: int, line: Line, size: int) -> None:
        """What comes of a line. Before the first of another kind, those of the kind before it are written."""
        match line:
            case EventLine(event=event):
                await self._write_shelved()
                self._of_log += 1
                if self._events.add(event, number, size):
                    await self._write_events()
            case JobLine(job=job):
                await self._write_shelved()
                await self._write_events()
                self._of_jobs += job.rev
                if self._jobs.add(line.kept, number, size, events=job.rev):
                    await self._write_jobs()
            case ArtifactLine(artifact=made):
                await self._write_jobs()
                await _placed(self._restoring.artifact(made, line.content()), [number])
            case Header() | Footer():
                return
            case _:
                if self._shelved.add(record_of(line), number, size):
                    await self._write_shelved()

    async def finish(self) -> None:
        """Write what is left, and make sure that every event found its job."""
        await self._write_shelved()
        await self._write_events()
        await self._write_jobs()
        if self._of_jobs != self._of_log:
            stray = await self._restoring.stray()
            assert stray is not None, "events were counted that nobody wrote"
            where = self._line_of(stray, 1)
            raise BrokenArchive(where or 1, f"an event tells of job {stray}, which is not in the file")

    async def _write_shelved(self) -> None:
        records, lines = self._shelved.take()
        if records:
            await _placed(self._restoring.shelve(records), lines)

    async def _write_events(self) -> None:
        events, lines = self._events.take()
        if events:
            await _placed(self._restoring.log(events), lines)

    async def _write_jobs(self) -> None:
        kept, lines = self._jobs.take()
        if kept:
            await self._check(kept, lines)
            await _placed(self._restoring.jobs(kept), lines)

    async def _check(self, kept: Sequence[Kept], lines: Sequence[int]) -> None:
        """Refuse a job whose events do not give it, at the event that is wrong where there is one."""
        histories = await self._restoring.histories([one.job.id for one in kept])
        for one, line in zip(kept, lines, strict=True):
            for problem in problems_with(one, histories[one.job.id]):
                at = None if problem.rev is None else self._line_of(one.job.id, problem.rev)
                raise BrokenArchive(at or line, str(problem))

    def _line_of(self, job_id: UUID, rev: int) -> int | None:
        """The line of an event. Nobody kept it, so the file is read again."""
        for number, line, _ in numbered(self._path, doing="looking"):
            if isinstance(line, EventLine) and (line.event.job_id, line.event.rev) == (job_id, rev):
                return number
        return None


def problems_with(kept: Kept, events: Sequence[Event]) -> list[Problem]:
    """Everything in which a job, its events and what belongs to it contradict each other or the lifecycle."""
    job = kept.job
    found = problems_of(job, events)
    if not events:
        return found
    if job.status is DEAD_LETTERED or kept.dead_letter is None:
        found += dead_letter_problems(job, events, kept.dead_letter)
    else:
        found.append(Problem(job.id, ProblemType.DEAD_LETTER, f"it has a dead letter, though it is {job.status}"))
    found += signal_problems(job, events, {signal.rev: (signal.name, signal.payload) for signal in kept.signals})
    sent = [event.rev for event in events if event.type is EventType.SIGNALLED]
    if job.erased_at is not None and sorted(signal.rev for signal in kept.signals) != sent:
        found.append(Problem(job.id, ProblemType.SIGNAL, "its signals are not those that the log names"))
    return found


async def _placed(writing: Awaitable[None], lines: Sequence[int]) -> None:
    """A record that the database will not have, by its line."""
    try:
        await writing
    except NotRestored as refused:
        raise BrokenArchive(lines[refused.place], f"the database refuses it: {refused.problem}") from refused
