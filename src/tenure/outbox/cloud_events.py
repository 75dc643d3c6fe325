"""The body of a webhook: a CloudEvent 1.0 in structured JSON, made of the stored message alone."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import msgspec

from tenure.outbox.sinks import Delivery

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
SOURCE = "/tenure"


def cloud_event(delivery: Delivery, *, source: str = SOURCE) -> bytes:
    """The bytes of the message, the same in every attempt and for every endpoint.

    `attempt` and `previous` are facts of a delivery and not of the message, so they are not in it.
    """
    optional: dict[str, Any] = {
        "subject": delivery.aggregate,
        "sequence": None if delivery.sequence is None else str(delivery.sequence),
        "jobid": None if delivery.job_id is None else str(delivery.job_id),
        "traceparent": delivery.trace,
    }
    event = {
        "specversion": "1.0",
        "id": str(delivery.id),
        "source": source,
        "type": delivery.topic,
        "time": delivery.at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "correlationid": delivery.correlation_id,
        **{name: value for name, value in optional.items() if value},
        "data": msgspec.Raw(delivery.body.encode()),
    }
    return msgspec.json.encode(event)
