"""What a store is: the requests it takes, the answers it gives, and the parts of it that each role may hold.

A store keeps rows and events and writes nothing that `lifecycle` has not decided. Every store, also one written
elsewhere, proves itself with `tenure.testing.contract.StoreContract`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal, Protocol
from uuid import UUID

import msgspec

from tenure.errors import JobNotFound, Refused, RequestIdReused, TenureError
from tenure.lifecycle.content import encode
from tenure.lifecycle.decide import Change, judge, same_request
from tenure.lifecycle.operations import Operation
from tenure.lifecycle.records import (
    Actor,
    DeadLetter,
    Event,
    EventType,
    Execution,
    Job,
    Origin,
    ReasonCode,
    Role,
    Stage,
)
from tenure.lifecycle.statuses import READY, Status
from tenure.lifecycle.table import Guard


class Enqueue(msgspec.Struct, frozen=True, gc=False):
    """A new job. Its request id is the origin's own, or else the job's id, which the caller made."""

    origin: Origin
    actor: Actor
    delay_ms: int = 0

    @property
    def request_id(self) -> str:
        return self.origin.request_id or str(self.origin.id)

    @property
    def detail(self) -> str | None:
        """What the event repeats of the request beyond the origin's digest."""
        return encode({"delay_ms": self.delay_ms}) if self.delay_ms else None


_template = attrgetter(*(name for name in Origin.__struct_fields__ if name not in ("id", "payload")))


def all_alike(requests: Sequence[Enqueue]) -> bool:
    """Whether the requests differ in nothing but their jobs' ids and payloads, as most that come together do."""
    first = requests[0]
    same = _template(first.origin)
    return all(
        one.actor == first.actor and one.delay_ms == first.delay_ms and _template(one.origin) == same
        for one in requests[1:]
    )


class Added(msgspec.Struct, frozen=True, gc=False):
    """The job that an enqueue led to: a new one, or the one that was there under its request id or dedupe key."""

    job: Job
    created: bool


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Take up to `limit` due jobs, and start them in the same breath unless `start` is off.

    Idempotent by `request_id`: asked again, it returns the claim that it won. The token is the secret of every lease
    won by this request; a job's lease is named by job and token together.
    """

    queues: tuple[str, ...]
    kinds: tuple[str, ...]
    limit: int
    worker: str
    token: UUID
    request_id: str
    start: bool = True
    role: Role = Role.POOL

    @property
    def actor(self) -> Actor:
        return Actor(self.role, self.worker, self.token)

    def body(self) -> str:
        """What makes this the same request when it comes again."""
        return encode([self.queues, self.kinds, self.limit, self.worker, self.start, self.role])


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One or several operations on one job, all or none.

    `job` is the record that the caller decided upon, or just an id: then the store reads, decides and applies, again
    if it lost a race, unless `expected_rev` says otherwise. `fresh` promises that this request id has not been sent
    before with this revision's successors, so that the log is asked only when the row turns out to have moved on.
    """

    job: Job | UUID
    operations: tuple[Operation, ...]
    actor: Actor
    request_id: str
    expected_rev: int | None = None
    fresh: bool = False

    @property
    def job_id(self) -> UUID:
        return self.job.id if isinstance(self.job, Job) else self.job

    @property
    def rev(self) -> int | None:
        """The revision that the row must still have; None for whatever it is."""
        return self.job.rev if isinstance(self.job, Job) else self.expected_rev


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The change was written. `renewed` says whether a heartbeat moved the lease's end."""

    change: Change
    at: datetime
    renewed: bool = False

    @property
    def status(self) -> Status:
        """The job's status after the change, for whoever need not know the whole record."""
        return self.change.steps[-1].to_status

    @property
    def job(self) -> Job:
        """The record after the change, as its actor may see it."""
        return without_secret(self.change.after(self.at, renewed=self.renewed), self.change.actor)


class Repeated(msgspec.Struct, frozen=True, gc=False):
    """This request was applied before; nothing was written now."""

    job: Job

    @property
    def status(self) -> Status:
        return self.job.status


