"""Outbox messages, written inside the write transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby

from tenure.errors import InvalidInput
from tenure.lifecycle.records import Job
from tenure.stores.contract import OutboxMessage
from tenure.stores.sqlite.rows import micros
from tenure.stores.sqlite.statements import sql


def post(
    connection: sqlite3.Connection, messages: Sequence[tuple[OutboxMessage, Job | None]], *, now: datetime
) -> None:
    """Write messages, which come sorted by aggregate, each under the next number of its aggregate."""
    at = micros(now)
    for aggregate, group in groupby(messages, key=lambda posted: posted[0].aggregate):
        together = list(group)
        connection.execute(sql("advance_stream"), {"aggregate": aggregate, "count": len(together), "at": at})
        [written] = connection.execute(sql("stream_written"), {"aggregate": aggregate}).fetchone()
        for sequence, (message, job) in enumerate(together, written - len(together) + 1):
            if connection.execute(sql("message_known"), {"id": str(message.id)}).fetchone():
                raise InvalidInput("id", f"there is a message {message.id} already; make a new id for a new message")
            parameters = {
                "aggregate": aggregate,
                "sequence": sequence,
                "id": str(message.id),
                "topic": message.topic,
                "body": message.body,
                "headers": message.headers,
                "job_id": None if job is None else str(job.id),
                "at": at,
            }
            connection.execute(sql("insert_message"), parameters)
