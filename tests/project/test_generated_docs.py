"""The generated pages match their sources, and an unknown requirement is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import Status
from tenure.lifecycle.transitions import TRANSITIONS
from tools import lifecycle_page, requirements_page
from tools.generated import ROOT, committed
from tools.requirements_page import Proof, UnknownRequirement, known_numbers, proofs_in


def test_the_lifecycle_page_is_what_the_table_says() -> None:
    stale = "docs/reference/lifecycle.md is stale: run `python -m tools.lifecycle_page`"
    assert committed(lifecycle_page.NAME) == lifecycle_page.page(), stale


def test_the_requirements_page_is_what_the_tests_say() -> None:
    stale = "docs/internals/requirements.md is stale: run `python -m tools.requirements_page`"
    assert committed(requirements_page.NAME) == requirements_page.page(), stale


@pytest.mark.requirement("LC-01", "LC-10")
def test_the_lifecycle_page_speaks_of_every_status_operation_and_event() -> None:
    page = lifecycle_page.page()
    assert page.count("```mermaid") == 2
    for word in [*Status, *EventType, *(arrow.operation for arrow in TRANSITIONS)]:
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


def test_a_requirement_without_a_test_is_shown_as_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements_page, "all_proofs", lambda: {Proof("LC-01", "tests/t.py", "test_one")})
    page = requirements_page.page()
    assert page.count("**open** |") == len(known_numbers()) - 1
    assert "[tests/t.py](../../tests/t.py): `test_one`" in page
    assert f"1 of {len(known_numbers())} have tests." in page


def test_all_requirements_are_listed() -> None:
    counts = {chapter.prefix: len(chapter.requirements) for chapter in requirements_page.chapters()}
    assert counts == {"LC": 15, "SM": 21, "WC": 13, "EL": 8, "EH": 11}


@pytest.mark.parametrize(("number", "code"), [("LC-07", 0), ("LC-70", 4)])
def test_collecting_a_test_with_an_unknown_number_fails(tmp_path: Path, number: str, code: int) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = requirement(id): what it shows\n", encoding="utf-8")
    source = f"import pytest\n@pytest.mark.requirement(*['{number}'])\ndef test_one(): ...\n"
    (tmp_path / "test_it.py").write_text(source, encoding="utf-8")
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.traceability", "-q", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == code, answer.stdout + answer.stderr
    assert ("LC-70" in answer.stderr) is (code != 0)
