"""What a vocabulary is: their words for our statuses, our events and our records."""

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
EventFields = Iterator[tuple[str, Fields]]


class JobHistory(msgspec.Struct, frozen=True):
    """A job's log from its first event to the one that is being told, which is the last.

    `origin` is what the job was given; None where retention has removed it, and then their fields for it are None.
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
    """Total: every status has a word, and every event type says which events of theirs it can become, if any.

    Several of our statuses can have one word (`meaning`), so there is no way back from theirs to ours.
    """

    name: str
    about: str
    statuses: Mapping[Status, str]
    events: Mapping[EventType, tuple[str, ...]]
    write: Callable[[Job, Sequence[Event]], Fields]
    speak: Callable[[JobHistory], EventFields]
    content: frozenset[str] = frozenset()
    """Fields of their job object that hold what the user's code said."""

    def status(self, status: Status) -> str:
        """Their word for our status."""
        return self.statuses[status]

    def meaning(self, word: str) -> frozenset[Status]:
        """Every status of ours that they call so; an unknown word is InvalidInput, which lists theirs."""
        found = frozenset(ours for ours, theirs in self.statuses.items() if theirs == word)
        if not found:
            words = ", ".join(dict.fromkeys(self.statuses.values()))
            raise InvalidInput("status", f"{word!r} is not a status of the vocabulary {self.name}; known are: {words}")
        return found

    def job(self, job: Job, events: Sequence[Event], *, content: bool = True) -> Fields:
        """The job as their object. `events` is its whole log; any other is InvalidInput.

        Without `content`, what the user's code said is left out.
        """
        if [(event.job_id, event.rev) for event in events] != [(job.id, rev) for rev in range(1, job.rev + 1)]:
            raise InvalidInput("events", f"are not the {job.rev} events of job {job.id}; read its whole history")
        fields = self.write(job, events)
        return fields if content else {name: fact for name, fact in fields.items() if name not in self.content}

    def told(self, story: JobHistory) -> list[TranslatedEvent]:
        """The story's last event in their words: none where they have no word for it, several where they have more."""
        return [TranslatedEvent(self.name, name, fields) for name, fields in self.speak(story)]


def stories(origin: Origin | None, events: Sequence[Event]) -> Iterator[JobHistory]:
    """One for each event, so that a log can be told from its beginning."""
    for count in range(1, len(events) + 1):
        yield JobHistory(origin, events[:count])


def detail_of(event: Event) -> Fields:
    """What the event says beyond its fields; nothing where retention or erasure has blanked it."""
    detail = load(event.detail) if event.detail else {}
    return detail if isinstance(detail, dict) else {}


def value_of(text: str | None) -> Any:
    """The value of content; None where there is none, or where it was erased."""
    return None if text is None else load(text)


def payload_of(job: Job) -> Any:
    """What the job was given; None once that was erased."""
    return None if job.erased_at is not None else load(job.origin.payload)


def epoch_ms(at: datetime) -> int:
    """The moment in whole milliseconds since 1970.

    >>> epoch_ms(datetime(2025, 2, 1, 16, tzinfo=UTC))
    1738425600000
    """
    return (at - EPOCH) // timedelta(milliseconds=1)
