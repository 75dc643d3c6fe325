"""A worker is killed at every crash point of a run of twenty steps. Another worker finishes each of these runs."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

import tenure
from tenure.lifecycle.statuses import QUEUED, RUNNING, SUCCEEDED
from tests.crash.crash_processes import CrashProcesses
from tests.crash.crashing_process import Command
from tests.crash.databases import CrashDatabase
from tests.crash.workflow_scenario import RESULT, WORKFLOW_SCENARIO, WRITTEN, declare, effect
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.in_process_worker import working

POINTS_MAX = 3000
ENDED_IN_SUCCESSION = 10
"""Two workers do not execute equally many statements. After so many that were not killed no crash point is left."""
STEPS = 20
TRANSACTION_NEXT = range(0, 11, 2)
"""How many steps are recorded before each sequential transactional step, and before the parallel ones."""


class Runs:
    """A run for each crash point, whose worker was killed there."""

    def __init__(self, app: tenure.App) -> None:
        self._app, self._workflow = app, declare(app)
        self.handles: dict[str, tenure.Handle[int]] = {}
        self.killed_after: Counter[tuple[str, int]] = Counter()
        """The status and the number of recorded steps that the kills left."""

    async def kill_at_every_point(self, processes: CrashProcesses) -> None:
        ended = 0
        for point in range(POINTS_MAX):
            ended = 0 if await self._kill_at(point, processes) else ended + 1
            if ended == ENDED_IN_SUCCESSION:
                return
        raise AssertionError(f"a run has more than {POINTS_MAX} crash points")

    async def _kill_at(self, point: int, processes: CrashProcesses) -> bool:
        """Whether the worker was killed. It was not if its run ended before this point."""
        name = f"point-{point}"
        handle = self.handles[name] = await self._workflow.options(queue=name).enqueue(name)
        job = await handle.refresh()
        end = processes.run(
            Command(scenario=WORKFLOW_SCENARIO.name, url=self._app.database, jobs=[job], crash_at=point)
        )
        if end.report is not None:
            assert end.report.acknowledged, end.report
            return False
        assert end.signal == signal.SIGKILL, f"not killed at point {point}: {end}"
        self.killed_after[(await handle.refresh()).status, await self.steps_of(name)] += 1
        return True

    async def steps_of(self, name: str) -> int:
        """How many steps of this run are recorded."""
        return len(await (await self._app.store()).steps(self.handles[name].id))

    def check_killed_everywhere(self) -> None:
        """Workers were killed before the claim, at each transactional step, and after the end of the run."""
        assert {(QUEUED, 0), (SUCCEEDED, STEPS)} <= self.killed_after.keys()
        assert {(RUNNING, steps) for steps in TRANSACTION_NEXT} <= self.killed_after.keys()


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.requirement("WC-08", "EL-04", "WF-01")
async def test_a_run_whose_worker_is_killed_at_any_statement_has_each_effect_once(
    database: CrashDatabase, processes: CrashProcesses
) -> None:
    async with Database(database.url).opened():
        pass
    database.create_effects_table()
    app = tenure.App(database.url)
    async with app:
        runs = Runs(app)
        await runs.kill_at_every_point(processes)
        runs.check_killed_everywhere()
        async with working(app, queues=list(runs.handles), concurrency=20):
            results = {name: await handle.result(timeout_seconds=120) for name, handle in runs.handles.items()}
        recorded = {name: await runs.steps_of(name) for name in runs.handles}
    assert results == dict.fromkeys(runs.handles, RESULT)
    assert recorded == dict.fromkeys(runs.handles, STEPS)
    effects = Counter(name for (name,) in Database(database.url).rows("select name from effects"))
    assert effects == Counter(effect(name, number) for name in runs.handles for number in WRITTEN)
    verified = command("verify", "--database", database.url)
    assert verified.code == 0, verified.out
    print(f"{database.kind}: killed at {runs.killed_after.total()} crash points: {dict(runs.killed_after)}")
