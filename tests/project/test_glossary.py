"""The glossary is short, and the tour leads to files: both name what is in the code."""

from __future__ import annotations

import re

import pytest

from tools.generated import DOCS, ROOT

GLOSSARY = (DOCS / "glossary.md").read_text(encoding="utf-8")
TOUR = (DOCS / "internals" / "tour.md").read_text(encoding="utf-8")
TERMS = [term for term in re.findall(r"^\| (.+?) \| .+ \|$", GLOSSARY, re.MULTILINE) if term != "term"]
QUESTIONS = re.findall(r"^\| (.+\?) \| (.+) \|$", TOUR, re.MULTILINE)


def test_the_glossary_has_at_most_fifty_terms_and_none_twice() -> None:
    assert 30 <= len(TERMS) <= 50
    assert len(set(TERMS)) == len(TERMS)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([A-Za-z_]+)`", GLOSSARY))))
def test_every_name_in_the_glossary_is_a_name_in_the_code(name: str) -> None:
    word = re.compile(rf"\b{name}\b")
    assert any(word.search(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py")), name


def test_the_tour_answers_seven_questions_with_files() -> None:
    assert len(QUESTIONS) == 7
    for question, answer in QUESTIONS:
        paths = re.findall(r"`(src/[\w/.]+)`", answer)
        assert paths, question
        assert all((ROOT / path).is_file() for path in paths), question


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([a-z_]+\.py|[a-z]+/)` (?:in|of) each store", TOUR))))
def test_a_file_that_the_tour_names_for_each_store_is_in_both(name: str) -> None:
    for store in ("sqlite", "postgres"):
        assert (ROOT / "src" / "tenure" / "stores" / store / name).exists(), f"{store} has no {name}"
