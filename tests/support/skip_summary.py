"""Sums up the skipped tests of a run: one line per reason, with its count."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in lines_of(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)


def lines_of(reports: list[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """The most frequent reason first."""
    counts = Counter(_reason(report) for report in reports)
    return [
        f"skipped {count} x: {reason}" for reason, count in sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    ]


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    explanation = report.longrepr
    return explanation[2].removeprefix("Skipped: ") if isinstance(explanation, tuple) else str(explanation)
