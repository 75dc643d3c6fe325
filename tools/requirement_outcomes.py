"""The outcomes of the tests that carry a requirement, in their last run.

Each run of pytest merges its outcomes into `build/requirements.json`, by test and parameters. The generator of the page
sums them up per test and store in `requirements_outcomes.json`. That is committed, so a check of the page needs no run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.generated import ROOT
from tools.requirement_marks import Proof

RECORDED = "build/requirements.json"
SUMMARY = Path(__file__).with_name("requirements_outcomes.json")
KIT = "src/tenure/testing/"
KIT_RUNS = "tests/stores/contract/"

PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "failed", "skipped", "not run"
SEVERITY = (FAILED, NOT_RUN, PASSED, SKIPPED)
"""Of several outcomes the first in this order counts: one that passed outweighs one that was skipped, and nothing
else."""
STORES = {"sqlite": ("sqlite",), "postgres": ("postgres", "pgbouncer")}
NO_STORE = "no store"

_VERSION = re.compile(r"@postgres\d+$")

Summary = dict[str, dict[str, str]]


def merge(recorded: Path, outcomes: Mapping[str, str]) -> None:
    """Add the outcomes of a run. A test that was only collected keeps the outcome that it had."""
    before: dict[str, str] = json.loads(recorded.read_text(encoding="utf-8")) if recorded.exists() else {}
    kept = {test: before.get(test, NOT_RUN) if outcome == NOT_RUN else outcome for test, outcome in outcomes.items()}
    recorded.parent.mkdir(parents=True, exist_ok=True)
    written = recorded.with_suffix(".new")
    written.write_text(json.dumps(before | kept, indent=0, sort_keys=True), encoding="utf-8")
    written.replace(recorded)


def summarise(recorded: Mapping[str, str], proofs: Iterable[Proof]) -> Summary:
    """The outcome of each marked test that was collected, by store."""
    by_function: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for node, outcome in recorded.items():
        if outcome == NOT_RUN and _VERSION.search(node):
            # A run on a further version of PostgreSQL selects some of the tests.
            continue
        path, _, rest = _VERSION.sub("", node).partition("::")
        function = rest.partition("[")[0].rpartition("::")[2]
        place = KIT_RUNS if path.startswith(KIT_RUNS) else path
        by_function.setdefault((place, function), []).extend((store, outcome) for store in stores_of(node))
    summary: Summary = {}
    for proof in proofs:
        place = KIT_RUNS if proof.path.startswith(KIT) else proof.path
        found = by_function.get((place, proof.name.rpartition("::")[2]), [])
        if place == KIT_RUNS:
            # The model has no SQL of a user's: that it skips a test, or was not run, proves nothing about a store.
            found = [one for one in found if one[0] != NO_STORE or one[1] in (PASSED, FAILED)]
        if found:
            summary[proof.test] = {
                store: min((outcome for one, outcome in found if one == store), key=SEVERITY.index)
                for store in sorted({store for store, _ in found})
            }
    return dict(sorted(summary.items()))


def stores_of(node: str) -> list[str]:
    """The stores that a test's id names.

    >>> stores_of("tests/stores/test_x.py::test_y[sqlite]"), stores_of("tests/lifecycle/test_x.py::test_y")
    (['sqlite'], ['no store'])
    """
    return [store for store, words in STORES.items() if any(word in node.lower() for word in words)] or [NO_STORE]


def committed_summary() -> Summary:
    summary: Summary = json.loads(SUMMARY.read_text(encoding="utf-8"))
    return summary


def merged(committed: Summary, found: Summary) -> Summary:
    """The outcomes of both. A test that was only collected here, on a store, keeps its committed outcome there.

    A committed skip, or "not run", on a store for which the test is not collected here is dropped.

    >>> merged({"a": {"sqlite": "passed", "postgres": "passed"}}, {"a": {"sqlite": "failed", "postgres": "not run"}})
    {'a': {'sqlite': 'failed', 'postgres': 'passed'}}
    >>> merged({"a": {"sqlite": "passed", "postgres": "skipped"}}, {"a": {"sqlite": "passed"}})
    {'a': {'sqlite': 'passed'}}
    """
    tests = committed | found
    for test in committed.keys() & found.keys():
        ran = {store: outcome for store, outcome in found[test].items() if outcome != NOT_RUN}
        kept = {
            store: outcome
            for store, outcome in committed[test].items()
            if store in found[test] or outcome in (PASSED, FAILED)
        }
        tests[test] = found[test] | kept | ran
    return dict(sorted(tests.items()))


def update_summary(proofs: Iterable[Proof]) -> bool:
    """Sum up what was recorded here; tests that were not run here keep what is committed. False: nothing is."""
    recorded = ROOT / RECORDED
    if not recorded.exists():
        return False
    listed = list(proofs)
    names = {proof.test for proof in listed}
    kept = {test: outcomes for test, outcomes in committed_summary().items() if test in names}
    found = summarise(json.loads(recorded.read_text(encoding="utf-8")), listed)
    lines = (
        f"{json.dumps(test)}: {json.dumps(outcomes, sort_keys=True)}" for test, outcomes in merged(kept, found).items()
    )
    SUMMARY.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return True
