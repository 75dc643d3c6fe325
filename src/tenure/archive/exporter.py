"""Writes a snapshot as lines, page by page. Its memory does not grow with the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from uuid import UUID

from tenure import __version__
from tenure.archive.format import (
    FORMAT,
    TRANSLATED_FORMAT,
    VERSION,
    Checksum,
    Footer,
    Header,
    artifact_line,
    encode_line,
    event_line,
    frame_line,
    job_line,
    record_line,
    step_line,
)
from tenure.errors import TenureError
from tenure.lifecycle.records import Event, Job
from tenure.stores.contract import UnreadableRow
from tenure.stores.contract.archive import ARCHIVE_RECORDS, ArchivedJob, Snapshot
from tenure.vocabularies import Vocabulary, translate
from tenure.vocabularies.vocabulary import histories

EVENTS_PER_PAGE = 1000
RECORDS_PER_PAGE = 500
JOBS_PER_PAGE = 50
"""Few, because payload, result and errors of each may have a quarter of a MiB each."""
STEPS_PER_PAGE = 16
"""Few, because the result of each may have 2 MiB."""

ReportLine = Callable[[str, float], None]
"""Called with the kind of each written line, and the fraction that is done."""
KindsAndLines = AsyncIterator[tuple[str, bytes]]


class RowsUnreadable(TenureError):
    """The snapshot has rows that cannot be decoded, and the export is not to leave any out."""

    def __init__(self, rows: Sequence[UnreadableRow]) -> None:
        self.rows = tuple(rows)
        super().__init__(
            f"{'; '.join(map(str, rows))}; an export to a file leaves out what cannot be read, `tenure verify` lists it"
        )


class Exporter:
    """Writes one snapshot. `footer` is set once all lines were read.

    With `leave_out`, it first reads the whole snapshot, and leaves out rows that cannot be decoded and jobs with such
    rows. Without, it raises RowsUnreadable when it meets one.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        chosen: Sequence[Vocabulary] = (),
        report: ReportLine | None = None,
        leave_out: bool = False,
    ) -> None:
        self._snapshot, self._chosen, self._report = snapshot, chosen, report
        self._leave_out = leave_out
        self._jobs_left_out: frozenset[UUID] = frozenset()
        self.footer: Footer | None = None

    async def lines(self) -> AsyncIterator[bytes]:
        """Every line including its newline, from the header to the footer."""
        if self._leave_out:
            await self._read_all()
        header = await self._header()
        yield frame_line(header)
        checksum, done = Checksum(), 0
        async for kind, line in self._translated_lines() if self._chosen else self._record_lines():
            checksum.add(kind, line)
            done += kind in ("job", "event")
            if self._report is not None:
                self._report(kind, min(done / max(header.jobs + header.events, 1), 1.0))
            yield line
        self.footer = checksum.footer()
        yield frame_line(self.footer)

    async def _header(self) -> Header:
        totals = await self._snapshot.totals()
        return Header(
            format=TRANSLATED_FORMAT if self._chosen else FORMAT,
            version=VERSION,
            tenure=__version__,
            store=self._snapshot.store,
            at=self._snapshot.at,
            covers="translated jobs" if self._chosen else "everything",
            jobs=totals.jobs,
            events=totals.events,
            vocabularies=tuple(one.name for one in self._chosen),
        )

    async def _read_all(self) -> None:
        """Find the jobs of all rows that cannot be decoded. Events come first in an archive, and the log of a job that
        is left out must be left out too."""
        for kind in ARCHIVE_RECORDS:
            async for _ in self._snapshot.records(kind, limit=RECORDS_PER_PAGE):
                pass
        async for _ in self._snapshot.log(limit=EVENTS_PER_PAGE):
            pass
        async for _ in self._snapshot.jobs(limit=JOBS_PER_PAGE):
            pass
        self._jobs_left_out = frozenset(row.job_id for row in self._snapshot.unreadable if row.job_id is not None)

    def _require_readable(self) -> None:
        if self._snapshot.unreadable and not self._leave_out:
            raise RowsUnreadable(self._snapshot.unreadable)

    async def _jobs(self) -> AsyncIterator[list[ArchivedJob]]:
        async for page in self._snapshot.jobs(limit=JOBS_PER_PAGE):
            self._require_readable()
            yield [kept for kept in page if kept.job.id not in self._jobs_left_out]

    async def _record_lines(self) -> KindsAndLines:
        for kind in ARCHIVE_RECORDS:
            async for records in self._snapshot.records(kind, limit=RECORDS_PER_PAGE):
                self._require_readable()
                for record in records:
                    yield record_line(record)
        async for events in self._snapshot.log(limit=EVENTS_PER_PAGE):
            self._require_readable()
            for event in events:
                if event.job_id not in self._jobs_left_out:
                    yield "event", event_line(event)
        async for page in self._jobs():
            for kept in page:
                yield "job", job_line(kept)
                for listed in kept.artifacts:
                    artifact = await self._snapshot.artifact(kept.job.id, listed.name)
                    assert artifact is not None, "a snapshot has every artifact that it lists"
                    yield "artifact", artifact_line(listed, artifact.body)
                if kept.step_count:
                    async for line in self._step_lines(kept.job.id):
                        yield "step", line

    async def _step_lines(self, job_id: UUID) -> AsyncIterator[bytes]:
        written = 0
        async for steps in self._snapshot.steps(job_id, limit=STEPS_PER_PAGE):
            for number, step in enumerate(steps, start=written + 1):
                yield step_line(step, number=number)
            written += len(steps)

    async def _translated_lines(self) -> KindsAndLines:
        """Each job in each vocabulary, followed by its events."""
        async for page in self._jobs():
            logs = await self._snapshot.history([record.job.id for record in page])
            for record in page:
                for line in self._translated(record.job, logs[record.job.id]):
                    yield line

    def _translated(self, job: Job, events: Sequence[Event]) -> list[tuple[str, bytes]]:
        lines = [
            ("job", encode_line("job", {"vocabulary": one.name, "job": one.job(job, events)})) for one in self._chosen
        ]
        for history in histories(job.origin, events):
            for event in translate(self._chosen, history):
                fields = {"vocabulary": event.vocabulary, **event.as_fields()}
                lines.append(("event", encode_line("event", fields)))
        return lines
