"""Jobs in processes of their own: what they return, and that they cannot affect other jobs."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import tenure
from tenure.client.handle import Handle
from tenure.errors import InvalidInput
from tenure.lifecycle.records import Job
from tenure.seams import ProcessHandle, Seams, SystemSpawner
from tenure.stores import JobFilter
from tenure.workers.execution.process import parent, started_child
from tenure.workers.worker import Worker
from tests.support import process_jobs as jobs
from tests.support.command import tenure as tenure_command
from tests.support.databases import POSTGRES_IN_DEPTH, SQLITE_IN_DEPTH, Database
from tests.support.running_command import started
from tests.support.server_process import children_of, command_of, is_alive, wait_until

SECONDS = 60.0
"""Long enough for a slow machine; nothing waits for it where all is well."""


@pytest.fixture
async def app(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tenure.App]:
    """The jobs' app on a database of its own, which is passed to its children: their own module names another one."""
    async with _ready(database.url, monkeypatch) as app:
        yield app


@pytest.fixture
async def sqlite_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tenure.App]:
    """The same where the kind of database makes no difference."""
    async with _ready(f"sqlite:///{tmp_path / 'jobs.db'}", monkeypatch) as app:
        yield app


@asynccontextmanager
async def _ready(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tenure.App]:
    async with Database(url).opened() as store, store.transaction(deadline_seconds=10) as tx:
        await tx.execute("create table payments (amount bigint not null)")
    monkeypatch.setattr(jobs.app, "database", url)
    async with jobs.app:
        yield jobs.app


@asynccontextmanager
async def at_work(app: tenure.App, *, grace_seconds: float = 20, concurrency: int = 4) -> AsyncIterator[Worker]:
    """A worker, running beside the test, and stopped after it."""
    worker = app.worker(poll_seconds=0.05, scan_seconds=0.1, grace_seconds=grace_seconds, concurrency=concurrency)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(running, SECONDS)
    assert multiprocessing.active_children() == [], "a worker that has stopped leaves no process behind"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)


async def pid_of(handle: Handle[Any], *, attempt: int = 1) -> int:
    """The process that the job has named in its progress."""

    async def named() -> bool:
        job = await handle.refresh()
        return job.attempt == attempt and job.progress_message is not None

    await until(named)
    assert handle.job.progress_message is not None
    return int(handle.job.progress_message)


async def pids_of(handle: Handle[Any]) -> list[int]:
    """The processes that the job has named in its progress."""

    async def named() -> bool:
        return (await handle.refresh()).progress_message is not None

    await until(named)
    return [int(pid) for pid in (handle.job.progress_message or "").split()]


async def is_gone(pid: int) -> bool:
    return not is_alive(pid)


def error_of(job: Job) -> dict[str, str]:
    assert job.last_error is not None
    found: dict[str, str] = json.loads(job.last_error)
    return found


async def payments(app: tenure.App) -> list[int]:
    async with (await app.store()).transaction(deadline_seconds=10) as tx:
        return [row["amount"] for row in await tx.fetch("select amount from payments order by amount")]


@pytest.mark.requirement("SM-11")
async def test_a_child_whose_code_does_not_know_an_argument_has_the_job_released(sqlite_app: tenure.App) -> None:
    newer = tenure.App(sqlite_app.database)

    @newer.job(kind="length")
    async def length(text: str, unit: str) -> int:
        return len(text + unit)

    async with newer, at_work(sqlite_app):
        handle = await length.enqueue("ada", "letters")

        async def is_released() -> bool:
            return (await handle.refresh()).status == "stalled"

        await until(is_released)
    assert (handle.job.attempt, handle.job.failures) == (1, 0)


async def test_arguments_and_results_go_to_a_process_and_back(app: tenure.App) -> None:
    async with at_work(app):
        assert await (await jobs.flipped.enqueue(jobs.Point(1, 2))).result(SECONDS) == jobs.Point(2, 1)
        text = "ä" * 100_000
        assert await (await jobs.length.enqueue(text)).result(SECONDS) == 100_000
        assert await (await jobs.echoed.enqueue(text)).result(SECONDS) == text


async def test_a_process_is_kept_for_the_next_job_and_the_middleware_runs_in_it(sqlite_app: tenure.App) -> None:
    async with at_work(sqlite_app):
        first = await (await jobs.stamped.enqueue()).result(SECONDS)
        second = await (await jobs.stamped.enqueue()).result(SECONDS)
    assert first == second
    assert first[0] == first[1] != os.getpid()
    assert not is_alive(first[0])


