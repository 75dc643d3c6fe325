"""How jobs, attempts, events and dead letters look: as facts for programs, and as lines for people. Never a token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tenure.cli.output import aligned, counted, say, say_table, shown
from tenure.lifecycle.provenance import Provenance
from tenure.lifecycle.records import DeadLetter, Event, Execution, Job

CONTENT = frozenset({"payload", "committed_result", "result", "partial_result", "error", "last_error", "detail"})
"""JSON text: written into a JSON answer as what it is, and not as text within text."""
SECRET = frozenset({"token"})
CONTENT_LENGTH_MAX = 2000
ERROR_LENGTH_MAX = 80

JOB_HEADINGS = ("id", "status", "kind", "queue", "attempt", "created", "about")
EVENT_HEADINGS = ("at", "job", "rev", "event", "status", "attempt", "by", "about")


def job_facts(job: Job, *, content: bool = True) -> dict[str, Any]:
    """The record as one flat object; without `content`, what the user's code said is left out."""
    facts = {**facts_of(job.origin), **facts_of(job), "execution_id": job.execution_id}
    del facts["origin"]
    return {name: fact for name, fact in facts.items() if content or name not in CONTENT}


def facts_of(record: Any) -> dict[str, Any]:
    """A record's fields, with what is JSON text already taken for JSON."""
    facts = zip(record.__struct_fields__, msgspec.structs.astuple(record), strict=True)
    return {
        name: msgspec.Raw(fact.encode()) if name in CONTENT and isinstance(fact, str) else fact
        for name, fact in facts
        if name not in SECRET
    }


def provenance_facts(story: Provenance) -> dict[str, Any]:
    """The provenance as one object."""
    return {
        **facts_of(story),
        "inputs": facts_of(story.inputs),
        "attempts": [facts_of(attempt) for attempt in story.attempts],
        "outcome": facts_of(story.outcome),
    }


def job_row(job: Job) -> tuple[object, ...]:
    """One line of a list."""
    return job.id, job.status, job.kind, job.queue, job.attempt, job.created_at, about(job)


def about(job: Job) -> str:
    """What is worth knowing about it at a glance."""
    if job.last_error is not None and job.status not in ("succeeded", "cancelled", "halted"):
        return brief(job.last_error)
    if job.reason is not None:
        return job.reason
    if job.cancel_requested and job.live:
        return "cancel requested"
    if job.progress is not None and job.leased:
        return f"{job.progress} % {job.progress_message or ''}".rstrip()
    return ""


def brief(text: str, length_max: int = ERROR_LENGTH_MAX) -> str:
    """Content, cut to a length.

    >>> brief('{"type":"ValueError","message":"no"}')
    'ValueError: no'
    """
    try:
        error = msgspec.json.decode(text)
    except msgspec.DecodeError:
        error = text
    if isinstance(error, dict) and "message" in error:
        text = f"{error.get('type', 'error')}: {error['message']}"
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def say_job(job: Job) -> None:
    """The record, a line for each field that says something."""
    for line in aligned([(f"{name}:", value) for name, value in _said(job)]):
        say(line)
    if job.last_error is not None:
        _say_traceback(job.last_error)


def _said(job: Job) -> Iterator[tuple[str, object]]:
    yield "job", job.id
    yield "status", f"{job.status}, revision {job.rev}"
    for name, value in job_facts(job).items():
        if name in ("id", "status", "rev", "policy", "execution_id") or value in (None, False, 0) or value == {}:
            continue
        if name == "tags":
            value = ", ".join(f"{key}={tag}" for key, tag in value.items())
        elif isinstance(value, msgspec.Raw):
            value = brief(bytes(value).decode(), CONTENT_LENGTH_MAX)
        yield name.replace("_", " "), value
    yield "policy", msgspec.json.encode(job.policy).decode()


