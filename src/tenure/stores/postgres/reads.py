"""Reads of jobs, events and the records beside them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import asyncpg

from tenure.errors import InvalidInput, RowPoisoned
from tenure.lifecycle.budgets import BudgetLine
from tenure.lifecycle.content import StoredContent
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.executions import Execution
from tenure.lifecycle.json_text import check_datetime, check_text, encode
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.steps import STATE_NAME, StepRecord
from tenure.stores.contract import (
    Artifact,
    ArtifactRecord,
    DeadLetterFilter,
    DeadLetterPage,
    EventFilter,
    EventPage,
    JobFilter,
    JobPage,
    SignalRecord,
    Stats,
    UnreadableRow,
    WorkerRecord,
)
from tenure.stores.contract.steps import STEPS_PER_READ
from tenure.stores.postgres import rows as row
from tenure.stores.postgres.budgets import PostgresBudgets
from tenure.stores.postgres.connections import Connections, Fetches, is_unreadable
from tenure.stores.postgres.content import read_content
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.workers import list_workers, read_stats

NO_ID = UUID(int=0)
_ALWAYS = datetime(1, 1, 1, tzinfo=UTC)
_NEVER = datetime(9999, 1, 1, tzinfo=UTC)
_USUAL = {EventType.ENQUEUED, EventType.CLAIMED, EventType.ACKED, EventType.STARTED, EventType.HEARTBEAT}
_USUAL |= {EventType.PROGRESS, EventType.COMMITTED, EventType.SUCCEEDED}
UNUSUAL = frozenset(EventType) - _USUAL
"""The types in the index `events_unusual`. Of the others each job has one or more: they are read by time."""


class PostgresReads:
    """Reads in one database. A token never leaves the store."""

    def __init__(self, connections: Connections, policies: PostgresPolicies, budgets: PostgresBudgets) -> None:
        self._connections, self._policies, self._budgets = connections, policies, budgets
        self._reached = 0

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await jobs_by_id(self._connections, self._policies, job_ids)

    async def recoverable(self, *, limit: int, after: UUID | None) -> list[Job | RowPoisoned]:
        answers = await self._connections.fetch("jobs/select_recoverable", {"limit": limit, "after": after})
        policies = await self._policies.of(answers)
        return row.decoded(answers, lambda answer: row.job_from(answer, policies))

    async def wakeable(self, job_ids: Sequence[UUID]) -> list[Job | RowPoisoned]:
        answers = await self._connections.fetch("jobs/select_wakeable", {"ids": list(job_ids)})
        policies = await self._policies.of(answers)
        return row.decoded(answers, lambda answer: row.job_from(answer, policies))

    async def children(
        self, parent_id: UUID, *, live_only: bool = False, after: UUID | None = None, limit: int = 100
    ) -> JobPage:
        values = {"parent_id": parent_id, "live_only": live_only, "after": after or NO_ID, "limit": limit + 1}
        answers = await self._connections.fetch("jobs/select_children", values)
        return await page_of(self._policies, answers, limit)

    async def find(
        self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100, newest_first: bool = False
    ) -> JobPage:
        values = {
            "after": after,
            "limit": limit + 1,
            "statuses": list(wanted.statuses) or None,
            "queues": list(wanted.queues) or None,
            "kinds": list(wanted.kinds) or None,
            "reasons": list(wanted.reasons) or None,
            "correlation_id": wanted.correlation_id,
            "root": _root_of(wanted.correlation_id or ""),
            "dedupe_key": wanted.dedupe_key,
            "submitted_by": wanted.submitted_by,
            "tags": encode(wanted.tags) if wanted.tags else None,
            "created_from": wanted.created_from,
            "created_until": wanted.created_until,
        }
        page = "jobs/select_newest_page" if newest_first else "jobs/select_page"
        answers = await self._connections.fetch(
            page if wanted.correlation_id is None else f"{page}_by_correlation", values
        )
        return await page_of(self._policies, answers, limit)

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        found: dict[UUID, list[Event]] = {job_id: [] for job_id in job_ids}
        for answer in await self._connections.fetch("events/select_history", {"ids": list(job_ids)}):
            found[answer["job_id"]].append(row.event_from(answer))
        return found

    async def events(self, wanted: EventFilter, *, after: str | None = None, limit: int = 1000) -> EventPage:
        since, job_id, rev = event_cursor(after)
        values = {
            "types": list(wanted.types) or None,
            "since": wanted.since,
            "until": wanted.until,
            "job_id": job_id,
            "rev": rev,
            "limit": limit,
            "correlation_id": wanted.correlation_id,
            "root": _root_of(wanted.correlation_id or ""),
        }
        if wanted.job_id is not None:
            answers = await self._connections.fetch("events/select_by_job", {**values, "job_id": wanted.job_id})
        elif wanted.correlation_id is not None:
            answers = await self._connections.fetch("events/select_by_correlation", values)
        else:
            span = {"since": since or wanted.since or _ALWAYS, "until": wanted.until or _NEVER}
            unusual = wanted.types and UNUSUAL.issuperset(wanted.types)
            statement = "events/select_by_unusual_type" if unusual else "events/select_by_time"
            answers = await self._connections.fetch(statement, {**values, **span})
        events, unreadable = events_of(answers)
        if wanted.job_id is not None and wanted.correlation_id is not None:
            events = [event for event in events if event.correlation_id == wanted.correlation_id]
        # A row without a time has no place in this order. The index has it at its start or its end.
        last = next((answer for answer in reversed(answers) if not is_unreadable(answer["at"])), None)
        position = after or "" if last is None else f"{last['at'].isoformat()}/{last['job_id']}/{last['rev']}"
        return EventPage(events, position, unreadable)

    async def tail(self, *, after: str | None = None, limit: int = 1000) -> EventPage:
        tx, job_id, rev = tail_cursor(after)
        answers = await self._connections.fetch(
            "events/select_tail", {"tx": tx, "job_id": job_id, "rev": rev, "limit": limit}
        )
        if not answers and tx > self._reached:
            await self._refuse_ahead(after)
        events, unreadable = events_of(answers)
        position = row.position_of(answers[-1]) if answers else (after or before_transaction(0))
        return EventPage(events, position, unreadable)

    async def _refuse_ahead(self, after: str | None) -> None:
        """A position of another cluster would skip everything up to it, for as long as this one has not reached it."""
        [answer] = await self._connections.fetch("events/select_reached", {})
        self._reached = answer["tx"]
        if tail_cursor(after)[0] > self._reached:
            problem = f"{after!r} is ahead of this database, which was restored from a dump of another"
            raise InvalidInput("position", f"{problem}; read the log from its start")

    async def end(self) -> str:
        [answer] = await self._connections.fetch("events/select_last_position", {})
        return before_transaction(answer["tx"])

    async def executions(self, job_id: UUID) -> list[Execution]:
        return [
            row.execution_from(a) for a in await self._connections.fetch("events/select_executions", {"job_id": job_id})
        ]

    async def dead_letter(self, job_id: UUID) -> DeadLetterRecord | None:
        answers = await self._connections.fetch("dead_letters/select", {"ids": [job_id]})
        return row.dead_letter_from(answers[0]) if answers else None

    async def dead_letters(
        self, wanted: DeadLetterFilter, *, after: UUID | None = None, limit: int = 100, newest_first: bool = False
    ) -> DeadLetterPage:
        values = {
            "after": after,
            "limit": limit + 1,
            "handled": wanted.handled,
            "reason_codes": list(wanted.reason_codes) or None,
            "stages": list(wanted.stages) or None,
            "kinds": list(wanted.kinds) or None,
            "queues": list(wanted.queues) or None,
            "correlation_id": wanted.correlation_id,
            "dead_from": wanted.dead_from,
            "dead_until": wanted.dead_until,
        }
        page = "dead_letters/select_newest_page" if newest_first else "dead_letters/select_page"
        answers = await self._connections.fetch(page, values)
        letters = [row.dead_letter_from(answer) for answer in answers[:limit]]
        return DeadLetterPage(letters, letters[-1].job_id if len(answers) > limit else None)

    async def artifacts(self, job_id: UUID) -> list[ArtifactRecord]:
        return [
            row.artifact_from(a) for a in await self._connections.fetch("artifacts/select_records", {"ids": [job_id]})
        ]

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None:
        answers = await self._connections.fetch("artifacts/select", {"job_id": job_id, "name": name})
        return Artifact(**answers[0]) if answers else None

    async def signals(self, job_id: UUID) -> list[SignalRecord]:
        return [row.signal_from(a) for a in await self._connections.fetch("signals/select", {"ids": [job_id]})]

    async def run_state(self, job_id: UUID) -> str | None:
        rows = await self._connections.fetch("steps/select_state", {"job_id": job_id, "name": STATE_NAME})
        return rows[0]["result"] if rows else None

    async def budget(self, root_id: UUID) -> list[BudgetLine]:
        return await self._budgets.budget(root_id)

    async def steps(self, job_id: UUID, *, after: int = 0, limit: int = STEPS_PER_READ) -> list[StepRecord]:
        values = {"job_id": job_id, "after": after, "limit": limit}
        return [row.step_from(a) for a in await self._connections.fetch("steps/select", values)]

    async def content(self, job_ids: Sequence[UUID]) -> dict[UUID, StoredContent]:
        return await read_content(self._connections, job_ids)

    async def workers(self, ids: Sequence[str] | None = None) -> list[WorkerRecord]:
        return await list_workers(self._connections, ids)

    async def stats(self) -> Stats:
        return await read_stats(self._connections)

    async def now(self) -> datetime:
        async with self._connections.session() as connection:
            at: datetime = await connection.fetchval("select tenure.clock()")
            return at


async def jobs_by_id(
    fetches: Fetches, policies: PostgresPolicies, job_ids: Sequence[UUID], *, with_token: bool = False
) -> dict[UUID, Job]:
    """The jobs with these ids that exist."""
    if not job_ids:
        return {}
    name = "jobs/select_with_token" if with_token else "jobs/select"
    answers = await fetches.fetch(name, {"ids": list(job_ids)})
    return {job.id: job for job in await jobs_of(policies, answers, with_token=with_token)}


async def jobs_of(
    policies: PostgresPolicies, answers: Sequence[asyncpg.Record], *, with_token: bool = False
) -> list[Job]:
    """The records of these rows."""
    known = await policies.of(answers)
    return [row.job_from(answer, known, with_token=with_token) for answer in answers]


async def page_of(policies: PostgresPolicies, answers: Sequence[asyncpg.Record], limit: int) -> JobPage:
    """The first rows as a page. There is another page if there are more rows."""
    known = await policies.of(answers)
    found = row.decoded(answers[:limit], lambda answer: row.job_from(answer, known))
    return JobPage(
        [job for job in found if isinstance(job, Job)],
        answers[limit - 1]["id"] if len(answers) > limit else None,
        tuple(row.unreadable_job(problem) for problem in found if isinstance(problem, RowPoisoned)),
    )


def events_of(answers: Sequence[asyncpg.Record]) -> tuple[list[Event], tuple[UnreadableRow, ...]]:
    """The events of these rows, and the rows that cannot be decoded."""
    found = [row.read_event(answer) for answer in answers]
    events = [event for event in found if isinstance(event, Event)]
    return events, tuple(one for one in found if isinstance(one, UnreadableRow))


def tail_cursor(after: str | None) -> tuple[int, UUID, int]:
    """Transaction, job and revision of the event to go on after."""
    if after is None:
        return 0, NO_ID, 0
    check_text(after, "position")
    try:
        tx, job_id, rev = after.split("/")
        return _within(int(tx), 2**63), UUID(job_id), _within(int(rev), 2**31)
    except ValueError:
        raise InvalidInput("position", f"{after!r} is not a position of this log") from None


def before_transaction(tx: int) -> str:
    """The position in the log before everything that this transaction writes."""
    return f"{tx}/{NO_ID}/0"


def event_cursor(after: str | None) -> tuple[datetime | None, UUID, int]:
    """Time, job and revision of the event to go on after."""
    if after is None or after == "":
        return None, NO_ID, 0
    check_text(after, "after")
    try:
        at, job_id, rev = after.split("/")
        return check_datetime(datetime.fromisoformat(at), "after"), UUID(job_id), _within(int(rev), 2**31)
    except ValueError:
        raise InvalidInput("after", f"{after!r} is not a cursor of this list") from None


def _within(number: int, beyond: int) -> int:
    if not 0 <= number < beyond:
        raise ValueError(f"{number} is out of range")
    return number


def _root_of(correlation_id: str) -> UUID | None:
    """The root job that a correlation id names, if it names a job. Stores keep no correlation id for a root without a
    given one, so they find it by its id."""
    try:
        root = UUID(correlation_id)
    except ValueError:
        return None
    return root if str(root) == correlation_id else None