@pytest.mark.parametrize(
    ("raised", "status", "failures", "named"),
    [
        ("ValueError", "dead_lettered", 2, "ValueError"),
        ("SystemExit", "dead_lettered", 2, "SystemExit"),
        ("StopIteration", "dead_lettered", 2, "RuntimeError"),
        ("CancelRequested", "dead_lettered", 2, "CancelRequested"),
        ("PermanentError", "failed", 1, "PermanentError"),
        ("ValidationError", "dead_lettered", 1, "ValidationError"),
    ],
)
async def test_errors_are_judged_where_they_are_raised(
    sqlite_app: tenure.App, raised: str, status: str, failures: int, named: str
) -> None:
    async with at_work(sqlite_app):
        job = await (await jobs.raising.enqueue(raised)).wait(SECONDS)
    assert (job.status, job.failures, error_of(job)["type"]) == (status, failures, named)


async def test_a_snooze_is_returned_from_the_process(sqlite_app: tenure.App) -> None:
    async with at_work(sqlite_app):
        handle = await jobs.raising.enqueue("Snooze")

        async def is_snoozed() -> bool:
            return (await handle.refresh()).status == "stalled"

        await until(is_snoozed)
    assert (handle.job.attempt, handle.job.failures, handle.job.due_at is not None) == (1, 0, True)


async def test_what_cannot_be_recorded_is_an_error_of_the_job(sqlite_app: tenure.App) -> None:
    async with at_work(sqlite_app):
        job = await (await jobs.wrong_result.enqueue()).wait(SECONDS)
        cancelled = await (await jobs.cancels_itself.enqueue()).wait(SECONDS)
        assert await (await jobs.length.enqueue("abc")).result(SECONDS) == 3
    assert (job.status, error_of(job)["type"]) == ("failed", "ResultRefused")
    assert (cancelled.status, error_of(cancelled)["type"]) == ("failed", "CancelledError")


async def test_progress_is_written_rounded_and_cut(sqlite_app: tenure.App) -> None:
    async with at_work(sqlite_app):
        handle = await jobs.reporting.enqueue()
        assert await handle.result(SECONDS) == "done"
    assert handle.job.progress == 99
    assert handle.job.progress_message == ("nearly" * 1000)[:1998] + "…"


@SQLITE_IN_DEPTH
@pytest.mark.requirement("SM-10")
async def test_a_soft_cancel_is_seen_inside_the_process_by_a_job_that_outlives_its_lease(app: tenure.App) -> None:
    async with at_work(app):
        handle = await jobs.obedient.enqueue()
        pid = await pid_of(handle)
        lease = handle.job.lease_expires_at

        async def is_renewed() -> bool:
            return (await handle.refresh()).lease_expires_at != lease

        await until(is_renewed)
        await handle.cancel()
        job = await handle.wait(SECONDS)
        assert is_alive(pid), "the process has done nothing wrong"
    assert (job.status, job.attempt) == ("cancelled", 1)


@pytest.mark.requirement("SM-10")
async def test_a_hard_cancel_kills_the_process(app: tenure.App) -> None:
    async with at_work(app):
        handle = await jobs.stubborn.enqueue()
        pid = await pid_of(handle)
        assert (await handle.cancel(hard=True)).status == "cancelled"
        await until(lambda: is_gone(pid))
        assert await (await jobs.length.enqueue("abc")).result(SECONDS) == 3
    assert ((await handle.refresh()).status, handle.job.attempt) == ("cancelled", 1)


@pytest.mark.requirement("EH-03")
async def test_a_timeout_kills_what_a_job_has_started(sqlite_app: tenure.App) -> None:
    async with at_work(sqlite_app):
        assert await (await jobs.length.enqueue("abc")).result(SECONDS) == 3
        handle = await jobs.hanging_with_programs.enqueue()
        programs = await pids_of(handle)
        assert all(map(is_alive, programs))
        assert (await handle.wait(SECONDS)).status == "failed"
        for pid in programs:
            await until(partial(is_gone, pid))


async def test_what_a_job_has_started_ends_with_its_process(sqlite_app: tenure.App) -> None:
    async with at_work(sqlite_app):
        handle = await jobs.with_a_program.enqueue()
        program = await pid_of(handle)
        assert is_alive(program)
        await handle.cancel(hard=True)
        await until(lambda: is_gone(program))


