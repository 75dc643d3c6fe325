"""A worker is killed at every statement of reserving and settling, and no run pays more than its limit."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

import tenure
from tenure.lifecycle.budgets import SCALE
from tenure.lifecycle.statuses import HALTED, SUCCEEDED
from tests.crash.budget_run_scenario import BUDGET_RUN_SCENARIO, LIMIT, MOST, declare
from tests.crash.crash_processes import CrashProcesses
from tests.crash.crashing_process import Command
from tests.crash.databases import CrashDatabase
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.in_process_worker import working

POINTS_MAX = 1000
ENDED_IN_SUCCESSION = 5
"""Two workers do not execute equally many statements. After so many that were not killed no crash point is left."""


class Runs:
    """A run for each crash point, whose worker was killed there."""

    def __init__(self, app: tenure.App, folder: Path) -> None:
        self._app, self._folder, self._workflow = app, folder, declare(app)
        self.handles: dict[str, tenure.Handle[int]] = {}
        self.kills = 0

    async def kill_at_every_point(self, processes: CrashProcesses) -> None:
        ended = 0
        for point in range(POINTS_MAX):
            ended = 0 if await self._kill_at(point, processes) else ended + 1
            if ended == ENDED_IN_SUCCESSION:
                return
        raise AssertionError(f"a run has more than {POINTS_MAX} crash points")

    async def _kill_at(self, point: int, processes: CrashProcesses) -> bool:
        name = f"point-{point}"
        handle = await self._workflow.options(queue=name).enqueue(str(self._folder / name), name)
        self.handles[name] = handle
        job = await handle.refresh()
        run_command = Command(scenario=BUDGET_RUN_SCENARIO.name, url=self._app.database, jobs=[job], crash_at=point)
        end = processes.run(run_command)
        if end.report is not None:
            assert end.report.acknowledged, end.report
            return False
        assert end.signal == signal.SIGKILL, f"not killed at point {point}: {end}"
        self.kills += 1
        return True

    def paid(self, name: str) -> float:
        file = self._folder / name
        return round(sum(map(float, file.read_text().split())), 6) if file.exists() else 0.0


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.requirement("WC-06", "WF-15", "WF-19")
async def test_no_kill_while_reserving_or_settling_lets_a_run_and_its_child_pass_their_limit(
    database: CrashDatabase, processes: CrashProcesses, tmp_path: Path
) -> None:
    async with Database(database.url).opened():
        pass
    app, ends, lost = tenure.App(database.url), Counter[str](), 0
    async with app:
        runs = Runs(app, tmp_path)
        await runs.kill_at_every_point(processes)
        async with working(app, queues=list(runs.handles), concurrency=20):
            jobs = {name: await handle.wait(120) for name, handle in runs.handles.items()}
        store = await app.store()
        for name, job in jobs.items():
            assert job.status in (SUCCEEDED, HALTED), f"{name}: {job!r} {job.reason}"
            [cost] = await store.budget(job.id)
            paid = round(runs.paid(name) * SCALE)
            assert paid <= cost.used <= cost.limit == LIMIT * SCALE, f"{name}: {paid} were paid, {cost}"
            assert cost.reserved == 0, f"{name}: {cost}"
            assert cost.lost in {round(n * MOST * SCALE) for n in range(4)}, f"{name}: {cost}"
            ends[job.status] += 1
            lost += cost.lost > 0
    assert runs.kills > 50
    assert lost, "no kill left a reservation behind"
    verified = command("verify", "--database", database.url)
    assert verified.code == 0, verified.out
    print(f"{database.kind}: killed at {runs.kills} crash points; {dict(ends)}; {lost} runs with a lost reservation")
