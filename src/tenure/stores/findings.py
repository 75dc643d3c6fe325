"""Findings of `doctor` that every store reports."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.stores.contract import Finding, QueueRecord

LOOKED_AT_MAX = 10_000
"""How many of the jobs that may be claimed are looked at."""
KINDS_MAX = 20
"""How many kinds are named."""
SEEN_SECONDS = 120
"""How long ago a worker may have been seen last and still count as there."""


def nobody_runs(kinds: Iterable[tuple[str, int, bool]]) -> list[Finding]:
    """Kinds with how many due jobs they have, and whether there may be more, that no worker has."""
    found: list[Finding] = []
    for kind, jobs, more in kinds:
        many = f"{'at least ' if more else ''}{jobs} due job{'' if jobs == 1 else 's'}"
        says = f"kind {kind!r} has {many} and no worker that runs it"
        advice = "start a worker whose app declares the kind, under this name or as an alias; or cancel the jobs"
        found.append(Finding("warning", "workers", says, advice))
    return found


def paused(queues: Iterable[QueueRecord]) -> list[Finding]:
    """Queues from which nothing is claimed."""
    return [
        Finding(
            "warning",
            "queues",
            f"queue {queue.name!r} is paused since {queue.paused_at.isoformat(timespec='seconds')}",
            f"run `tenure queues resume {queue.name}` when it may go on",
        )
        for queue in queues
        if queue.paused_at is not None
    ]
