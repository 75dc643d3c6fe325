"""Validation of requests, the same for every store, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, get_args
from uuid import UUID

from tenure.errors import InvalidInput, NotAuthorised
from tenure.lifecycle.json_text import (
    check_content,
    check_datetime,
    check_integer,
    check_name,
    check_seconds,
    check_text,
)
from tenure.lifecycle.operations import OperationType
from tenure.lifecycle.records import Role
from tenure.lifecycle.transitions import TRANSITION_OF
from tenure.stores.contract import (
    Artifact,
    ClaimRequest,
    DeadLetterFilter,
    EnqueueRequest,
    EventFilter,
    JobFilter,
    OutboxMessage,
    Request,
    Resolution,
    WorkerRecord,
)

PRIORITY_LEAST, PRIORITY_MOST = -32_768, 32_767
DELAY_MS_MAX = 10 * 366 * 86_400_000
CLAIM_LIMIT_MAX = 10_000
PAGE_LIMIT_MAX = 100_000
CHAIN_MAX = 4
AGE_SECONDS_MAX = 100 * 366 * 86_400.0
ARTIFACT_BYTES_MAX = 32 * 1024 * 1024
REASON_LENGTH_MAX = 2000
PID_MAX = 2**31 - 1
CONCURRENCY_MAX = 1_000_000


def validate_page(limit: int) -> None:
    """Refuse a page size out of range."""
    check_integer(limit, "limit", least=1, most=PAGE_LIMIT_MAX)


def validate_after(after: UUID | None) -> None:
    """Refuse a cursor that no page returned."""
    if after is not None and not isinstance(after, UUID):
        raise InvalidInput("after", f"must be the id of a job, not {after!r}")


def validate_age(older_than_seconds: float, limit: int) -> timedelta:
    """The minimum age of what retention removes."""
    validate_page(limit)
    return timedelta(seconds=check_seconds(older_than_seconds, "older_than_seconds", most=AGE_SECONDS_MAX))


_OPTIONAL_TEXTS = ("dedupe_key", "request_id", "correlation_id", "trace", "submitted_by", "partition_key")


def validate_enqueues(requests: Sequence[EnqueueRequest], *, alike: bool) -> None:
    """Validate each request; of homogeneous requests, the shared fields once."""
    for request in requests[:1] if alike else requests:
        validate_enqueue(request)
    if alike:
        for request in requests[1:]:
            _check_id(request.origin.id)
            check_content(request.origin.payload, "payload")


def _check_id(job_id: Any) -> None:
    if not isinstance(job_id, UUID):
        raise InvalidInput("id", f"must be a UUID, not {job_id!r}")


def validate_enqueue(request: EnqueueRequest) -> None:
    """Validate one request."""
    origin = request.origin
    if request.actor.role is not Role.CLIENT:
        raise NotAuthorised(None, OperationType.ENQUEUE, role=request.actor.role, allowed=[Role.CLIENT])
    check_name(origin.kind, "kind")
    check_name(origin.queue, "queue")
    check_integer(origin.priority, "priority", least=PRIORITY_LEAST, most=PRIORITY_MOST)
    check_integer(request.delay_ms, "delay_ms", least=0, most=DELAY_MS_MAX)
    check_text(request.actor.name, "actor")
    check_content(origin.payload, "payload")
    for name in _OPTIONAL_TEXTS:
        if (text := getattr(origin, name)) is not None:
            check_text(text, name)
    _check_id(origin.id)
    for name in ("parent_id", "redrive_of"):
        if (link := getattr(origin, name)) is not None and not isinstance(link, UUID):
            raise InvalidInput(name, f"must be a UUID, not {link!r}")
    if origin.tags is not None:
        _check_tags(origin.tags)


def _check_tags(tags: Any) -> None:
    if not isinstance(tags, Mapping):
        raise InvalidInput("tags", f"must map text to text, not {tags!r}")
    for key, value in tags.items():
        check_text(key, "tags")
        check_text(value, f"tags.{key}")


def validate_job_filter(wanted: JobFilter) -> None:
    """Validate a filter of jobs."""
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
    """Validate a filter of dead letters."""
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
    """Validate a filter of events."""
    if wanted.correlation_id is not None:
        check_text(wanted.correlation_id, "correlation_id")
    for name in ("since", "until"):
        if (at := getattr(wanted, name)) is not None:
            check_datetime(at, name)


def validate_claim(request: ClaimRequest) -> None:
    """Validate a claim."""
    check_integer(request.limit, "limit", least=1, most=CLAIM_LIMIT_MAX)
    check_text(request.request_id, "request_id")
    check_name(request.worker, "worker")
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
            check_content(content, operation.type)


def validate_sql(sql: Any) -> str:
    """Validate a statement of the user."""
    if not isinstance(sql, str) or not sql.strip() or "\x00" in sql:
        raise InvalidInput("sql", f"must be one statement as text, not {sql!r}")
    return sql


def validate_message(message: OutboxMessage) -> None:
    """Validate an outbox message."""
    if not isinstance(message.id, UUID):
        raise InvalidInput("id", f"must be a UUID, not {message.id!r}")
    check_text(message.topic, "topic")
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