@POSTGRES_IN_DEPTH
@pytest.mark.requirement("EH-03")
async def test_a_job_that_hangs_past_its_threshold_is_killed_and_fails(app: tenure.App) -> None:
    async with at_work(app):
        # The time until its process is up counts too, so one is there already.
        assert await (await jobs.length.enqueue("abc")).result(SECONDS) == 3
        handle = await jobs.hanging.enqueue()
        pid = await pid_of(handle)
        job = await handle.wait(SECONDS)
        await until(lambda: is_gone(pid))
    assert (job.status, error_of(job)["type"]) == ("failed", "Timeout")
    assert (await handle.events())[-1].cause == "timeout"


@pytest.mark.requirement("EH-11")
async def test_a_job_that_eats_memory_is_killed_and_its_policy_decides(sqlite_app: tenure.App) -> None:
    async with at_work(sqlite_app):
        handle = await jobs.greedy.enqueue()
        pid = await pid_of(handle)
        job = await handle.wait(SECONDS)
        assert not is_alive(pid)
    assert (job.status, job.failures) == ("failed", 2)
    assert error_of(job)["type"] == "MemoryExceeded"
    assert str(400 * jobs.MEGABYTE) in error_of(job)["message"]


async def test_memory_that_an_earlier_job_has_left_does_not_count_against_the_next(sqlite_app: tenure.App) -> None:
    async with at_work(sqlite_app):
        large = await (await jobs.hoarding.enqueue()).result(SECONDS)
        modest = await jobs.modest.enqueue()
        slim = await modest.result(SECONDS)
        assert (slim[0] != large[0], modest.job.attempt) == (True, 1)
        assert not is_alive(large[0]), "there are no more processes than jobs at a time"


@pytest.mark.requirement("EH-11")
async def test_a_crash_costs_the_attempt_and_nothing_else(sqlite_app: tenure.App) -> None:
    async with at_work(sqlite_app):
        mates = [await jobs.until_the_worker_stops.enqueue() for _ in range(2)]
        for mate in mates:
            await pid_of(mate)
        crashed = await (await jobs.segfault.enqueue()).wait(SECONDS)
        exited = await (await jobs.exits.enqueue(7)).wait(SECONDS)
        silent = await (await jobs.exits.enqueue(0)).wait(SECONDS)
    assert [(job.status, job.failures) for job in (crashed, exited, silent)] == [("failed", 2)] * 3
    assert [error_of(job)["type"] for job in (crashed, exited, silent)] == ["ProcessDied"] * 3
    assert "SIGSEGV" in error_of(crashed)["message"]
    assert "exited with code 7" in error_of(exited)["message"]
    assert "exited with code 0" in error_of(silent)["message"]
    # They were interrupted, since the worker stops, and ended within its grace time.
    assert [await mate.result(SECONDS) for mate in mates] == ["stopped in time"] * 2
    assert {mate.job.attempt for mate in mates} == {1}


async def test_a_worker_that_stops_hands_back_what_does_not_end(sqlite_app: tenure.App) -> None:
    async with at_work(sqlite_app, grace_seconds=0.1):
        handle = await jobs.stubborn.enqueue()
        pid = await pid_of(handle)
    assert not is_alive(pid)
    job = await handle.refresh()
    assert (job.status, job.failures, job.attempt) == ("stalled", 0, 1)


async def test_what_a_job_prints_and_logs_is_the_workers_output(
    sqlite_app: tenure.App, capfd: pytest.CaptureFixture[str]
) -> None:
    async with at_work(sqlite_app):
        handle = await jobs.talkative.enqueue()
        await handle.result(SECONDS)
    printed = capfd.readouterr()
    assert "printed by the job" in printed.out
    assert "logged by the job" in printed.err
    assert f"[talkative {handle.id}] said about the job" in printed.err


async def test_artifacts_come_back_with_the_result(app: tenure.App) -> None:
    async with at_work(app):
        handle = await jobs.attaching.enqueue()
        assert "note" in await handle.result(SECONDS)
    store = await app.store()
    assert handle.job.attempt == 2
    assert {(one.name, one.attempt) for one in await store.artifacts(handle.id)} == {("picture", 2), ("note", 2)}
    picture, note = await store.artifact(handle.id, "picture"), await store.artifact(handle.id, "note")
    assert picture is not None
    assert (picture.body, picture.media_type) == (bytes(range(256)) * 4096, "image/x")
    assert note is not None
    assert note.body.decode() == "grüße"


