"""The records: jobs, events, policies, actors, dead letters. Frozen values without behaviour.

They cannot form cycles, so those that are made in large numbers are not tracked by the garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, Literal, get_args
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.budgets import Budget
from tenure.lifecycle.durations import milliseconds, optional_milliseconds
from tenure.lifecycle.executions import execution_id
from tenure.lifecycle.json_text import check_choice, check_integer, check_seconds, digest
from tenure.lifecycle.secret_names import check_secret
from tenure.lifecycle.size_limits import SIGNALS_MAX
from tenure.lifecycle.statuses import LEASED, LIVE, STALLED, CoarseState, Status, TextEnum, coarse_state
from tenure.lifecycle.timeouts import Timeouts

CONTRACT_VERSION = 1
"""Written on every event. Later versions only add optional fields and states."""

OnLost = Literal["requeue", "fail", "dead_letter"]
OnExhausted = Literal["fail", "dead_letter"]
WaitingFor = Literal["time", "signal", "children", "code"]
"""What ends a wait: its due time, a signal, the end of awaited children, or a worker with code that fits."""
EndsAs = Literal["failed", "cancelled", "dead_lettered"]
"""The status in which a job ends once its undo steps are done."""
OnTimeout = Literal["retry", "fail", "dead_letter"]


class Role(TextEnum):
    """The role of an actor. The transition table grants authority by role."""

    CLIENT = "client"
    POOL = "pool"
    GATEWAY = "gateway"
    RUNNER = "runner"
    RECOVERY = "recovery"
    WORKFLOW = "workflow"
    OUTBOX = "outbox"


class Actor(msgspec.Struct, frozen=True, gc=False):
    """A role, the name that events record, and the lease token if it owns one."""

    role: Role
    name: str
    token: UUID | None = None

    def __str__(self) -> str:
        return f"{self.role}:{self.name}"

    def __repr__(self) -> str:
        return f"Actor({self})"


class Policy(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Retries, lease, timeouts and budget of a job, stored with it at enqueue. Recovery applies it and has none of its
    own.

    `deadline_seconds` after its enqueue the job ends, whatever its status. `secret` has the names of the fields that
    are not shown.
    """

    max_attempts: int = 20
    lease_seconds: float = 60.0
    heartbeat_seconds: float | None = None
    backoff: Backoff = Backoff()
    timeouts: Timeouts = Timeouts()
    on_lost: OnLost = "requeue"
    on_exhausted: OnExhausted = "dead_letter"
    on_timeout: OnTimeout = "retry"
    budget: Budget | None = None
    signals_max: int | None = None
    deadline_seconds: float | None = None
    secret: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        # Seconds become floats: 45 and 45.0 are one policy and must be stored as one.
        check_integer(self.max_attempts, "max_attempts", least=1, most=30_000)
        lease = check_seconds(self.lease_seconds, "lease_seconds", least=0.01)
        msgspec.structs.force_setattr(self, "lease_seconds", lease)
        if self.heartbeat_seconds is not None:
            seconds = check_seconds(self.heartbeat_seconds, "heartbeat_seconds", least=0.001)
            msgspec.structs.force_setattr(self, "heartbeat_seconds", seconds)
        check_choice(self.on_lost, "on_lost", get_args(OnLost))
        check_choice(self.on_exhausted, "on_exhausted", get_args(OnExhausted))
        check_choice(self.on_timeout, "on_timeout", get_args(OnTimeout))
        if not isinstance(self.backoff, Backoff):
            raise InvalidInput("backoff", f"must be a Backoff, not {self.backoff!r}")
        if not isinstance(self.timeouts, Timeouts):
            raise InvalidInput("timeouts", f"must be Timeouts, not {self.timeouts!r}")
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise InvalidInput("budget", f"must be a Budget, not {self.budget!r}")
        if self.signals_max is not None:
            check_integer(self.signals_max, "signals_max", least=0, most=1_000_000)
        if self.deadline_seconds is not None:
            seconds = check_seconds(self.deadline_seconds, "deadline_seconds", least=0.001)
            msgspec.structs.force_setattr(self, "deadline_seconds", seconds)
        if self.secret is not None:
            msgspec.structs.force_setattr(self, "secret", check_secret(self.secret))

    @property
    def signal_limit(self) -> int:
        """The most signals that the job may be sent."""
        return SIGNALS_MAX if self.signals_max is None else self.signals_max

    @cached_property
    def lease_ms(self) -> int:
        return milliseconds(self.lease_seconds)

    @cached_property
    def heartbeat_ms(self) -> int:
        """The interval between heartbeats: a third of the lease, unless it is set."""
        return milliseconds(self.lease_seconds / 3 if self.heartbeat_seconds is None else self.heartbeat_seconds)

    @cached_property
    def queued_ms(self) -> int | None:
        return optional_milliseconds(self.timeouts.queued_seconds)

    @cached_property
    def claimed_ms(self) -> int | None:
        return optional_milliseconds(self.timeouts.claimed_seconds)

    @cached_property
    def running_ms(self) -> int | None:
        return optional_milliseconds(self.timeouts.running_seconds)

    @cached_property
    def deadline_ms(self) -> int | None:
        return optional_milliseconds(self.deadline_seconds)


