"""Checkpoints: the recorded steps of a job, who may save them, and their digests. Pure.

A step is content, not a transition: it has no revision and no event. Events that end an attempt carry the number of the
job's steps and the sum of their digests. A sum has no order, as the steps of parallel branches have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256
from typing import Literal
from uuid import UUID

import msgspec

from tenure.errors import AlreadyCommitted, IllegalTransition, LeaseLost, NotAuthorised, Refused
from tenure.lifecycle.json_text import digest
from tenure.lifecycle.records import Actor, EventType, Job, Role
from tenure.lifecycle.statuses import LEASED, RUNNING, Status, TextEnum
from tenure.lifecycle.transitions import Authority, allowed_from

SAVE_STEP = "save_step"
"""The name of the operation in refusals."""
MAY_SAVE = tuple(Authority(role, with_lease=True) for role in (Role.RUNNER, Role.GATEWAY, Role.WORKFLOW))
"""The roles that may save a step, each only as the owner of the lease. Saving changes no status and has no line in the
transition table, so its authority is defined here."""
DIGEST_MODULUS = 2**256
STATE_NAME = "state"
"""The name of the decisions that record the state of a run (`run.state`). The last one counts."""

RECORDS_STEPS = frozenset(
    {
        EventType.SUSPENDED,
        EventType.RETRY_SCHEDULED,
        EventType.RELEASED,
        EventType.STALLED,
        EventType.SUCCEEDED,
        EventType.COMMITTED,
        EventType.FAILED,
        EventType.HALTED,
        EventType.CANCELLED,
        EventType.DEAD_LETTERED,
    }
)
"""Events that carry the digest of the steps, where they begin in a leased status: the attempt saves none after them."""

_canonical = msgspec.json.encode
_RECORDED = re.compile(r"(\d{1,18}):(\d{1,78})", re.ASCII)


class StepKind(TextEnum):
    """The kind of call that a step records."""

    STEP = "step"
    SLEEP = "sleep"
    WAIT = "wait"
    SPAWN = "spawn"
    DECISION = "decision"
    PATCH = "patch"
    UNDO = "undo"


StepStatus = Literal["succeeded", "failed"]


class NewStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step that has ended. `key` is unique within the job: the first writer wins.

    `branch` is empty for the run's main branch; `ordinal` is the position in the branch. `result` is set if it
    succeeded, `error` if it failed. The store turns `duration_ms` into `started_at`; `finished_at` is the time by the
    database's clock.
    """

    key: str
    kind: StepKind
    name: str
    branch: str = ""
    ordinal: int = 0
    arguments_digest: str | None = None
    status: StepStatus = "succeeded"
    result: str | None = None
    error: str | None = None
    code_version: str | None = None
    duration_ms: int = 0
    undo: str | None = None
    spend: str | None = None
    child_id: UUID | None = None
    signal_rev: int | None = None


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A recorded step. `number` orders the steps of a job by completion; numbers may have gaps.

    `content_digest` covers result, error and undo, which erasure removes. `digest` covers all but the times and the
    number, as a decimal integer.
    """

    job_id: UUID
    key: str
    number: int
    kind: StepKind
    name: str
    branch: str = ""
    ordinal: int = 0
    attempt: int
    arguments_digest: str | None = None
    status: StepStatus = "succeeded"
    code_version: str | None = None
    started_at: datetime
    finished_at: datetime
    child_id: UUID | None = None
    signal_rev: int | None = None
    content_digest: str
    digest: str
    spend: str | None = None
    undo: str | None = None
    result: str | None = None
    error: str | None = None


class StepsDigest(msgspec.Struct, frozen=True, gc=False):
    """How many steps there are, and the sum of their digests. `str` is the form in which an event carries it.

    >>> str(StepsDigest.of([7, 5]))
    '2:12'
    """

    count: int = 0
    total: int = 0

    @classmethod
    def of(cls, digests: Iterable[int | str]) -> StepsDigest:
        rows = [int(one) for one in digests]
        return cls(len(rows), sum(rows) % DIGEST_MODULUS)

    @classmethod
    def parse(cls, text: str) -> StepsDigest:
        """ValueError where an event cannot carry this text."""
        found = _RECORDED.fullmatch(text)
        if found is None or int(found[1]) == 0 or int(found[2]) >= DIGEST_MODULUS:
            raise ValueError(f"{text!r} is not the number of steps and the sum of their digests")
        return cls(int(found[1]), int(found[2]))

    def plus(self, digest: int | str) -> StepsDigest:
        """With one step more."""
        return StepsDigest(self.count + 1, (self.total + int(digest)) % DIGEST_MODULUS)

    @property
    def recorded(self) -> str | None:
        """What an event carries: None for a job without steps."""
        return str(self) if self.count else None

    def __str__(self) -> str:
        return f"{self.count}:{self.total}"


def records_steps(type_: EventType, from_status: Status | None) -> bool:
    """Whether an event of this type from this status carries the digest of the steps."""
    return from_status in LEASED and type_ in RECORDS_STEPS


def step_content(step: NewStep | StepRecord) -> str:
    """The text that `content_digest` covers: result or error, then undo, one JSON text after the other."""
    return "\n".join(text for text in (step.result, step.error, step.undo) if text is not None)


def step_digest(step: NewStep | StepRecord, *, job_id: UUID, attempt: int, content_digest: str) -> int:
    """The digest of a step's row. Content is covered by its own digest, so that it can be erased."""
    facts = [
        job_id,
        attempt,
        step.key,
        step.kind,
        step.name,
        step.branch,
        step.ordinal,
        step.arguments_digest,
        step.status,
        step.code_version,
        step.spend,
        step.child_id,
        step.signal_rev,
        content_digest,
    ]
    return int.from_bytes(sha256(_canonical(facts)).digest())