@pytest.mark.requirement("EL-04")
@pytest.mark.parametrize("kind", [jobs.pays, jobs.pays_plainly], ids=lambda kind: kind.definition.name)
@pytest.mark.parametrize(
    "then",
    ["exit", *(pytest.param(then, marks=pytest.mark.deep) for then in ("return", "raise", "return something else"))],
)
async def test_a_commit_in_a_process_is_final_whatever_happens_afterwards(
    app: tenure.App, kind: tenure.JobFunction[[int, str], str], then: str
) -> None:
    async with at_work(app):
        handle = await kind.enqueue(5, then)
        assert await handle.result(SECONDS) == "paid"
    assert (handle.job.attempt, handle.job.failures, handle.job.committed) == (1, 0, True)
    assert await payments(app) == [5]
    if kind is jobs.pays:
        store = await app.store()
        assert [one.name for one in await store.artifacts(handle.id)] == ["receipt"]
        [further] = (await store.find(JobFilter(queues=("later",)))).jobs
        assert further.origin.correlation_id == str(handle.id)


async def test_a_commit_block_in_a_process_that_is_open_for_too_long_is_rolled_back(app: tenure.App) -> None:
    async with at_work(app):
        job = await (await jobs.dawdles.enqueue()).wait(SECONDS)
    assert (job.status, error_of(job)["type"], job.committed) == ("failed", "DeadlinePassed", False)
    assert await payments(app) == []


async def test_jobs_enqueued_in_a_process_have_the_same_correlation_id_and_database(app: tenure.App) -> None:
    async with at_work(app):
        handle = await jobs.enqueues_more.enqueue()
        further = await handle.result(SECONDS)
    job = (await (await app.store()).read([UUID(further)]))[UUID(further)]
    assert (job.queue, job.origin.correlation_id) == ("later", str(handle.id))


async def test_a_job_may_start_processes(sqlite_app: tenure.App) -> None:
    async with at_work(sqlite_app):
        assert await (await jobs.spawning.enqueue()).result(SECONDS) == 7


async def test_signals_to_everybody_leave_it_to_the_worker_to_decide(sqlite_app: tenure.App) -> None:
    async with at_work(sqlite_app):
        handle = await jobs.until_the_worker_stops.enqueue()
        pid = await pid_of(handle)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
    assert await handle.result(SECONDS) == "stopped in time"
    assert handle.job.attempt == 1


# On its way up.


class FailingStarts(SystemSpawner):
    """The first few processes exit before they are ready, or are not started at all."""

    def __init__(self, count: int, error: OSError | None) -> None:
        self.left, self._error = count, error

    def process(self, body: Callable[..., None], *arguments: Any, name: str) -> ProcessHandle:
        self.left -= 1
        if self.left < 0:
            return super().process(body, *arguments, name=name)
        if self._error is not None:
            raise self._error
        return super().process(jobs.exits_at_start, *arguments, name=name)


@pytest.mark.requirement("EH-06")
@pytest.mark.parametrize("error", [None, BlockingIOError("no process left")], ids=["exits", "refused"])
async def test_a_job_whose_process_cannot_be_started_is_released_without_a_failure(
    sqlite_app: tenure.App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: OSError | None
) -> None:
    monkeypatch.setattr(parent, "START_SECONDS_MIN", 0.05)
    monkeypatch.setattr(sqlite_app, "seams", Seams(spawn=FailingStarts(3, error)))
    async with at_work(sqlite_app, concurrency=1):
        handle = await jobs.length.enqueue("abc")
        assert await handle.result(SECONDS) == 3
    assert (await handle.refresh()).failures == 0
    events = (await (await sqlite_app.store()).history([handle.id]))[handle.id]
    assert {event.cause for event in events if event.type == "released"} == {"process_start_failed"}
    failed_starts = [text for record in caplog.records if "not started" in (text := record.getMessage())]
    assert len(failed_starts) == 3
    assert ("exited with code 3 before it was ready" if error is None else "no process left") in failed_starts[0]
    assert "its jobs are released, retrying in" in failed_starts[0]


