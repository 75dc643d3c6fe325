"""The recorded steps of a run, and which of them the calls of an attempt have come to."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.lifecycle.continuations import CONTINUE_PREFIX
from tenure.lifecycle.forks import FORK_KEY
from tenure.lifecycle.steps import StepKind, StepRecord
from tenure.workflow.branch import Place, call_key
from tenure.workflow.placed_call import PlacedCall

SPEND_KEYS = "spend:end", "spend:halt"


class RecordedSteps:
    """What is recorded of a run, by key, and the keys that this attempt has used."""

    def __init__(self, records: Sequence[StepRecord]) -> None:
        self.by_key = {record.key: record for record in records}
        self.used: set[str] = set()
        """The keys of the calls that this attempt has made."""
        self.dropped: list[str] = []
        """The branches whose calls need not all be made again: another branch was first."""

    def __len__(self) -> int:
        return len(self.by_key)

    def all(self) -> list[StepRecord]:
        return list(self.by_key.values())

    def peek(self, key: str) -> StepRecord | None:
        """The record under this key, whatever call it is of."""
        return self.by_key.get(key)

    def add(self, record: StepRecord) -> None:
        self.by_key[record.key] = record
        self.used.add(record.key)

    def use(self, key: str) -> None:
        self.used.add(key)

    def drop_branches(self, place: Place, indexes: Sequence[int]) -> None:
        """These branches of a call need not make all their calls again."""
        self.dropped += [f"{place.key}.{index}/" for index in indexes]

    def last_code_version(self) -> str | None:
        """The version of the code that wrote the last record of a call. Patches count only where there is nothing else:
        code may record one before it comes to a call that does not fit."""
        records = self.by_key.values()
        last = max(records, key=lambda record: (record.kind is not StepKind.PATCH, record.number), default=None)
        return None if last is None else last.code_version

    def unmade(self) -> StepRecord | None:
        """A recorded call that this attempt had to make again and has not; None if there is none."""
        used = self.used.union(SPEND_KEYS)
        dropped = tuple(self.dropped)
        for key, record in self.by_key.items():
            made = call_key(key) in used or record.kind is StepKind.PATCH
            made = made or key == FORK_KEY or key.startswith(CONTINUE_PREFIX)
            if not made and not key.startswith(dropped):
                return record
        return None


def mismatch(call: PlacedCall, record: StepRecord) -> str | None:
    """Why the call does not fit the record at its place; None if it does."""
    made = described(call.kind, call.name)
    if (record.kind, record.name) != (call.kind, call.name):
        return f"the code calls {made}, recorded is {described(record.kind, record.name)}"
    digests = record.arguments_digest, call.arguments_digest
    if None not in digests and digests[0] != digests[1]:
        return f"the code calls {made} with other arguments than recorded"
    return None


def described(kind: StepKind, name: str) -> str:
    return f"{kind.value} {name!r}"
