"""A claim returns some columns of `jobs`, because all of them cost too much; the others must be known without it."""

from __future__ import annotations

import re
from importlib.resources import files

from tenure.stores.postgres.rows import CHANGING, CLAIMED

NOT_BEFORE_THE_END = {
    *("result", "partial_result", "error", "reason", "finished_at", "committed_at", "committed_result"),
    "compensated_at",
}
"""Columns that are null in every job that can be claimed."""


def test_every_column_is_written_by_a_claim_or_returned_or_null_until_the_end() -> None:
    statement = (files("tenure.stores.postgres") / "queries/parts/claimed.sql").read_text(encoding="utf-8")
    assignments = statement.partition("update tenure.jobs")[2].partition("from tenure.policies")[0]
    written = set(re.findall(r"^ +(?:set )?(\w+) = ", assignments, re.MULTILINE))
    assert {"status", "owner", "progress"} <= written
    unknown = CHANGING.keys() - written - set(CLAIMED) - NOT_BEFORE_THE_END
    assert unknown == set(), f"add to ClaimedRow and decode in Claimed, or reset in claimed.sql: {sorted(unknown)}"
