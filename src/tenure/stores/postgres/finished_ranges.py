"""Which finished jobs there are, summarized by ranges of ids, so that retention needs no index on their ends.

An index on the end of every job costs each completion an entry; retention reads it once a minute. Ids are ordered by
time, so the key of `jobs` divides them into ranges. A summary is kept in memory by the store that prunes; nothing is
written. It lists what may be found in a range; each removal is decided by its own statement.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from tenure.lifecycle.statuses import Status
from tenure.seams import Clock
from tenure.stores.contract import FinishedKind
from tenure.stores.postgres.connections import Fetches

RANGE_JOBS = 1000
SUMMARY_SECONDS_MAX = 86_400.0
"""How long a summary of ended jobs is used. A job may be added to its range later, with an id from an earlier time."""
FIRST_ID = UUID(int=0)


class IdRange(msgspec.Struct):
    """The jobs with ids above `after`, up to `until`: when the first of each status and kind ended."""

    after: UUID
    until: UUID
    ended: dict[tuple[str, str], datetime]
    closed: bool
    """Whether the range has all of its jobs. New jobs are added to the last one."""
    settled: bool
    """Whether all of its jobs had ended, and none was removed since."""
    summarized_at_seconds: float

    def attempted(self, status: Status, kind: str) -> None:
        """Jobs of this status and kind were removed, except those that are locked: the next pass looks again."""
        self.ended.pop((status, kind), None)
        self.settled = False


class FinishedRanges:
    """The summaries of one database, in the order of ids."""

    def __init__(self, fetches: Fetches, clock: Clock) -> None:
        self._fetches, self._clock = fetches, clock
        self._ranges: list[IdRange] | None = None

    async def kinds(self) -> list[FinishedKind]:
        """The statuses and kinds of finished jobs, and when the first of each ended."""
        ranges = await self._refresh()
        first: dict[tuple[str, str], datetime] = {}
        for one in ranges:
            for key, at in one.ended.items():
                first[key] = min(first.get(key, at), at)
        return [FinishedKind(Status(status), kind, first[status, kind]) for status, kind in sorted(first)]

    async def with_jobs(self, status: Status, kind: str, before: datetime, *, anew: bool) -> list[IdRange]:
        """The ranges that may have jobs of this status and kind that ended up to a time, as of the last `kinds` unless
        they are summarized `anew`."""
        ranges = await self._refresh() if anew or self._ranges is None else self._ranges
        return [one for one in ranges if (at := one.ended.get((status, kind))) is not None and at <= before]

    async def _refresh(self) -> list[IdRange]:
        """Summarize new ranges, and those whose summary may no longer hold."""
        ranges: list[IdRange] = []
        after, now_seconds = FIRST_ID, self._clock.monotonic_seconds()
        for known in self._ranges or ():
            found: IdRange | None = known
            if not known.closed:
                break
            if not known.settled or now_seconds - known.summarized_at_seconds > SUMMARY_SECONDS_MAX:
                found = await self._summarize(after, known.until)
            if found is not None:
                found.after, after = after, found.until
                ranges.append(found)
        while (new := await self._summarize(after, None)) is not None:
            ranges.append(new)
            after = new.until
            if not new.closed:
                break
        self._ranges = ranges
        return ranges

    async def _summarize(self, after: UUID, until: UUID | None) -> IdRange | None:
        """The jobs above an id, up to another or the size of a range; None where there are none."""
        now_seconds = self._clock.monotonic_seconds()
        values = {"after": after, "until": until, "limit": RANGE_JOBS if until is None else None}
        rows = await self._fetches.fetch("jobs/summarize_finished", values)
        if not rows:
            return None
        ended = {(row["status"], row["kind"]): row["finished_at"] for row in rows if row["finished_at"] is not None}
        return IdRange(
            after=after,
            until=until or rows[0]["last_id"],
            ended=ended,
            closed=until is not None or sum(row["jobs"] for row in rows) == RANGE_JOBS,
            settled=len(ended) == len(rows),
            summarized_at_seconds=now_seconds,
        )
