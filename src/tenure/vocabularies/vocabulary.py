"""What a vocabulary is: another system's words for jobs and events, and the transitions that this system allows.

Pure. The word for a job is a function of its whole record and its log (see `steps`), not of its status alone, so that
no transition is reported that the other system forbids. A transition that the other system does not have is reported as
an extension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Event, EventType, Job, Origin
from tenure.vocabularies.steps import Step, WordFacts, first_step, next_step

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ANY_EVENT = frozenset(EventType)

Fields = dict[str, Any]


class JobHistory(msgspec.Struct, frozen=True):
    """A job's log from its first event to the one to translate, which is the last.

    `origin` is None where retention has removed the job; the fields that need it are then None.
    """

    origin: Origin | None
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, origin: Origin | None, events: Sequence[Event]) -> JobHistory:
        """The history of these events, of which there must be one or more."""
        history = cls(origin, (first_step(origin, events[0]),))
        for event in events[1:]:
            history = history.followed_by(event)
        return history

    def followed_by(self, event: Event) -> JobHistory:
        return JobHistory(self.origin, (*self.steps, next_step(self.steps[-1], event)))

    @property
    def step(self) -> Step:
        return self.steps[-1]

    @property
    def event(self) -> Event:
        return self.steps[-1].event

    @property
    def events(self) -> list[Event]:
        return [step.event for step in self.steps]


class SourceTransition(msgspec.Struct, frozen=True):
    """A transition between two words. `before` is None for the first word; `by` are the events that may cause it."""

    before: str | None
    after: str
    by: frozenset[EventType] = ANY_EVENT


class WordChange(NamedTuple):
    """A change of word. `subject` is the id of the job, or of the execution that changed."""

    subject: str
    before: str | None
    after: str


class ReportedTransition(msgspec.Struct, frozen=True):
    """A transition in the stream. `extension`: the source does not have it."""

    subject: str
    before: str | None
    after: str
    extension: bool

    def as_fields(self) -> Fields:
        return {"subject": self.subject, "from": self.before, "to": self.after, "extension": self.extension}


class TranslatedEvent(msgspec.Struct, frozen=True):
    """One event in the words of a vocabulary. `transition` is None where no word changed."""

    vocabulary: str
    name: str
    fields: Fields
    transition: ReportedTransition | None = None

    @property
    def extension(self) -> bool:
        return self.transition is not None and self.transition.extension

    def as_fields(self) -> Fields:
        """The event's name, transition and fields, as streams and exports write it."""
        transition = None if self.transition is None else self.transition.as_fields()
        return {"name": self.name, "transition": transition, "event": self.fields}


class Report(NamedTuple):
    """What a vocabulary reports of an event, before extensions are marked."""

    name: str
    fields: Fields
    change: WordChange | None = None


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Total: every job has a word, and every event a translation, which may be empty.

    Several of tenure's statuses can share a word, so a translation cannot be reversed. `transitions` is the source's
    own set; `extensions` are all others that are ever reported.
    """

    name: str
    about: str
    word: Callable[[WordFacts], str]
    transitions: tuple[SourceTransition, ...]
    extensions: tuple[SourceTransition, ...]
    translate_job: Callable[[Job, JobHistory], Fields]
    translate_event: Callable[[JobHistory], Iterator[Report]]
    content: frozenset[str] = frozenset()
    """Fields of the translated job that hold content of the user's code."""

    @property
    def words(self) -> tuple[str, ...]:
        """Every word that can be reported."""
        return tuple(dict.fromkeys(one.after for one in (*self.transitions, *self.extensions)))

    def status(self, job: Job, events: Sequence[Event]) -> str:
        """The word for a job. `events` is its whole log; anything else is InvalidInput."""
        return self.word(_whole_history(job, events).step.after)

    def job(self, job: Job, events: Sequence[Event], *, content: bool = True) -> Fields:
        """The job as that system's object. `events` is its whole log; anything else is InvalidInput.

        `content=False` omits the fields with content of the user's code.
        """
        fields = self.translate_job(job, _whole_history(job, events))
        return fields if content else {name: value for name, value in fields.items() if name not in self.content}

    def translate(self, history: JobHistory) -> list[TranslatedEvent]:
        """The history's last event, as zero, one or several events of that system."""
        return [
            TranslatedEvent(self.name, name, fields, change and self._transition(change, history.event.type))
            for name, fields, change in self.translate_event(history)
        ]

    def translate_log(self, origin: Origin | None, events: Sequence[Event]) -> list[TranslatedEvent]:
        """Every event of a job's log."""
        return [event for history in histories(origin, events) for event in self.translate(history)]

    def _transition(self, change: WordChange, by: EventType) -> ReportedTransition:
        return ReportedTransition(*change, extension=not is_own(self, change.before, change.after, by))


@lru_cache(maxsize=1024)
def is_own(vocabulary: Vocabulary, before: str | None, after: str, by: EventType) -> bool:
    """Whether the source has this transition between two words by an event of this type."""
    return _has(vocabulary.transitions, before, after, by)


@lru_cache(maxsize=1024)
def is_extension(vocabulary: Vocabulary, before: str | None, after: str, by: EventType) -> bool:
    """Whether this transition is a listed extension."""
    return _has(vocabulary.extensions, before, after, by)


def _has(transitions: Iterable[SourceTransition], before: str | None, after: str, by: EventType) -> bool:
    return any((one.before, one.after) == (before, after) and by in one.by for one in transitions)


def histories(origin: Origin | None, events: Sequence[Event]) -> Iterator[JobHistory]:
    """The history up to each event of a log."""
    history: JobHistory | None = None
    for event in events:
        history = JobHistory.of(origin, [event]) if history is None else history.followed_by(event)
        yield history


def changed_word(history: JobHistory, word: Callable[[WordFacts], str]) -> WordChange | None:
    """The change of the job's word by the history's last event; None where it is the same as before."""
    step = history.step
    before = None if step.before is None else word(step.before)
    after = word(step.after)
    return None if before == after else WordChange(str(step.event.job_id), before, after)


def _whole_history(job: Job, events: Sequence[Event]) -> JobHistory:
    if [(event.job_id, event.rev) for event in events] != [(job.id, rev) for rev in range(1, job.rev + 1)]:
        raise InvalidInput("events", f"are not the {job.rev} events of job {job.id}; read its whole history")
    return JobHistory.of(job.origin, events)


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
