"""Prints jobs, attempts, events, dead letters and provenance as lines and tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tenure.cli.output import counted, print_fields, print_line, print_stream_line, print_table
from tenure.cli.tables import Column, format_value
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.executions import Execution
from tenure.lifecycle.forks import ForkOrigin
from tenure.lifecycle.provenance import Provenance, ToolCall, UnreadSignal
from tenure.lifecycle.records import Event, Job
from tenure.views.jobs import CONTENT, job_view, record_view
from tenure.views.redaction import Redaction

CONTENT_LENGTH_MAX = 2000
ERROR_LENGTH_MAX = 80

JOB_HEADINGS = (
    Column("id"),
    Column("status"),
    Column("kind", cut_to=16),
    Column("queue", rank=4, cut_to=12),
    Column("attempt", rank=1, is_number=True),
    Column("created", rank=2),
    Column("note", rank=3, cut_to=19),
)
EVENT_HEADINGS = (
    Column("at", is_precise=True),
    Column("rev", rank=4, is_number=True),
    Column("event"),
    Column("status", rank=1),
    Column("attempt", rank=3, is_number=True),
    Column("by", rank=5, cut_to=20),
    Column("detail", rank=2, cut_to=20),
)
"""The events of one job."""
STREAM_HEADINGS = (
    Column("at", is_precise=True, width=24),
    Column("id", width=36),
    Column("rev", rank=3, is_number=True, width=5),
    Column("event", width=16),
    Column("status", rank=1, width=21),
    Column("attempt", rank=4, is_number=True),
    Column("by", rank=5, width=24, cut_to=24),
    Column("detail", rank=2, width=20, cut_to=20),
)
"""The events of the log, printed as they come."""
PROVENANCE_HEADINGS = (
    Column("attempt", is_number=True),
    Column("owner", rank=3, cut_to=20),
    Column("version", rank=4, cut_to=12),
    Column("status"),
    Column("leased", rank=2),
    Column("ran", is_number=True),
    Column("cause", rank=1, cut_to=20),
)
ATTEMPT_HEADINGS = (
    Column("attempt", is_number=True),
    Column("status"),
    Column("owner", rank=3, cut_to=20),
    Column("leased", rank=4),
    Column("started"),
    Column("finished", rank=1),
    Column("cause", rank=2, cut_to=12),
)
CALL_HEADINGS = (
    Column("key", cut_to=16),
    Column("kind", rank=3),
    Column("name", cut_to=16),
    Column("status"),
    Column("took", is_number=True),
    Column("attempt", rank=2, is_number=True),
    Column("version", rank=4, cut_to=12),
    Column("started", rank=5),
    Column("note", rank=1, cut_to=16),
)


def job_row(job: Job) -> tuple[object, ...]:
    """A row under JOB_HEADINGS."""
    return job.id, job.status, job.kind, job.queue, job.attempt, job.created_at, _note(job)


def _note(job: Job) -> str:
    """The last error, the reason of the end, a requested cancel, what it waits for, or the progress."""
    if job.last_error is not None and job.status not in ("succeeded", "cancelled", "halted"):
        return abbreviate(Redaction.of(job).text(job.last_error))
    if job.reason is not None:
        return job.reason
    if job.cancel_requested and job.live:
        return "cancel requested"
    if job.waiting_for is not None:
        return f"waiting for {job.waiting_for}"
    if job.progress is not None and job.leased:
        return f"{job.progress} % {job.progress_message or ''}".rstrip()
    return ""


def abbreviate(text: str, length_max: int = ERROR_LENGTH_MAX) -> str:
    """Content cut to a length; of an error, its type and message; of progress, its percentage and message.

    >>> abbreviate('{"type":"ValueError","message":"no"}')
    'ValueError: no'
    >>> abbreviate('{"percent":50,"message":"half"}')
    '50 % half'
    """
    try:
        error = msgspec.json.decode(text)
    except msgspec.DecodeError:
        error = text
    match error:
        case {"error": {"type": kind, "message": message}}:
            text = f"{kind}: {message}"
        case {"type": kind, "message": message}:
            text = f"{kind}: {message}"
        case {"percent": percent, **rest}:
            text = f"{percent} % {rest.get('message') or ''}".rstrip()
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
        if name == "correlation_id" and value == str(job.id):
            continue
        if name == "tags":
            value = ", ".join(f"{key}={tag}" for key, tag in value.items())
        elif isinstance(value, msgspec.Raw):
            value = abbreviate(bytes(value).decode(), CONTENT_LENGTH_MAX)
        yield name.replace("_", " "), value
    yield (
        "policy",
        msgspec.json.format(msgspec.json.encode(_set_values(msgspec.to_builtins(job.policy))), indent=0).decode(),
    )


def _set_values(policy: dict[str, Any]) -> dict[str, Any]:
    """The values that are set, at every depth."""
    values = {name: _set_values(value) if isinstance(value, dict) else value for name, value in policy.items()}
    return {name: value for name, value in values.items() if value not in (None, (), [], {})}


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
    print_table(ATTEMPT_HEADINGS, rows)


def _event_row(event: Event) -> tuple[object, ...]:
    """A row under EVENT_HEADINGS."""
    status = str(event.to_status)
    if event.from_status not in (None, event.to_status):
        status = f"{event.from_status}→{status}"
    detail = _cause_and_content(event.cause, event.detail)
    return event.at, event.rev, event.type, status, event.attempt, event.actor, detail


def _cause_and_content(cause: str | None, content: str | None) -> str:
    """Both, or the content alone where it begins with the cause, as an error does."""
    text = abbreviate(content) if content else ""
    return text if cause and text.startswith(cause) else " ".join(one for one in (cause, text) if one)


class StreamedEvents:
    """Prints events as they come. On a terminal those of one job have no id."""

    def __init__(self, *, of_one_job: bool) -> None:
        self._with_id = not (of_one_job and sys.stdout.isatty())
        self._is_first = True

    def print(self, event: Event) -> None:
        """A line for the event."""
        at, *rest = _event_row(event)
        row = (at, event.job_id, *rest) if self._with_id else (at, *rest)
        headings = [one for one in STREAM_HEADINGS if self._with_id or one.heading != "id"]
        print_stream_line(headings, row, with_headings=self._is_first)
        self._is_first = False


def print_events(events: Sequence[Event]) -> None:
    """The events of one job."""
    print_line(f"\n{counted(len(events), 'event')}")
    print_table(EVENT_HEADINGS, [_event_row(event) for event in events])


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
            ("forked", provenance.fork and fork_text(provenance.fork)),
            *(("continued by", job_id) for job_id in provenance.continued_by),
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
        print_table(PROVENANCE_HEADINGS, rows)
    _print_calls(provenance)


def fork_text(fork: ForkOrigin) -> str:
    """Where a fork began."""
    return "where that run ended" if fork.from_step is None else f"from step {fork.from_step}"


def _print_calls(provenance: Provenance) -> None:
    """Steps, children and unread signals, where there are any."""
    if calls := provenance.tool_calls:
        print_line(f"\n{counted(len(calls), 'step')}")
        print_table(CALL_HEADINGS, [_call_row(call) for call in calls])
    if provenance.children:
        print_line("\nchildren")
        rows = [(one.job_id, one.kind, one.key) for one in provenance.children]
        print_table((Column("id"), Column("kind", cut_to=16), Column("key", cut_to=16)), rows)
    print_unread_signals(provenance.unread_signals)


def _call_row(call: ToolCall) -> tuple[object, ...]:
    """A row under CALL_HEADINGS."""
    took, content = f"{call.duration_seconds:.3f} s", call.error or call.result
    note = "erased" if content is None else abbreviate(content)
    return call.key, call.kind, call.name, call.status, took, call.attempt, call.code_version, call.started_at, note


def print_unread_signals(signals: Sequence[UnreadSignal]) -> None:
    """A row per signal that no step has received."""
    if signals:
        print_line(f"\n{counted(len(signals), 'unread signal')}")
        rows = [(one.name, one.at, one.by) for one in signals]
        print_table((Column("name", cut_to=20), Column("sent"), Column("by", cut_to=20)), rows)


def _outcome_content(provenance: Provenance) -> Iterator[tuple[str, object]]:
    for name in ("result", "partial_result", "error"):
        if (text := getattr(provenance.outcome, name)) is not None:
            yield name.replace("_", " "), abbreviate(text, CONTENT_LENGTH_MAX)


def _end(attempt: Any) -> str:
    return _cause_and_content(attempt.cause, attempt.error)
