"""Writes a snapshot as lines, page by page. Its memory does not grow with the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

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
)
from tenure.lifecycle.records import Event, Job
from tenure.stores.contract.archive import ARCHIVE_RECORDS, Snapshot
from tenure.vocabularies import Vocabulary, translate
from tenure.vocabularies.vocabulary import histories

EVENTS_PER_PAGE = 1000
RECORDS_PER_PAGE = 500
JOBS_PER_PAGE = 50
"""Few, because payload, result and errors of each may have a quarter of a MiB each."""

ReportLine = Callable[[str, float], None]
"""Called with the kind of each written line, and the fraction that is done."""
KindsAndLines = AsyncIterator[tuple[str, bytes]]


class Exporter:
    """Writes one snapshot. `footer` is set once all lines were read."""

    def __init__(
        self, snapshot: Snapshot, *, chosen: Sequence[Vocabulary] = (), report: ReportLine | None = None
    ) -> None:
        self._snapshot, self._chosen, self._report = snapshot, chosen, report
        self.footer: Footer | None = None

    async def lines(self) -> AsyncIterator[bytes]:
        """Every line including its newline, from the header to the footer."""
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

    async def _record_lines(self) -> KindsAndLines:
        for kind in ARCHIVE_RECORDS:
            async for records in self._snapshot.records(kind, limit=RECORDS_PER_PAGE):
                for record in records:
                    yield record_line(record)
        async for events in self._snapshot.log(limit=EVENTS_PER_PAGE):
            for event in events:
                yield "event", event_line(event)
        async for page in self._snapshot.jobs(limit=JOBS_PER_PAGE):
            for kept in page:
                yield "job", job_line(kept)
                for listed in kept.artifacts:
                    artifact = await self._snapshot.artifact(kept.job.id, listed.name)
                    assert artifact is not None, "a snapshot has every artifact that it lists"
                    yield "artifact", artifact_line(listed, artifact.body)

    async def _translated_lines(self) -> KindsAndLines:
        """Each job in each vocabulary, followed by its events."""
        async for page in self._snapshot.jobs(limit=JOBS_PER_PAGE):
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
                fields = {"vocabulary": event.vocabulary, "name": event.name, "event": event.fields}
                lines.append(("event", encode_line("event", fields)))
        return lines
