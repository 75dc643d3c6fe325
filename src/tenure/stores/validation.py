"""Validation of requests, the same for every store, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args
from uuid import UUID

from tenure.errors import InvalidInput, NotAuthorised
from tenure.lifecycle.deadlines import DEADLINE_TAG, parsed
from tenure.lifecycle.json_text import (
    NAME_LENGTH_MAX,
    check_content,
    check_datetime,
    check_integer,
    check_name,
    check_seconds,
    check_text,
)
from tenure.lifecycle.operation_types import OperationType
from tenure.lifecycle.records import Role
from tenure.lifecycle.size_limits import ARTIFACT_BYTES_MAX, STORED_BYTES_MAX, STORED_STEP_BYTES_MAX
from tenure.lifecycle.statuses import TERMINAL
from tenure.lifecycle.steps import (
    DIGEST_MODULUS,
    MAY_SAVE,
    SAVE_STEP,
    NewStep,
    StepKind,
    StepRecord,
    StepsDigest,
    StepStatus,
)
from tenure.lifecycle.transitions import TRANSITION_OF
from tenure.stores.contract import (
    Artifact,
    ClaimRequest,
    DeadLetterFilter,
    EnqueueRequest,
    EventFilter,
    ExpiredRateUsage,
    Failure,
    FinishedJobs,
    JobFilter,
    OutboxMessage,
    Prunable,
    Request,
    Resolution,
    SaveStep,
    WorkerRecord,
)
from tenure.stores.contract.budgets import validate_amounts
from tenure.stores.outbox_validation import check_topic

PRIORITY_LEAST, PRIORITY_MOST = -32_768, 32_767
DELAY_MS_MAX = 10 * 366 * 86_400_000
DUE_YEAR_MAX = 3000
CLAIM_LIMIT_MAX = 10_000
PAGE_LIMIT_MAX = 100_000
CHAIN_MAX = 4
AGE_SECONDS_MAX = 100 * 366 * 86_400.0
REASON_LENGTH_MAX = 2000
PID_MAX = 2**31 - 1
CONCURRENCY_MAX = 1_000_000
DURATION_MS_MAX = 10 * 366 * 86_400_000
STEP_STATUSES = get_args(StepStatus)
NUMBER_MAX = 2**63 - 1
INTEGER_COLUMN_MAX = 2**31 - 1


def validate_page(limit: int) -> None:
    """Refuse a page size out of range."""
    check_integer(limit, "limit", least=1, most=PAGE_LIMIT_MAX)


def validate_after(after: UUID | None) -> None:
    """Refuse a cursor that no page returned."""
    if after is not None and not isinstance(after, UUID):
        raise InvalidInput("after", f"must be the id of a job, not {after!r}")


def validate_prunable(prunable: Prunable, limit: int = 1) -> None:
    """Validate what retention is asked to remove: an age that can be subtracted, and finished jobs only."""
    validate_page(limit)
    if not isinstance(prunable, ExpiredRateUsage):
        check_seconds(prunable.older_than_seconds, "older_than_seconds", most=AGE_SECONDS_MAX)
    if isinstance(prunable, FinishedJobs):
        check_name(prunable.kind, "kind")
        if prunable.status not in TERMINAL:
            raise InvalidInput("status", f"{prunable.status} jobs have not ended; only finished jobs are pruned")


_OPTIONAL_TEXTS = ("dedupe_key", "request_id", "correlation_id", "trace", "submitted_by", "partition_key")


def validate_enqueues(requests: Sequence[EnqueueRequest], *, homogeneous: bool) -> None:
    """Validate each request; of homogeneous requests, the shared fields once."""
    for request in requests[:1] if homogeneous else requests:
        validate_enqueue(request)
    if homogeneous:
        for request in requests[1:]:
            _check_id(request.origin.id)
            check_content(request.origin.payload, "payload", bytes_max=STORED_BYTES_MAX)


def _check_id(job_id: Any) -> None:
    if not isinstance(job_id, UUID):
        raise InvalidInput("id", f"must be a UUID, not {job_id!r}")


def validate_enqueue(request: EnqueueRequest) -> None:
    origin = request.origin
    if request.actor.role is not Role.CLIENT:
        raise NotAuthorised(None, OperationType.ENQUEUE, role=request.actor.role, allowed=[Role.CLIENT])
    check_name(origin.kind, "kind")
    check_name(origin.queue, "queue")
    check_integer(origin.priority, "priority", least=PRIORITY_LEAST, most=PRIORITY_MOST)
    check_integer(request.delay_ms, "delay_ms", least=0, most=DELAY_MS_MAX)
    if request.due_at is not None:
        _check_due_at(request)
    check_text(request.actor.name, "actor")
    check_content(origin.payload, "payload", bytes_max=STORED_BYTES_MAX)
    for name in _OPTIONAL_TEXTS:
        if (text := getattr(origin, name)) is not None:
            check_text(text, name)
    _check_id(origin.id)
    for name in ("parent_id", "redrive_of"):
        if (link := getattr(origin, name)) is not None and not isinstance(link, UUID):
            raise InvalidInput(name, f"must be a UUID, not {link!r}")
    if not isinstance(origin.awaited, bool):
        raise InvalidInput("awaited", f"must be true or false, not {origin.awaited!r}")
    if origin.awaited and origin.parent_id is None:
        raise InvalidInput("awaited", "needs a parent_id: only a parent waits for the end of a job")
    if origin.tags is not None:
        _check_tags(origin.tags)
        if DEADLINE_TAG in origin.tags and parsed(origin.tags[DEADLINE_TAG]) is None:
            raise InvalidInput("tags", f"{DEADLINE_TAG} is {origin.tags[DEADLINE_TAG]!r}, which is no deadline")


def _check_due_at(request: EnqueueRequest) -> None:
    at = check_datetime(request.due_at, "due_at")
    if request.delay_ms:
        raise InvalidInput("due_at", "is given together with a delay; use one of them")
    if at.year > DUE_YEAR_MAX:
        raise InvalidInput("due_at", f"is {at.isoformat()}, and must not be after the year {DUE_YEAR_MAX}")


def _check_tags(tags: Any) -> None:
    if not isinstance(tags, Mapping):
        raise InvalidInput("tags", f"must map text to text, not {tags!r}")
    for key, value in tags.items():
        check_text(key, "tags")
        check_text(value, f"tags.{key}")


def validate_job_filter(wanted: JobFilter) -> None:
    for name in ("correlation_id", "dedupe_key", "submitted_by"):
        if (text := getattr(wanted, name)) is not None:
            check_text(text, name)
    for text in (*wanted.queues, *wanted.kinds):
        check_text(text, "filter")
    for text in wanted.reasons:
        check_text(text, "reasons", length_max=REASON_LENGTH_MAX)
    _check_tags(wanted.tags)
    for name in ("created_from", "created_until"):
        if (at := getattr(wanted, name)) is not None:
            check_datetime(at, name)


def validate_dead_letter_filter(wanted: DeadLetterFilter) -> None:
    if wanted.correlation_id is not None:
        check_text(wanted.correlation_id, "correlation_id")
    for text in (*wanted.queues, *wanted.kinds):
        check_text(text, "filter")
    for name in ("dead_from", "dead_until"):
        if (at := getattr(wanted, name)) is not None:
            check_datetime(at, name)


def validate_resolution(job_ids: Sequence[UUID], how: Resolution) -> None:
    """Refuse an unknown resolution."""
    for job_id in job_ids:
        if not isinstance(job_id, UUID):
            raise InvalidInput("job_ids", f"must be ids of jobs, not {job_id!r}")
    if how not in get_args(Resolution):
        raise InvalidInput("how", f"is {how!r}, and must be one of {', '.join(get_args(Resolution))}")


def validate_event_filter(wanted: EventFilter) -> None:
    if wanted.correlation_id is not None:
        check_text(wanted.correlation_id, "correlation_id")
    for name in ("since", "until"):
        if (at := getattr(wanted, name)) is not None:
            check_datetime(at, name)


def validate_claim(request: ClaimRequest) -> None:
    check_integer(request.limit, "limit", least=1, most=CLAIM_LIMIT_MAX)
    check_text(request.request_id, "request_id")
    check_name(request.worker, "worker")
    check_seconds(request.wait_seconds_max, "wait_seconds_max", least=0.001)
    if request.code_version is not None:
        check_text(request.code_version, "code_version", length_max=200)
    claim = TRANSITION_OF[OperationType.CLAIM]
    if claim.authority(request.role) is None:
        raise NotAuthorised(None, OperationType.CLAIM, role=request.role, allowed=[by.role for by in claim.by])
    for queue in request.queues:
        check_name(queue, "queues")
    for kind in request.kinds:
        check_name(kind, "kinds")


def validate_request(request: Request) -> None:
    """Validate an operation request."""
    check_text(request.request_id, "request_id")
    check_text(request.actor.name, "actor")
    if not request.operations:
        raise InvalidInput("operations", "must not be empty")
    if len(request.operations) > CHAIN_MAX:
        raise InvalidInput("operations", f"are {len(request.operations)}, and at most {CHAIN_MAX} go together")
    for operation in request.operations:
        if operation.type is OperationType.HEARTBEAT and len(request.operations) > 1:
            raise InvalidInput("operations", "a heartbeat cannot be combined with other operations")
        if operation.type is OperationType.CLAIM:
            raise InvalidInput("operations", "hold a claim, which chooses its own jobs; use claim()")
        if (content := operation.content()) is not None:
            check_content(content, operation.type, bytes_max=STORED_BYTES_MAX)
    if request.steps is not None:
        try:
            StepsDigest.parse(request.steps)
        except (TypeError, ValueError) as problem:
            raise InvalidInput("steps", str(problem)) from None


def invalid_steps(requests: Sequence[SaveStep]) -> dict[int, Failure]:
    """The requests that no store accepts, by their indexes. They do not keep the others from being saved."""
    found: dict[int, Failure] = {}
    for index, request in enumerate(requests):
        try:
            validate_step(request)
        except (InvalidInput, NotAuthorised) as problem:
            found[index] = Failure(problem)
    return found


def validate_step(request: SaveStep) -> None:
    """Validate a step and the role of its actor. Whether the actor has the lease is decided when it is written."""
    step, role = request.step, request.actor.role
    if all(by.role is not role for by in MAY_SAVE):
        raise NotAuthorised(request.job, SAVE_STEP, role=role, allowed=[by.role for by in MAY_SAVE])
    _check_step(step)
    if step.status not in STEP_STATUSES:
        raise InvalidInput("status", f"is {step.status!r}, and must be succeeded or failed")
    if (step.result is None) is (step.status == "succeeded") or (step.error is None) is (step.status == "failed"):
        raise InvalidInput("result", "a step that succeeded has a result, and one that failed an error")
    check_integer(step.duration_ms, "duration_ms", least=0, most=DURATION_MS_MAX)
    if request.charge is not None:
        check_text(request.charge.key, "key")
        validate_amounts(request.charge.amounts)


def validate_step_record(step: StepRecord) -> None:
    """Validate a step that was recorded elsewhere. Erasure may have emptied it."""
    _check_step(step)
    check_integer(step.attempt, "attempt", least=1, most=INTEGER_COLUMN_MAX)
    check_text(step.content_digest, "content_digest", length_max=NAME_LENGTH_MAX)
    if not (step.digest.isascii() and step.digest.isdecimal() and int(step.digest) < DIGEST_MODULUS):
        raise InvalidInput("digest", f"is {step.digest!r}, and must be a decimal integer of 256 bits")


def _check_step(step: NewStep | StepRecord) -> None:
    if not isinstance(step.kind, StepKind):
        raise InvalidInput("kind", f"must be a StepKind, not {step.kind!r}")
    _check_step_texts(step)
    for name in ("result", "error"):
        if (text := getattr(step, name)) is not None:
            check_content(text, f"{name} of step {step.key}", bytes_max=STORED_STEP_BYTES_MAX)
    for name in ("undo", "spend"):
        if (text := getattr(step, name)) is not None:
            check_content(text, name)
    check_integer(step.ordinal, "ordinal", least=0, most=INTEGER_COLUMN_MAX)
    if step.signal_rev is not None:
        check_integer(step.signal_rev, "signal_rev", least=1, most=INTEGER_COLUMN_MAX)
    if step.child_id is not None:
        _check_id(step.child_id)


def _check_step_texts(step: NewStep | StepRecord) -> None:
    check_text(step.key, "key")
    check_text(step.name, "name")
    if step.branch != "":
        check_text(step.branch, "branch")
    for name in ("arguments_digest", "code_version"):
        if (text := getattr(step, name)) is not None:
            check_text(text, name, length_max=NAME_LENGTH_MAX)


def validate_sql(sql: Any) -> str:
    """Validate a statement of the user."""
    if not isinstance(sql, str) or not sql.strip() or "\x00" in sql:
        raise InvalidInput("sql", f"must be one statement as text, not {sql!r}")
    return sql


def validate_message(message: OutboxMessage) -> None:
    """Validate an outbox message."""
    if not isinstance(message.id, UUID):
        raise InvalidInput("id", f"must be a UUID, not {message.id!r}")
    check_topic(message.topic)
    if message.aggregate is not None:
        check_text(message.aggregate, "aggregate")
    check_content(message.body, "body")
    if message.headers is not None:
        check_content(message.headers, "headers")


def validate_artifacts(artifacts: Sequence[Artifact]) -> None:
    """Validate artifacts, and refuse a repeated name."""
    names: set[str] = set()
    for artifact in artifacts:
        check_text(artifact.name, "artifact")
        check_text(artifact.media_type, "media_type")
        if not isinstance(artifact.body, bytes):
            raise InvalidInput(artifact.name, f"must have bytes for its body, not {type(artifact.body).__name__}")
        if len(artifact.body) > ARTIFACT_BYTES_MAX:
            size = len(artifact.body)
            raise InvalidInput(artifact.name, f"has {size} bytes, and at most {ARTIFACT_BYTES_MAX} are allowed")
        if artifact.name in names:
            raise InvalidInput("artifact", f"the name {artifact.name!r} is given twice")
        names.add(artifact.name)


def validate_worker(worker: WorkerRecord) -> None:
    """Validate a worker's registration."""
    check_name(worker.id, "worker")
    check_text(worker.host, "host")
    check_text(worker.version, "version")
    check_integer(worker.pid, "pid", least=0, most=PID_MAX)
    check_integer(worker.concurrency, "concurrency", least=1, most=CONCURRENCY_MAX)
    for name in (*worker.queues, *worker.kinds):
        check_name(name, "worker")
