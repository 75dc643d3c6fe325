"""Validation of topics, endpoints, subscriptions and settlements, the same for every store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import check_content, check_integer, check_name, check_seconds, check_text, load
from tenure.stores.contract.outbox import ClaimDeliveries, Settlement, SubscriptionRecord

TOPIC_LENGTH_MAX = 200
STREAMS_PER_CLAIM_MAX = 10_000


def check_topic(topic: Any) -> str:
    """The topic of a message: short text without `*`."""
    check_text(topic, "topic", length_max=TOPIC_LENGTH_MAX)
    if "*" in topic:
        raise InvalidInput("topic", f"{topic!r} has a `*`, which only subscriptions have; write the whole topic")
    return str(topic)


def check_pattern(pattern: Any) -> str:
    """The topic of a subscription: a topic, or the beginning of one and `*`."""
    check_text(pattern, "topic", length_max=TOPIC_LENGTH_MAX)
    if "*" in pattern[:-1]:
        raise InvalidInput("topic", f"{pattern!r} has a `*` that is not at its end; write `mail.sent`, `mail.*` or `*`")
    return str(pattern)


def check_endpoint(name: str, *, kind: str, config: str | None) -> None:
    """Validate an endpoint without its subscriptions."""
    check_name(name, "endpoint")
    check_name(kind, "kind")
    if config is not None:
        _check_object(config, "config")


def check_subscription(topic: Any, *, filters: str | None, block_seconds: float | None) -> None:
    check_pattern(topic)
    if filters is not None:
        _check_object(filters, "filters")
    if block_seconds is not None:
        check_seconds(block_seconds, "block_seconds")


def validate_endpoint(name: str, *, kind: str, config: str | None, subscriptions: Sequence[SubscriptionRecord]) -> None:
    check_endpoint(name, kind=kind, config=config)
    if not subscriptions:
        raise InvalidInput("topics", f"endpoint {name!r} must subscribe to at least one topic; `*` is all of them")
    topics = set()
    for one in subscriptions:
        check_subscription(one.topic, filters=one.filters, block_seconds=one.block_seconds)
        if one.endpoint != name:
            raise InvalidInput("subscriptions", f"one is of endpoint {one.endpoint!r}, not of {name!r}")
        if one.topic in topics:
            raise InvalidInput("topics", f"{one.topic!r} is given twice")
        topics.add(one.topic)


def _check_object(text: str, where: str) -> None:
    if not isinstance(load(check_content(text, where)), dict):
        raise InvalidInput(where, "must be a JSON object")


def validate_claim_deliveries(request: ClaimDeliveries) -> None:
    check_name(request.owner, "owner")
    check_seconds(request.lease_seconds, "lease_seconds", least=0.001)
    check_integer(request.messages_max, "messages_max", least=1, most=STREAMS_PER_CLAIM_MAX)
    for name, limit in request.limits.items():
        check_name(name, "endpoint")
        check_integer(limit, "limits", least=1, most=STREAMS_PER_CLAIM_MAX)


def validate_settlements(settlements: Sequence[Settlement]) -> None:
    """Validate the settlements of one call: one for each stream."""
    keys = {(one.endpoint, one.aggregate, one.only_sequence) for one in settlements}
    if len(keys) != len(settlements):
        raise InvalidInput("settlements", "a stream is settled twice; give one settlement for each")
    for one in settlements:
        check_seconds(one.due_seconds, "due_seconds")
        if one.lease_seconds is not None:
            check_seconds(one.lease_seconds, "lease_seconds", least=0.001)
