"""Every requirement that a test claims to prove must be one that was promised: checked when tests are collected."""

from __future__ import annotations

import pytest

from tools.requirements_page import known_numbers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = known_numbers()
    for item in items:
        for mark in item.iter_markers("requirement"):
            unknown = [number for number in mark.args if number not in known]
            if unknown or not mark.args:
                shown = ", ".join(map(repr, unknown)) or "no number"
                raise pytest.UsageError(f"{item.nodeid} carries {shown}; tools/requirements.toml lists what there is")
