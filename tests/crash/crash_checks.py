"""What every scenario is checked for after a crash: all or nothing is there, a repetition is safe, the store works."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.stores import Store, store_for
from tenure.stores.contract import (
    Applied,
    Busy,
    EnqueueResult,
    Failure,
    MigrationRecord,
    QueueRecord,
    Repeated,
    StepExists,
    StepSaved,
)
from tenure.testing.driver import Driver
from tenure.testing.store_check import check_store
from tests.crash.crash_points import CrashPoint
from tests.crash.crash_processes import CrashProcesses
from tests.crash.crashing_process import Command
from tests.crash.databases import CrashDatabase, State, comparable_rows
from tests.crash.scenario import Context, Scenario


@dataclass(slots=True)
class Baseline:
    """A scenario on a database, run without a crash: the state before and after it, its results, and its crash
    points."""

    scenario: Scenario
    database: CrashDatabase
    jobs: list[Job] = field(default_factory=list)
    before: State = field(default_factory=dict)
    after: State = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)
    """The result of the first run and of a repetition."""
    points: list[CrashPoint] = field(default_factory=list)
    shared: Store | None = None
    checked: dict[bytes, bool] = field(default_factory=dict)

    def command(self, **facts: Any) -> Command:
        return Command(scenario=self.scenario.name, url=self.database.url, jobs=self.jobs, **facts)


async def prepare(scenario: Scenario, database: CrashDatabase, *, keeps: bool = True) -> Baseline:
    """Bring the database to the scenario's initial state and save it."""
    baseline = Baseline(scenario, database)
    if scenario.empty:
        database.clear()
    if scenario.migrated:
        store = store_for(database.url)
        if await store.migrate():
            database.create_effects_table()
        await store.open()
        baseline.jobs = await scenario.prepare(Driver(store))
        # It has the policy that `check_store_works` uses, so that the policy cache of a shared store stays true.
        if not scenario.empty:
            await Driver(store).add("unrelated", queue="unserved")
        await store.close()
    database.wait_until_idle()
    if keeps:
        database.save()
    return baseline


async def record_baseline(scenario: Scenario, database: CrashDatabase, processes: CrashProcesses) -> Baseline:
    """Run the scenario without a crash: twice in this process for its results, once in a child for its crash points."""
    baseline = await prepare(scenario, database)
    baseline.before = database.state()
    baseline.results = [await run_scenario(baseline), await run_scenario(baseline)]
    require_repetition(*baseline.results)
    baseline.after = database.state()
    assert baseline.after != baseline.before, "the scenario wrote nothing"
    database.restore()
    baseline.points = reach_crash_points(baseline, processes)
    return baseline


def reach_crash_points(baseline: Baseline, processes: CrashProcesses) -> list[CrashPoint]:
    """The crash points of the scenario, in order."""
    report = processes.run_to_end(baseline.command())
    assert report.acknowledged, report
    return report.points


async def run_scenario(baseline: Baseline, store: Store | None = None) -> Any:
    """The scenario's result, without what differs between runs."""
    if store is not None and baseline.scenario.leaves_open:
        return comparable(await baseline.scenario.run(Context(store, baseline.database.url, baseline.jobs)))
    store = baseline.scenario.store(baseline.database.url)
    try:
        if baseline.scenario.migrated:
            await store.open()
        return comparable(await baseline.scenario.run(Context(store, baseline.database.url, baseline.jobs)))
    finally:
        await store.close()


def comparable(result: Any) -> Any:
    """A result in a form that can be compared between runs."""
    match result:
        case [*results]:
            return [comparable(one) for one in results]
        case EnqueueResult(job, created):
            return "created" if created else "existed", comparable(job)
        case Applied() | Repeated() | Busy():
            return type(result).__name__, comparable(result.job)
        case StepSaved(step) | StepExists(step):
            # Numbers and times are those of the run.
            facts = {name: getattr(step, name) for name in ("key", "attempt", "result", "digest")}
            return "created" if isinstance(result, StepSaved) else "existed", facts
        case Failure(error):
            return type(error).__name__
        case Job():
            [facts] = comparable_rows([msgspec.to_builtins(result)])
            return facts
        case MigrationRecord():
            return result.number
        case QueueRecord():
            return f"{result.name}: {result.limits}, {'paused' if result.paused_at else 'open'}"
    return result


