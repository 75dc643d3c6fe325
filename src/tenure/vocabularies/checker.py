"""The checker of a vocabulary: what it reports of a log is a chain of transitions that its source, or its list of
extensions, has. It reads the reported stream only, and does not use the mapping of statuses to words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tenure.lifecycle.records import Event, EventType, Job
from tenure.vocabularies.vocabulary import JobHistory, ReportedTransition, Vocabulary, histories, is_extension, is_own


class TransitionProblem(msgspec.Struct, frozen=True):
    """A report that the source does not allow, and the revision of the event that caused it."""

    vocabulary: str
    rev: int
    message: str

    def __str__(self) -> str:
        return f"vocabulary {self.vocabulary}, revision {self.rev}: {self.message}"


def transition_problems(chosen: Iterable[Vocabulary], job: Job, events: Sequence[Event]) -> list[TransitionProblem]:
    """Every transition that one of these vocabularies reports and that is neither the source's own nor a listed
    extension, that does not continue the last word, or that is marked wrongly; and every stream that does not end at
    the job's word. `events` is the whole log."""
    log = list(histories(job.origin, events))
    return [problem for vocabulary in chosen for problem in _problems(vocabulary, log)]


def _problems(vocabulary: Vocabulary, log: Sequence[JobHistory]) -> Iterator[TransitionProblem]:
    words: dict[str, str] = {}
    for history in log:
        for reported in vocabulary.translate(history):
            if (transition := reported.transition) is not None:
                for message in _wrong(vocabulary, transition, history.event.type, words.get(transition.subject)):
                    yield TransitionProblem(vocabulary.name, history.event.rev, message)
                words[transition.subject] = transition.after
    end = log[-1]
    last, word = words.get(str(end.event.job_id)), vocabulary.word(end.step.after)
    if last != word:
        message = f"the stream ends at {last}, and the job is {word}"
        yield TransitionProblem(vocabulary.name, end.event.rev, message)


def _wrong(vocabulary: Vocabulary, transition: ReportedTransition, by: EventType, word: str | None) -> Iterator[str]:
    before, after = transition.before, transition.after
    if before != word:
        yield f"{before} → {after} does not continue {word}"
    own = is_own(vocabulary, before, after, by)
    if not own and not is_extension(vocabulary, before, after, by):
        yield f"{before} → {after} by {by} is neither a transition of the source nor a listed extension"
    elif transition.extension is own:
        yield f"{before} → {after} by {by} is {'not ' * own}an extension, and is marked otherwise"
