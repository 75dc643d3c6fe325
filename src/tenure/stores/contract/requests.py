"""The requests of a store: enqueue, claim, and operations on existing jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import overload
from uuid import UUID

import msgspec

from tenure.lifecycle.causes import stored_cause
from tenure.lifecycle.content import ContentDigests
from tenure.lifecycle.enqueue import due_detail, enqueue, enqueue_cause, request_id_of
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.operations import Commit, Complete, Operation, Signal
from tenure.lifecycle.records import Actor, Event, EventType, Job, Origin, Role


class EnqueueRequest(msgspec.Struct, frozen=True, gc=False):
    """A new job. Its request id is the origin's own, or else the job's id, which the client generated.

    It is due at `due_at`, or `delay_ms` after the enqueue. A time that has passed is now.
    """

    origin: Origin
    actor: Actor
    delay_ms: int = 0
    due_at: datetime | None = None

    @property
    def request_id(self) -> str:
        return request_id_of(self.origin)

    @property
    def has_key(self) -> bool:
        """Whether a job may exist under its dedupe key or request id. Such an enqueue may wait for the transaction of
        another one."""
        return self.origin.dedupe_key is not None or self.origin.request_id is not None

    @property
    def detail(self) -> str | None:
        """The part of the request that the origin's digest does not cover."""
        return due_detail(self.delay_ms, self.due_at)

    @property
    def stored_cause(self) -> str | None:
        """The cause of the enqueue as a store writes it."""
        return stored_cause(EventType.ENQUEUED, enqueue_cause(self.origin))

    def decide(self, now: datetime) -> tuple[Event, Job]:
        """The first event and the new job, if this request creates one."""
        return enqueue(self.origin, self.actor, delay_ms=self.delay_ms, due_at=self.due_at, now=now)


_template = attrgetter(*(name for name in Origin.__struct_fields__ if name not in ("id", "payload")))


def is_homogeneous(requests: Sequence[EnqueueRequest]) -> bool:
    """Whether the requests differ only in their jobs' ids and payloads, as most batches do."""
    if len(requests) == 1:
        return True
    first = requests[0]
    same = _template(first.origin)
    return all(
        one.actor == first.actor
        and one.delay_ms == first.delay_ms
        and one.due_at == first.due_at
        and _template(one.origin) == same
        for one in requests[1:]
    )


class EnqueueResult(msgspec.Struct, frozen=True, gc=False):
    """The job of an enqueue: a new one, or the existing one with its request id or dedupe key."""

    job: Job
    created: bool


class HomogeneousResults(Sequence[EnqueueResult]):
    """New jobs that differ only in their origins. Each record is created on access, so that a client that enqueues many
    can send the next batch first."""

    def __init__(self, job: Job, requests: Sequence[EnqueueRequest]) -> None:
        # A copy, since the caller may change its list.
        self._job, self._requests = job, tuple(requests)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[EnqueueResult]:
        return (self._made(request) for request in self._requests)

    @overload
    def __getitem__(self, index: int) -> EnqueueResult: ...

    @overload
    def __getitem__(self, index: slice) -> HomogeneousResults: ...

    def __getitem__(self, index: int | slice) -> EnqueueResult | HomogeneousResults:
        if isinstance(index, slice):
            return HomogeneousResults(self._job, self._requests[index])
        return self._made(self._requests[index])

    def _made(self, request: EnqueueRequest) -> EnqueueResult:
        return EnqueueResult(msgspec.structs.replace(self._job, origin=request.origin), created=True)


CLAIM_WAIT_SECONDS_MAX = 20.0


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Claim up to `limit` due jobs, and start them in the same transaction unless `start` is off.

    Idempotent by `request_id`: a repeated request returns the jobs that it won before. The token is the secret of
    every lease won by this request; job id and token together identify a lease.
    """

    queues: tuple[str, ...]
    kinds: tuple[str, ...]
    limit: int
    worker: str
    token: UUID
    request_id: str
    start: bool = True
    role: Role = Role.POOL
    wait_seconds_max: float = CLAIM_WAIT_SECONDS_MAX
    """A claim that a lock has kept waiting for longer takes nothing, and is StoreUnavailable."""
    code_version: str | None = None
    """The version of the code that runs the jobs, which their events record."""

    @property
    def actor(self) -> Actor:
        return Actor(self.role, self.worker, self.token)

    def body(self) -> str:
        """The content by which a repeated request is recognised."""
        return encode([self.queues, self.kinds, self.limit, self.worker, self.start, self.role.value])


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One or several operations on one job, all or none.

    `job` is the record that the caller decided upon, or just an id: then the store reads, decides and applies, again
    if it lost a race, unless `expected_rev` is set. `fresh` promises that this request id has not been sent
    before with this revision's successors, so that the log is asked only when the row turns out to have moved on.
    `steps` is the digest of the job's steps, which the owner of a lease brings; for others the store counts.
    """

    job: Job | UUID
    operations: tuple[Operation, ...]
    actor: Actor
    request_id: str
    expected_rev: int | None = None
    fresh: bool = False
    steps: str | None = None

    @property
    def job_id(self) -> UUID:
        return self.job.id if isinstance(self.job, Job) else self.job

    @property
    def rev(self) -> int | None:
        """The revision that the row must have; None for any."""
        return self.job.rev if isinstance(self.job, Job) else self.expected_rev

    @property
    def is_signal(self) -> bool:
        """Whether it sends one signal and does nothing else."""
        return len(self.operations) == 1 and isinstance(self.operations[0], Signal)

    @property
    def signal_count(self) -> int:
        """How many signals it sends. One that sends any is decided on the number that the job was sent before."""
        return sum(isinstance(operation, Signal) for operation in self.operations)


def disjoint_batches(requests: Sequence[Request]) -> list[list[tuple[int, Request]]]:
    """The requests with their indexes, in batches of which none has two requests for one job: the second request is
    decided on the record that the first has left."""
    placed = list(enumerate(requests))
    if len({request.job_id for request in requests}) == len(placed):
        return [placed]
    found: list[list[tuple[int, Request]]] = []
    seen: dict[UUID, int] = {}
    for index, request in placed:
        earlier = seen.get(request.job_id, 0)
        seen[request.job_id] = earlier + 1
        if earlier == len(found):
            found.append([])
        found[earlier].append((index, request))
    return found


def with_digests(request: Request, digests: ContentDigests | None) -> Request:
    """The request whose commit carries these digests, unless it names its own."""
    if digests is None:
        return request

    def carried(operation: Operation) -> Operation:
        if isinstance(operation, Commit | Complete) and operation.written is None:
            return msgspec.structs.replace(operation, written=digests.detail())
        return operation

    return msgspec.structs.replace(request, operations=tuple(map(carried, request.operations)))
