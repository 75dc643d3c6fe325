"""In which order jobs are claimed, and how many go together."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from tenure.lifecycle.records import Job

_NEVER = datetime.max.replace(tzinfo=UTC)


def claim_order(job: Job) -> tuple[int, datetime, bytes]:
    """Priority descending, then the time since it is due, then age."""
    return (-job.origin.priority, job.due_at or _NEVER, job.id.bytes)


def batch(ordered: Iterable[Job], limit: int) -> list[Job]:
    """The first jobs that may be claimed together.

    A job that was lost while it ran may be one that kills its worker: it is claimed alone, so that it does not
    take others with it again.
    """
    taken: list[Job] = []
    for job in ordered:
        if len(taken) == limit or (job.losses and taken):
            break
        taken.append(job)
        if job.losses:
            break
    return taken
