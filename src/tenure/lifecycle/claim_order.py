"""In which order jobs are claimed, and how many go together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from tenure.lifecycle.limits import Candidate
from tenure.lifecycle.records import Job

_NEVER = datetime.max.replace(tzinfo=UTC)

Order = tuple[int, datetime, bytes]


class HasLosses(Protocol):
    @property
    def losses(self) -> int: ...


T = TypeVar("T", bound=HasLosses)


def claim_order(job: Job) -> Order:
    """Priority descending, then the time since it is due, then age."""
    return (-job.origin.priority, job.due_at or _NEVER, job.id.bytes)


def candidate_order(one: Candidate) -> Order:
    """The same of a job as it is chosen by a queue's rules."""
    return (-one.priority, one.due_at, one.id.bytes)


def _anyone(_job: HasLosses) -> bool:
    return True


def batch(ordered: Iterable[T], limit: int, *, admits: Callable[[T], bool] = _anyone) -> list[T]:
    """The first jobs that may be claimed together, of those that are admitted.

    A job that was lost while it ran may be one that kills its worker: it is claimed alone, so that it does not
    take others with it again.
    """
    taken: list[T] = []
    for job in ordered:
        if len(taken) == limit or (job.losses and taken):
            break
        if not admits(job):
            continue
        taken.append(job)
        if job.losses:
            break
    return taken
