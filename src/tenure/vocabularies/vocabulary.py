"""What a vocabulary is: another system's words for the statuses, the events and the jobs of tenure. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Event, EventType, Job, Origin
from tenure.lifecycle.statuses import Status

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Fields = dict[str, Any]
NamedFields = Iterator[tuple[str, Fields]]


class JobHistory(msgspec.Struct, frozen=True):
    """A job's log from its first event to the one to translate, which is the last.

    `origin` is None where retention has removed the job; the fields that need it are then None.
    """

    origin: Origin | None
    events: Sequence[Event]

    @property
    def event(self) -> Event:
        return self.events[-1]


class TranslatedEvent(msgspec.Struct, frozen=True):
    """One event in the words of a vocabulary."""

    vocabulary: str
    name: str
    fields: Fields


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """Total: every status has a word, and every event type lists the event names that it can be translated into.

    Several statuses can share a word (`meaning`), so a translation cannot be reversed.
    """

    name: str
    about: str
    statuses: Mapping[Status, str]
    events: Mapping[EventType, tuple[str, ...]]
    translate_job: Callable[[Job, Sequence[Event]], Fields]
    translate_event: Callable[[JobHistory], NamedFields]
    content: frozenset[str] = frozenset()
    """Fields of the translated job that hold content of the user's code."""

    def status(self, status: Status) -> str:
        """The word for a status."""
        return self.statuses[status]

    def meaning(self, word: str) -> frozenset[Status]:
        """Every status that has this word. An unknown word is InvalidInput, which lists the known ones."""
        found = frozenset(status for status, translated in self.statuses.items() if translated == word)
        if not found:
            words = ", ".join(dict.fromkeys(self.statuses.values()))
            raise InvalidInput("status", f"{word!r} is not a status of the vocabulary {self.name}; known are: {words}")
        return found

    def job(self, job: Job, events: Sequence[Event], *, content: bool = True) -> Fields:
        """The job as that system's object. `events` is its whole log; anything else is InvalidInput.

        `content=False` omits the fields with content of the user's code.
        """
        if [(event.job_id, event.rev) for event in events] != [(job.id, rev) for rev in range(1, job.rev + 1)]:
            raise InvalidInput("events", f"are not the {job.rev} events of job {job.id}; read its whole history")
        fields = self.translate_job(job, events)
        return fields if content else {name: value for name, value in fields.items() if name not in self.content}

    def translate(self, history: JobHistory) -> list[TranslatedEvent]:
        """The history's last event, as zero, one or several events of that system."""
        return [TranslatedEvent(self.name, name, fields) for name, fields in self.translate_event(history)]

    def translate_log(self, origin: Origin | None, events: Sequence[Event]) -> list[TranslatedEvent]:
        """Every event of a job's log."""
        return [event for history in histories(origin, events) for event in self.translate(history)]


def histories(origin: Origin | None, events: Sequence[Event]) -> Iterator[JobHistory]:
    """The history up to each event of a log."""
    for count in range(1, len(events) + 1):
        yield JobHistory(origin, events[:count])


def detail_of(event: Event) -> Fields:
    """The decoded detail; empty where retention or erasure has blanked it."""
    detail = load(event.detail) if event.detail else {}
    return detail if isinstance(detail, dict) else {}


def value_of(text: str | None) -> Any:
    """Decoded content; None where it was not set, or was erased."""
    return None if text is None else load(text)


def payload_of(job: Job) -> Any:
    """The decoded payload; None once it was erased."""
    return None if job.erased_at is not None else load(job.origin.payload)


def epoch_ms(at: datetime) -> int:
    """Whole milliseconds since 1970.

    >>> epoch_ms(datetime(2025, 2, 1, 16, tzinfo=UTC))
    1738425600000
    """
    return (at - EPOCH) // timedelta(milliseconds=1)
