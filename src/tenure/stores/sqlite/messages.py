"""Writes outbox messages in the transaction of the user's work. It delivers none."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import InvalidInput
from tenure.lifecycle.records import Job
from tenure.stores.contract import OutboxMessage, message_context
from tenure.stores.sqlite.rows import micros
from tenure.stores.sqlite.session import Session


def post(session: Session, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None:
    """Insert messages under the next sequences, and make them pending for the endpoints that subscribe to them."""
    at = micros(session.now)
    for message, job in messages:
        correlation_id, trace = message_context(message, job)
        written = session.execute(
            "outbox/insert",
            {
                "id": str(message.id),
                "aggregate": message.aggregate,
                "topic": message.topic,
                "body": message.body,
                "headers": message.headers,
                "job_id": None if job is None else str(job.id),
                "correlation_id": correlation_id,
                "trace": trace,
                "at": at,
            },
        )
        if written.rowcount == 0:
            raise InvalidInput("id", f"there is a message {message.id} already; make a new id for a new message")
        if message.aggregate is not None:
            session.execute("streams/put", {"aggregate": message.aggregate, "at": at})
        session.execute("pending/put_message", {"sequence": written.lastrowid, "at": at})
