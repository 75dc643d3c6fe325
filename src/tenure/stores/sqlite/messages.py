"""Writes outbox messages in the transaction of the user's work. It delivers none."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tenure.errors import InvalidInput
from tenure.lifecycle.records import Job
from tenure.stores.contract import OutboxMessage, message_context
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import micros


def post(session: Session, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None:
    """Write messages, each with the job that sends it. A message id that is in use is refused."""
    for message, job in messages:
        correlation_id, trace = message_context(message, job)
        job_id = None if job is None else job.id
        if not write_message(session, message, job_id=job_id, correlation_id=correlation_id, trace=trace):
            raise InvalidInput("id", f"there is a message {message.id} already; make a new id for a new message")


def write_message(
    session: Session, message: OutboxMessage, *, job_id: UUID | None, correlation_id: str, trace: str | None
) -> bool:
    """Write a message under the next sequence, and make it pending for the endpoints that subscribe to it.

    False: its id is in use, and nothing was written."""
    at = micros(session.now)
    row = {
        "id": str(message.id),
        "aggregate": message.aggregate,
        "topic": message.topic,
        "body": message.body,
        "headers": message.headers,
        "job_id": None if job_id is None else str(job_id),
        "correlation_id": correlation_id,
        "trace": trace,
        "at": at,
    }
    written = session.execute("outbox/insert", row)
    if written.rowcount == 0:
        return False
    if message.aggregate is not None:
        session.execute("streams/put", {"aggregate": message.aggregate, "at": at})
    session.execute("pending/put_message", {"sequence": written.lastrowid, "at": at})
    return True