def new_step_digests(step: NewStep, *, job_id: UUID, attempt: int) -> tuple[str, str]:
    """`content_digest` and `digest` of the row that this step becomes."""
    content = digest(step_content(step))
    return content, str(step_digest(step, job_id=job_id, attempt=attempt, content_digest=content))


def save_refusal(job: Job, actor: Actor, *, attempt: int, at: datetime) -> Refused | None:
    """Why the actor may not save a step of this attempt at `at`; None if it may. The record must have its token."""
    if all(by.role is not actor.role for by in MAY_SAVE):
        return NotAuthorised(job, SAVE_STEP, role=actor.role, allowed=[by.role for by in MAY_SAVE])
    has_lease = actor.token is not None and job.token == actor.token and job.attempt == attempt
    if not has_lease or job.lease_expires_at is None or job.lease_expires_at <= at:
        return LeaseLost(job, SAVE_STEP)
    if job.committed:
        allowed = allowed_from(job.status, committed=True)
        return AlreadyCommitted(job, SAVE_STEP, allowed=allowed, why="its effect has been applied")
    if job.status is not RUNNING:
        return IllegalTransition(job, SAVE_STEP, allowed=allowed_from(job.status), why="only while it is running")
    return None


def steps_to_undo(records: Iterable[StepRecord]) -> list[StepRecord]:
    """The steps that a run undoes if it ends without success, in that order. Those that are undone already are among
    them."""
    return sorted((one for one in records if one.undo is not None), key=lambda one: one.number, reverse=True)


class StoredStep(msgspec.Struct, frozen=True, gc=False):
    """A stored row as `verify` compares it with the log. `is_changed`: its own digests do not explain it. `is_empty`:
    it has neither result nor error, as after an erasure."""

    key: str
    attempt: int
    digest: int
    is_changed: bool = False
    is_empty: bool = False

    @classmethod
    def of(cls, step: StepRecord, *, content_digest: str | None) -> StoredStep:
        """`content_digest` is that of the stored content; None where there is none. The content itself is not read."""
        expected = step_digest(step, job_id=step.job_id, attempt=step.attempt, content_digest=step.content_digest)
        other_content = content_digest is not None and content_digest != step.content_digest
        is_changed = step.digest != str(expected) or other_content
        return cls(step.key, step.attempt, expected, is_changed, content_digest is None)


def stored_step(step: StepRecord) -> StoredStep:
    """The same of a record with its content."""
    content = None if step.result is None and step.error is None else digest(step_content(step))
    return StoredStep.of(step, content_digest=content)
