"""The generated pages match their sources, and an unknown requirement is an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import Status
from tenure.lifecycle.transitions import TRANSITIONS
from tools import demo_picture, lifecycle_page, reference_pages, requirements_page
from tools.generated import ROOT, committed
from tools.requirement_marks import Proof, UnknownRequirement, proofs_in
from tools.requirement_outcomes import merge, merged, stores_of, summarise
from tools.requirement_sentences import COPY, SOURCE, chapters, gaps, known_numbers, stated_in, toml
from tools.requirements_page import Assessment, State, assess


def test_the_lifecycle_page_is_generated_from_the_table() -> None:
    stale = "docs/reference/lifecycle.md is stale: run `python -m tools.lifecycle_page`"
    assert committed(lifecycle_page.NAME) == lifecycle_page.page(), stale


def test_the_requirements_page_is_what_the_tests_say() -> None:
    stale = "docs/internals/requirements.md is stale: run `python -m tools.requirements_page`"
    assert committed(requirements_page.NAME) == requirements_page.page(), stale


@pytest.mark.parametrize("name", reference_pages.PAGES)
def test_a_reference_page_is_generated_from_the_code(name: str) -> None:
    stale = f"docs/{name} is stale: run `python -m tools.reference_pages`"
    assert committed(name) == reference_pages.PAGES[name](), stale


def test_the_reference_pages_have_what_users_look_up() -> None:
    pages = {name: page() for name, page in reference_pages.PAGES.items()}
    for name, words in {
        "options": ("`max_attempts`", "`dedupe_key`"),
        "settings": ("`concurrency`", "TENURE_DATABASE"),
        "errors": ("`LeaseLost`", "`StoreUnavailable`"),
        "commands": ("tenure jobs ls", "--log-format"),
        "metrics": ("`tenure_jobs_due`",),
        "schema": ("### `tenure.jobs`", "### `tenure_jobs`", "`lease_expires_at`"),
    }.items():
        assert all(word in pages[f"reference/{name}.md"] for word in words), name
    assert not any("object at 0x" in page or os.environ["PATH"] in page for page in pages.values())


@pytest.mark.parametrize("name", ["options", "settings"])
def test_every_option_has_its_meaning(name: str) -> None:
    rows = [line for line in reference_pages.PAGES[f"reference/{name}.md"]().splitlines() if line.startswith("| `")]
    assert rows
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_picture_of_the_demo_shows_a_whole_run() -> None:
    text = demo_picture.PICTURE.read_text(encoding="utf-8").replace("&#160;", " ")
    for words in ("$ tenure demo", "killed: worker", "no job was lost, no effect was applied twice"):
        assert words in text
    assert "docs/demo.svg" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.requirement("LC-01", "LC-10")
def test_the_lifecycle_page_names_every_status_operation_and_event() -> None:
    page = lifecycle_page.page()
    assert page.count("```mermaid") == 2
    for word in [*Status, *EventType, *(transition.operation for transition in TRANSITIONS)]:
        assert f"| `{word}` |" in page, word


def test_a_table_that_changes_makes_another_page(monkeypatch: pytest.MonkeyPatch) -> None:
    before = lifecycle_page.page()
    monkeypatch.setattr(lifecycle_page, "TRANSITIONS", TRANSITIONS[:-1])
    assert lifecycle_page.page() != before


def test_marks_on_functions_classes_modules_and_parameters_all_count() -> None:
    source = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.requirement("LC-01")]

@pytest.mark.requirement("LC-02", "LC-03")
async def test_one(): ...

@pytest.mark.requirement("SM-01")
class TestMany:
    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.requirement("EL-01"))])
    def test_two(self, x): ...

    def helper(self): ...
"""
    assert set(proofs_in(source, "t.py")) == {
        *(Proof(number, "t.py", "test_one") for number in ("LC-01", "LC-02", "LC-03")),
        *(Proof(number, "t.py", "TestMany::test_two") for number in ("LC-01", "SM-01", "EL-01")),
    }


@pytest.mark.parametrize("argument", ['"LC-99"', '"lc-01"', "7", "number", 'f"LC-0{1}"'])
def test_a_mark_that_names_no_known_requirement_is_an_error(argument: str) -> None:
    source = f"@pytest.mark.requirement({argument})\ndef test_one(): ...\n"
    with pytest.raises(UnknownRequirement, match=r"t\.py:1"):
        list(proofs_in(source, "t.py"))