FIRST_AND_AGAIN = {("Applied", "Repeated"), ("created", "existed"), ("existed", "existed"), ("Busy", "Busy")}


def require_repetition(first: Any, again: Any) -> None:
    """Check the baseline itself: the first run applied something, and the second reported a repetition with the same
    records. Where the result is a count, the second is 0."""
    match first, again:
        case (str() as word, dict() as record), (str() as other_word, dict() as other_record):
            assert (word, other_word) in FIRST_AND_AGAIN, f"first {word}, then {other_word}"
            assert record == other_record, "the repetition returned another record"
        case [*one], [*other] if one and isinstance(one[0], int):
            assert other == [], f"applied again: {other}"
        case [*one], [*other]:
            assert len(one) == len(other) > 0
            for pair in zip(one, other, strict=True):
                require_repetition(*pair)
        case int(), int():
            assert first > 0, "nothing was done"
            assert again == 0, "something was done twice"
        case _:
            assert first == again, f"first {first}, then {again}"


async def check_store_works(store: Store) -> None:
    """The store enqueues, claims and completes a job, and passes the store check."""
    drive = Driver(store)
    added = await drive.add("probe", queue="probe")
    [job] = await drive.claim(kinds=("probe",), queues=("probe",))
    assert job.id == added.id
    assert (await drive.apply(job, Complete('"well"'))).status is SUCCEEDED
    await check_store(store)


async def check_after_crash(baseline: Baseline) -> bool:
    """Check for all or nothing, the repetition and the store, and return whether the change is there. If the file is
    byte for byte as after an earlier crash, the earlier result holds."""
    baseline.database.wait_until_idle()
    fingerprint = baseline.database.fingerprint()
    if fingerprint is None or fingerprint not in baseline.checked:
        there = await _check_unseen(baseline)
        if fingerprint is not None:
            baseline.checked[fingerprint] = there
        return there
    return baseline.checked[fingerprint]


async def _check_unseen(baseline: Baseline) -> bool:
    if baseline.shared is not None:
        return await _check(baseline, baseline.shared)
    store = baseline.scenario.store(baseline.database.url)
    try:
        return await _check(baseline, store)
    finally:
        await store.close()


async def _check(baseline: Baseline, store: Store) -> bool:
    opened = await _opened(store)
    # The store is opened first, as by any process with the WAL that the killed one left, and compared afterwards.
    there = _is_there(baseline)
    if opened:
        await check_store(store)
    await _check_repeated(baseline, store, there=there)
    await store.open()
    await check_store_works(store)
    return there


@asynccontextmanager
async def shared_store(baseline: Baseline) -> AsyncIterator[None]:
    """Check with one store that stays open on PostgreSQL, as a process that survives the others; this saves connecting.
    A SQLite file is always opened again, since opening must cope with what the killed process left."""
    if baseline.database.kind == "postgres" and baseline.scenario.migrated and not baseline.scenario.new_policies:
        baseline.shared = baseline.scenario.store(baseline.database.url)
    try:
        yield
    finally:
        if baseline.shared is not None:
            await baseline.shared.close()


def _is_there(baseline: Baseline) -> bool:
    found = baseline.database.state()
    assert found in (baseline.before, baseline.after), f"partly there: {_difference(baseline, found)}"
    return found == baseline.after


async def _check_repeated(baseline: Baseline, store: Store, *, there: bool) -> None:
    assert await run_scenario(baseline, store) == baseline.results[there], "the repetition returned another result"
    found = baseline.database.state()
    assert found == baseline.after, f"after the repetition: {_difference(baseline, found)}"
    assert await run_scenario(baseline, store) == baseline.results[1], "the third run returned another result"
    assert baseline.database.state() == baseline.after, "the third run changed something"


async def _opened(store: Store) -> bool:
    """Open the store, unless the whole schema is missing."""
    state = await store.schema()
    if state.applied:
        await store.open()
        return True
    try:
        await store.open()
    except TenureError:
        return False
    raise AssertionError("a database without a schema was opened")


def _difference(baseline: Baseline, found: State) -> dict[str, Any]:
    return {
        table: {"found": rows, "before": baseline.before.get(table), "after": baseline.after.get(table)}
        for table, rows in found.items()
        if rows not in (baseline.before.get(table), baseline.after.get(table))
    } or {"all tables are as before or as after, but not all as one of them": sorted(found)}
