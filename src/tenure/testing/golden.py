"""Golden files in tests: recorded runs that today's code must still fit.

    @pytest.mark.parametrize("path", golden_paths("golden"), ids=str)
    def test_a_recorded_run_still_fits(path):
        check_golden(app, path)

Write the files with `tenure golden record ID`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from tenure.workflow import golden_file
from tenure.workflow.golden import replay_golden_file

if TYPE_CHECKING:
    from tenure.app import App


def golden_paths(folder: str | Path) -> list[Path]:
    """The golden files in a folder, for `pytest.mark.parametrize`. InvalidInput: there is none."""
    return golden_file.golden_paths(Path(folder))


def check_golden(app: App, path: str | Path) -> None:
    """Replay a golden file, or all of a folder, against the app. AssertionError names what differs.

    No step is executed, and nothing is written. In async code: `await check_golden_async(app, path)`.
    """
    asyncio.run(check_golden_async(app, path))


async def check_golden_async(app: App, path: str | Path) -> None:
    """The same on the running event loop."""
    lines: list[str] = []
    for one in golden_paths(path):
        run = golden_file.read_golden_file(one)
        differences = await replay_golden_file(run, app.kinds, app.seams)
        lines += [f"{one}: {difference}" for difference in differences]
    if lines:
        problem = "today's code alters recorded runs; record them again with tenure golden record if that is intended"
        raise AssertionError("\n".join([problem, *lines]))
