"""The PostgreSQL store. Each operation is one statement; this file only says which, and reads the answers.

It decides nothing: legality is `decide`'s, time is the database's, and the statements' guards settle races.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from itertools import groupby
from typing import Any
from uuid import UUID

import asyncpg

from tenure.errors import (
    IllegalTransition,
    JobNotFound,
    Refused,
    RequestIdReused,
    StoreError,
    TenureError,
)
from tenure.lifecycle.content import check_text, encode
from tenure.lifecycle.decide import Change, decide_chain
from tenure.lifecycle.records import (
    Actor,
    DeadLetter,
    Event,
    Execution,
    Job,
)
from tenure.lifecycle.statuses import CLAIMED, RUNNING
from tenure.lifecycle.table import allowed_from
from tenure.seams import SYSTEM, Seams
from tenure.stores.checks import (
    check_after,
    check_age,
    check_claim,
    check_enqueue,
    check_event_filter,
    check_job_filter,
    check_page,
    check_request,
)
from tenure.stores.contract import (
    Added,
    ClaimRequest,
    Enqueue,
    EventFilter,
    EventPage,
    Failure,
    Finding,
    JobFilter,
    JobPage,
    MigrationRecord,
    Outcome,
    Request,
    SchemaState,
    SignalRecord,
    Wakeups,
    made_ready,
    settle,
    waves,
    without_secret,
)
from tenure.stores.postgres import rows as row
from tenure.stores.postgres.adding import enqueue_parameters, new_job
from tenure.stores.postgres.batches import Batches
from tenure.stores.postgres.connections import REUSED_STATE, Address, Connections, Session, fetch
from tenure.stores.postgres.cursors import NO_ID, event_cursor, tail_cursor
from tenure.stores.postgres.examination import examine
from tenure.stores.postgres.migrating import apply_pending, schema_state
from tenure.stores.postgres.policies import KnownPolicies
from tenure.stores.postgres.wakeups import Bell
from tenure.stores.schema import require_fit

RACES_MAX = 20
_ALWAYS = datetime(1, 1, 1, tzinfo=UTC)
_NEVER = datetime(9999, 1, 1, tzinfo=UTC)


class PostgresStore:
    """A store on PostgreSQL, for one event loop of one process.

    >>> store = PostgresStore.from_url("postgresql://localhost/app")
    """

    def __init__(self, address: Address, *, seams: Seams = SYSTEM, connections: int = 10) -> None:
        self._address = address
        self._connections = Connections(address, size=connections)
        self._policies = KnownPolicies(self._connections)
        self._batches = Batches(self._connections, seams.clock)
        self._bell = Bell(address, self._connections, seams)

    @classmethod
    def from_url(cls, url: str, *, seams: Seams = SYSTEM) -> PostgresStore:
        """The store that a `postgresql://` URL names, not yet opened."""
        return cls(Address.from_url(url), seams=seams)

    async def open(self) -> None:
        try:
            require_fit(await self.schema(), where=self._address.shown)
        except TenureError:
            await self.close()
            raise

    async def close(self) -> None:
        await self._bell.close()
        await self._connections.close()

    async def quiet(self) -> None:
        """Wait until everyone has been told of what was added so far."""
        await self._bell.quiet()

    async def schema(self) -> SchemaState:
        await self._connections.open()
        return await schema_state(self._connections)

    async def migrate(self) -> list[MigrationRecord]:
        await self._connections.open()
        return await apply_pending(self._connections, where=self._address.shown)

    async def doctor(self) -> list[Finding]:
        return [*await examine(self._connections, self._address), *self._batches.findings()]

    async def now(self) -> datetime:
        async with self._connections.session() as connection:
            moment: datetime = await connection.fetchval("select tenure.clock()")
            return moment

    # New jobs.

    async def add(self, requests: Sequence[Enqueue]) -> list[Added]:
        for request in requests:
            check_enqueue(request)
        added = await self._add(requests)
        self._bell.ring({one.job.queue for one in added if one.created})
        return added

    async def _add(self, requests: Sequence[Enqueue]) -> list[Added]:
        numbers = [await self._policies.number(request.origin.policy) for request in requests]
        try:
            answers = await self._connections.fetch("enqueue", enqueue_parameters(requests, numbers))
        except asyncpg.PostgresError as problem:
            if problem.sqlstate == REUSED_STATE:
                raise RequestIdReused(str(problem.as_dict().get("detail"))) from problem
            raise
        there = await self.read([answer["job_id"] for answer in answers if not answer["created"]])
        return [
            Added(new_job(request, answer["created_at"]), created=True)
            if answer["created"]
            else Added(there[answer["job_id"]], created=False)
            for request, answer in zip(requests, answers, strict=True)
        ]

    # Claims.

    async def claim(self, request: ClaimRequest) -> list[Job]:
        check_claim(request)
        answers = await self._batches.claim(request)
        if not answers:
            return []
        if answers[0]["won"] is not None:
            return await self._won_before(request, answers[0])
        policies = await self._policies.of(answers)
        status = RUNNING if request.start else CLAIMED
        return row.readable(
            answers,
            lambda answer: row.claimed_from(answer, policies, status, owner=request.worker, token=request.token),
        )

    async def _won_before(self, request: ClaimRequest, answer: asyncpg.Record) -> list[Job]:
        if answer["won_body"] != request.body():
            raise RequestIdReused(request.request_id)
        jobs = await self._read(answer["won"], with_token=True)
        return [without_secret(jobs[job_id], request.actor) for job_id in answer["won"] if job_id in jobs]

    def wakeups(self, queues: Sequence[str]) -> AbstractAsyncContextManager[Wakeups]:
        return self._bell.listen(queues)

    # Changes.

    async def perform(self, requests: Sequence[Request]) -> list[Outcome]:
        for request in requests:
            check_request(request)
        outcomes: dict[int, Outcome] = {}
        for wave in waves(requests):
            await self._round(wave, outcomes)
        self._bell.ring(made_ready(outcomes.values()))
        return [outcomes[number] for number in range(len(requests))]

    async def _round(self, requests: list[tuple[int, Request]], outcomes: dict[int, Outcome]) -> None:
        """What the callers' own records allow is written at once; the rest is judged on the rows as they are."""
        changes: dict[int, Change] = {}
        for number, request in requests:
            if request.fresh and isinstance(request.job, Job):
                try:
                    changes[number] = decide_chain(
                        request.job, request.operations, request.actor, request_id=request.request_id
                    )
                except Refused:
                    continue
        await self._write(changes, outcomes)
        open_ = {number: request for number, request in requests if number not in outcomes}
        for _ in range(RACES_MAX):
            if not open_:
                return
            changes = await self._judge(open_, outcomes)
            await self._write(changes, outcomes)
            open_ = {number: request for number, request in open_.items() if number not in outcomes}
        for number, request in open_.items():
            problem = f"job {request.job_id} changed {RACES_MAX} times while this was tried; try again later"
            outcomes[number] = Failure(StoreError(problem))

    async def _write(self, changes: dict[int, Change], outcomes: dict[int, Outcome]) -> None:
        if changes:
            answers = await self._batches.write(list(changes.values()))
            outcomes.update({n: answer for n, answer in zip(changes, answers, strict=True) if answer is not None})

    async def _judge(self, requests: dict[int, Request], outcomes: dict[int, Outcome]) -> dict[int, Change]:
        values = {
            "ids": [request.job_id for request in requests.values()],
            "requests": [request.request_id for request in requests.values()],
        }
        answers = await self._connections.fetch("current", values)
        policies = await self._policies.of(answers)
        changes: dict[int, Change] = {}
        asked = list(requests.items())
        for ordinal, group in groupby(answers, key=lambda answer: int(answer["number"])):
            found = list(group)
            number, request = asked[ordinal - 1]
            current = None if found[0]["id"] is None else row.job_from(found[0], policies, with_token=True)
            logged = [row.logged_from(answer) for answer in found if answer["event_rev"] is not None]
            verdict = settle(current, request, logged=logged, now=found[0]["now"])
            if isinstance(verdict, Change):
                changes[number] = verdict
            else:
                outcomes[number] = verdict
        return changes

    async def unattended(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        check_page(limit)
        check_after(after)
        answers = await self._connections.fetch("unattended", {"limit": limit, "after": after})
        policies = await self._policies.of(answers)
        return row.readable(answers, lambda answer: row.job_from(answer, policies))

    # Reads.

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await self._read(job_ids)

    async def _read(self, job_ids: Sequence[UUID], *, with_token: bool = False) -> dict[UUID, Job]:
        if not job_ids:
            return {}
        jobs = await self._jobs("read", {"ids": list(job_ids)}, with_token=with_token)
        return {job.id: job for job in jobs}

    async def find(self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100) -> JobPage:
        check_page(limit)
        check_after(after)
        check_job_filter(wanted)
        values = {
            "after": after,
            "limit": limit + 1,
            "statuses": list(wanted.statuses) or None,
            "queues": list(wanted.queues) or None,
            "kinds": list(wanted.kinds) or None,
            "correlation_id": wanted.correlation_id,
            "dedupe_key": wanted.dedupe_key,
            "submitted_by": wanted.submitted_by,
            "tags": encode(wanted.tags) if wanted.tags else None,
            "created_from": wanted.created_from,
            "created_until": wanted.created_until,
        }
        answers = await self._connections.fetch("find" if wanted.correlation_id is None else "find_correlated", values)
        jobs = await self._jobs_of(answers[:limit])
        return JobPage(jobs, jobs[-1].id if len(answers) > limit else None)

    async def _jobs(self, statement: str, values: dict[str, Any], *, with_token: bool = False) -> list[Job]:
        return await self._jobs_of(await self._connections.fetch(statement, values), with_token=with_token)

    async def _jobs_of(self, answers: Sequence[asyncpg.Record], *, with_token: bool = False) -> list[Job]:
        policies = await self._policies.of(answers)
        return [row.job_from(answer, policies, with_token=with_token) for answer in answers]

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        found: dict[UUID, list[Event]] = {job_id: [] for job_id in job_ids}
        for answer in await self._connections.fetch("history", {"ids": list(job_ids)}):
            found[answer["job_id"]].append(row.event_from(answer))
        return found

    async def events(self, wanted: EventFilter, *, after: str | None = None, limit: int = 1000) -> EventPage:
        check_page(limit)
        check_event_filter(wanted)
        since, job_id, rev = event_cursor(after)
        values = {
            "types": list(wanted.types) or None,
            "since": wanted.since,
            "until": wanted.until,
            "job_id": job_id,
            "rev": rev,
            "limit": limit,
            "correlation_id": wanted.correlation_id,
        }
        if wanted.job_id is not None:
            answers = await self._connections.fetch("events_of_job", {**values, "job_id": wanted.job_id})
        elif wanted.correlation_id is not None:
            answers = await self._connections.fetch("events_correlated", values)
        else:
            span = {"since": since or wanted.since or _ALWAYS, "until": wanted.until or _NEVER}
            answers = await self._connections.fetch("events_by_time", {**values, **span})
        events = [row.event_from(answer) for answer in answers]
        if wanted.job_id is not None and wanted.correlation_id is not None:
            events = [event for event in events if event.correlation_id == wanted.correlation_id]
        last = answers[-1] if answers else None
        position = after or "" if last is None else f"{last['at'].isoformat()}/{last['job_id']}/{last['rev']}"
        return EventPage(events, position)

    async def tail(self, *, after: str | None = None, limit: int = 1000) -> EventPage:
        check_page(limit)
        tx, job_id, rev = tail_cursor(after)
        answers = await self._connections.fetch("tail", {"tx": tx, "job_id": job_id, "rev": rev, "limit": limit})
        events = [row.event_from(answer) for answer in answers]
        return EventPage(events, (events[-1].position or "") if events else (after or f"0/{NO_ID}/0"))

    async def executions(self, job_id: UUID) -> list[Execution]:
        return [row.execution_from(a) for a in await self._connections.fetch("executions", {"job_id": job_id})]

    async def dead_letter(self, job_id: UUID) -> DeadLetter | None:
        answers = await self._connections.fetch("dead_letter", {"job_id": job_id})
        return row.dead_letter_from(answers[0]) if answers else None

    async def signals(self, job_id: UUID) -> list[SignalRecord]:
        return [row.signal_from(a) for a in await self._connections.fetch("signals", {"job_id": job_id})]

    # What may be forgotten.

    async def prune(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        age = check_age(older_than_seconds, limit)
        async with self._connections.transaction("retention") as connection:
            before = await connection.fetchval("select tenure.clock()") - age
            removed = await _count(connection, "prune", {"before": before, "limit": limit})
            await _note(connection, actor, "prune", removed)
            return removed

    async def blank(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        age = check_age(older_than_seconds, limit)
        async with self._connections.transaction("retention") as connection:
            before = await connection.fetchval("select tenure.clock()") - age
            blanked = await _count(connection, "blank", {"before": before, "limit": limit})
            await _note(connection, actor, "blank", blanked)
            return blanked

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        check_text(reason, "reason", length_max=2000)
        async with self._connections.transaction("erasure") as connection:
            values = {"job_id": job_id, "reason": reason, "actor": str(actor)}
            await fetch(connection, "erase", values)
        job = (await self.read([job_id])).get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        if job.erased_at is None:
            allowed = allowed_from(job.status, committed=job.committed)
            raise IllegalTransition(job, "erase", allowed=allowed, why="only when it has ended")
        return job


async def _count(connection: Session, statement: str, values: dict[str, Any]) -> int:
    answers = await fetch(connection, statement, values)
    return int(answers[0][0])


async def _note(connection: Session, actor: Actor, action: str, count: int) -> None:
    if count:
        sql = "insert into tenure.operator_log (actor, action, detail) values ($1, $2, $3)"
        await connection.execute(sql, str(actor), action, encode({"count": count}))
