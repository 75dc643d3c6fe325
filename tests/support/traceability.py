"""Requirements that tests carry as marks: unknown ones are refused, and the outcomes of the tests are recorded.

The outcomes of a run are merged into `build/requirements.json`, which `tools.requirements_page` reads. A test that was
collected and deselected is recorded as not run, unless it is marked slow.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tools.requirement_outcomes import FAILED, NOT_RUN, PASSED, RECORDED, SKIPPED, merge
from tools.requirement_sentences import known_numbers

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

RECORDER = "tenure-requirements"
COLLECTED = "requirements"
"""The name under which a worker of xdist sends the tests that it has collected."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(OutcomeRecorder(config), RECORDER)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = [item for item in items if _check(item)]
    for item in marked:
        item.user_properties.append((RECORDER, True))
    collected = {item.nodeid: NOT_RUN for item in marked if item.get_closest_marker("slow") is None}
    recorder: OutcomeRecorder | None = config.pluginmanager.get_plugin(RECORDER)
    if recorder is not None:
        recorder.outcomes.update(collected)


def _check(item: pytest.Item) -> bool:
    """Whether the test carries a requirement. UsageError: the requirement does not exist."""
    known = known_numbers()
    marks = list(item.iter_markers("requirement"))
    for mark in marks:
        unknown = [number for number in mark.args if number not in known]
        if unknown or not mark.args:
            shown = ", ".join(map(repr, unknown)) or "no number"
            raise pytest.UsageError(f"{item.nodeid} carries {shown}; tools/requirements.toml lists what there is")
    return bool(marks)


class OutcomeRecorder:
    """The outcomes of one run, in the main process; a worker of xdist only sends what it has collected."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (RECORDER, True) not in map(tuple, report.user_properties):
            return
        if report.failed:
            self.outcomes[report.nodeid] = FAILED
        elif report.skipped:
            self.outcomes[report.nodeid] = SKIPPED
        elif report.when == "call":
            self.outcomes[report.nodeid] = PASSED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        for test in (getattr(node, "workeroutput", None) or {}).get(COLLECTED, []):
            self.outcomes.setdefault(test, NOT_RUN)

    def pytest_sessionfinish(self) -> None:
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[COLLECTED] = list(self.outcomes)
        elif self.outcomes and not self._config.option.collectonly:
            version = os.environ.get("TENURE_TEST_PG_VERSION")
            suffix = f"@postgres{version}" if version else ""
            merge(self._config.rootpath / RECORDED, {f"{test}{suffix}": found for test, found in self.outcomes.items()})
