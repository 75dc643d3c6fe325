"""Jobs, events, dead letters and provenance as plain data, ready for JSON. Lease tokens are never included. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from tenure.lifecycle.deadlines import deadline_of
from tenure.lifecycle.provenance import Provenance
from tenure.lifecycle.records import Job

CONTENT = frozenset({"payload", "committed_result", "result", "partial_result", "error", "last_error", "detail"})
"""Fields that are JSON text: a view embeds them as JSON, not as strings."""
SECRET = frozenset({"token"})


def record_view(record: Any) -> dict[str, Any]:
    """The fields of any record."""
    fields = zip(record.__struct_fields__, msgspec.structs.astuple(record), strict=True)
    return {
        name: msgspec.Raw(value.encode()) if name in CONTENT and isinstance(value, str) else value
        for name, value in fields
        if name not in SECRET
    }


def job_view(job: Job, *, content: bool = True) -> dict[str, Any]:
    """A job and its origin as one flat object. `content=False` omits payload, results and errors."""
    fields = {**record_view(job.origin), **record_view(job), "execution_id": job.execution_id}
    fields["correlation_id"] = job.correlation_id
    fields["deadline_at"] = deadline_of(job)
    del fields["origin"]
    return {name: value for name, value in fields.items() if content or name not in CONTENT}


def provenance_view(provenance: Provenance) -> dict[str, Any]:
    """The provenance as one object."""
    return {
        **record_view(provenance),
        "inputs": record_view(provenance.inputs),
        "attempts": [record_view(attempt) for attempt in provenance.attempts],
        "tool_calls": [record_view(call) for call in provenance.tool_calls],
        "outcome": record_view(provenance.outcome),
    }
