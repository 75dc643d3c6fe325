"""The PostgreSQL store. Each operation is one statement; this file only says which, and reads the answers.

It decides nothing: legality is `decide`'s, time is the database's, and the statements' guards settle races.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tenure.errors import IllegalTransition, JobNotFound, TenureError
from tenure.lifecycle.json_text import check_text, encode
from tenure.lifecycle.records import Actor, DeadLetter, Event, Execution, Job
from tenure.lifecycle.transitions import allowed_from
from tenure.seams import SYSTEM, Seams
from tenure.stores.commit_block import require_outside
from tenure.stores.contract import (
    Artifact,
    ArtifactRecord,
    ClaimRequest,
    DeadLetterFilter,
    DeadLetterPage,
    EnqueueRequest,
    EnqueueResult,
    EventFilter,
    EventPage,
    Finding,
    JobFilter,
    JobPage,
    MigrationRecord,
    Outcome,
    Request,
    Resolution,
    SchemaState,
    SignalRecord,
    Stats,
    Subscription,
    Transaction,
    WorkerRecord,
    hints,
    is_homogeneous,
)
from tenure.stores.postgres import rows as row
from tenure.stores.postgres.apply import Apply
from tenure.stores.postgres.apply_batch import Batches
from tenure.stores.postgres.archive import PostgresArchive
from tenure.stores.postgres.claim import PostgresClaims
from tenure.stores.postgres.commit_block import PostgresCommitBlock
from tenure.stores.postgres.connections import Address, Connections, Session, fetch
from tenure.stores.postgres.cursors import before_transaction, event_cursor, tail_cursor
from tenure.stores.postgres.doctor import examine
from tenure.stores.postgres.enqueue import Adding
from tenure.stores.postgres.migrate import apply_pending, schema_state
from tenure.stores.postgres.policies import KnownPolicies
from tenure.stores.postgres.queues import PostgresQueues
from tenure.stores.postgres.reads import jobs_by_id, jobs_of
from tenure.stores.postgres.schedules import PostgresSchedules
from tenure.stores.postgres.wakeups import PostgresNotifier
from tenure.stores.postgres.warm_up import rehearse
from tenure.stores.schema import require_fit
from tenure.stores.validation import (
    check_after,
    check_age,
    check_claim,
    check_dead_letter_filter,
    check_enqueues,
    check_event_filter,
    check_job_filter,
    check_page,
    check_request,
    check_resolution,
    check_worker,
)

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
        self._seams = seams
        self._performing = Apply(self._connections, self._policies, Batches(self._connections))
        self._bell = PostgresNotifier(address, self._connections, seams)
        self._adding = Adding(self._connections, self._policies, self._bell)
        self.archive = PostgresArchive(self._connections, address, seams)
        self._claims = PostgresClaims(self._connections, self._policies, seams.clock, wake_later=self._bell.ring_later)
        self.queues = PostgresQueues(self._connections, self._bell.ring)
        self.schedules = PostgresSchedules(self, self._connections, self._policies, self._bell.ring)

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
        return [*await examine(self._connections, self._address), *self._claims.findings()]

    async def now(self) -> datetime:
        async with self._connections.session() as connection:
            moment: datetime = await connection.fetchval("select tenure.clock()")
            return moment

    # New jobs.

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, after: Awaitable[object] | None = None
    ) -> Sequence[EnqueueResult]:
        if not requests:
            return []
        alike = is_homogeneous(requests)
        check_enqueues(requests, alike=alike)
        require_outside(self)
        return await self._adding.enqueue(requests, alike=alike, after=after)

    # Claims.

    async def prepare(self) -> None:
        await rehearse(self._connections)

    async def claim(self, request: ClaimRequest) -> list[Job]:
        check_claim(request)
        require_outside(self)
        return await self._claims.claim(request)

    def wakeups(self, queues: Sequence[str]) -> AbstractAsyncContextManager[Subscription]:
        return self._bell.listen(queues)

    # Changes.

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        for request in requests:
            check_request(request)
        require_outside(self)
        outcomes = await self._performing.apply(requests)
        self._bell.ring(hints(outcomes) | self._claims.released_queues(outcomes))
        return outcomes

    def transaction(self, *, deadline_seconds: float) -> AbstractAsyncContextManager[Transaction]:
        """A transaction on a connection of its own, which the server also ends when it is open for longer."""
        return PostgresCommitBlock(
            self,
            self._connections,
            self._policies,
            clock=self._seams.clock,
            ring=self._bell.ring,
            deadline_seconds=deadline_seconds,
        )

    async def recoverable(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        check_page(limit)
        check_after(after)
        answers = await self._connections.fetch("recoverable", {"limit": limit, "after": after})
        policies = await self._policies.of(answers)
        return row.readable(answers, lambda answer: row.job_from(answer, policies))

    # Reads.

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await jobs_by_id(self._connections, self._policies, job_ids)

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
            "reasons": list(wanted.reasons) or None,
            "correlation_id": wanted.correlation_id,
            "dedupe_key": wanted.dedupe_key,
            "submitted_by": wanted.submitted_by,
            "tags": encode(wanted.tags) if wanted.tags else None,
            "created_from": wanted.created_from,
            "created_until": wanted.created_until,
        }
        answers = await self._connections.fetch("find" if wanted.correlation_id is None else "find_correlated", values)
        jobs = await jobs_of(self._policies, answers[:limit])
        return JobPage(jobs, jobs[-1].id if len(answers) > limit else None)

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
        return EventPage(events, (events[-1].position or "") if events else (after or before_transaction(0)))

    async def end(self) -> str:
        [answer] = await self._connections.fetch("end", {})
        return before_transaction(answer["tx"])

    async def executions(self, job_id: UUID) -> list[Execution]:
        return [row.execution_from(a) for a in await self._connections.fetch("executions", {"job_id": job_id})]

    async def dead_letter(self, job_id: UUID) -> DeadLetter | None:
        answers = await self._connections.fetch("dead_letter", {"job_id": job_id})
        return row.dead_letter_from(answers[0]) if answers else None

    async def dead_letters(
        self, wanted: DeadLetterFilter, *, after: UUID | None = None, limit: int = 100
    ) -> DeadLetterPage:
        check_page(limit)
        check_after(after)
        check_dead_letter_filter(wanted)
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
        answers = await self._connections.fetch("dead_letters", values)
        letters = [row.dead_letter_from(answer) for answer in answers[:limit]]
        return DeadLetterPage(letters, letters[-1].job_id if len(answers) > limit else None)

    async def artifacts(self, job_id: UUID) -> list[ArtifactRecord]:
        return [row.artifact_from(a) for a in await self._connections.fetch("artifacts", {"job_id": job_id})]

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None:
        answers = await self._connections.fetch("artifact", {"job_id": job_id, "name": name})
        return Artifact(**answers[0]) if answers else None

    async def signals(self, job_id: UUID) -> list[SignalRecord]:
        return [row.signal_from(a) for a in await self._connections.fetch("signals", {"job_id": job_id})]

    # Who works here.

    async def register(self, worker: WorkerRecord) -> None:
        check_worker(worker)
        require_outside(self)
        names = ("id", "host", "pid", "version", "concurrency")
        lists = {"queues": encode(list(worker.queues)), "kinds": encode(list(worker.kinds))}
        await self._connections.fetch("register", {**{name: getattr(worker, name) for name in names}, **lists})

    async def unregister(self, worker_id: str) -> None:
        require_outside(self)
        await self._connections.fetch("unregister", {"id": worker_id})

    async def workers(self, ids: Sequence[str] | None = None) -> list[WorkerRecord]:
        answers = await self._connections.fetch("workers", {"ids": None if ids is None else list(ids)})
        return [row.worker_from(answer) for answer in answers]

    async def stats(self) -> Stats:
        [glance] = await self._connections.fetch("glance", {})
        tallies = [row.tally_from(answer) for answer in await self._connections.fetch("tallies", {})]
        return Stats(
            at=glance["at"], tallies=tallies, workers=await self.workers(), dead_letters=glance["dead_letters"]
        )

    # What may be forgotten, and what was dealt with.

    async def prune(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        age = check_age(older_than_seconds, limit)
        require_outside(self)

        async def work(connection: Session) -> int:
            # One at a time: a claim is forgotten with the last of its jobs, which two could both take for the other's.
            await connection.execute("select pg_advisory_xact_lock(hashtextextended('tenure.prune', 0))")
            return await _forget(connection, "prune", age, limit, actor)

        return await self._connections.write("retention", work)

    async def blank(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        age = check_age(older_than_seconds, limit)
        require_outside(self)
        return await self._connections.write(
            "retention", lambda connection: _forget(connection, "blank", age, limit, actor)
        )

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        check_text(reason, "reason", length_max=2000)
        require_outside(self)
        values = {"job_id": job_id, "reason": reason, "actor": str(actor)}
        await self._connections.write("erasure", lambda connection: fetch(connection, "erase", values))
        job = (await self.read([job_id])).get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        if job.erased_at is None:
            allowed = allowed_from(job.status, committed=job.committed)
            raise IllegalTransition(job, "erase", allowed=allowed, why="only when it has ended")
        return job

    async def resolve_dead_letters(self, job_ids: Sequence[UUID], *, how: Resolution, actor: Actor) -> int:
        check_resolution(job_ids, how)
        require_outside(self)
        values = {"ids": list(job_ids), "how": how, "actor": str(actor)}
        return await self._connections.write(
            "store", lambda connection: _count(connection, "resolve_dead_letters", values)
        )


async def _forget(connection: Session, statement: str, age: timedelta, limit: int, actor: Actor) -> int:
    before = await connection.fetchval("select tenure.clock()") - age
    count = await _count(connection, statement, {"before": before, "limit": limit})
    await _note(connection, actor, statement, count)
    return count


async def _count(connection: Session, statement: str, values: dict[str, Any]) -> int:
    answers = await fetch(connection, statement, values)
    return int(answers[0][0])


async def _note(connection: Session, actor: Actor, action: str, count: int) -> None:
    if count:
        sql = "insert into tenure.operator_log (actor, action, detail) values ($1, $2, $3)"
        await connection.execute(sql, str(actor), action, encode({"count": count}))
