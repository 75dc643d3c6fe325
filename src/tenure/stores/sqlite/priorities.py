"""The priorities at which queues have jobs that nobody holds, walked along the index: what is not due costs nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from tenure.stores.sqlite.rows import json_list
from tenure.stores.sqlite.statements import sql
from tenure.stores.validation import PRIORITY_MOST


def levels(connection: sqlite3.Connection, queues: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Each priority at which some queue has jobs that nobody holds, the highest first, and those queues."""
    tops = _tops(connection, list(dict.fromkeys(queues)), PRIORITY_MOST + 1)
    while tops:
        priority = max(tops.values())
        here = [queue for queue, top in tops.items() if top == priority]
        yield priority, here
        lower = _tops(connection, here, priority)
        tops = {queue: top for queue, top in tops.items() if queue not in here} | lower


def _tops(connection: sqlite3.Connection, queues: Sequence[str], below: int) -> dict[str, int]:
    parameters = {"queues": json_list(queues), "below": below}
    return {queue: top for queue, top in connection.execute(sql("next_level"), parameters) if top is not None}
