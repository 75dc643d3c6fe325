"""The SQLite store: one file, one writer, and the rules of `stores.contract`.

It only brings the parts together: lanes that own connections, and functions that run on them. Decisions are made in
`lifecycle`, transactions in `transactions`, and each kind of work has its own module.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from tenure.errors import InvalidInput, RowPoisoned, SchemaMismatch, StoreUnavailable, UsedAfterFork
from tenure.lifecycle import fold
from tenure.lifecycle.content import check_text
from tenure.lifecycle.records import Actor, DeadLetter, Event, Execution, Job, Policy
from tenure.seams import SYSTEM, Seams
from tenure.stores.checks import (
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
)
from tenure.stores.schema import require_fit
from tenure.stores.sqlite import adding, changing, claiming, examining, migrating, reading, retaining
from tenure.stores.sqlite.connecting import BUSY_SECONDS, MEMORY, connect, machine_mounts, require_local
from tenure.stores.sqlite.lane import Connection, InlineLane, Lane, ThreadLane, Transactions, Work
from tenure.stores.sqlite.policies import Policies
from tenure.stores.sqlite.rows import PolicyOf
from tenure.stores.sqlite.transactions import WAL_BYTES_MAX, Reading, Writing, checkpoint
from tenure.stores.sqlite.wakeups import Hints

T = TypeVar("T")


class SqliteStore:
    """Jobs in one SQLite file.

    `database_clock` is the clock that decides; without one it is the machine's, through the seams. With `inline` all
    work is done on the caller's thread. Another process that writes is waited for `busy_seconds`, three times over.
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
        self._seams = seams
        self._clock = database_clock or seams.clock.now
        self._inline = inline
        self._busy_seconds = busy_seconds
        self._wal_bytes_max = wal_bytes_max
        self._mounts = mounts
        self._pid = os.getpid()
        self._policies = Policies()
        self._set_aside = claiming.SetAside()
        self._hints = Hints(seams, self._file_version)
        self._has_schema = False
        self._opened = False
        self._door = threading.Lock()
        self._writer: Lane | None = None
        self._reader: Lane | None = None

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
        await self._connect()
        self._has_schema = self._opened = True

    async def close(self) -> None:
        """Finish what waits, write the WAL back into the file, and let go of it."""
        self._require_own_process()
        with self._door:
            reader, writer = self._reader, self._writer
            self._reader = self._writer = None
        self._opened = self._has_schema = False
        if reader is not None and reader is not writer:
            await reader.stop()
        if writer is not None:
            await writer.look(checkpoint)
            await writer.stop()

    async def schema(self) -> SchemaState:
        if self._missing():
            return migrating.empty_state()
        writer, _ = await self._connect()
        return await writer.look(migrating.state)

    async def migrate(self) -> list[MigrationRecord]:
        writer, _ = await self._connect()
        applied = await writer.run(lambda connection: migrating.migrate(connection, where=self._path))
        self._has_schema = True
        return applied

    async def doctor(self) -> list[Finding]:
        if self._missing():
            return [examining.missing_file(self._path)]
        schema = await self.schema()
        _, reader = await self._connect()
        mounts, set_aside = self._mounts(), self._set_aside.problems()
        return await reader.look(
            lambda connection: examining.examine(
                connection, self._path, mounts=mounts, schema=schema, set_aside=set_aside
            )
        )

    async def add(self, requests: Sequence[Enqueue]) -> list[Added]:
        for request in requests:
            check_enqueue(request)

        def work(connection: sqlite3.Connection) -> list[Added]:
            policy_of = self._policies_on(connection)
            return adding.add(
                connection,
                requests,
                now=self._clock(),
                policies=self._policies,
                read=lambda job_id: reading.read_one(connection, job_id, policy_of),
            )

        added = await self._write(work)
        self._hints.give({one.job.queue for one in added if one.created})
        return added

    async def claim(self, request: ClaimRequest) -> list[Job]:
        check_claim(request)
        return await self._write(
            lambda connection: claiming.claim(
                connection,
                request,
                now=self._clock(),
                policy_of=self._policies_on(connection),
                set_aside=self._set_aside,
            )
        )

    async def perform(self, requests: Sequence[Request]) -> list[Outcome]:
        for request in requests:
            check_request(request)
        outcomes = await self._write(
            lambda connection: changing.perform(
                connection, requests, now=self._clock(), policy_of=self._policies_on(connection)
            )
        )
        self._hints.give(made_ready(outcomes))
        return outcomes

    async def unattended(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        check_page(limit)
        found = await self._read(
            lambda connection: reading.unattended(
                connection, after=after, limit=limit, now=self._clock(), policy_of=self._policies_on(connection)
            )
        )
        for problem in found:
            if isinstance(problem, RowPoisoned):
                self._set_aside.put(problem, self._clock())
        return [job for job in found if isinstance(job, Job)]

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
        return await self._read(lambda connection: reading.read(connection, job_ids, self._policies_on(connection)))

    async def find(self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100) -> JobPage:
        check_job_filter(wanted)
        check_page(limit)
        return await self._read(
            lambda connection: reading.find(
                connection, wanted, after=after, limit=limit, policy_of=self._policies_on(connection)
            )
        )

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        return await self._read(lambda connection: reading.history(connection, job_ids))

    async def events(self, wanted: EventFilter, *, after: str | None = None, limit: int = 1000) -> EventPage:
        check_event_filter(wanted)
        check_page(limit)
        return await self._read(lambda connection: reading.events(connection, wanted, after=after, limit=limit))

    async def tail(self, *, after: str | None = None, limit: int = 1000) -> EventPage:
        check_page(limit)
        return await self._read(lambda connection: reading.tail(connection, after=after, limit=limit))

    async def executions(self, job_id: UUID) -> list[Execution]:
        return fold.executions((await self.history([job_id]))[job_id])

    async def dead_letter(self, job_id: UUID) -> DeadLetter | None:
        return await self._read(lambda connection: reading.dead_letter(connection, job_id))

    async def signals(self, job_id: UUID) -> list[SignalRecord]:
        return await self._read(lambda connection: reading.signals(connection, job_id))

    async def now(self) -> datetime:
        self._require_open()
        return self._clock()

    async def prune(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        age = check_age(older_than_seconds, limit)

        def work(connection: sqlite3.Connection) -> int:
            now = self._clock()
            return retaining.prune(connection, before=now - age, limit=limit, actor=actor, now=now)

        return await self._write(work)

    async def blank(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        age = check_age(older_than_seconds, limit)

        def work(connection: sqlite3.Connection) -> int:
            now = self._clock()
            return retaining.blank(connection, before=now - age, limit=limit, actor=actor, now=now)

        return await self._write(work)

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        check_text(reason, "reason", length_max=2000)
        return await self._write(
            lambda connection: retaining.erase(
                connection,
                job_id,
                reason=reason,
                actor=actor,
                now=self._clock(),
                policy_of=self._policies_on(connection),
            )
        )

    def wakeups(self, queues: Sequence[str]) -> AbstractAsyncContextManager[Wakeups]:
        self._require_open()
        return self._hints.listen(queues)

    async def _write(self, work: Work[T]) -> T:
        writer, _ = self._require_open()
        return await writer.run(work)

    async def _read(self, work: Work[T]) -> T:
        _, reader = self._require_open()
        return await reader.run(work)

    async def _file_version(self) -> int:
        """A number that changes when another process, or another program, commits to the file."""
        writer, _ = self._require_open()
        return await writer.look(lambda connection: int(connection.execute("pragma data_version").fetchone()[0]))

    async def _connect(self) -> tuple[Lane, Lane]:
        """The lanes, started when they are first needed. What is in memory has one connection for all."""
        self._require_own_process()
        writer, reader = self._lanes()
        try:
            # One after the other: the writer makes the file.
            await writer.start()
            await reader.start()
        except Exception:
            if self._forget(writer):
                await writer.stop()
            raise
        return writer, reader

    def _lanes(self) -> tuple[Lane, Lane]:
        """The one pair of lanes, also for several who ask at once."""
        with self._door:
            if self._writer is None or self._reader is None:
                require_local(self._path, self._mounts())
                transactions = Writing(
                    self._path,
                    wal_bytes_max=self._wal_bytes_max,
                    has_gate=lambda: self._has_schema,
                    rolled_back=self._policies.doubt,
                )
                self._writer = self._reader = self._lane("writer", transactions, read_only=False)
                if self._path != MEMORY:
                    self._reader = self._lane("reader", Reading(), read_only=True)
            return self._writer, self._reader

    def _forget(self, writer: Lane) -> bool:
        """Let the next who connects begin anew. False when somebody has seen to that already."""
        with self._door:
            if self._writer is not writer:
                return False
            self._writer = self._reader = None
            return True

    def _lane(self, name: str, around: Transactions, *, read_only: bool) -> Lane:
        def connecting() -> sqlite3.Connection:
            return connect(self._path, read_only=read_only, busy_seconds=self._busy_seconds)

        connection = Connection(connecting, around, where=self._path)
        if self._inline:
            return InlineLane(connection)
        return ThreadLane(connection, spawn=self._seams.spawn, name=f"tenure-sqlite-{name}")

    def _policies_on(self, connection: sqlite3.Connection) -> PolicyOf:
        def policy_of(policy_id: int) -> Policy:
            return self._policies.of(connection, policy_id)

        return policy_of

    def _require_open(self) -> tuple[Lane, Lane]:
        self._require_own_process()
        if not self._opened or self._writer is None or self._reader is None:
            raise StoreUnavailable(f"{self._path} is not open; call open() first")
        return self._writer, self._reader

    def _require_own_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"{self!r} was made in process {self._pid} and cannot be used in {os.getpid()}, its child; "
                f"make a store of its own after the fork"
            )

    def _missing(self) -> bool:
        self._require_own_process()
        return self._path != MEMORY and not Path(self._path).exists()
