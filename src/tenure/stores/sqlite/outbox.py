"""Outbox messages, written in the transaction of the user's work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tenure.errors import InvalidInput
from tenure.lifecycle.records import Job
from tenure.stores.contract import OutboxMessage, message_context
from tenure.stores.sqlite.rows import micros
from tenure.stores.sqlite.session import Session


def post(session: Session, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None:
    """Insert messages, which are sorted by aggregate, under the next sequence numbers of their aggregates."""
    at = micros(session.now)
    for aggregate, group in groupby(messages, key=lambda posted: posted[0].aggregate):
        together = list(group)
        session.execute("streams/advance", {"aggregate": aggregate, "count": len(together), "at": at})
        [written] = session.execute("streams/select_written", {"aggregate": aggregate}).fetchone()
        for sequence, (message, job) in enumerate(together, written - len(together) + 1):
            if session.execute("outbox/select_id", {"id": str(message.id)}).fetchone():
                raise InvalidInput("id", f"there is a message {message.id} already; make a new id for a new message")
            correlation_id, trace = message_context(message, job)
            parameters = {
                "aggregate": aggregate,
                "sequence": sequence,
                "id": str(message.id),
                "topic": message.topic,
                "body": message.body,
                "headers": message.headers,
                "job_id": None if job is None else str(job.id),
                "correlation_id": correlation_id,
                "trace": trace,
                "at": at,
            }
            session.execute("outbox/insert", parameters)
