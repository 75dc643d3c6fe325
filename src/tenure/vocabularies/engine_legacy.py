"""The engines' names before hardening: started for running, finished for completed, and no dispatched.

For readers that have not migrated to `engine` yet. No other code uses it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenure.errors import InvalidInput
from tenure.lifecycle.records import Job
from tenure.vocabularies.engine_hardening import ENGINE
from tenure.vocabularies.steps import WordFacts
from tenure.vocabularies.vocabulary import Fields, JobHistory, Report, SourceTransition, Vocabulary, changed_word

NEW_NAMES = {"queued": "queued", "started": "running", "finished": "completed", "failed": "failed"}
"""The current name of each old status."""
_OLD_NAMES = {new: old for old, new in NEW_NAMES.items()} | {"dispatched": "queued"}
_OLD_EVENTS = {"JOB_RUNNING": "JOB_STARTED", "JOB_COMPLETED": "JOB_FINISHED"}
_NEW_EVENTS = frozenset({"JOB_DISPATCHED"})
TRANSITIONS = (
    SourceTransition(None, "queued"),
    SourceTransition("queued", "started"),
    SourceTransition("started", "finished"),
    SourceTransition("started", "failed"),
    SourceTransition("queued", "failed"),
)
EXTENSIONS = (SourceTransition("started", "queued"),)


def word(facts: WordFacts) -> str:
    """The old name of the state."""
    return _OLD_NAMES[ENGINE.word(facts)]


def new_name(old: str) -> str:
    """The current name of an old status. An unknown status is InvalidInput, which lists the old ones.

    >>> new_name("finished")
    'completed'
    """
    if old not in NEW_NAMES:
        raise InvalidInput("status", f"{old!r} is not an old status; known are: {', '.join(NEW_NAMES)}")
    return NEW_NAMES[old]


def _translate_job(job: Job, history: JobHistory) -> Fields:
    return {**ENGINE.translate_job(job, history), "status": word(history.step.after)}


def _translate_event(history: JobHistory) -> Iterator[Report]:
    changed = changed_word(history, word)
    for name, fields, change in ENGINE.translate_event(history):
        # A dispatched job that is queued again was queued all the time by its old name.
        if name not in _NEW_EVENTS and (change is None or changed is not None):
            yield Report(_OLD_EVENTS.get(name, name), fields, None if change is None else changed)


ENGINE_OLD = Vocabulary(
    name="engine-old",
    about="the engines' old names (EH-10)",
    word=word,
    transitions=TRANSITIONS,
    extensions=EXTENSIONS,
    translate_job=_translate_job,
    translate_event=_translate_event,
    content=ENGINE.content,
)
