"""The writer of a SQLite file is killed at each system call on its files, or the call fails."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.crash.crash_checks import Baseline, check_after_crash, record_baseline
from tests.crash.crash_processes import CrashProcesses
from tests.crash.crashing_process import Report
from tests.crash.databases import SqliteDatabase
from tests.crash.scenario import Scenario
from tests.crash.store_scenarios import SCENARIOS
from tests.crash.strace import REMOVALS, SYNCS, WRITES, files_of, run_under_strace, unavailable_reason

CALLS_MAX = 300
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
CLOSING = BY_NAME["enqueue and close"]
BLOCK = BY_NAME["commit block"]
TRACED = [pytest.param(CLOSING, id="enqueue-and-close"), pytest.param(BLOCK, id="commit-block", marks=pytest.mark.deep)]


@pytest.fixture(scope="session", autouse=True)
def strace() -> None:
    """Skip these tests where nothing can be traced."""
    if (reason := unavailable_reason()) is not None:
        pytest.skip(reason)


@pytest.fixture
def file(tmp_path: Path) -> SqliteDatabase:
    return SqliteDatabase(tmp_path)


@pytest.mark.requirement("LC-07", "LC-10")
@pytest.mark.parametrize("scenario", TRACED)
async def test_a_writer_killed_at_any_system_call_leaves_all_or_nothing(
    scenario: Scenario, file: SqliteDatabase, processes: CrashProcesses
) -> None:
    baseline = await record_baseline(scenario, file, processes)
    ends = {call: await crash_at_each(call, baseline, file, processes) for call in (*WRITES, *SYNCS, *REMOVALS)}
    assert ends["pwrite64"] + ends["write"] > 10, f"too few calls were traced: {ends}"
    assert ends["fsync"] + ends["fdatasync"] > 0, f"no sync was traced: {ends}"
    print(f"{scenario.name}: killed at {sum(ends.values())} system calls: {ends}")


async def crash_at_each(call: str, baseline: Baseline, file: SqliteDatabase, processes: CrashProcesses) -> int:
    """Kill the process at each call of this name, and return how many there are. strace counts by name and by
    thread."""
    there: list[bool] = []
    for number in range(1, CALLS_MAX):
        file.restore()
        options = [*files_of(file.path, folder=True), "-o", "/dev/null"]
        options += ["-e", f"inject={call}:signal=SIGKILL:when={number}"]
        end = run_under_strace(processes, baseline.command(), options)
        there.append(await check_after_crash(baseline))
        if end.signal is None:
            assert there[-1], "it survived, and what it acknowledged is not there"
            assert there == sorted(there), "it came and went"
            return number - 1
        assert end.signal == signal.SIGKILL, end
    raise AssertionError(f"it makes more than {CALLS_MAX} calls of {call}")


@pytest.mark.parametrize("scenario", TRACED)
@pytest.mark.parametrize(("calls", "error"), [(SYNCS, "EIO"), (WRITES, "ENOSPC")], ids=["sync-EIO", "disk-full"])
async def test_a_system_call_that_fails_is_reported_and_loses_nothing(
    scenario: Scenario, calls: tuple[str, ...], error: str, file: SqliteDatabase, processes: CrashProcesses
) -> None:
    """Each call fails once. Either the caller gets an error or the change is there. Repeated in the same process it
    succeeds, and a new process finds a consistent store."""
    baseline = await record_baseline(scenario, file, processes)
    reports = [report for call in calls for report in await fail_at_each(call, error, baseline, file, processes)]
    refused = [report.refused for report in reports if report.refused is not None]
    # A call that fails while the WAL is copied into the file is harmless: everything is durable in the WAL.
    assert len(refused) == len(reports) if scenario is BLOCK else refused, "a failed call was not noticed"
    print(f"{scenario.name}: {error} at {len(reports)} calls of {', '.join(calls)}; refused {len(refused)} times")


async def fail_at_each(
    call: str, error: str, baseline: Baseline, file: SqliteDatabase, processes: CrashProcesses
) -> list[Report]:
    """The reports of the runs in which a call of this name failed."""
    reports: list[Report] = []
    log = file.path.parent / "calls"
    for number in range(1, CALLS_MAX):
        file.restore()
        options = [*files_of(file.path), "-o", str(log)]
        options += ["-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={number}"]
        report = run_under_strace(processes, baseline.command(again=baseline.scenario.leaves_open), options).report
        assert report is not None
        there = await check_after_crash(baseline)
        assert there or not report.acknowledged, f"{call} {number} failed, and what was acknowledged is lost: {report}"
        assert report.refused is None or report.refused.startswith("StoreUnavailable"), report.refused
        assert report.refused_again is None, f"refused without the fault: {report.refused_again}"
        if "INJECTED" not in log.read_text():
            assert report.acknowledged
            return reports
        reports.append(report)
    raise AssertionError(f"it makes more than {CALLS_MAX} calls of {call}")


@pytest.mark.parametrize(("calls", "error"), [(SYNCS, "EIO"), (WRITES, "ENOSPC")], ids=["sync-EIO", "disk-full"])
async def test_a_write_to_a_failing_disk_is_refused(
    calls: tuple[str, ...], error: str, file: SqliteDatabase, processes: CrashProcesses
) -> None:
    baseline = await record_baseline(BLOCK, file, processes)
    file.restore()
    options = [*files_of(file.path), "-o", "/dev/null", "-e", f"inject={','.join(calls)}:error={error}"]
    end = run_under_strace(processes, baseline.command(), options)
    assert end.report is not None
    assert not end.report.acknowledged
    assert (end.report.refused or "").startswith("StoreUnavailable"), end.report
    await check_after_crash(baseline)


async def test_the_wal_is_synced_before_the_acknowledgement(file: SqliteDatabase, processes: CrashProcesses) -> None:
    """A killed process does not show what a power failure would leave; the order of the calls does."""
    baseline = await record_baseline(BY_NAME["enqueue many"], file, processes)
    file.restore()
    log = file.path.parent / "calls"
    options = ["-y", "-s", "400", "-o", str(log), "-e", f"trace={','.join((*WRITES, *SYNCS))}"]
    run_under_strace(processes, baseline.command(), options)
    calls = log.read_text().splitlines()
    [acknowledged] = [number for number, call in enumerate(calls) if "<pipe:" in call and "points" in call]
    written = [
        n
        for n, call in enumerate(calls[:acknowledged])
        if re.search(r"pwrite\w*\(\d+<[^>]*-wal>|write\(\d+<[^>]*-wal>", call)
    ]
    synced = [n for n, call in enumerate(calls[:acknowledged]) if re.search(r"f(?:data)?sync\(\d+<[^>]*-wal>", call)]
    assert written, "nothing was written into the WAL"
    assert synced, "nothing was synced"
    assert synced[-1] > written[-1], "the last write before the acknowledgement was not synced"
