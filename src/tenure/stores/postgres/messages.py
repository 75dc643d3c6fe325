"""Writes outbox messages in the transaction of the user's work. It delivers none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from tenure.errors import InvalidInput
from tenure.lifecycle.records import Job
from tenure.stores.contract import OutboxMessage, message_context
from tenure.stores.postgres.connections import Fetches

MessageRow = tuple[OutboxMessage, UUID | None, str, str | None]
"""A message with the id of the job that sends it, its correlation id and its trace."""


async def insert_messages(fetches: Fetches, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None:
    """Write the messages, each with the job that sends it. A message id that is in use is refused."""
    rows = [(message, None if job is None else job.id, *message_context(message, job)) for message, job in messages]
    written = await write_messages(fetches.fetch, rows)
    for message, _ in messages:
        if message.id not in written:
            raise InvalidInput("id", f"there is a message {message.id} already; make a new id for a new message")
        written.discard(message.id)


async def write_messages(
    fetch: Callable[[str, Mapping[str, Any]], Awaitable[list[asyncpg.Record]]], rows: Sequence[MessageRow]
) -> set[UUID]:
    """Write the messages whose ids are new. Returns their ids."""
    values = {
        "ids": [message.id for message, *_ in rows],
        "aggregates": [message.aggregate for message, *_ in rows],
        "topics": [message.topic for message, *_ in rows],
        "bodies": [message.body for message, *_ in rows],
        "headers": [message.headers for message, *_ in rows],
        "job_ids": [job_id for _, job_id, _, _ in rows],
        "correlation_ids": [correlation_id for _, _, correlation_id, _ in rows],
        "traces": [trace for _, _, _, trace in rows],
    }
    return {row["id"] for row in await fetch("outbox/insert", values)}
