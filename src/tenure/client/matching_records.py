"""The jobs and dead letters that a filter matches, in pages up to a limit."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

import msgspec

from tenure.client.redrive import REDRIVABLE
from tenure.errors import InvalidInput
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.json_text import check_integer
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, HALTED, Status
from tenure.stores.contract import DeadLetterFilter, JobFilter, ReadStore

MANY_MAX = 1_000_000
PAGE = 500

Record = TypeVar("Record", Job, DeadLetterRecord)


class MatchingRecords:
    """Reads what a filter matches. Records that are created after the first read are left out."""

    def __init__(self, store: ReadStore) -> None:
        self._store = store

    async def jobs(self, wanted: JobFilter, statuses: tuple[Status, ...]) -> AsyncGenerator[list[Job], None]:
        until = wanted.created_until or await self._end_of_call()
        wanted = msgspec.structs.replace(wanted, statuses=statuses, created_until=until)
        after: UUID | None = None
        while True:
            page = await self._store.find(wanted, after=after, limit=PAGE)
            yield page.jobs
            if (after := page.after) is None:
                return

    async def letters(self, wanted: DeadLetterFilter) -> AsyncGenerator[list[DeadLetterRecord], None]:
        until = wanted.dead_until or await self._end_of_call()
        wanted = msgspec.structs.replace(wanted, dead_until=until)
        after: UUID | None = None
        while True:
            page = await self._store.dead_letters(wanted, after=after, limit=PAGE)
            yield page.letters
            if (after := page.after) is None:
                return

    async def redrivable(self, wanted: DeadLetterFilter | JobFilter) -> AsyncGenerator[list[Job], None]:
        if isinstance(wanted, JobFilter):
            problem = "jobs are not redriven by a JobFilter; select dead letters by a DeadLetterFilter"
            async with aclosing(self.jobs(wanted, require_statuses(wanted, {FAILED, HALTED}, problem))) as pages:
                async for jobs in pages:
                    yield jobs
            return
        async with aclosing(self.letters(wanted)) as letter_pages:
            async for letters in letter_pages:
                jobs_by_id = await self._store.read([letter.job_id for letter in letters])
                yield [jobs_by_id[letter.job_id] for letter in letters if letter.job_id in jobs_by_id]

    async def retryable(self, wanted: JobFilter) -> AsyncGenerator[list[Job], None]:
        problem = "jobs cannot be retried; use failed, dead_lettered or halted"
        async with aclosing(self.jobs(wanted, require_statuses(wanted, REDRIVABLE, problem))) as pages:
            async for jobs in pages:
                yield [job for job in jobs if not await self._is_discarded(job)]

    async def _is_discarded(self, job: Job) -> bool:
        letter = await self._store.dead_letter(job.id) if job.status is DEAD_LETTERED else None
        return letter is not None and letter.handled_as == "discarded"

    async def _end_of_call(self) -> datetime:
        """Exclude later jobs, so that the call ends although clients continue to enqueue."""
        return await self._store.now() + timedelta(microseconds=1)


class LimitedPages:
    """Cuts pages off at a limit. `more`: there were further records."""

    def __init__(self, limit: int) -> None:
        self._left = check_integer(limit, "limit", least=1, most=MANY_MAX)
        self.more = False

    async def of(self, pages: AsyncGenerator[list[Record], None]) -> AsyncGenerator[list[Record], None]:
        async with aclosing(pages):
            async for page in pages:
                if len(page) > self._left:
                    page, self.more = page[: self._left], True
                if page:
                    self._left -= len(page)
                    yield page
                if self.more:
                    return


def require_statuses(wanted: JobFilter, allowed: Collection[Status], problem: str) -> tuple[Status, ...]:
    statuses = tuple(map(Status, wanted.statuses))
    for status in statuses:
        if status not in allowed:
            raise InvalidInput("statuses", f"{status} {problem}")
    return statuses or tuple(sorted(allowed))