class Busy(msgspec.Struct, frozen=True, gc=False):
    """Somebody else has the row locked, and a heartbeat does not wait: send the next one."""

    job: Job


class Failure(msgspec.Struct, frozen=True):
    """Nothing was written, and this is why."""

    error: TenureError


Outcome = Applied | Repeated | Busy | Failure

Handling = Literal["redriven", "discarded"]


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list. Everything given must match."""

    statuses: tuple[Status, ...] = ()
    queues: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    correlation_id: str | None = None
    dedupe_key: str | None = None
    submitted_by: str | None = None
    reasons: tuple[str, ...] = ()
    tags: dict[str, str] = {}
    created_from: datetime | None = None
    created_until: datetime | None = None


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events to list: of a job, of a type, or of a correlation id, within a time."""

    job_id: UUID | None = None
    types: tuple[EventType, ...] = ()
    correlation_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class JobPage(msgspec.Struct, frozen=True):
    """Some of the jobs, oldest first, and the cursor from which the next page starts; None at the end."""

    jobs: list[Job]
    after: UUID | None


class EventPage(msgspec.Struct, frozen=True):
    """Some of the log in its order, and the position from which to go on. Never skips an event that commits late."""

    events: list[Event]
    position: str


class SignalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that a job was sent, kept until asked for."""

    job_id: UUID
    rev: int
    name: str
    payload: str
    at: datetime


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters to list. Those that somebody has dealt with are left out, unless `handled` is asked for."""

    reason_codes: tuple[ReasonCode, ...] = ()
    stages: tuple[Stage, ...] = ()
    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    correlation_id: str | None = None
    dead_from: datetime | None = None
    dead_until: datetime | None = None
    handled: bool = False


class DeadLetterPage(msgspec.Struct, frozen=True):
    """Some of the dead letters, in the order of their jobs' ids, and the cursor for the next page; None at the end."""

    letters: list[DeadLetter]
    after: UUID | None


class OutboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be told to the outside once the transaction that writes it is committed."""

    id: UUID
    topic: str
    body: str
    aggregate: str
    headers: str | None = None


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A named piece of what a job has made."""

    name: str
    media_type: str
    body: bytes


class ArtifactRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact as it is listed: all but its body."""

    job_id: UUID
    name: str
    attempt: int
    media_type: str
    bytes: int
    at: datetime


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process as it introduced itself. `version` is that of the program whose jobs it runs."""

    id: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    kinds: tuple[str, ...]
    concurrency: int
    started_at: datetime
    seen_at: datetime
    stopped_at: datetime | None = None


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs of a kind in a queue have a status, and since when the longest-waiting of them is due."""

    queue: str
    kind: str
    status: Status
    jobs: int
    due: int = 0
    oldest_due_at: datetime | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The database at a glance."""

    at: datetime
    tallies: list[Tally]
    workers: list[WorkerRecord]
    dead_letters: int
    """Those that nobody has dealt with."""


class MigrationRecord(msgspec.Struct, frozen=True):
    """One numbered step of the schema."""

    number: int
    name: str
    checksum: str
    sql: str
    min_code_version: int


class SchemaState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a database stands against this code."""

    applied: list[int]
    pending: list[MigrationRecord]
    unknown: list[int]
    changed: list[int]
    min_code_version: int
    code_version: int

    @property
    def current(self) -> bool:
        return bool(self.applied) and not self.pending and self.min_code_version <= self.code_version


class Finding(msgspec.Struct, frozen=True):
    """Something that `doctor` has to say: ok, warning or error; what it saw, and what to do."""

    level: str
    about: str
    says: str
    advice: str = ""


class Wakeups(Protocol):
    """Tells when work may have come. A hint: everything is correct without it, only later."""

    async def wait(self, timeout_seconds: float) -> bool:
        """True when a hint came, False when the time was up."""
        ...


class Adds(Protocol):
    """The client's part: new jobs."""

    async def add(self, requests: Sequence[Enqueue]) -> list[Added]:
        """All of them in one transaction, or none and an error. Answers in the order of the requests."""
        ...


