"""Translations of a job and its history into the words of other systems: one pure module for each vocabulary.

A vocabulary translates a job into that system's object, and each event into that system's events. It decides nothing
and changes nothing. It reports only transitions that its source allows, and its listed extensions, which are marked;
`transition_problems` checks that. `engine-old` has the names that `engine` replaced; both can be used at once during a
migration.

>>> VOCABULARY_NAMES
('contract', 'machine', 'worker', 'ledger', 'engine', 'engine-old')
>>> vocabulary("engine").words
('queued', 'dispatched', 'running', 'completed', 'failed')
"""

from __future__ import annotations

from collections.abc import Iterable

from tenure.errors import InvalidInput
from tenure.vocabularies.checker import TransitionProblem, transition_problems
from tenure.vocabularies.engine_hardening import ENGINE
from tenure.vocabularies.engine_legacy import ENGINE_OLD
from tenure.vocabularies.execution_ledger import LEDGER
from tenure.vocabularies.lifecycle_contract import CONTRACT
from tenure.vocabularies.state_machine import MACHINE
from tenure.vocabularies.vocabulary import JobHistory, ReportedTransition, TranslatedEvent, Vocabulary
from tenure.vocabularies.worker_contract import WORKER

__all__ = [
    "ALL",
    "VOCABULARIES_MAX",
    "VOCABULARY_NAMES",
    "JobHistory",
    "ReportedTransition",
    "TransitionProblem",
    "TranslatedEvent",
    "Vocabulary",
    "transition_problems",
    "translate",
    "vocabularies",
    "vocabulary",
]

ALL = (CONTRACT, MACHINE, WORKER, LEDGER, ENGINE, ENGINE_OLD)
VOCABULARIES_MAX = 2
"""A migration has an old and a new vocabulary. A third is most likely a forgotten one."""

_BY_NAME = {one.name: one for one in ALL}
VOCABULARY_NAMES = tuple(_BY_NAME)


def vocabulary(name: str) -> Vocabulary:
    """The vocabulary of this name. An unknown name is InvalidInput, which lists the known ones."""
    if name not in _BY_NAME:
        raise InvalidInput("vocabulary", f"{name!r} is not known; known are: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def vocabularies(names: Iterable[str]) -> tuple[Vocabulary, ...]:
    """The vocabularies to use at once: at most two, and none twice."""
    chosen = tuple(vocabulary(name) for name in names)
    if len(chosen) > VOCABULARIES_MAX or len({one.name for one in chosen}) < len(chosen):
        given = ", ".join(one.name for one in chosen)
        raise InvalidInput("vocabulary", f"at most {VOCABULARIES_MAX} different ones can be used at once, not {given}")
    return chosen


def translate(chosen: Iterable[Vocabulary], history: JobHistory) -> list[TranslatedEvent]:
    """The history's last event in each of these vocabularies, in their order."""
    return [event for one in chosen for event in one.translate(history)]
