"""The contents of a database at a glance, as plain data. Pure."""

from __future__ import annotations

from typing import Any

from tenure.stores.contract import Stats, Tally
from tenure.views.workers import live_workers, unserved_kinds, unserved_queues


def stats_view(stats: Stats) -> dict[str, Any]:
    """Job counts, live workers, unserved queues and kinds, and the number of open dead letters."""
    return {
        "at": stats.at,
        "jobs": [_tally_view(stats, tally) for tally in stats.tallies],
        "workers": live_workers(stats),
        "unserved": unserved_kinds(stats),
        "unserved_queues": unserved_queues(stats),
        "dead_letters": stats.dead_letters,
    }


def _tally_view(stats: Stats, tally: Tally) -> dict[str, Any]:
    return {
        "queue": tally.queue,
        "kind": tally.kind,
        "status": tally.status,
        "jobs": tally.jobs,
        "due": tally.due,
        "oldest_due_at": tally.oldest_due_at,
        "oldest_due_seconds": oldest_due_seconds(stats, tally),
    }


def oldest_due_seconds(stats: Stats, tally: Tally) -> float | None:
    """How long the oldest due job has been due, by the database's clock; None where no job is due."""
    return None if tally.oldest_due_at is None else max(0.0, (stats.at - tally.oldest_due_at).total_seconds())
