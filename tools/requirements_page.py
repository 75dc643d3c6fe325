"""Writes docs/internals/requirements.md: `python -m tools.requirements_page`.

The page is made from the sentences of the requirements, the marks on the tests, what is known to be missing, and the
outcomes of the runs that were last recorded. Run `make test` and `make test-deep` before it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tools.generated import notice, table, write
from tools.requirement_marks import Proof, all_proofs
from tools.requirement_outcomes import (
    FAILED,
    NO_STORE,
    NOT_RUN,
    RECORDED,
    SKIPPED,
    STORES,
    Summary,
    committed_summary,
    update_summary,
)
from tools.requirement_sentences import COPY, SOURCE, Chapter, chapters, gaps, known_numbers, stated_in

NAME = "internals/requirements.md"
NAMES_MAX = 3
"""How many tests are named that did not pass."""
INTRODUCTION = """\
Each requirement is quoted whole, with the tests that carry its number. Its state follows from the last recorded runs of
`make test` and `make test-deep`:

- **solid**: every marked test passed, on both stores where it concerns a store, and nothing is known to be missing
- **partial**: some of it is tested; what is missing follows
- **open**: no test carries the number

What is known to be missing is listed in `tools/requirements_gaps.toml`. Only solid requirements count as proven."""


class State(StrEnum):
    """How far a requirement is proven."""

    SOLID = "solid"
    PARTIAL = "partial"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Assessment:
    """The state of a requirement, and what is missing, in words."""

    state: State
    missing: tuple[str, ...] = ()


def assess(proofs: Sequence[Proof], outcomes: Summary, gap: str | None) -> Assessment:
    """The state that these tests, with these outcomes, give a requirement."""
    if not proofs:
        return Assessment(State.OPEN, (gap or "no test carries the number",))
    missing = [] if gap is None else [gap]
    for outcome in (FAILED, SKIPPED, NOT_RUN):
        names = [_where(proof, outcomes, outcome) for proof in proofs if _has(proof, outcomes, outcome)]
        missing += [f"{outcome}: {_listed(names)}"] if names else []
    stores = {store for proof in proofs for store in outcomes.get(proof.test, {})}
    if stores - {NO_STORE}:
        missing += [f"no test ran on {store}" for store in STORES if store not in stores]
    return Assessment(State.PARTIAL, tuple(missing)) if missing else Assessment(State.SOLID)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _has(proof: Proof, outcomes: Summary, outcome: str) -> bool:
    found = outcomes.get(proof.test)
    return outcome == NOT_RUN if found is None else outcome in found.values()


def _where(proof: Proof, outcomes: Summary, outcome: str) -> str:
    stores = [store for store, found in outcomes.get(proof.test, {}).items() if found == outcome and store != NO_STORE]
    return f"`{proof.name}`" + (f" ({', '.join(stores)})" if stores else "")


def page(outcomes: Summary | None = None) -> str:
    """The whole page, by the committed outcomes unless others are given."""
    proofs: dict[str, list[Proof]] = {number: [] for number in sorted(known_numbers())}
    for proof in sorted(all_proofs()):
        proofs[proof.requirement].append(proof)
    summary, known_gaps = committed_summary() if outcomes is None else outcomes, gaps()
    assessed = {number: assess(found, summary, known_gaps.get(number)) for number, found in proofs.items()}
    counts = Counter(assessment.state for assessment in assessed.values())
    shown = ", ".join(f"{counts[state]} {state}" for state in State)
    sections = [
        notice("tools.requirements_page", "tools/requirements.toml, the tests' marks and outcomes, and known gaps"),
        "# Requirements and what proves them",
        INTRODUCTION,
        f"Of {len(assessed)} requirements: {shown}.",
        *(_section(chapter, assessed, proofs) for chapter in chapters()),
    ]
    return "\n\n".join(sections) + "\n"


def _section(chapter: Chapter, assessed: Mapping[str, Assessment], proofs: Mapping[str, list[Proof]]) -> str:
    rows = [
        [number, _state(assessed[number]), sentence, _tests(proofs[number])]
        for number, sentence in chapter.requirements.items()
    ]
    return f"## {chapter.prefix}: {chapter.title}\n\n" + table(["number", "state", "requirement", "tests"], rows)


def _state(assessment: Assessment) -> str:
    return "<br>".join([f"**{assessment.state}**", *assessment.missing])


def _tests(proofs: list[Proof]) -> str:
    by_path: dict[str, list[str]] = {}
    for proof in proofs:
        by_path.setdefault(proof.path, []).append(proof.name)
    shown = (f"[{path}](../../{path}): " + ", ".join(f"`{name}`" for name in names) for path, names in by_path.items())
    return "<br>".join(shown)


def main() -> None:
    if not SOURCE.is_dir():
        sys.stderr.write(f"the requirements' source is not here ({SOURCE}); {COPY.name} is used\n")
    elif stated_in(SOURCE) != list(chapters()):
        sys.exit(f"{COPY.name} differs from {SOURCE}: run `python -m tools.requirement_sentences`")
    if not update_summary(all_proofs()):
        sys.stderr.write(f"no run is recorded in {RECORDED}; the committed outcomes are used\n")
    write(NAME, page())


if __name__ == "__main__":
    main()
