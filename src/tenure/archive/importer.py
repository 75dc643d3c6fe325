"""Imports an export into an empty database: all of it, or nothing.

The file is read twice. The first pass refuses a truncated or changed file before anything is written. The second pass
replays each job's events, as `tenure verify` does, before it writes the job.
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
    READABLE_VERSIONS,
    TRANSLATED_FORMAT,
    VERSION,
    ArtifactLine,
    BrokenArchive,
    Checksum,
    EventLine,
    Footer,
    Header,
    JobLine,
    Line,
    StepLine,
    kind_of,
    read,
    record_of,
)
from tenure.lifecycle.records import Event, Job
from tenure.lifecycle.statuses import DEAD_LETTERED
from tenure.lifecycle.steps import StepRecord
from tenure.lifecycle.verify import (
    Problem,
    ProblemType,
    content_problems,
    dead_letter_problems,
    problems_of,
    signal_problems,
)
from tenure.stores.contract.archive import ArchivedJob, ArchiveRecord, ArchiveStore, NotRestored, Restore, Runs

BATCH_LENGTH = 500
BATCH_BYTES = 4 * 1024 * 1024
BATCH_EVENTS = 5000
"""A batch is written when it has this many records, bytes, or events of its jobs."""

LINE_BYTES_MAX = 128 * 1024 * 1024
"""The longest line that is read. An artifact of the largest size takes a third of it."""

T = TypeVar("T")
ReportProgress = Callable[[str, float], None]
"""Called for each line with the current pass, and the fraction of the file that was read."""


class ArchiveSummary(msgspec.Struct, frozen=True):
    """Header, footer and number of event runs of a file that passed `check_file`."""

    header: Header
    footer: Footer
    runs: int


def check_file(path: Path, *, report: ReportProgress | None = None) -> ArchiveSummary:
    """Read the whole file; BrokenArchive for one that no export wrote."""
    runs = Runs()
    header: Header | None = None
    footer: Footer | None = None
    for _, line, _ in read_lines(path, step="reading", report=report):
        match line:
            case Header():
                header = line
            case EventLine(event=event):
                runs.place(event)
            case Footer():
                footer = line
    assert header is not None, "a file without a header is refused"
    assert footer is not None, "a file without a footer is refused"
    return ArchiveSummary(header, footer, runs.count)


def read_lines(path: Path, *, step: str, report: ReportProgress | None = None) -> Iterator[tuple[int, Line, int]]:
    """Each line with its number and its length. Order, counts and digest are checked."""
    order, checksum = _Order(), Checksum()
    size = max(path.stat().st_size, 1)
    line: Line | None = None
    with path.open("rb") as compressed, _opened(path, compressed) as file:
        for number, raw in enumerate(_raw_lines(file), 1):
            if isinstance(line, Footer):
                raise BrokenArchive(number, "follows the footer, which is the last line of an export")
            line = _check_frame(number, read(number, raw), checksum)
            order.admit(number, line)
            if not isinstance(line, Header | Footer):
                checksum.add(kind_of(line), raw)
            if report is not None:
                report(step, compressed.tell() / size)
            yield number, line, len(raw)
    if not isinstance(line, Footer):
        raise BrokenArchive(order.number + 1, "the file ends without a footer, so it was truncated")


def _opened(path: Path, file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file


def _raw_lines(file: IO[bytes]) -> Iterator[bytes]:
    number = 0
    try:
        # Bounded: a small compressed file can have a line that does not fit into memory.
        while raw := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(raw) > LINE_BYTES_MAX:
                raise BrokenArchive(number, f"is longer than {LINE_BYTES_MAX:,} bytes, which no export writes")
            if not raw.endswith(b"\n"):
                raise BrokenArchive(number, "has no newline, so the file was truncated")
            yield raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise BrokenArchive(number + 1, f"the compressed file is damaged or truncated: {problem}") from None


def _check_frame(number: int, line: Line, checksum: Checksum) -> Line:
    """Refuse a header of another format, and a footer whose counts or digest differ from the lines."""
    if isinstance(line, Header):
        if line.format == TRANSLATED_FORMAT:
            names = ", ".join(line.vocabularies)
            problem = f"an export in another vocabulary ({names}) cannot be imported"
            raise BrokenArchive(number, f"{problem}; export without --vocabulary")
        if line.format != FORMAT or line.version not in READABLE_VERSIONS:
            known, other = f"{FORMAT!r} up to version {VERSION}", f"{line.format!r} version {line.version}"
            raise BrokenArchive(
                number, f"this tenure reads {known}, not {other}; import with the tenure that wrote it, or a newer one"
            )
    if isinstance(line, Footer):
        found = checksum.footer()
        if line.counts != found.counts:
            raise BrokenArchive(number, f"the footer counts {line.counts}, but the file has {found.counts}")
        if line.sha256 != found.sha256:
            raise BrokenArchive(number, "the digest differs: the file was changed after the export")
    return line


class _Order:
    """Checks the order of lines. Job ids ascend, so that none occurs twice; artifacts and steps
    follow their job."""

    def __init__(self) -> None:
        self.number = 0
        self._rank = -1
        self._job: UUID | None = None
        self._steps = 0

    def admit(self, number: int, line: Line) -> None:
        self.number = number
        kind = kind_of(line)
        rank = ORDER.index("job" if kind in ("artifact", "step") else kind)
        if (rank == 0) != (number == 1):
            raise BrokenArchive(number, "an export starts with a header" if rank else "second header")
        if rank < self._rank:
            raise BrokenArchive(number, f"{kind} lines must precede {ORDER[self._rank]} lines")
        self._rank = rank
        if isinstance(line, JobLine):
            if self._job is not None and line.job.id <= self._job:
                raise BrokenArchive(number, f"job {line.job.id} occurs twice, or after a job with a higher id")
            self._job, self._steps = line.job.id, 0
        elif isinstance(line, StepLine):
            self._steps += 1
            if (line.step.job_id, line.step.number) != (self._job, self._steps):
                which = f"step {line.step.number} of job {line.step.job_id}"
                raise BrokenArchive(number, f"{which} does not follow its job, or the step before it")
        elif isinstance(line, ArtifactLine) and line.artifact.job_id != self._job:
            raise BrokenArchive(number, f"an artifact of job {line.artifact.job_id} does not follow its job")


class _Batch(Generic[T]):
    """Records that are written together, with their line numbers."""

    def __init__(self) -> None:
        self.records: list[T] = []
        self._lines: list[int] = []
        self._bytes = self._events = 0

    def add(self, record: T, line: int, size: int, *, events: int = 0) -> bool:
        """Add a record; whether the batch is full."""
        self.records.append(record)
        self._lines.append(line)
        self._bytes += size
        self._events += events
        return len(self.records) >= BATCH_LENGTH or self._bytes >= BATCH_BYTES or self._events >= BATCH_EVENTS

    def take(self) -> tuple[list[T], list[int]]:
        """Remove and return all records and line numbers."""
        taken = self.records, self._lines
        self.records, self._lines = [], []
        self._bytes = self._events = 0
        return taken


async def import_file(
    archive: ArchiveStore, path: Path, summary: ArchiveSummary, *, report: ReportProgress | None = None
) -> None:
    """Import a file that `check_file` has accepted."""
    async with archive.restore(runs=summary.runs) as restoring:
        importer = _Importer(restoring, path)
        for number, line, size in read_lines(path, step="writing", report=report):
            await importer.add(number, line, size)
        await importer.finish()


class _Importer:
    """Writes the lines of one file in batches."""

    def __init__(self, restoring: Restore, path: Path) -> None:
        self._restoring, self._path = restoring, path
        self._records: _Batch[ArchiveRecord] = _Batch()
        self._events: _Batch[Event] = _Batch()
        self._jobs: _Batch[ArchivedJob] = _Batch()
        self._steps: _Batch[StepRecord] = _Batch()
        self._written_jobs: list[tuple[Job, Sequence[Event], int]] = []
        self._events_of_jobs = 0
        self._events_of_log = 0

    async def add(self, number: int, line: Line, size: int) -> None:
        """Add a line. The batches of earlier kinds are written first."""
        match line:
            case EventLine(event=event):
                await self._write_records()
                self._events_of_log += 1
                if self._events.add(event, number, size):
                    await self._write_events()
            case JobLine(job=job):
                await self._write_records()
                await self._write_events()
                self._events_of_jobs += job.rev
                if self._jobs.add(line.record, number, size, events=job.rev):
                    await self._write_jobs()
            case ArtifactLine(artifact=artifact):
                await self._write_jobs()
                await _name_line(self._restoring.write_artifact(artifact, line.content()), [number])
            case StepLine(step=step):
                await self._write_jobs()
                if self._steps.add(step, number, size):
                    await self._write_steps()
            case Header() | Footer():
                return
            case _:
                if self._records.add(record_of(line), number, size):
                    await self._write_records()

    async def finish(self) -> None:
        """Write the last batches, and check that every event has its job."""
        await self._write_records()
        await self._write_events()
        await self._write_jobs()
        await self._write_steps()
        await self._verify_content()
        if self._events_of_jobs != self._events_of_log:
            job_id = await self._restoring.missing_job()
            assert job_id is not None, "there are more events than those of all jobs"
            raise BrokenArchive(self._line_of(job_id, 1) or 1, f"the job of this event, {job_id}, is not in the file")

    async def _write_records(self) -> None:
        records, lines = self._records.take()
        if records:
            await _name_line(self._restoring.write_records(records), lines)

    async def _write_events(self) -> None:
        events, lines = self._events.take()
        if events:
            await _name_line(self._restoring.write_events(events), lines)

    async def _write_jobs(self) -> None:
        records, lines = self._jobs.take()
        if records:
            await self._write_steps()
            await self._verify_content()
            await self._verify(records, lines)
            await _name_line(self._restoring.write_jobs(records), lines)

    async def _write_steps(self) -> None:
        steps, lines = self._steps.take()
        if steps:
            await _name_line(self._restoring.write_steps(steps), lines)

    async def _verify(self, records: Sequence[ArchivedJob], lines: Sequence[int]) -> None:
        """Refuse a job that its events do not replay to, with the line of the wrong event where there is one."""
        histories = await self._restoring.history([record.job.id for record in records])
        for record, line in zip(records, lines, strict=True):
            for problem in problems_with(record, histories[record.job.id]):
                event_line = None if problem.rev is None else self._line_of(record.job.id, problem.rev)
                raise BrokenArchive(event_line or line, str(problem))
            self._written_jobs.append((record.job, histories[record.job.id], line))

    async def _verify_content(self) -> None:
        """Refuse jobs whose artifacts, messages or steps are not those that the log has recorded. Artifacts and steps
        follow their job, so this is known when the next jobs come."""
        written, self._written_jobs = self._written_jobs, []
        contents = await self._restoring.content([job.id for job, _, _ in written])
        for job, events, line in written:
            for problem in content_problems(job, events, contents[job.id]):
                raise BrokenArchive(line, str(problem))

    def _line_of(self, job_id: UUID, rev: int) -> int | None:
        """The line of an event, found by reading the file again."""
        for number, line, _ in read_lines(self._path, step="searching"):
            if isinstance(line, EventLine) and (line.event.job_id, line.event.rev) == (job_id, rev):
                return number
        return None


def problems_with(record: ArchivedJob, events: Sequence[Event]) -> list[Problem]:
    """Every contradiction between a job, its events, its dead letter, its signals and the lifecycle."""
    job = record.job
    found = problems_of(job, events)
    if not events:
        return found
    if job.status is DEAD_LETTERED or record.dead_letter is None:
        found += dead_letter_problems(job, events, record.dead_letter)
    else:
        found.append(Problem(job.id, ProblemType.DEAD_LETTER, f"it has a dead letter, though it is {job.status}"))
    found += signal_problems(job, events, {signal.rev: (signal.name, signal.payload) for signal in record.signals})
    return found


async def _name_line(writing: Awaitable[None], lines: Sequence[int]) -> None:
    """Turn the database's refusal of a record into an error with its line."""
    try:
        await writing
    except NotRestored as refused:
        raise BrokenArchive(lines[refused.place], f"the database refuses it: {refused.problem}") from refused
