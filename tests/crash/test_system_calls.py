"""The writer of a SQLite file is killed at, or let down by, each single system call that it makes on its files."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.crash.acts import Act
from tests.crash.acts_of_store import ACTS
from tests.crash.afterwards import Plan, check_after_crash, plan
from tests.crash.mortals import Mortals
from tests.crash.places import SqlitePlace
from tests.crash.tracing import REMOVALS, SYNCS, WRITES, files_of, send_traced, why_not
from tests.crash.victim import Report

CALLS_MAX = 300
BY_NAME = {act.name: act for act in ACTS}
CLOSING = BY_NAME["add and close"]
BLOCK = BY_NAME["commit block"]
TRACED = [pytest.param(CLOSING, id="add-and-close"), pytest.param(BLOCK, id="commit-block", marks=pytest.mark.deep)]


@pytest.fixture(scope="session", autouse=True)
def strace() -> None:
    """Tests here are skipped where nothing can be traced; the summary says so."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)


@pytest.fixture
def file(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path)


@pytest.mark.requirement("LC-07", "LC-10")
@pytest.mark.parametrize("act", TRACED)
async def test_a_writer_that_dies_at_any_system_call_leaves_all_or_nothing(
    act: Act, file: SqlitePlace, mortals: Mortals
) -> None:
    made = await plan(act, file, mortals)
    deaths = {call: await die_at_each(call, made, file, mortals) for call in (*WRITES, *SYNCS, *REMOVALS)}
    assert deaths["pwrite64"] + deaths["write"] > 10, f"hardly any call was met: {deaths}"
    assert deaths["fsync"] + deaths["fdatasync"] > 0, f"no call was met that makes anything durable: {deaths}"
    print(f"{act.name}: killed at {sum(deaths.values())} system calls: {deaths}")


async def die_at_each(call: str, made: Plan, file: SqlitePlace, mortals: Mortals) -> int:
    """How many calls of this name it makes, once it has died at each of them. strace counts each name by itself, and
    each thread's calls by themselves."""
    there: list[bool] = []
    for number in range(1, CALLS_MAX):
        file.put_back()
        options = [*files_of(file.path, folder=True), "-o", "/dev/null"]
        options += ["-e", f"inject={call}:signal=SIGKILL:when={number}"]
        death = send_traced(mortals, made.order(), options)
        there.append(await check_after_crash(made))
        if death.signal is None:
            assert there[-1], "it survived, and what it acknowledged is not there"
            assert there == sorted(there), "it came and went"
            return number - 1
        assert death.signal == signal.SIGKILL, death
    raise AssertionError(f"it makes more than {CALLS_MAX} calls of {call}")


@pytest.mark.parametrize("act", TRACED)
@pytest.mark.parametrize(("calls", "error"), [(SYNCS, "EIO"), (WRITES, "ENOSPC")], ids=["sync-EIO", "disk-full"])
async def test_a_system_call_that_fails_is_reported_and_loses_nothing(
    act: Act, calls: tuple[str, ...], error: str, file: SqlitePlace, mortals: Mortals
) -> None:
    """One call fails, each in turn. Whoever asked is told, or the act is whole; asked again in the same process it is
    done; and a new process finds everything well."""
    made = await plan(act, file, mortals)
    reports = [report for call in calls for report in await fail_at_each(call, error, made, file, mortals)]
    refused = [report.refused for report in reports if report.refused is not None]
    # What fails while the WAL is written back costs nothing: all of it is durable there, and stays.
    assert len(refused) == len(reports) if act is BLOCK else refused, "a failed call was not noticed"
    print(f"{act.name}: {error} at {len(reports)} calls of {', '.join(calls)}; refused {len(refused)} times")


async def fail_at_each(call: str, error: str, made: Plan, file: SqlitePlace, mortals: Mortals) -> list[Report]:
    """What was reported of each call of this name that failed."""
    reports: list[Report] = []
    log = file.path.parent / "calls"
    for number in range(1, CALLS_MAX):
        file.put_back()
        options = [*files_of(file.path), "-o", str(log)]
        options += ["-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={number}"]
        report = send_traced(mortals, made.order(again=made.act.leaves_open), options).report
        assert report is not None
        there = await check_after_crash(made)
        assert there or not report.acknowledged, f"{call} {number} failed, and what was acknowledged is lost: {report}"
        assert report.refused is None or report.refused.startswith("StoreUnavailable"), report.refused
        assert report.refused_again is None, f"the fault is gone, and yet: {report.refused_again}"
        if "INJECTED" not in log.read_text():
            assert report.acknowledged
            return reports
        reports.append(report)
    raise AssertionError(f"it makes more than {CALLS_MAX} calls of {call}")


@pytest.mark.parametrize(("calls", "error"), [(SYNCS, "EIO"), (WRITES, "ENOSPC")], ids=["sync-EIO", "disk-full"])
async def test_a_disk_that_stays_broken_takes_nothing_and_says_so(
    calls: tuple[str, ...], error: str, file: SqlitePlace, mortals: Mortals
) -> None:
    made = await plan(BLOCK, file, mortals)
    file.put_back()
    options = [*files_of(file.path), "-o", "/dev/null", "-e", f"inject={','.join(calls)}:error={error}"]
    death = send_traced(mortals, made.order(), options)
    assert death.report is not None
    assert not death.report.acknowledged
    assert (death.report.refused or "").startswith("StoreUnavailable"), death.report
    await check_after_crash(made)


async def test_what_is_acknowledged_was_synced_before(file: SqlitePlace, mortals: Mortals) -> None:
    """A killed process says nothing of a machine without power; the order of the calls does."""
    made = await plan(BY_NAME["add many"], file, mortals)
    file.put_back()
    log = file.path.parent / "calls"
    options = ["-y", "-s", "400", "-o", str(log), "-e", f"trace={','.join((*WRITES, *SYNCS))}"]
    send_traced(mortals, made.order(), options)
    calls = log.read_text().splitlines()
    [told] = [number for number, call in enumerate(calls) if "<pipe:" in call and "crossed" in call]
    written = [
        n for n, call in enumerate(calls[:told]) if re.search(r"pwrite\w*\(\d+<[^>]*-wal>|write\(\d+<[^>]*-wal>", call)
    ]
    synced = [n for n, call in enumerate(calls[:told]) if re.search(r"f(?:data)?sync\(\d+<[^>]*-wal>", call)]
    assert written, "nothing was written into the WAL"
    assert synced, "nothing was synced"
    assert synced[-1] > written[-1], "the last write before the acknowledgement was not synced"