async def test_a_job_can_be_cancelled_while_its_process_comes_up(sqlite_app: tenure.App) -> None:
    async with at_work(sqlite_app):
        handle = await jobs.stubborn.enqueue()

        async def is_running() -> bool:
            return (await handle.refresh()).status == "running"

        await until(is_running)
        await handle.cancel(hard=True)
        assert await (await jobs.length.enqueue("abc")).result(SECONDS) == 3
    assert ((await handle.refresh()).status, handle.job.progress) == ("cancelled", None)


# Refused at the start.


async def test_a_function_that_a_fresh_process_cannot_find_is_refused_when_the_worker_starts(tmp_path: Path) -> None:
    app = tenure.App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.job(isolation="process")
    def hidden() -> None: ...

    with pytest.raises(InvalidInput, match=r"hidden.*at its top level"):
        await app.worker().run()


async def test_a_database_that_only_this_process_sees_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.app, "database", "sqlite://:memory:")
    with pytest.raises(InvalidInput, match="use a file"):
        await jobs.app.worker().run()


async def test_a_memory_limit_is_refused_where_memory_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started_child, "STATM", "/nowhere/{}/statm")
    with pytest.raises(InvalidInput, match=r"memory_bytes_max.*/proc"):
        await jobs.app.worker().run()


# Whole programs.

SCRIPT = """
import asyncio, sys
import tenure

app = tenure.App(sys.argv[1])

@app.job(isolation="process", max_attempts=1, on_exhausted="fail")
def work(n: int) -> int:
    return n + 1

async def main() -> None:
    handle = await work.enqueue(1)
    worker = app.worker(poll_seconds=0.05)

    async def see() -> None:
        job = await handle.wait(60)
        print(job.status, job.result, job.last_error, flush=True)
        worker.stop()

    seeing = asyncio.create_task(see())
    await worker.run()
    await seeing
    await app.close()

"""
GUARDED = SCRIPT + "if __name__ == '__main__':\n    asyncio.run(main())\n"
UNGUARDED = SCRIPT + "asyncio.run(main())\n"