def test_a_mark_on_something_that_is_no_test_is_an_error() -> None:
    source = '@pytest.mark.requirement("LC-01")\ndef check_one(): ...\n'
    with pytest.raises(UnknownRequirement, match="is not a test"):
        list(proofs_in(source, "t.py"))


ONE = Proof("LC-01", "tests/t.py", "test_one")
BOTH = {"sqlite": "passed", "postgres": "passed"}


@pytest.mark.parametrize(
    ("outcomes", "gap", "expected"),
    [
        ({ONE.test: BOTH}, None, Assessment(State.SOLID)),
        ({ONE.test: {"no store": "passed"}}, None, Assessment(State.SOLID)),
        ({ONE.test: BOTH}, "its half", Assessment(State.PARTIAL, ("its half",))),
        ({}, None, Assessment(State.PARTIAL, ("not run: `test_one`",))),
        ({ONE.test: {"sqlite": "passed"}}, None, Assessment(State.PARTIAL, ("no test ran on postgres",))),
        (
            {ONE.test: {**BOTH, "postgres": "failed"}},
            "its half",
            Assessment(State.PARTIAL, ("its half", "failed: `test_one` (postgres)")),
        ),
        (
            {ONE.test: {**BOTH, "sqlite": "skipped"}},
            None,
            Assessment(State.PARTIAL, ("skipped: `test_one` (sqlite)",)),
        ),
        (
            {ONE.test: {**BOTH, "sqlite": "not run"}},
            None,
            Assessment(State.PARTIAL, ("not run: `test_one` (sqlite)",)),
        ),
    ],
)
def test_a_requirement_is_solid_only_if_all_passed_on_both_stores_and_nothing_is_missing(
    outcomes: dict[str, dict[str, str]], gap: str | None, expected: Assessment
) -> None:
    assert assess([ONE], outcomes, gap) == expected


def test_a_requirement_without_a_test_is_open_also_where_a_gap_is_stated() -> None:
    assert assess([], {}, None) == Assessment(State.OPEN, ("no test carries the number",))
    assert assess([], {}, "all of it") == Assessment(State.OPEN, ("all of it",))


def test_the_page_quotes_each_requirement_with_its_state_and_counts_only_solid_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = Proof("LC-02", "tests/t.py", "test_two")
    monkeypatch.setattr(requirements_page, "all_proofs", lambda: {ONE, two})
    monkeypatch.setattr(requirements_page, "gaps", dict)
    page = requirements_page.page({ONE.test: BOTH, two.test: {**BOTH, "sqlite": "failed"}})
    assert f"Of {len(known_numbers())} requirements: 1 solid, 1 partial, {len(known_numbers()) - 2} open." in page
    assert "| LC-01 | **solid** | The statuses and their meaning, as above. | [tests/t.py](../../tests/t.py)" in page
    assert "| LC-02 | **partial**<br>failed: `test_two` (sqlite) | Invariants per status" in page
    for chapter in chapters():
        for sentence in chapter.requirements.values():
            assert sentence.replace("|", "\\|") in page


def test_all_requirements_are_listed() -> None:
    counts = {chapter.prefix: len(chapter.requirements) for chapter in chapters()}
    assert counts == {"LC": 15, "SM": 21, "WC": 13, "EL": 8, "EH": 12, "WF": 20}


def test_the_copy_of_the_requirements_is_word_for_word() -> None:
    if not SOURCE.is_dir():
        pytest.skip("the documents that state the requirements are not beside this checkout")
    assert toml(stated_in(SOURCE)) == COPY.read_text(encoding="utf-8"), "run `python -m tools.requirement_sentences`"


def test_each_gap_names_a_requirement_and_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert gaps().keys() <= known_numbers()
    assert all(gaps().values())
    chapter = tmp_path / "chapter.toml"
    chapter.write_text('[missing]\nWF = "all of it"\n', encoding="utf-8")
    monkeypatch.setattr("tools.requirement_sentences.GAPS", chapter)
    assert {"WF-01", "WF-20"} <= gaps().keys()
    wrong = tmp_path / "gaps.toml"
    wrong.write_text('[missing]\nLC-99 = "what is it?"\n', encoding="utf-8")
    monkeypatch.setattr("tools.requirement_sentences.GAPS", wrong)
    with pytest.raises(ValueError, match="LC-99"):
        gaps()


