"""Prints jobs, attempts, events, dead letters and provenance as lines and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tenure.cli.output import counted, format_value, print_fields, print_line, print_table
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.provenance import Provenance
from tenure.lifecycle.records import Event, Execution, Job
from tenure.views.jobs import CONTENT, job_view, record_view

CONTENT_LENGTH_MAX = 2000
ERROR_LENGTH_MAX = 80

JOB_HEADINGS = ("id", "status", "kind", "queue", "attempt", "created", "note")
EVENT_HEADINGS = ("at", "job", "rev", "event", "status", "attempt", "by", "detail")


def job_row(job: Job) -> tuple[object, ...]:
    """A row under JOB_HEADINGS."""
    return job.id, job.status, job.kind, job.queue, job.attempt, job.created_at, _note(job)


def _note(job: Job) -> str:
    """The last error, the reason of the end, a requested cancel or the progress."""
    if job.last_error is not None and job.status not in ("succeeded", "cancelled", "halted"):
        return abbreviate(job.last_error)
    if job.reason is not None:
        return job.reason
    if job.cancel_requested and job.live:
        return "cancel requested"
    if job.progress is not None and job.leased:
        return f"{job.progress} % {job.progress_message or ''}".rstrip()
    return ""


def abbreviate(text: str, length_max: int = ERROR_LENGTH_MAX) -> str:
    """Content cut to a length; of an error, its type and message.

    >>> abbreviate('{"type":"ValueError","message":"no"}')
    'ValueError: no'
    """
    try:
        error = msgspec.json.decode(text)
    except msgspec.DecodeError:
        error = text
    if isinstance(error, dict) and "message" in error:
        text = f"{error.get('type', 'error')}: {error['message']}"
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def print_job(job: Job) -> None:
    """A line per field that is set, then the traceback of the last error."""
    print_fields(_job_fields(job))
    if job.last_error is not None:
        _print_traceback(job.last_error)


def _job_fields(job: Job) -> Iterator[tuple[str, object]]:
    yield "job", job.id
    yield "status", f"{job.status}, revision {job.rev}"
    for name, value in job_view(job).items():
        if name in ("id", "status", "rev", "policy", "execution_id") or value in (None, False, 0) or value == {}:
            continue
        if name == "tags":
            value = ", ".join(f"{key}={tag}" for key, tag in value.items())
        elif isinstance(value, msgspec.Raw):
            value = abbreviate(bytes(value).decode(), CONTENT_LENGTH_MAX)
        yield name.replace("_", " "), value
    yield "policy", msgspec.json.encode(job.policy).decode()


def _print_traceback(error: str) -> None:
    fields = msgspec.json.decode(error)
    traceback = fields.get("traceback") if isinstance(fields, dict) else None
    if isinstance(traceback, str):
        for line in ("", *traceback.splitlines()):
            print_line(format_value(line))


def print_attempts(executions: Sequence[Execution]) -> None:
    """A row per attempt."""
    if not executions:
        return
    print_line(f"\n{counted(len(executions), 'attempt')}")
    rows = [(e.attempt, e.status, e.lease_owner, e.leased_at, e.started_at, e.finished_at, e.cause) for e in executions]
    print_table(("attempt", "status", "owner", "leased", "started", "finished", "cause"), rows)


def event_row(event: Event) -> tuple[object, ...]:
    """A row under EVENT_HEADINGS."""
    status = str(event.to_status)
    if event.from_status not in (None, event.to_status):
        status = f"{event.from_status}→{status}"
    detail = " ".join(text for text in (event.cause, abbreviate(event.detail) if event.detail else None) if text)
    return event.at, event.job_id, event.rev, event.type, status, event.attempt, event.actor, detail


def event_line(event: Event) -> str:
    """An event as a line, for output that is not aligned because it has no end."""
    return "  ".join(format_value(cell) for cell in event_row(event)).rstrip()


def print_events(events: Sequence[Event]) -> None:
    """The events of one job."""
    print_line(f"\n{counted(len(events), 'event')}")
    print_table(EVENT_HEADINGS, [event_row(event) for event in events])


def print_dead_letter(letter: DeadLetterRecord) -> None:
    """The dead-letter record."""
    print_line("\ndead letter")
    fields = record_view(letter).items()
    shown = [(name.replace("_", " "), value) for name, value in fields if name not in CONTENT | {"job_id"}]
    print_fields([*shown, ("last error", abbreviate(letter.last_error, CONTENT_LENGTH_MAX))])


def print_provenance(provenance: Provenance) -> None:
    """Inputs, outcome and attempts of an ended job."""
    inputs, outcome, times = provenance.inputs, provenance.outcome, provenance.durations
    payload = "erased" if inputs.payload is None else abbreviate(inputs.payload, CONTENT_LENGTH_MAX)
    cancels = [f"{format_value(one.at)} by {one.by}: {one.reason}" for one in provenance.cancel_requests]
    print_fields(
        [
            ("job", provenance.job_id),
            ("kind", inputs.kind),
            ("payload", payload),
            ("digest", inputs.digest),
            ("submitted", f"{format_value(inputs.submitted_at)} by {inputs.submitted_by or inputs.enqueued_by}"),
            ("correlation id", inputs.correlation_id),
            ("redrive of", inputs.redrive_of),
            ("code versions", ", ".join(provenance.code_versions) or "unknown"),
            *(("cancel requested", cancel) for cancel in cancels),
            ("ended", f"{format_value(outcome.at)} {outcome.status} by {outcome.by}"),
            ("cause", outcome.cause),
            ("reason", outcome.reason),
            *_outcome_content(provenance),
            ("took", f"{times.total_seconds:.3f} s in total, {times.running_seconds:.3f} s running"),
        ]
    )
    rows = [
        (one.number, one.owner, one.code_version, one.status, one.leased_at, f"{one.ran_seconds:.3f} s", _end(one))
        for one in provenance.attempts
    ]
    if rows:
        print_line(f"\n{counted(len(rows), 'attempt')}")
        print_table(("attempt", "owner", "version", "status", "leased", "ran", "cause"), rows)


def _outcome_content(provenance: Provenance) -> Iterator[tuple[str, object]]:
    for name in ("result", "partial_result", "error"):
        if (text := getattr(provenance.outcome, name)) is not None:
            yield name.replace("_", " "), abbreviate(text, CONTENT_LENGTH_MAX)


def _end(attempt: Any) -> str:
    return " ".join(text for text in (attempt.cause, abbreviate(attempt.error) if attempt.error else None) if text)
