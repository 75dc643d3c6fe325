"""The versions of the code and the patches that live runs of workflows have recorded. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Job
from tenure.lifecycle.steps import StepKind, StepRecord


class RunVersion(msgspec.Struct, frozen=True):
    """How many live runs of a kind have steps that were recorded by a version of the code. `pinned`: only that version
    may continue them. `version` is None where it is not known."""

    kind: str
    version: str | None
    runs: int
    pinned: int


class PatchUse(msgspec.Struct, frozen=True):
    """How many live runs of a kind execute the new code at a patch, the old code, or have not recorded which.

    A run that has recorded steps, but not the patch, may have passed its place before the patch was there.
    """

    kind: str
    patch: str
    new: int
    old: int
    undecided: int

    @property
    def removable(self) -> bool:
        """Whether the old code, and the call of `patched`, can be removed."""
        return not self.old and not self.undecided


class RunVersions(msgspec.Struct, frozen=True):
    """The versions and patches of live runs."""

    versions: list[RunVersion]
    patches: list[PatchUse]


def run_versions(runs: Iterable[tuple[Job, Sequence[StepRecord]]]) -> RunVersions:
    """What these runs have recorded. A job without steps is left out."""
    versions: Counter[tuple[str, str | None]] = Counter()
    pinned: Counter[tuple[str, str | None]] = Counter()
    patches: Counter[tuple[str, str, bool]] = Counter()
    totals: Counter[str] = Counter()
    for job, steps in runs:
        if not steps:
            continue
        totals[job.kind] += 1
        versions.update((job.kind, version) for version in {step.code_version for step in steps})
        if job.pinned_version is not None:
            pinned[job.kind, job.pinned_version] += 1
        patches.update((job.kind, step.name, load(step.result or "false") is True) for step in steps if _is_patch(step))
    found = sorted(versions | pinned, key=lambda one: (one[0], one[1] or ""))
    return RunVersions([RunVersion(*one, versions[one], pinned[one]) for one in found], _patch_uses(patches, totals))


def distinct_facts(steps: Iterable[StepRecord]) -> list[StepRecord]:
    """The patches among the steps, and one step of each version of the code."""
    found: dict[object, StepRecord] = {}
    for step in steps:
        found.setdefault(("patch", step.name) if _is_patch(step) else step.code_version, step)
    return list(found.values())


def _is_patch(step: StepRecord) -> bool:
    return step.kind is StepKind.PATCH


def _patch_uses(patches: Mapping[tuple[str, str, bool], int], totals: Mapping[str, int]) -> list[PatchUse]:
    uses: list[PatchUse] = []
    for kind, name in sorted({(kind, name) for kind, name, _ in patches}):
        new, old = patches.get((kind, name, True), 0), patches.get((kind, name, False), 0)
        uses.append(PatchUse(kind, name, new, old, totals[kind] - new - old))
    return uses
