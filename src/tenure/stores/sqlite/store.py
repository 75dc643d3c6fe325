"""The SQLite store: one file, one writer, and the rules of `stores.contract`.

It only brings the parts together: lanes that own connections, and functions that run on them. Decisions are made in
`lifecycle`, transactions in `transactions`, and each kind of work has its own module.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from tenure.errors import InvalidInput, RowPoisoned, SchemaMismatch
from tenure.lifecycle import fold
from tenure.lifecycle.json_text import check_text
from tenure.lifecycle.records import Actor, DeadLetter, Event, Execution, Job, Policy
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
    HomogeneousResults,
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
    released,
)
from tenure.stores.schema import require_fit
from tenure.stores.sqlite import apply, belongings, complete, enqueue, reads, retention
from tenure.stores.sqlite import claim as claiming
from tenure.stores.sqlite import doctor as examining
from tenure.stores.sqlite import migrate as migrating
from tenure.stores.sqlite import workers as registering
from tenure.stores.sqlite.archive import SqliteArchive
from tenure.stores.sqlite.commit_block import SqliteCommitBlock
from tenure.stores.sqlite.connect import BUSY_SECONDS, MEMORY, machine_mounts
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.queues import SqliteQueues
from tenure.stores.sqlite.rows import PolicyOf
from tenure.stores.sqlite.schedules import SqliteSchedules
from tenure.stores.sqlite.transactions import WAL_BYTES_MAX
from tenure.stores.sqlite.wakeups import SqliteNotifier
from tenure.stores.sqlite.writer_thread import Work
from tenure.stores.validation import (
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

T = TypeVar("T")


class SqliteStore:
    """Jobs in one SQLite file.

    `database_clock` is the clock that decides; without one it is the machine's, through the seams. With `inline` all
    work is done on the caller's thread. Another process that writes is waited for `busy_seconds`, a few times over.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        seams: Seams = SYSTEM,
        database_clock: Callable[[], datetime] | None = None,
        inline: bool = False,
        busy_seconds: float = BUSY_SECONDS,
        wal_bytes_max: int = WAL_BYTES_MAX,
        mounts: Callable[[], str] = machine_mounts,
    ) -> None:
        self._path = str(path)
        self._clock = database_clock or seams.clock.now
        self._mounts = mounts
        self._set_aside = claiming.Quarantine()
        self._ruled: frozenset[str] = frozenset()
        self._hints = SqliteNotifier(seams, self._file_version)
        self._lanes = SqliteConnections(
            self._path,
            seams=seams,
            clock=self._clock,
            tell=self._hints.give,
            inline=inline,
            busy_seconds=busy_seconds,
            wal_bytes_max=wal_bytes_max,
            mounts=mounts,
        )
        self.archive = SqliteArchive(
            self._path, self._lanes, seams=seams, clock=self._clock, busy_seconds=busy_seconds, inline=inline
        )
        self.queues = SqliteQueues(write=self._write, read=self._read, clock=self._clock, ring=self._hints.give)
        self.schedules = SqliteSchedules(
            write=self._write,
            read=self._read,
            clock=self._clock,
            ring=self._hints.give,
            policies=self._lanes.policies,
            policies_on=self._policies_on,
        )

    @classmethod
    def from_url(
        cls, url: str, *, seams: Seams = SYSTEM, database_clock: Callable[[], datetime] | None = None
    ) -> SqliteStore:
        """The store of `sqlite:///relative.db`, `sqlite:////absolute.db` or `sqlite://:memory:`."""
        scheme, _, rest = url.partition("://")
        if scheme != "sqlite" or not (rest == MEMORY or (rest.startswith("/") and len(rest) > 1)):
            raise InvalidInput(
                "database", f"{url!r} is not sqlite:///relative.db, sqlite:////absolute.db or sqlite://:memory:"
            )
        return cls(rest if rest == MEMORY else rest[1:], seams=seams, database_clock=database_clock)

    def __repr__(self) -> str:
        return f"SqliteStore({self._path!r})"

    async def open(self) -> None:
        """Connect, and refuse a file that this code does not fit."""
        state = await self.schema()
        try:
            require_fit(state, where=self._path)
        except SchemaMismatch:
            await self.close()
            raise
        await self._lanes.connect()
        self._lanes.has_schema = self._lanes.opened = True

    async def close(self) -> None:
        """Finish what waits, write the WAL back into the file, and let go of it."""
        await self._lanes.close()

    async def schema(self) -> SchemaState:
        if self._lanes.missing():
            return migrating.empty_state()
        writer, _ = await self._lanes.connect()
        return await writer.look(migrating.state)

    async def migrate(self) -> list[MigrationRecord]:
        writer, _ = await self._lanes.connect()
        applied = await writer.run(lambda connection: migrating.migrate(connection, where=self._path))
        self._lanes.has_schema = True
        return applied

    async def doctor(self) -> list[Finding]:
        if self._lanes.missing():
            return [examining.missing_file(self._path)]
        schema = await self.schema()
        _, reader = await self._lanes.connect()
        mounts, set_aside = self._mounts(), self._set_aside.problems()
        return await reader.look(
            lambda connection: examining.examine(
                connection, self._path, mounts=mounts, schema=schema, set_aside=set_aside, now=self._clock()
            )
        )

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, after: Awaitable[object] | None = None
    ) -> Sequence[EnqueueResult]:
        alike = bool(requests) and is_homogeneous(requests)
        check_enqueues(requests, alike=alike)
        digests = enqueue.alike_digests(requests) if alike else None
        if after is not None:
            await after

        def work(connection: sqlite3.Connection) -> Sequence[EnqueueResult]:
            now, policies, policy_of = self._clock(), self._lanes.policies, self._policies_on(connection)
            if digests is not None:
                new = enqueue.enqueue_homogeneous(connection, requests, digests, now=now, policies=policies)
                if new is not None:
                    return new
            return enqueue.enqueue(
                connection,
                requests,
                now=now,
                policies=policies,
                read=lambda job_id: reads.read_one(connection, job_id, policy_of),
            )

        added = await self._write(work)
        told = added[:1] if isinstance(added, HomogeneousResults) else added
        self._hints.give({one.job.queue for one in told if one.created})
        return added

    async def prepare(self) -> None: ...

    async def claim(self, request: ClaimRequest) -> list[Job]:
        check_claim(request)
        won = await self._write(
            lambda connection: claiming.claim(
                connection,
                request,
                now=self._clock(),
                policy_of=self._policies_on(connection),
                set_aside=self._set_aside,
            )
        )
        self._ruled |= won.ruled
        if won.again_seconds is not None:
            self._hints.give_later(won.ruled, won.again_seconds)
        return won.jobs

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        for request in requests:
            check_request(request)
        completions = complete.decided(requests)
        others = [request for place, request in enumerate(requests) if place not in completions.changes]

        def work(connection: sqlite3.Connection) -> tuple[datetime | None, list[Outcome]]:
            now, policy_of = self._clock(), self._policies_on(connection)
            done = completions.write(connection, now)
            rest = others if done else requests
            judged = apply.apply(connection, rest, now=now, policy_of=policy_of) if rest else []
            return now if done else None, judged

        outcomes = completions.outcomes(*await self._write(work))
        self._hints.give(hints(outcomes) | (released(outcomes) & self._ruled if self._ruled else set()))
        return outcomes

    async def recoverable(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        check_page(limit)
        found = await self._read(
            lambda connection: reads.recoverable(
                connection, after=after, limit=limit, now=self._clock(), policy_of=self._policies_on(connection)
            )
        )
        for problem in found:
            if isinstance(problem, RowPoisoned):
                self._set_aside.put(problem, self._clock())
        return [job for job in found if isinstance(job, Job)]

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await self._read(lambda connection: reads.read(connection, job_ids, self._policies_on(connection)))

    async def find(self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100) -> JobPage:
        check_job_filter(wanted)
        check_page(limit)
        return await self._read(
            lambda connection: reads.find(
                connection, wanted, after=after, limit=limit, policy_of=self._policies_on(connection)
            )
        )

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._read(lambda connection: reads.history(connection, job_ids))

    async def events(self, wanted: EventFilter, *, after: str | None = None, limit: int = 1000) -> EventPage:
        check_event_filter(wanted)
        check_page(limit)
        return await self._read(lambda connection: reads.events(connection, wanted, after=after, limit=limit))

    async def tail(self, *, after: str | None = None, limit: int = 1000) -> EventPage:
        check_page(limit)
        return await self._read(lambda connection: reads.tail(connection, after=after, limit=limit))

    async def end(self) -> str:
        return await self._read(reads.end)

    async def executions(self, job_id: UUID) -> list[Execution]:
        return fold.executions((await self.history([job_id]))[job_id])

    async def dead_letter(self, job_id: UUID) -> DeadLetter | None:
        return await self._read(lambda connection: reads.dead_letter(connection, job_id))

    async def dead_letters(
        self, wanted: DeadLetterFilter, *, after: UUID | None = None, limit: int = 100
    ) -> DeadLetterPage:
        check_dead_letter_filter(wanted)
        check_page(limit)
        return await self._read(lambda connection: reads.dead_letters(connection, wanted, after=after, limit=limit))

    async def artifacts(self, job_id: UUID) -> list[ArtifactRecord]:
        return await self._read(lambda connection: belongings.artifacts(connection, job_id))

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None:
        return await self._read(lambda connection: belongings.artifact(connection, job_id, name))

    async def register(self, worker: WorkerRecord) -> None:
        check_worker(worker)
        await self._write(lambda connection: registering.register(connection, worker, now=self._clock()))

    async def unregister(self, worker_id: str) -> None:
        await self._write(lambda connection: registering.unregister(connection, worker_id, now=self._clock()))

    async def workers(self, ids: Sequence[str] | None = None) -> list[WorkerRecord]:
        return await self._read(lambda connection: registering.workers(connection, ids))

    async def stats(self) -> Stats:
        return await self._read(lambda connection: registering.stats(connection, now=self._clock()))

    async def signals(self, job_id: UUID) -> list[SignalRecord]:
        return await self._read(lambda connection: reads.signals(connection, job_id))

    async def now(self) -> datetime:
        self._lanes.require_open()
        return self._clock()

    async def prune(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        age = check_age(older_than_seconds, limit)

        def work(connection: sqlite3.Connection) -> int:
            now = self._clock()
            return retention.prune(connection, before=now - age, limit=limit, actor=actor, now=now)

        return await self._write(work)

    async def blank(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        age = check_age(older_than_seconds, limit)

        def work(connection: sqlite3.Connection) -> int:
            now = self._clock()
            return retention.blank(connection, before=now - age, limit=limit, actor=actor, now=now)

        return await self._write(work)

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        check_text(reason, "reason", length_max=2000)
        return await self._write(
            lambda connection: retention.erase(
                connection,
                job_id,
                reason=reason,
                actor=actor,
                now=self._clock(),
                policy_of=self._policies_on(connection),
            )
        )

    async def resolve_dead_letters(self, job_ids: Sequence[UUID], *, how: Resolution, actor: Actor) -> int:
        check_resolution(job_ids, how)
        return await self._write(
            lambda connection: retention.resolve_dead_letters(
                connection, job_ids, how=how, actor=actor, now=self._clock()
            )
        )

    def transaction(self, *, deadline_seconds: float) -> AbstractAsyncContextManager[Transaction]:
        """A transaction that has the write lock, and is rolled back when it is open for longer. It is never open for
        longer than a share of the busy timeout (`BLOCK_SHARE`), since everybody else who writes waits for it."""
        return self._block(deadline_seconds)

    @asynccontextmanager
    async def _block(self, deadline_seconds: float) -> AsyncIterator[Transaction]:
        require_outside(self)
        async with SqliteCommitBlock(self, await self._lanes.blocks(), deadline_seconds=deadline_seconds) as block:
            yield block

    def wakeups(self, queues: Sequence[str]) -> AbstractAsyncContextManager[Subscription]:
        self._lanes.require_open()
        return self._hints.listen(queues)

    async def _write(self, work: Work[T]) -> T:
        require_outside(self)
        return await (await self._lanes.writer()).run(work)

    async def _read(self, work: Work[T]) -> T:
        if self._lanes.one_for_all:
            require_outside(self)
        return await (await self._lanes.reader()).run(work)

    async def _file_version(self) -> int:
        """A number that changes when another process, or another program, commits to the file."""
        writer = await self._lanes.writer()
        return await writer.look(lambda connection: int(connection.execute("pragma data_version").fetchone()[0]))

    def _policies_on(self, connection: sqlite3.Connection) -> PolicyOf:
        def policy_of(policy_id: int) -> Policy:
            return self._lanes.policies.of(connection, policy_id)

        return policy_of
