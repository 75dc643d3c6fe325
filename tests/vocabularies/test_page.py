"""docs/reference/vocabularies.md agrees with the code."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tenure.lifecycle.statuses import Status
from tenure.vocabularies import VOCABULARY_NAMES, vocabulary
from tests.support.situations import SITUATIONS
from tests.vocabularies.sources import WORD_ROWS
from tests.vocabularies.test_vocabularies import brought_about
from tools.generated import DOCS

PAGE = (DOCS / "reference" / "vocabularies.md").read_text(encoding="utf-8")


ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]


def test_the_page_has_every_record_in_every_vocabulary() -> None:
    begin = ROWS.index(["tenure", *VOCABULARY_NAMES])
    assert {row[0]: row[1:] for row in ROWS[begin + 2 :][: len(WORD_ROWS)]} == WORD_ROWS
    named = {name.partition(",")[0].partition(" ")[0] for name in WORD_ROWS}
    assert named == {status.value for status in Status}


@pytest.mark.requirement("SM-19", "EH-12")
def test_the_page_lists_every_extension() -> None:
    listed = {row[0].strip("`"): row[1] for row in ROWS if len(row) == 3}
    for name in VOCABULARY_NAMES:
        expected = {(one.before, one.after) for one in vocabulary(name).extensions}
        pairs = [pair.split(" → ") for pair in listed[name].split(", ")]
        assert {(before, after) for before, after in pairs} == expected


def test_the_page_names_every_vocabulary() -> None:
    for name in VOCABULARY_NAMES:
        assert f"| `{name}` |" in PAGE


async def test_the_code_of_the_page_runs() -> None:
    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - it is the page's own code that is under test
    situation = next(one for one in SITUATIONS if one.name == "succeeded")
    job, events = await brought_about(situation)
    translated = names["telemetry"](job, events)
    assert (translated[0][0], translated[-1][0]) == ("JOB_QUEUED", "JOB_COMPLETED")
    fields = vocabulary("engine").job(job, events)
    assert all(f"`{name}`" in PAGE for name in fields if name.endswith("At") or name.startswith(("error", "dur")))