def _program(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments, f"sqlite:///{tmp_path / 'jobs.db'}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=tmp_path)


def test_a_script_may_be_the_home_of_its_jobs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(GUARDED)
    done = _program(tmp_path, "script.py")
    assert (done.returncode, done.stdout) == (0, "succeeded 2 None\n"), done.stderr


def test_so_may_a_package_that_is_run_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__main__.py").write_text(GUARDED)
    done = _program(tmp_path, "-m", "shop")
    assert (done.returncode, done.stdout) == (0, "succeeded 2 None\n"), done.stderr


async def test_a_script_that_starts_its_worker_at_import_is_refused_in_the_child_and_fails_no_job(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    command, log = [sys.executable, "script.py", database.url], tmp_path / "log"
    with log.open("wb") as output, subprocess.Popen(command, cwd=tmp_path, stderr=output) as program:
        try:
            logged = wait_until(lambda: "retrying in" in log.read_text(), seconds=SECONDS)
        finally:
            program.kill()
    assert logged, log.read_text()
    assert "do so under `if __name__ == '__main__':`" in log.read_text()
    async with database.opened() as store:
        found = (await store.find(JobFilter(), limit=10)).jobs
    assert [(job.failures, job.finished_at) for job in found] == [(0, None)], "the child enqueued the job again"
    assert "Traceback" not in log.read_text()


def test_what_was_typed_in_is_refused(tmp_path: Path) -> None:
    done = _program(tmp_path, "-c", GUARDED)
    assert done.returncode == 1
    assert "move the function to a module" in done.stderr


WORKER = """
import asyncio, sys
from tests.support.process_jobs import app

app.database = sys.argv[1]
asyncio.run(app.worker(poll_seconds=0.05, scan_seconds=0.1, concurrency=10).run())
"""


@asynccontextmanager
async def worker_process(app: tenure.App) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A worker as a program of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", WORKER, app.database], env=environment) as program:
        try:
            yield program
        finally:
            program.kill()


@pytest.mark.parametrize("kind", [jobs.stubborn, jobs.seizing], ids=lambda kind: kind.definition.name)
async def test_a_process_ends_with_its_worker_also_when_that_is_killed(
    sqlite_app: tenure.App, kind: tenure.JobFunction[[], None]
) -> None:
    async with worker_process(sqlite_app) as program:
        pid = await pid_of(await kind.enqueue())
        assert pid in children_of(program.pid)
        program.kill()
        assert wait_until(lambda: not is_alive(pid), seconds=SECONDS)


@pytest.mark.parametrize("watchdog_is_killed", [False, True])
async def test_what_a_job_has_started_ends_when_its_worker_is_killed(
    sqlite_app: tenure.App, watchdog_is_killed: bool
) -> None:
    async with worker_process(sqlite_app) as program:
        first = await pids_of(await jobs.stubborn_with_programs.enqueue())
        if watchdog_is_killed:
            # The next child starts another watchdog, which watches the first one's group too.
            [watchdog] = [pid for pid in children_of(program.pid) if "groups.add" in command_of(pid)]
            os.kill(watchdog, signal.SIGKILL)
            assert wait_until(lambda: not is_alive(watchdog), seconds=SECONDS)
        second = await pids_of(await jobs.stubborn_with_programs.enqueue())
        started = [*first, *second]
        assert all(map(is_alive, started))
        program.kill()
        assert wait_until(lambda: not any(map(is_alive, started)), seconds=SECONDS)


async def test_no_watchdog_is_left_when_a_worker_stops(sqlite_app: tenure.App) -> None:
    async with worker_process(sqlite_app) as program:
        await pid_of(await jobs.stubborn.enqueue())
        [watchdog] = [pid for pid in children_of(program.pid) if "groups.add" in command_of(pid)]
        program.kill()
        assert wait_until(lambda: not is_alive(watchdog), seconds=SECONDS)
    async with at_work(sqlite_app):
        assert await (await jobs.length.enqueue("abc")).result(SECONDS) == 3
    assert [pid for pid in children_of(os.getpid()) if "groups.add" in command_of(pid)] == []


@POSTGRES_IN_DEPTH
@pytest.mark.requirement("EL-07")
async def test_a_process_whose_worker_is_paused_notices_that_its_lease_is_no_longer_to_be_trusted(
    app: tenure.App, tmp_path: Path
) -> None:
    refused = tmp_path / "refused"
    async with worker_process(app) as program:
        pid = await pid_of(await jobs.outlives_its_worker.enqueue(str(refused)))
        program.send_signal(signal.SIGSTOP)
        assert await asyncio.to_thread(wait_until, refused.exists, seconds=SECONDS)
        assert is_alive(pid)
    assert await payments(app) == []


@SQLITE_IN_DEPTH
@pytest.mark.requirement("EH-11")
async def test_a_job_that_kills_its_worker_is_exhausted_by_its_losses_and_no_healthy_job_is(
    app: tenure.App, tmp_path: Path
) -> None:
    mates = [await jobs.mate.enqueue(60.0) for _ in range(4)]
    all_run = tmp_path / "all-run"
    killer = await jobs.killer.enqueue(str(all_run))
    async with worker_process(app) as program:
        for mate in mates:
            assert await pid_of(mate) == program.pid
        all_run.touch()
        assert await asyncio.to_thread(program.wait, SECONDS) == 9
    async with worker_process(app) as program:
        assert await asyncio.to_thread(program.wait, SECONDS) == 9
    async with worker_process(app) as program:
        ended = await killer.wait(SECONDS)
        assert [(await mate.wait(SECONDS)).status for mate in mates] == ["succeeded"] * 4
        assert program.poll() is None
    assert (ended.status, ended.losses, ended.failures, ended.attempt) == ("failed", 2, 2, 2)
    assert error_of(ended)["type"] == "WorkerLost"


AT_IMPORT = """
import multiprocessing

import tenure

app = tenure.App()


@app.job(isolation="process", max_attempts=1)
def work() -> None: ...


if multiprocessing.current_process().name == "tenure-child":
    work.enqueue_sync()
"""


async def test_a_module_that_a_child_imports_for_its_job_enqueues_nothing_at_import(tmp_path: Path) -> None:
    """The command's children import the module of a job only when they run it."""
    (tmp_path / "shop.py").write_text(AT_IMPORT)
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    environment = {"TENURE_DATABASE": database.url}
    assert tenure_command("jobs", "enqueue", "work", "--app", "shop:app", cwd=tmp_path, env=environment).code == 0
    with started("worker", "shop:app", folder=tmp_path, env=environment) as worker:
        worker.wait_for_log("the job is dead_lettered", seconds=SECONDS)
    assert "shop: uses the database when it is imported" in worker.log
    async with database.opened() as store:
        found = (await store.find(JobFilter(), limit=10)).jobs
    assert [(job.attempt, job.status) for job in found] == [(1, "dead_lettered")]
