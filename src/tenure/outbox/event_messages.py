"""Messages about events of the log: their topics, bodies and ids. Pure.

`tenure.job.succeeded` is an event in tenure's own words, `tenure.engine.completed` one in those of the vocabulary
`engine`, `tenure.operator.disable_endpoint` a record of the operator log. An event has the same message id
whenever it is published, so that publishing it again writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID, uuid5

from tenure.lifecycle.json_text import encode, load
from tenure.lifecycle.records import Event, EventType, Origin
from tenure.outbox.subscriptions import matches_any
from tenure.stores.contract import OutboxMessage
from tenure.stores.contract.log_cursors import EventMessage, OperatorEvent
from tenure.vocabularies import ALL, TranslatedEvent, Vocabulary

TOPIC_PREFIX = "tenure."
JOB_PREFIX = "tenure.job."
OPERATOR_PREFIX = "tenure.operator."
UNPUBLISHED = frozenset({EventType.HEARTBEAT})
"""Renewed leases, of which a running job has one every few seconds."""
_NAMESPACE = UUID("5f0c7f0e-8a5c-5d0e-9d65-0d6c3e6f7a11")


def names_events(pattern: str) -> bool:
    """Whether a subscription's topic names events of the log. `*` does not: it matches only messages of jobs.

    >>> [names_events(pattern) for pattern in ("mail.*", "*", "tenure.job.failed", "tenure.*")]
    [False, False, True, True]
    """
    return pattern.startswith(TOPIC_PREFIX)


def named_vocabularies(patterns: Iterable[str]) -> tuple[Vocabulary, ...]:
    """The vocabularies that the patterns name: `tenure.engine.*` names one, `tenure.*` none but tenure's own words."""
    named = {pattern.split(".")[1] for pattern in patterns if pattern.count(".") >= 2}
    return tuple(one for one in ALL if one.name in named)


def event_messages(
    event: Event, origin: Origin | None, translated: Sequence[TranslatedEvent], *, patterns: Sequence[str]
) -> list[EventMessage]:
    """The messages about an event whose topics match the patterns. `origin` is None if retention has removed the
    job."""
    if event.type in UNPUBLISHED:
        return []
    found = [(f"{JOB_PREFIX}{event.type}", _facts(event, origin))]
    found += [(f"{TOPIC_PREFIX}{one.vocabulary}.{one.name}", one.as_fields()) for one in translated]
    return [
        _message(event, topic, ordinal, facts)
        for ordinal, (topic, facts) in enumerate(found)
        if matches_any(topic, patterns)
    ]


def operator_message(event: OperatorEvent, *, patterns: Sequence[str]) -> EventMessage | None:
    """The message about a record of the operator log, if its topic matches the patterns.

    A dead letter that is itself such a message has none: each would lead to the next while an endpoint fails.
    """
    topic = f"{OPERATOR_PREFIX}{event.action}"
    detail = {} if event.detail is None else load(event.detail)
    if not matches_any(topic, patterns) or str(detail.get("topic")).startswith(OPERATOR_PREFIX):
        return None
    job_id = None if event.job_id is None else str(event.job_id)
    facts = {"action": event.action, "at": event.at.isoformat(), "actor": event.actor, "job_id": job_id}
    id_ = uuid5(_NAMESPACE, f"operator/{event.id}/{event.at.isoformat()}")
    message = OutboxMessage(
        id=id_,
        topic=topic,
        body=encode({**detail, **facts}, where="event"),
        aggregate=f"endpoint/{detail['endpoint']}" if "endpoint" in detail else None,
    )
    return EventMessage(message=message, correlation_id=job_id or str(id_))


def names_operator_events(patterns: Iterable[str]) -> bool:
    """Whether one of the patterns can match the topic of a record of the operator log."""
    return any(
        pattern.startswith(OPERATOR_PREFIX) or (pattern.endswith("*") and OPERATOR_PREFIX.startswith(pattern[:-1]))
        for pattern in patterns
    )


def _message(event: Event, topic: str, ordinal: int, facts: dict[str, Any]) -> EventMessage:
    message = OutboxMessage(
        id=uuid5(_NAMESPACE, f"{event.id}/{ordinal}/{topic}"),
        topic=topic,
        body=encode(facts, where="event"),
        aggregate=f"job/{event.job_id}",
    )
    return EventMessage(message=message, correlation_id=event.correlation_id or str(event.job_id), trace=event.trace)


def _facts(event: Event, origin: Origin | None) -> dict[str, Any]:
    """The fields of an event, without payload and result. `from` is None for the first event of a job."""
    return {
        "job_id": str(event.job_id),
        "rev": event.rev,
        "type": str(event.type),
        "kind": None if origin is None else origin.kind,
        "queue": None if origin is None else origin.queue,
        "tags": None if origin is None else origin.tags,
        "from": None if event.from_status is None else str(event.from_status),
        "to": str(event.to_status),
        "at": event.at.isoformat(),
        "attempt": event.attempt,
        "cause": event.cause,
    }