def _say_traceback(error: str) -> None:
    """Where the error came from, line by line, if whoever recorded it kept that."""
    facts = msgspec.json.decode(error)
    told = facts.get("traceback") if isinstance(facts, dict) else None
    if isinstance(told, str):
        for line in ("", *told.splitlines()):
            say(shown(line))


def say_attempts(executions: Sequence[Execution]) -> None:
    """A line for each attempt."""
    if not executions:
        return
    say(f"\n{counted(len(executions), 'attempt')}")
    rows = [(e.attempt, e.status, e.lease_owner, e.leased_at, e.started_at, e.finished_at, e.cause) for e in executions]
    say_table(("attempt", "status", "owner", "leased", "started", "finished", "cause"), rows)


def event_row(event: Event) -> tuple[object, ...]:
    """One line of the log."""
    arrow = (
        event.to_status if event.from_status in (None, event.to_status) else f"{event.from_status}→{event.to_status}"
    )
    said = " ".join(text for text in (event.cause, brief(event.detail) if event.detail else None) if text)
    return event.at, event.job_id, event.rev, event.type, arrow, event.attempt, event.actor, said


def event_line(event: Event) -> str:
    """The same where lines come one by one, so that none knows how wide the next will be."""
    return "  ".join(shown(cell) for cell in event_row(event)).rstrip()


def say_events(events: Sequence[Event]) -> None:
    """The log of one job."""
    say(f"\n{counted(len(events), 'event')}")
    say_table(EVENT_HEADINGS, [event_row(event) for event in events])


def say_letter(letter: DeadLetter) -> None:
    """The record of a dead letter."""
    say("\ndead letter")
    facts = [(name, value) for name, value in facts_of(letter).items() if name not in CONTENT and name != "job_id"]
    said = [(f"{name.replace('_', ' ')}:", value) for name, value in facts if value is not None]
    for line in aligned([*said, ("last error:", brief(letter.last_error, CONTENT_LENGTH_MAX))]):
        say(line)


def say_provenance(story: Provenance) -> None:
    """The provenance, in the order in which it came about."""
    inputs, outcome, times = story.inputs, story.outcome, story.durations
    payload = "erased" if inputs.payload is None else brief(inputs.payload, CONTENT_LENGTH_MAX)
    facts: Iterable[tuple[str, object]] = (
        ("job:", story.job_id),
        ("kind:", inputs.kind),
        ("payload:", payload),
        ("digest:", inputs.digest),
        ("submitted:", f"{shown(inputs.submitted_at)} by {inputs.submitted_by or inputs.enqueued_by}"),
        ("correlation id:", inputs.correlation_id),
        ("redrive of:", inputs.redrive_of),
        ("code versions:", ", ".join(story.code_versions) or "unknown"),
        *(("cancel asked:", f"{shown(one.at)} by {one.by}: {one.reason}") for one in story.cancel_requests),
        ("ended:", f"{shown(outcome.at)} {outcome.status} by {outcome.by}"),
        ("cause:", outcome.cause),
        ("reason:", outcome.reason),
        *_content_of(story),
        ("took:", f"{times.total_seconds:.3f} s, of which it ran {times.running_seconds:.3f} s"),
    )
    for line in aligned([(name, value) for name, value in facts if value is not None]):
        say(line)
    rows = [
        (one.number, one.owner, one.code_version, one.status, one.leased_at, f"{one.ran_seconds:.3f} s", _ended(one))
        for one in story.attempts
    ]
    if rows:
        say(f"\n{counted(len(rows), 'attempt')}")
        say_table(("attempt", "owner", "version", "status", "leased", "ran", "ended by"), rows)


def _content_of(story: Provenance) -> Iterator[tuple[str, object]]:
    for name in ("result", "partial_result", "error"):
        if (text := getattr(story.outcome, name)) is not None:
            yield f"{name.replace('_', ' ')}:", brief(text, CONTENT_LENGTH_MAX)


def _ended(attempt: Any) -> str:
    return " ".join(text for text in (attempt.cause, brief(attempt.error) if attempt.error else None) if text)
