"""A process is killed at every crash point of every write: before and after each statement, between request and reply,
and before the acknowledgement."""

from __future__ import annotations

import signal

import pytest

from tenure.lifecycle.operation_types import OperationType
from tests.crash.crash_checks import (
    Baseline,
    check_after_crash,
    prepare,
    reach_crash_points,
    record_baseline,
    shared_store,
)
from tests.crash.crash_processes import CrashProcesses
from tests.crash.databases import CrashDatabase, SqliteDatabase
from tests.crash.scenario import Scenario
from tests.crash.statement_files import files_among, files_of, writing_in_postgres, writing_in_sqlite
from tests.crash.store_scenarios import SCENARIOS

IN_MAKE_TEST = {
    "sqlite": ("enqueue many", "commit block"),
    "postgres": ("claim and start three", "complete", "commit block"),
}
"""The scenarios that `make test` runs. All others are deep."""
CASES = [
    pytest.param(
        kind,
        scenario,
        id=f"{kind}-{scenario.name.replace(' ', '-')}",
        marks=[] if scenario.name in IN_MAKE_TEST[kind] else [pytest.mark.deep],
    )
    for kind in ("sqlite", "postgres")
    for scenario in SCENARIOS
    if scenario.only in (None, kind)
]


NOT_COVERED = {
    # A worker's row is removed only if no job is left, and every scenario has one.
    "sqlite": {"workers/delete_stopped"},
    # A restored dump is rebased by its owner, in one transaction: tests/stores/postgres/test_restored_dump.py.
    "postgres": {"workers/delete_stopped", "events/rebase"},
}
"""Statements that no scenario executes."""

OF_DELIVERY = ("deliveries", "endpoints", "outbox", "pending", "streams", "subscriptions")
"""Tables of the processor and of its operators, who write each change in one transaction. tests/outbox stops processors
between accepting a message and recording it."""


@pytest.mark.requirement("LC-07", "LC-10", "SM-13", "EL-04")
@pytest.mark.parametrize(("database", "scenario"), CASES, indirect=["database"])
async def test_a_process_killed_at_any_statement_leaves_all_or_nothing_and_can_repeat(
    scenario: Scenario, database: CrashDatabase, processes: CrashProcesses
) -> None:
    baseline = await record_baseline(scenario, database, processes)
    assert baseline.points[-1].when == "acknowledge"
    there: list[bool] = []
    async with shared_store(baseline):
        for number, point in enumerate(baseline.points):
            database.restore()
            end = processes.run(baseline.command(crash_at=number))
            assert end.signal == signal.SIGKILL, f"not killed at {point}: {end}"
            try:
                there.append(await check_after_crash(baseline))
            except AssertionError as problem:
                raise AssertionError(f"killed at point {number}, {point}: {problem}") from problem
    check_order(baseline, there)
    print(f"{database.kind}: {scenario.name}: {len(baseline.points)} crash points")


def check_order(baseline: Baseline, there: list[bool]) -> None:
    """Before the first statement nothing is there, before the acknowledgement everything is, and it appears once. A
    statement that was sent and not waited for may be on either side."""
    sure = [(point, was) for point, was in zip(baseline.points, there, strict=True) if point.when != "sent"]
    assert not sure[0][1], "it was there before its first statement"
    assert sure[-1][1], "it was not there when it was about to be acknowledged"
    seen = [was for _, was in sure]
    assert seen == sorted(seen), f"it came and went: {[str(point) for point, was in sure if was]}"


def test_every_operation_of_the_lifecycle_has_a_scenario() -> None:
    covered_elsewhere = {OperationType.ENQUEUE, OperationType.CLAIM}
    assert {verb for scenario in SCENARIOS for verb in scenario.verbs} == set(OperationType) - covered_elsewhere


async def test_every_statement_that_writes_has_a_crash_point(
    database: CrashDatabase, processes: CrashProcesses
) -> None:
    """Every file that writes is executed by a scenario, and therefore has crash points."""
    await prepare(SCENARIOS[0], database)
    writing = (
        writing_in_sqlite(database.path) if isinstance(database, SqliteDatabase) else writing_in_postgres(database.url)
    )
    assert len(writing) > 10, f"too few files are recognised as writing: {writing}"
    assert writing < set(files_of(database.kind)), "every file is recognised as writing"
    seen: set[str] = set()
    for scenario in SCENARIOS:
        if scenario.only in (None, database.kind) and scenario.migrated:
            database.restore()
            baseline = await prepare(scenario, database, keeps=False)
            seen |= files_among(database.kind, (point.sql for point in reach_crash_points(baseline, processes)))
    writing = {name for name in writing if name.partition("/")[0] not in OF_DELIVERY}
    assert writing - seen == NOT_COVERED[database.kind], "no scenario executes these statements; add one"
