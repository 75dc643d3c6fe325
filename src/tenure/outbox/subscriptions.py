"""Which subscriptions a message matches, by its topic and by the fields of its body. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from tenure.lifecycle.json_text import load
from tenure.stores.contract.outbox import SubscriptionRecord


@lru_cache(maxsize=4096)
def topic_matches(topic: str, pattern: str) -> bool:
    """Whether a topic is the pattern of a subscription, or has its prefix.

    >>> topic_matches("mail.sent", "mail.*"), topic_matches("mail", "mail.*")
    (True, False)
    """
    return topic == pattern or (pattern.endswith("*") and topic.startswith(pattern[:-1]))


def matches_any(topic: str, patterns: Iterable[str]) -> bool:
    """Whether a topic matches one of the patterns."""
    return any(topic_matches(topic, pattern) for pattern in patterns)


def matching_subscriptions(
    subscriptions: Sequence[SubscriptionRecord], topic: str, body: str
) -> list[SubscriptionRecord]:
    """The subscriptions whose topic and filters a message matches."""
    return [
        one
        for one in subscriptions
        if topic_matches(topic, one.topic) and (one.filters is None or _passes(load(one.filters), load(body)))
    ]


def _passes(filters: dict[str, Any], body: Any) -> bool:
    return all(_field(body, path) in (want if isinstance(want, list) else [want]) for path, want in filters.items())


def _field(body: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(body, dict) or name not in body:
            return None
        body = body[name]
    return body
