"""docs/reference/vocabularies.md says what the code does."""

from __future__ import annotations

import re
from typing import Any

from tenure.lifecycle.statuses import Status
from tenure.vocabularies import VOCABULARY_NAMES, vocabulary
from tests.support.situations import SITUATIONS
from tests.vocabularies.test_vocabularies import brought_about
from tools.generated import DOCS

PAGE = (DOCS / "reference" / "vocabularies.md").read_text(encoding="utf-8")


def test_the_table_of_the_page_has_every_status_in_every_vocabulary() -> None:
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in PAGE.splitlines()]
    assert ("tenure", *VOCABULARY_NAMES) in rows
    for status in Status:
        assert (status.value, *(vocabulary(name).status(status) for name in VOCABULARY_NAMES)) in rows


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
