"""Writes a snapshot as lines, page by page: how much memory it takes does not depend on how much there is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from tenure import __version__
from tenure.archive.format import (
    FORMAT,
    TOLD_FORMAT,
    VERSION,
    Footer,
    Header,
    Sum,
    artifact_line,
    edge_line,
    event_line,
    job_line,
    shelved_line,
    written,
)
from tenure.lifecycle.records import Event
from tenure.stores.contract.archive import SHELVES, Kept, Snapshot
from tenure.vocabularies import Vocabulary, translate
from tenure.vocabularies.vocabulary import histories

EVENTS_PER_PAGE = 1000
RECORDS_PER_PAGE = 500
JOBS_PER_PAGE = 50
"""Few, because each may come with a payload, a result and errors of a quarter of a MiB each."""

Wrote = Callable[[str, float], None]
"""Is told what was written last, and which share of the whole that makes."""
Named = AsyncIterator[tuple[str, bytes]]


class Export:
    """The lines of one snapshot. When they are at their end, `footer` is what the last of them says."""

    def __init__(self, snapshot: Snapshot, *, chosen: Sequence[Vocabulary] = (), wrote: Wrote | None = None) -> None:
        self._snapshot, self._chosen, self._wrote = snapshot, chosen, wrote
        self.footer: Footer | None = None

    async def lines(self) -> AsyncIterator[bytes]:
        """Every line with its end, from the header to the footer."""
        header = await self._header()
        yield edge_line(header)
        total, done = Sum(), 0
        async for kind, line in self._told() if self._chosen else self._kept():
            total.add(kind, line)
            done += kind in ("job", "event")
            if self._wrote is not None:
                self._wrote(kind, min(done / max(header.jobs + header.events, 1), 1.0))
            yield line
        self.footer = total.footer()
        yield edge_line(self.footer)

    async def _header(self) -> Header:
        totals = await self._snapshot.totals()
        return Header(
            format=TOLD_FORMAT if self._chosen else FORMAT,
            version=VERSION,
            tenure=__version__,
            store=self._snapshot.store,
            at=self._snapshot.at,
            covers="jobs in other words" if self._chosen else "everything",
            jobs=totals.jobs,
            events=totals.events,
            vocabularies=tuple(one.name for one in self._chosen),
        )

    async def _kept(self) -> Named:
        for kind in SHELVES:
            async for records in self._snapshot.shelf(kind, limit=RECORDS_PER_PAGE):
                for record in records:
                    yield shelved_line(record)
        async for events in self._snapshot.log(limit=EVENTS_PER_PAGE):
            for event in events:
                yield "event", event_line(event)
        async for page in self._snapshot.jobs(limit=JOBS_PER_PAGE):
            for kept in page:
                yield "job", job_line(kept)
                for made in kept.artifacts:
                    artifact = await self._snapshot.artifact(kept.job.id, made.name)
                    assert artifact is not None, "a snapshot has what it lists"
                    yield "artifact", artifact_line(made, artifact.body)

    async def _told(self) -> Named:
        """Each job as the object of each vocabulary, and behind it what happened to it."""
        async for page in self._snapshot.jobs(limit=JOBS_PER_PAGE):
            logs = await self._snapshot.histories([kept.job.id for kept in page])
            for kept in page:
                for line in self._in_other_words(kept, logs[kept.job.id]):
                    yield line

    def _in_other_words(self, kept: Kept, events: Sequence[Event]) -> list[tuple[str, bytes]]:
        job = kept.job
        lines = [("job", written("job", {"vocabulary": one.name, "job": one.job(job, events)})) for one in self._chosen]
        for history in histories(job.origin, events):
            for told in translate(self._chosen, history):
                facts = {"vocabulary": told.vocabulary, "name": told.name, "event": told.fields}
                lines.append(("event", written("event", facts)))
        return lines
