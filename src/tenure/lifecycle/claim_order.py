"""The order in which due jobs are claimed, and how many of them one claim takes.

This is the only definition of the claim order. The model sorts by it; the stores sort in SQL, and the contract kit
compares their claims of generated jobs with it (`ClaimContract.test_generated_jobs_are_claimed_in_claim_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from tenure.lifecycle.queue_limits import Candidate
from tenure.lifecycle.records import Job

_NEVER = datetime.max.replace(tzinfo=UTC)

Order = tuple[int, datetime, bytes]


class HasLosses(Protocol):
    @property
    def losses(self) -> int: ...


T = TypeVar("T", bound=HasLosses)


def claim_order(job: Job) -> Order:
    """Priority descending, then due time, then id (age)."""
    return (-job.origin.priority, job.due_at or _NEVER, job.id.bytes)


def candidate_order(one: Candidate) -> Order:
    """The same order for candidates of a queue with limits."""
    return (-one.priority, one.due_at, one.id.bytes)


def _admit_all(_job: HasLosses) -> bool:
    return True


def batch(ordered: Iterable[T], limit: int, *, admits: Callable[[T], bool] = _admit_all) -> list[T]:
    """The first `limit` admitted jobs that may be claimed together.

    A job that was lost while it ran may have killed its worker. It is claimed alone, so that a further loss takes no
    other job with it.
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
