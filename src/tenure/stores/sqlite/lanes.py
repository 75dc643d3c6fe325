"""The lanes (queue × priority) with jobs without a lease, found along the index: jobs that are not due cost nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import json_list
from tenure.stores.validation import PRIORITY_MOST


def lanes(session: Session, queues: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Each priority at which a queue has jobs without a lease, the highest first, with those queues."""
    tops = _tops(session, list(dict.fromkeys(queues)), PRIORITY_MOST + 1)
    while tops:
        priority = max(tops.values())
        here = [queue for queue, top in tops.items() if top == priority]
        yield priority, here
        lower = _tops(session, here, priority)
        tops = {queue: top for queue, top in tops.items() if queue not in here} | lower


def _tops(session: Session, queues: Sequence[str], below: int) -> dict[str, int]:
    rows = session.execute("jobs/select_next_priority", {"queues": json_list(queues), "below": below})
    return {queue: top for queue, top in rows if top is not None}