class Origin(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The part of a job that never changes."""

    id: UUID
    kind: str
    payload: str
    policy: Policy
    queue: str = "default"
    priority: int = 0
    dedupe_key: str | None = None
    request_id: str | None = None
    correlation_id: str | None = None
    trace: str | None = None
    submitted_by: str | None = None
    tags: Mapping[str, str] | None = None
    partition_key: str | None = None
    parent_id: UUID | None = None
    redrive_of: UUID | None = None
    awaited: bool = False
    """Whether its parent may wait for its end."""

    def digest(self) -> str:
        """The digest of all fields but the id. A repeated enqueue has the same.

        Unset fields are left out, so that a field of a later version does not change the digests of earlier jobs.
        """
        return origin_digests([self])[0]


def origin_digests(origins: Sequence[Origin]) -> list[str]:
    """The digests of origins that differ in id and payload only. What they share is encoded once."""
    shared = _shared_facts(origins[0])
    before, after = _around_payload(shared) if origins[0].tags is None else _around_payload.__wrapped__(shared)
    return [digest(f"{before}{_canonical(origin.payload).decode()}{after}") for origin in origins]


_SHARED_FIELDS = tuple(name for name in Origin.__struct_fields__ if name not in ("id", "payload"))
_shared_facts: Callable[[Origin], tuple[Any, ...]] = attrgetter(*_SHARED_FIELDS)
_canonical = msgspec.json.Encoder(order="sorted").encode
_GAP = "\x00"
"""Placeholder for the payload; no text of a job can contain it."""


@lru_cache(maxsize=1024)
def _around_payload(shared: tuple[Any, ...]) -> tuple[str, str]:
    """The facts of an origin as JSON, before and after its payload. Cached, since the jobs of a program share them;
    tags cannot be."""
    facts = dict(zip(_SHARED_FIELDS, shared, strict=True))
    facts |= {"payload": _GAP, "policy": _set_in(facts["policy"]), "awaited": facts["awaited"] or None}
    text = _canonical({name: fact for name, fact in facts.items() if fact is not None}).decode()
    before, after = text.split(_canonical(_GAP).decode())
    return before, after


@lru_cache(maxsize=1024)
def _set_in(policy: Policy) -> str:
    """The set fields of a policy, as JSON. Cached, since nearly all jobs of a kind share one policy."""
    return _canonical(_without_none(msgspec.to_builtins(policy))).decode()


def _without_none(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {name: _without_none(item) for name, item in value.items() if item is not None}


RecoveryAction = Literal["requeue", "fail", "cancel", "dead_letter"]
_END_ACTIONS: Mapping[EndsAs, RecoveryAction] = {
    "failed": "fail",
    "cancelled": "cancel",
    "dead_lettered": "dead_letter",
}


class Job(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A job at one revision. `token` is set only for the claimer and is never returned by reads.

    `signal_rev` is the revision of the last signal or wake; 0 for none. `children_max` is the number of live awaited
    children at which a job that waits for children is woken. Only workers with the version `pinned_version` of the code
    may claim the job: other versions do not fit its recorded steps. `ends_as` is set once the job only undoes its
    steps: the status in which it ends, `ends_because` the cause; `failures_before_undo` are the failures that do not
    count then.
    """

    origin: Origin
    status: Status
    rev: int
    created_at: datetime
    updated_at: datetime
    attempt: int = 0
    failures: int = 0
    losses: int = 0
    lost: bool = False
    due_at: datetime | None = None
    owner: str | None = None
    token: UUID | None = None
    lease_expires_at: datetime | None = None
    heartbeat_deadline_at: datetime | None = None
    timeout_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    committed_at: datetime | None = None
    cancel_reason: str | None = None
    signal_rev: int = 0
    waiting_for: WaitingFor | None = None
    children_max: int | None = None
    pinned_version: str | None = None
    ends_as: EndsAs | None = None
    ends_because: str | None = None
    failures_before_undo: int = 0
    compensated_at: datetime | None = None
    progress: int | None = None
    progress_message: str | None = None
    committed_result: str | None = None
    result: str | None = None
    partial_result: str | None = None
    error: str | None = None
    last_error: str | None = None
    reason: str | None = None
    erased_at: datetime | None = None

    def __repr__(self) -> str:
        return f"Job({self.id}, {self.kind!r}, {self.status}, rev={self.rev}, attempt={self.attempt})"

    @property
    def id(self) -> UUID:
        return self.origin.id

    @property
    def kind(self) -> str:
        return self.origin.kind

    @property
    def queue(self) -> str:
        return self.origin.queue

    @property
    def policy(self) -> Policy:
        return self.origin.policy

    @property
    def correlation_id(self) -> str:
        """The id that all jobs of one piece of work share: given at enqueue, or else the root job's own id."""
        return self.origin.correlation_id or str(self.origin.id)

    @property
    def live(self) -> bool:
        return self.status in LIVE

    @property
    def leased(self) -> bool:
        return self.status in LEASED

    @property
    def cancel_requested(self) -> bool:
        """Whether a cancel was requested. `cancel_reason` is the reason of the first request."""
        return self.cancel_reason is not None

    @property
    def committed(self) -> bool:
        """Whether its effect has been applied."""
        return self.committed_at is not None

    @property
    def unwinding(self) -> bool:
        """Whether its attempts only undo what earlier ones have done."""
        return self.ends_as is not None

    @property
    def compensated(self) -> bool:
        """Whether its undo steps are done, so that only its end is missing."""
        return self.compensated_at is not None

    @property
    def may_have_earlier_steps(self) -> bool:
        """Whether steps may have been recorded before this attempt: by an earlier one, or copied into a fork."""
        return self.attempt > 1 or self.origin.redrive_of is not None

    @property
    def counted_failures(self) -> int:
        """The failures that `max_attempts` limits: those of undo attempts are counted afresh."""
        return self.failures - self.failures_before_undo

    @property
    def exhausted(self) -> bool:
        return self.counted_failures >= self.policy.max_attempts

    @property
    def ends_by_policy(self) -> bool:
        """Whether it is stalled and will not run again: it is committed, or its policy ends it."""
        return self.status is STALLED and (self.committed or self.recovery_action() != "requeue")

    @property
    def coarse_state(self) -> CoarseState:
        """The job state of the execution ledger. A stalled job that will not run again is RUNNING until it ends."""
        return CoarseState.RUNNING if self.ends_by_policy else coarse_state(self.status)

    @property
    def execution_id(self) -> str | None:
        """The public id of the current attempt."""
        return execution_id(self.id, self.attempt) if self.attempt else None

    def recovery_action(self) -> RecoveryAction:
        """What its policy prescribes for it once it is stalled. Only the last loss or timeout leaves it exhausted.
        A stalled job that is neither lost nor due timed out, and cannot be retried.

        A job that undoes its steps runs until that is done or its failures are exhausted, whatever its policy; then it
        ends as was recorded.
        """
        if self.ends_as is not None:
            if self.compensated:
                return _END_ACTIONS[self.ends_as]
            return "dead_letter" if self.exhausted else "requeue"
        if self.lost and self.policy.on_lost != "requeue":
            return self.policy.on_lost
        timed_out = self.status is STALLED and not self.lost and self.due_at is None
        if timed_out and self.policy.on_timeout != "retry":
            return self.policy.on_timeout
        return self.policy.on_exhausted if self.exhausted else "requeue"


class EventType(TextEnum):
    """The event types, a closed set."""

    ENQUEUED = "enqueued"
    CLAIMED = "claimed"
    ACKED = "acked"
    STARTED = "started"
    HEARTBEAT = "heartbeat"
    PROGRESS = "progress"
    COMMITTED = "committed"
    SUCCEEDED = "succeeded"
    RETRY_SCHEDULED = "retry_scheduled"
    FAILED = "failed"
    HALTED = "halted"
    SUSPENDED = "suspended"
    SIGNALLED = "signalled"
    WOKEN = "woken"
    UNWINDING = "unwinding"
    COMPENSATED = "compensated"
    RELEASED = "released"
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"
    STALLED = "stalled"
    REQUEUED = "requeued"
    DEAD_LETTERED = "dead_lettered"

    @classmethod
    def of(cls, text: str) -> EventType:
        """The type of an event that was read. A type of a later version is none of the set, and keeps its text."""
        known = _EVENT_TYPES.get(text)
        if known is None:
            known = str.__new__(cls, text)
            known._name_ = known._value_ = text
        return known

    @property
    def is_known(self) -> bool:
        return self in _EVENT_TYPES


_EVENT_TYPES: dict[str, EventType] = {type_.value: type_ for type_ in EventType}

BLANKABLE = frozenset({EventType.PROGRESS, EventType.RETRY_SCHEDULED, EventType.FAILED, EventType.DEAD_LETTERED})
"""Events whose detail retention or erasure may blank. Their digest stays."""


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One accepted change of one job. Its key is (job_id, rev); `position` is its position in the log.

    `until_at` is the end of the lease (claimed, heartbeat that renewed) or the next due time (enqueued with a delay,
    retry_scheduled, suspended, released). `digest` refers to content stored beside the job. `steps` has the number and
    the sum of the digests of the job's steps (`StepsDigest`), where the event ends an attempt of a job that has some.
    """

    job_id: UUID
    rev: int
    type: EventType
    from_status: Status | None
    to_status: Status
    at: datetime
    attempt: int
    actor: str
    request_id: str
    cause: str | None = None
    detail: str | None = None
    digest: str | None = None
    until_at: datetime | None = None
    commits: bool = False
    steps: str | None = None
    version: int = CONTRACT_VERSION
    correlation_id: str | None = None
    trace: str | None = None
    position: str | None = None

    @property
    def id(self) -> str:
        return f"{self.job_id}/{self.rev}"

    @property
    def is_of_later_version(self) -> bool:
        """Whether its type came with a later version. Of its effect only the status is known here."""
        return self.version > CONTRACT_VERSION and not self.type.is_known

    @property
    def owner(self) -> str:
        """The actor's name without its role: for `claimed`, the owner of the lease."""
        return self.actor.partition(":")[2]
