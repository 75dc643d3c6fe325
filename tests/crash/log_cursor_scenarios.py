"""Scenarios of the event publisher: a lease of the log's cursor, and messages that are written with the position."""

from __future__ import annotations

from uuid import UUID

from tenure.lifecycle.records import Job
from tenure.stores.contract import OutboxMessage
from tenure.stores.contract.log_cursors import EventMessage, LogCursor
from tenure.testing.driver import OPERATOR, Driver
from tests.crash.scenario import TOKEN, Context, Scenario

MESSAGES = [
    EventMessage(
        message=OutboxMessage(id=UUID(int=number), topic="tenure.job.failed", body="{}", aggregate=f"job/{number % 2}"),
        correlation_id="order-7",
    )
    for number in range(1, 5)
]


async def lease(context: Context) -> LogCursor | None:
    return await context.store.log_cursors.lease("events", owner="worker-7", token=TOKEN, lease_seconds=3600)


async def a_lease(drive: Driver) -> list[Job]:
    assert await lease(Context(drive.store, "", [])) is not None
    return []


async def a_lease_and_an_action(drive: Driver) -> list[Job]:
    await drive.store.queues.pause("default", actor=OPERATOR)
    return await a_lease(drive)


async def publish(context: Context) -> int:
    """Returns how many messages were written: 0 for a repetition, since the cursor has moved."""
    cursors = context.store.log_cursors
    actions = [one.id for one in await cursors.unpublished(limit=10)]
    written = await cursors.publish(
        LogCursor(name="events"), token=TOKEN, position="p1", messages=MESSAGES, operator_events=actions
    )
    return len(MESSAGES) if written else 0


async def release(context: Context) -> None:
    await context.store.log_cursors.release("events", token=TOKEN)


LOG_CURSOR_SCENARIOS: tuple[Scenario, ...] = (
    Scenario("lease a log cursor", lease),
    Scenario("publish events", publish, a_lease_and_an_action),
    Scenario("release a log cursor", release, a_lease),
)
