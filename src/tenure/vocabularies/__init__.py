"""The words of others for what tenure does: one pure module for each system whose names live on.

Nothing else knows them. A vocabulary turns a job into that system's object, and each event into that system's events.
Nothing is decided here, and nothing can be changed through it. `engine_old` has the names that `engine` has replaced;
while readers move from one to the other, both can be told at once.

>>> known()
('contract', 'machine', 'worker', 'ledger', 'engine', 'engine-old')
>>> vocabulary("engine").meaning("dispatched")
frozenset({<Status.CLAIMED: 'claimed'>})
"""

from __future__ import annotations

from collections.abc import Iterable

from tenure.errors import InvalidInput
from tenure.vocabularies.engine_hardening import ENGINE
from tenure.vocabularies.engine_legacy import ENGINE_OLD
from tenure.vocabularies.execution_ledger import LEDGER
from tenure.vocabularies.lifecycle_contract import CONTRACT
from tenure.vocabularies.state_machine import MACHINE
from tenure.vocabularies.vocabulary import JobHistory, TranslatedEvent, Vocabulary
from tenure.vocabularies.worker_contract import WORKER

__all__ = [
    "ALL",
    "AT_ONCE_MAX",
    "JobHistory",
    "TranslatedEvent",
    "Vocabulary",
    "known",
    "tell",
    "vocabularies",
    "vocabulary",
]

ALL = (CONTRACT, MACHINE, WORKER, LEDGER, ENGINE, ENGINE_OLD)
AT_ONCE_MAX = 2
"""A migration has an old and a new vocabulary. More at once would only hide that one was forgotten."""

_BY_NAME = {one.name: one for one in ALL}


def known() -> tuple[str, ...]:
    """The names of all vocabularies."""
    return tuple(_BY_NAME)


def vocabulary(name: str) -> Vocabulary:
    """The vocabulary of this name; another is InvalidInput, which lists those that there are."""
    if name not in _BY_NAME:
        raise InvalidInput("vocabulary", f"{name!r} is not known; known are: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def vocabularies(names: Iterable[str]) -> tuple[Vocabulary, ...]:
    """Those to be told at once: at most two, and none twice."""
    chosen = tuple(vocabulary(name) for name in names)
    if len(chosen) > AT_ONCE_MAX or len({one.name for one in chosen}) < len(chosen):
        given = ", ".join(one.name for one in chosen)
        raise InvalidInput("vocabulary", f"can be told in one or in two that differ, and not in {given}")
    return chosen


def tell(chosen: Iterable[Vocabulary], story: JobHistory) -> list[TranslatedEvent]:
    """The story's last event in each of these vocabularies, one after the other."""
    return [told for one in chosen for told in one.told(story)]