class Hears(Protocol):
    """The part of whoever waits for something to happen."""

    def wakeups(self, queues: Sequence[str]) -> AbstractAsyncContextManager[Wakeups]:
        """Hints for these queues, and for the names of `hint_for`."""
        ...


class Claims(Hears, Protocol):
    """The pool's part: it takes jobs, and cannot end them."""

    async def claim(self, request: ClaimRequest) -> list[Job]:
        """The jobs won, each with its token, in the order of claiming."""
        ...


class Performs(Protocol):
    """The part of whoever changes jobs that exist. What each role may ask for, `decide` says."""

    async def perform(self, requests: Sequence[Request]) -> list[Outcome]:
        """What matched is applied; the rest is answered one by one, in the order of the requests."""
        ...


class Transaction(Protocol):
    """One transaction of the database: the caller's own statements, and what tenure writes with them.

    Everything in it takes effect together when its context is left normally, or not at all. Values are `$1`, `$2`, …
    on every store.
    """

    async def execute(self, sql: str, *values: Any) -> int:
        """Run one statement of the caller's. How many rows it touched."""
        ...

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of one query of the caller's, by column name."""
        ...

    async def add(self, requests: Sequence[Enqueue]) -> list[Added]: ...

    async def post(self, messages: Sequence[OutboxMessage], *, job: Job | None = None) -> None:
        """Put messages into the outbox, in this order within each aggregate."""
        ...

    async def attach(self, job: Job, artifacts: Sequence[Artifact]) -> None:
        """Keep artifacts of this attempt. A name that the job has used before is InvalidInput."""
        ...

    async def perform(self, request: Request) -> Outcome:
        """Change one job. Whatever is not Applied should make the caller leave with an error."""
        ...


class Commits(Protocol):
    """The runner's part where more than an outcome is to be written at once."""

    def transaction(self, *, deadline_seconds: float) -> AbstractAsyncContextManager[Transaction]:
        """A transaction that is rolled back, also by the database itself where it can, when it is open for longer."""
        ...


class Registers(Protocol):
    """A worker's part: it says that it is there, and what it can run."""

    async def register(self, worker: WorkerRecord) -> None:
        """Write the worker down, or that it was seen. `started_at` and `seen_at` are the database's own."""
        ...

    async def unregister(self, worker_id: str) -> None:
        """The worker stopped. Its row stays, since jobs name it."""
        ...


class Recovers(Performs, Protocol):
    """Recovery's part: it also sees who needs it."""

    async def unattended(self, *, limit: int, after: UUID | None = None) -> list[Job]:
        """Held jobs whose lease expired, whose heartbeats are missing or whose time is up; queued jobs whose time is
        up; stalled jobs that were lost or are committed. In the order of ids, after the given one."""
        ...


class Reads(Protocol):
    """What everyone may see. Tokens never are."""

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]: ...

    async def find(self, wanted: JobFilter, *, after: UUID | None = None, limit: int = 100) -> JobPage: ...

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        """Each job's events in the order of revisions; an empty list for an id that has none."""
        ...

    async def events(self, wanted: EventFilter, *, after: str | None = None, limit: int = 1000) -> EventPage: ...

    async def tail(self, *, after: str | None = None, limit: int = 1000) -> EventPage:
        """The log from a position on, without gap or repetition, also when transactions commit late."""
        ...

    async def executions(self, job_id: UUID) -> list[Execution]: ...

    async def dead_letter(self, job_id: UUID) -> DeadLetter | None: ...

    async def dead_letters(
        self, wanted: DeadLetterFilter, *, after: UUID | None = None, limit: int = 100
    ) -> DeadLetterPage: ...

    async def artifacts(self, job_id: UUID) -> list[ArtifactRecord]: ...

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None: ...

    async def workers(self, ids: Sequence[str] | None = None) -> list[WorkerRecord]:
        """The workers with these ids; without ids, those that have not stopped. In the order of ids."""
        ...

    async def stats(self) -> Stats: ...

    async def signals(self, job_id: UUID) -> list[SignalRecord]: ...

    async def now(self) -> datetime:
        """The database's clock, which decides."""
        ...


