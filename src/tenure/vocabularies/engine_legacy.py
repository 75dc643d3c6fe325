"""The engines' names before hardening: started for running, finished for completed, and no dispatched.

For readers that have not migrated to `engine` yet. No other code uses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import InvalidInput
from tenure.lifecycle.records import Event, Job
from tenure.vocabularies.engine_hardening import ENGINE
from tenure.vocabularies.vocabulary import Fields, JobHistory, NamedFields, Vocabulary

NEW_NAMES = {"queued": "queued", "started": "running", "finished": "completed", "failed": "failed"}
"""The current name of each old status."""
_OLD_NAMES = {new: old for old, new in NEW_NAMES.items()} | {"dispatched": "queued"}
_OLD_EVENTS = {"JOB_RUNNING": "JOB_STARTED", "JOB_COMPLETED": "JOB_FINISHED"}
_NEW_EVENTS = frozenset({"JOB_DISPATCHED"})

STATUSES = {ours: _OLD_NAMES[new] for ours, new in ENGINE.statuses.items()}
EVENTS = {
    ours: tuple(_OLD_EVENTS.get(new, new) for new in names if new not in _NEW_EVENTS)
    for ours, names in ENGINE.events.items()
}


def new_name(old: str) -> str:
    """The current name of an old status. An unknown status is InvalidInput, which lists the old ones.

    >>> new_name("finished")
    'completed'
    """
    if old not in NEW_NAMES:
        raise InvalidInput("status", f"{old!r} is not an old status; known are: {', '.join(NEW_NAMES)}")
    return NEW_NAMES[old]


def _translate_job(job: Job, events: Sequence[Event]) -> Fields:
    return {**ENGINE.job(job, events), "status": STATUSES[job.status]}


def _translate_event(history: JobHistory) -> NamedFields:
    for event in ENGINE.translate(history):
        if event.name not in _NEW_EVENTS:
            yield _OLD_EVENTS.get(event.name, event.name), event.fields


ENGINE_OLD = Vocabulary(
    name="engine-old",
    about="the engines' old names (EH-10)",
    statuses=STATUSES,
    events=EVENTS,
    translate_job=_translate_job,
    translate_event=_translate_event,
    content=ENGINE.content,
)
