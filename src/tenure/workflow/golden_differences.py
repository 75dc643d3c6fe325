"""What a replay found: the calls of the code compared with the recorded ones, and the output, in readable words."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from typing import Literal

import msgspec

from tenure.lifecycle.json_text import load
from tenure.lifecycle.steps import StepRecord
from tenure.workflow.golden_file import GoldenFile
from tenure.workflow.placed_call import PlacedCall

LINES_MAX = 40
"""The most lines of a difference of outputs."""
_SEPARATORS = re.compile(r"[./]")

DifferenceKind = Literal[
    "kind",
    "payload",
    "parked",
    "added",
    "removed",
    "renamed",
    "reordered",
    "arguments",
    "result_type",
    "output",
    "outcome",
]


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One difference between a recorded run and today's code. `key` is that of the recorded or the new call."""

    kind: DifferenceKind
    key: str | None
    message: str
    name: str | None = None

    def __str__(self) -> str:
        return self.message if self.key is None else f"{self.name!r} ({self.key}): {self.message}"


class MadeCall(msgspec.Struct, frozen=True):
    """A call of today's code, the record that it was given, and how well that fits."""

    call: PlacedCall
    record: StepRecord | None
    fit: Literal["exact", "arguments", "renamed"]


def call_differences(made: Sequence[MadeCall], unmade: Sequence[StepRecord], run: GoldenFile) -> Iterator[Difference]:
    """The differences of the calls, in the order of today's code; then what was removed."""
    made = sorted(made, key=lambda one: _position(one.call.place.branch, one.call.place.ordinal))
    moved = {record.key for record in _moved([one.record for one in made if one.record is not None])}
    blocked = False
    for one in made:
        name, key = one.call.name, one.call.place.key
        if one.record is None:
            if run.outcome.is_cut_off and not _is_followed(one.call, unmade):
                continue
            blocked = True
            yield Difference("added", key, "added; the recorded run does not make this call", name=name)
        elif one.fit == "renamed":
            yield Difference("renamed", key, f"renamed; recorded is {one.record.name!r}", name=name)
        elif one.fit == "arguments":
            yield Difference("arguments", key, "called with other arguments than recorded", name=name)
        elif one.record.key in moved:
            yield Difference("reordered", key, f"reordered; recorded at {one.record.key}", name=name)
    if not blocked:
        # After an added call the replay does not know what the code would have called.
        for record in unmade:
            yield Difference("removed", record.key, "removed; the code does not make this call", name=record.name)


def output_difference(recorded: str, result: str) -> Iterator[Difference]:
    """The difference of two outputs, as lines of JSON."""
    if load(recorded) == load(result):
        return
    before, after = (msgspec.json.format(text, indent=2).splitlines() for text in (recorded, result))
    lines = list(unified_diff(before, after, "recorded", "now", lineterm="", n=2))
    if len(lines) > LINES_MAX:
        lines = [*lines[:LINES_MAX], f"… {len(lines) - LINES_MAX} lines more"]
    yield Difference("output", None, "\n".join(["the output differs:", *lines]))


def _is_followed(call: PlacedCall, unmade: Sequence[StepRecord]) -> bool:
    """Whether recorded calls come after this place in its branch."""
    return any(one.branch == call.place.branch and one.ordinal >= call.place.ordinal for one in unmade)


def _moved(records: Sequence[StepRecord]) -> list[StepRecord]:
    """The fewest records without which the others are in their recorded order."""
    placed = [one for one in records if _has_place(one)]
    positions = [_position(one.branch, one.ordinal) for one in placed]
    tails: list[tuple[object, ...]] = []
    lengths = []
    for position in positions:
        at = bisect_left(tails, position)
        tails[at : at + 1] = [position]
        lengths.append(at + 1)
    wanted, moved = len(tails), []
    for record, length in zip(reversed(placed), reversed(lengths), strict=True):
        if length == wanted:
            wanted -= 1
        else:
            moved.append(record)
    return moved


def _has_place(record: StepRecord) -> bool:
    """Whether its place in the function is its identity. A call with a key of its own may move."""
    return record.key in (str(record.ordinal), f"{record.branch}/{record.ordinal}")


def _position(branch: str, ordinal: int) -> tuple[tuple[bool, int, str], ...]:
    parts = [*(_SEPARATORS.split(branch) if branch else ()), str(ordinal)]
    return tuple((False, int(part), "") if part.isdecimal() else (True, 0, part) for part in parts)
