"""The engines' names from before they were hardened: started for running, finished for completed, and no dispatched.

For readers that have not moved yet. It is told beside `engine` during the migration and left out afterwards; no other
code knows of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import InvalidInput
from tenure.lifecycle.records import Event, Job
from tenure.vocabularies.engine_hardening import ENGINE
from tenure.vocabularies.vocabulary import EventFields, Fields, JobHistory, Vocabulary

NEW_NAMES = {"queued": "queued", "started": "running", "finished": "completed", "failed": "failed"}
"""What each old status is called today."""
_OLD_NAMES = {new: old for old, new in NEW_NAMES.items()} | {"dispatched": "queued"}
_OLD_EVENTS = {"JOB_RUNNING": "JOB_STARTED", "JOB_COMPLETED": "JOB_FINISHED"}
_UNKNOWN_THEN = frozenset({"JOB_DISPATCHED"})

STATUSES = {ours: _OLD_NAMES[new] for ours, new in ENGINE.statuses.items()}
EVENTS = {
    ours: tuple(_OLD_EVENTS.get(new, new) for new in names if new not in _UNKNOWN_THEN)
    for ours, names in ENGINE.events.items()
}


def new_name(old: str) -> str:
    """What an old status is called today; an unknown one is InvalidInput, which lists the old ones.

    >>> new_name("finished")
    'completed'
    """
    if old not in NEW_NAMES:
        raise InvalidInput("status", f"{old!r} is no old status; known are: {', '.join(NEW_NAMES)}")
    return NEW_NAMES[old]


def _write(job: Job, events: Sequence[Event]) -> Fields:
    return {**ENGINE.job(job, events), "status": STATUSES[job.status]}


def _speak(story: JobHistory) -> EventFields:
    for told in ENGINE.told(story):
        if told.name not in _UNKNOWN_THEN:
            yield _OLD_EVENTS.get(told.name, told.name), told.fields


ENGINE_OLD = Vocabulary(
    name="engine-old",
    about="the engines' old names (EH-10)",
    statuses=STATUSES,
    events=EVENTS,
    write=_write,
    speak=_speak,
    content=ENGINE.content,
)