class Retains(Protocol):
    """The operator's part: what may be forgotten."""

    async def prune(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        """Remove whole terminal jobs, with all that belongs to them, that ended this long ago. How many."""
        ...

    async def blank(self, *, older_than_seconds: float, limit: int = 1000, actor: Actor) -> int:
        """Empty the detail of old progress events that `fold` no longer needs, because a later progress or claim of
        the same job takes their place. How many."""
        ...

    async def erase(self, job_id: UUID, *, reason: str, actor: Actor) -> Job:
        """Remove a terminal job's content while its history stays; written down in the operator's log.

        Payload and signals become `null`; tags, result, partial result, errors and progress become None; the details
        of its progress, retry_scheduled, failed and dead_lettered events are blanked; artifacts and steps go."""
        ...

    async def deal_with(self, job_ids: Sequence[UUID], *, how: Handling, actor: Actor) -> int:
        """Note that somebody redrove or discarded these dead letters; how many were open. Nothing is removed."""
        ...


class Store(Adds, Claims, Recovers, Commits, Registers, Reads, Retains, Protocol):
    """Everything, for whoever opens the store and hands its parts out."""

    async def open(self) -> None:
        """Connect, and refuse a database that this code does not fit (SchemaMismatch)."""
        ...

    async def close(self) -> None: ...

    async def schema(self) -> SchemaState: ...

    async def migrate(self) -> list[MigrationRecord]:
        """Apply what is pending, one after the other, and say what that was. Safe when several do it at once."""
        ...

    async def doctor(self) -> list[Finding]: ...


def settle(current: Job | None, request: Request, *, logged: Sequence[Event], now: datetime) -> Change | Outcome:
    """The verdict on the current row (with its token): the change to write, or the answer to give instead.

    A request id that the log knows wins over everything else: what was applied is a success for ever.
    """
    if current is None:
        return Failure(JobNotFound(request.job_id))
    if logged:
        seen = without_secret(current, request.actor)
        if same_request(request.operations, logged):
            return Repeated(seen)
        return Failure(RequestIdReused(request.request_id, current=seen))
    try:
        return judge(
            current,
            request.operations,
            request.actor,
            request_id=request.request_id,
            now=now,
            expected_rev=request.rev,
        )
    except Refused as refusal:
        if refusal.current is not None:
            refusal.current = without_secret(refusal.current, request.actor)
        return Failure(refusal)


def shown(change: Change) -> Change:
    """The change as its actor may see it: the token of somebody else's lease is not part of it."""
    seen = without_secret(change.before, change.actor)
    return change if seen is change.before else msgspec.structs.replace(change, before=seen)


def without_secret(job: Job, actor: Actor | None = None) -> Job:
    """The record as this actor may see it: the token only if it is their own."""
    if job.token is None or (actor is not None and actor.token == job.token):
        return job
    return msgspec.structs.replace(job, token=None)


def waves(requests: Sequence[Request]) -> list[list[tuple[int, Request]]]:
    """The requests with their places, such that no wave has two for one job: a job's second request is decided upon
    what its first has left."""
    found: list[list[tuple[int, Request]]] = []
    seen: dict[UUID, int] = {}
    for place, request in enumerate(requests):
        turn = seen.get(request.job_id, 0)
        seen[request.job_id] = turn + 1
        if turn == len(found):
            found.append([])
        found[turn].append((place, request))
    return found


def hints(outcomes: Iterable[Outcome]) -> set[str]:
    """Who should look: the queues in which a change left a job that a claim may take, and the workers whose job was
    changed by somebody else, under the name that `hint_for` gives them."""
    names: set[str] = set()
    for outcome in outcomes:
        if isinstance(outcome, Applied):
            before, change = outcome.change.before, outcome.change
            if change.steps[-1].to_status in READY:
                names.add(before.queue)
            if before.owner is not None and change.guard is not Guard.LIVE_LEASE:
                names.add(hint_for(before.owner))
    return names


def hint_for(worker: str) -> str:
    """The name under which a worker is told that somebody changed a job of its own: a cancel, or a lease revoked."""
    return f"worker:{worker}"
