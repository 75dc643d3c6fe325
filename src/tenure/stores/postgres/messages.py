"""Writes outbox messages in the transaction of the user's work. It delivers none."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import InvalidInput
from tenure.lifecycle.records import Job
from tenure.stores.contract import OutboxMessage, message_context
from tenure.stores.postgres.connections import Fetches


async def insert_messages(fetches: Fetches, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None:
    """Write the messages, each with the job that sends it. A message id that is in use is refused."""
    contexts = [message_context(message, job) for message, job in messages]
    values = {
        "ids": [message.id for message, _ in messages],
        "aggregates": [message.aggregate for message, _ in messages],
        "topics": [message.topic for message, _ in messages],
        "bodies": [message.body for message, _ in messages],
        "headers": [message.headers for message, _ in messages],
        "job_ids": [None if job is None else job.id for _, job in messages],
        "correlation_ids": [correlation_id for correlation_id, _ in contexts],
        "traces": [trace for _, trace in contexts],
    }
    written = {row["id"] for row in await fetches.fetch("outbox/insert", values)}
    for message, _ in messages:
        if message.id not in written:
            raise InvalidInput("id", f"there is a message {message.id} already; make a new id for a new message")
        written.discard(message.id)
