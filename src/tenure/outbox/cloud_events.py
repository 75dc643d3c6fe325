"""The body of a webhook: a CloudEvent 1.0 in structured JSON, made of the stored message alone."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import msgspec

from tenure.outbox.sinks import Delivery

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
SOURCE = "/tenure"


class _CloudEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The attributes in the order in which they are sent. One that is None is left out."""

    specversion: str
    id: UUID
    source: str
    type: str
    time: datetime
    datacontenttype: str
    correlationid: str
    subject: str | None = None
    sequence: str | None = None
    jobid: UUID | None = None
    traceparent: str | None = None
    data: msgspec.Raw


_encode = msgspec.json.Encoder().encode


def cloud_event(delivery: Delivery, *, source: str = SOURCE) -> bytes:
    """The bytes of the message, the same in every attempt and for every endpoint.

    `attempt` and `previous` are facts of a delivery and not of the message, so they are not in it.
    """
    event = _CloudEvent(
        specversion="1.0",
        id=delivery.id,
        source=source,
        type=delivery.topic,
        time=delivery.at if delivery.at.tzinfo is UTC else delivery.at.astimezone(UTC),
        datacontenttype="application/json",
        correlationid=delivery.correlation_id,
        subject=delivery.aggregate or None,
        sequence=None if delivery.sequence is None else str(delivery.sequence),
        jobid=delivery.job_id,
        traceparent=delivery.trace or None,
        data=msgspec.Raw(delivery.body.encode()),
    )
    return _encode(event)
