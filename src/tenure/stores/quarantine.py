"""Poisoned rows: a row that makes its statement fail, or that cannot be decoded, must not stop the rows beside it.

`Bisection` isolates the poisoned row of a batch. `Quarantine` excludes poisoned rows from claims for a while.
`decode_each` leaves unreadable rows out of a list. None of them repairs a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Generic, TypeVar
from uuid import UUID

import msgspec

from tenure.errors import RowPoisoned, TenureError
from tenure.lifecycle.records import Job
from tenure.seams import SYSTEM, Clock
from tenure.stores.contract import Finding, UnreadableRow

QUARANTINE_SECONDS = 60.0
"""A quarantined row is tried again after this time, since an operator may have repaired it."""

UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, msgspec.MsgspecError, TenureError)
"""What is raised when a row cannot be decoded."""

T = TypeVar("T")
Row = TypeVar("Row")

log = logging.getLogger("tenure.stores")


class Quarantine:
    """The rows that recently could not be claimed or decoded, and why. It belongs to one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[UUID, tuple[float, RowPoisoned]] = {}

    def __contains__(self, job_id: UUID) -> bool:
        return job_id in self._rows

    def put(self, poisoned: RowPoisoned) -> None:
        until_seconds = self._clock.monotonic_seconds() + QUARANTINE_SECONDS
        # No statement can exclude a row whose id is none; each claim passes it over.
        with suppress(ValueError):
            self._rows[UUID(str(poisoned.job_id))] = (until_seconds, poisoned)
        log.error("row quarantined for %.0f s: %s", QUARANTINE_SECONDS, poisoned)

    def decoded(self, rows: Iterable[Job | RowPoisoned]) -> list[Job]:
        """The jobs among these rows. The others are quarantined."""
        jobs: list[Job] = []
        for row in rows:
            if isinstance(row, RowPoisoned):
                self.put(row)
            else:
                jobs.append(row)
        return jobs

    def ids(self) -> list[UUID]:
        """The rows that a claim must exclude now."""
        now_seconds = self._clock.monotonic_seconds()
        for job_id, (until_seconds, _) in list(self._rows.items()):
            if until_seconds <= now_seconds:
                del self._rows[job_id]
        return list(self._rows)

    def findings(self) -> list[Finding]:
        advice = "run `tenure verify`, and repair or remove the row"
        return [Finding("error", "poisoned row", str(poisoned), advice) for _, poisoned in list(self._rows.values())]


def decode_each(
    rows: Iterable[Row],
    decode: Callable[[Row], T],
    name: Callable[[Row], str],
    unreadable: list[UnreadableRow] | None = None,
) -> list[T]:
    """The records of the rows. A row that cannot be decoded is left out: it is added to `unreadable`, or logged."""
    found: list[T] = []
    for row in rows:
        try:
            found.append(decode(row))
        except UNREADABLE as problem:
            left_out = UnreadableRow(name(row), f"{type(problem).__name__}: {problem}")
            if unreadable is not None:
                unreadable.append(left_out)
            elif _logged_now(left_out):
                log.error("%s; it is left out", left_out)
    return found


_logged: dict[UnreadableRow, float] = {}
"""When each unreadable row was logged last: some lists are read several times a second."""


def _logged_now(row: UnreadableRow) -> bool:
    now_seconds = SYSTEM.clock.monotonic_seconds()
    if row in _logged and now_seconds - _logged[row] < QUARANTINE_SECONDS:
        return False
    _logged[row] = now_seconds
    return True


def unreadable_rows(unreadable: Iterable[UnreadableRow]) -> list[Finding]:
    """A finding per row that cannot be decoded."""
    advice = "repair or remove the row by hand"
    return [Finding("error", "unreadable row", str(row), advice) for row in unreadable]


class Bisection(Generic[T]):
    """The batches to write: first all rows, then the halves of each batch that failed.

    >>> batches = Bisection([1, 2, 3])
    >>> [batch for batch in batches if 3 in batch and batches.isolates(batch)]
    [[3]]
    """

    def __init__(self, rows: Sequence[T]) -> None:
        self._pending = [rows] if rows else []

    def __iter__(self) -> Iterator[Sequence[T]]:
        while self._pending:
            yield self._pending.pop()

    def isolates(self, failed: Sequence[T]) -> bool:
        """Whether the failed batch is the poisoned row alone. If not, its halves are the next batches."""
        if len(failed) == 1:
            return True
        middle = len(failed) // 2
        self._pending += (failed[middle:], failed[:middle])
        return False