def test_outcomes_are_summed_up_by_test_and_store() -> None:
    kit = Proof("LC-01", "src/tenure/testing/contract/claim.py", "ClaimContract::test_claim")
    recorded = {
        "tests/t.py::test_one[sqlite]": "passed",
        "tests/t.py::test_one[postgres]": "passed",
        "tests/t.py::test_one[postgres]@postgres16": "failed",
        "tests/stores/contract/test_sqlite.py::TestSqliteStore::test_claim": "passed",
        "tests/stores/contract/test_postgres.py::TestPostgresStore::test_claim[1]": "skipped",
        "tests/stores/contract/test_postgres.py::TestPostgresStore::test_claim[2]": "passed",
        "tests/stores/contract/test_model.py::TestModelStore::test_claim": "not run",
        "tests/other.py::test_claim": "failed",
    }
    assert summarise(recorded, [ONE, kit, Proof("LC-01", "tests/t.py", "test_new")]) == {
        ONE.test: {"postgres": "failed", "sqlite": "passed"},
        kit.test: BOTH,
    }
    assert stores_of("tests/stores/contract/test_model.py::TestModelStore::test_claim") == ["no store"]


def test_a_committed_skip_is_kept_only_on_a_store_for_which_the_test_still_exists() -> None:
    committed = {"a": {"sqlite": "passed", "postgres": "skipped"}, "b": {"no store": "not run", "postgres": "passed"}}
    collected = {"a": {"sqlite": "passed"}, "b": {"postgres": "not run"}}
    assert merged(committed, collected) == {"a": {"sqlite": "passed"}, "b": {"postgres": "passed"}}
    assert merged(committed, {"a": {"postgres": "not run"}})["a"] == committed["a"]


def test_a_run_replaces_the_outcomes_of_its_tests_and_keeps_the_others(tmp_path: Path) -> None:
    file = tmp_path / "build" / "requirements.json"
    merge(file, {"a": "passed", "b": "failed", "c": "not run"})
    merge(file, {"b": "passed", "a": "not run", "d": "skipped"})
    assert json.loads(file.read_text()) == {"a": "passed", "b": "passed", "c": "not run", "d": "skipped"}


MARKED = """
import pytest

@pytest.mark.requirement("LC-07")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_one(store): assert store == "sqlite"

@pytest.mark.requirement("WF-01")
def test_skipped(): pytest.skip("no")

@pytest.mark.requirement("LC-08")
def test_deselected(): ...

@pytest.mark.slow
@pytest.mark.requirement("LC-08")
def test_slow(): ...

def test_unmarked(): ...
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_records_what_became_of_each_marked_test(tmp_path: Path, processes: str) -> None:
    answer = run_pytest(tmp_path, MARKED, "-n", processes, "-m", "not slow", "-k", "not deselected")
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert json.loads((tmp_path / "build" / "requirements.json").read_text()) == {
        "test_it.py::test_deselected": "not run",
        "test_it.py::test_one[postgres]": "failed",
        "test_it.py::test_one[sqlite]": "passed",
        "test_it.py::test_skipped": "skipped",
    }


@pytest.mark.parametrize(("number", "code"), [("LC-07", 0), ("LC-70", 4)])
def test_collecting_a_test_with_an_unknown_number_fails(tmp_path: Path, number: str, code: int) -> None:
    source = f"import pytest\n@pytest.mark.requirement(*['{number}'])\ndef test_one(): ...\n"
    answer = run_pytest(tmp_path, source)
    assert answer.returncode == code, answer.stdout + answer.stderr
    assert ("LC-70" in answer.stderr) is (code != 0)


def run_pytest(folder: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a file of tests in a process of its own, with nothing of this project's but the plugin."""
    markers = "[pytest]\nmarkers =\n    requirement(id): what it shows\n    slow\n"
    (folder / "pytest.ini").write_text(markers, encoding="utf-8")
    (folder / "test_it.py").write_text(source, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TENURE_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.traceability", "-q", *arguments, "test_it.py"],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
