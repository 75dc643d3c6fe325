"""`tenure worker` with real processes: it works, it stops without losing anything, and it reports what is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tenure.cli.stop_signals import SAME_SECONDS
from tenure.errors import DatabaseReplaced
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import LIVE
from tenure.stores import JobFilter, Store
from tenure.testing.driver import Driver
from tests.support.command import tenure
from tests.support.databases import POSTGRES_IN_DEPTH, Database
from tests.support.relay import Relay
from tests.support.running_command import SHOP, started, until
from tests.support.server_process import free_port, is_alive, wait_until

QUICK = ("--poll-seconds", "0.1", "--scan-seconds", "0.3")
POST = """
import tenure

app = tenure.App()


@app.job(queue="letters")
async def send(to: str) -> str:
    return to


app.schedule(send.options(queue="nights").request("ada"), "0 3 * * *")
"""
POLICY = {"lease_seconds": 6.0, "max_attempts": 20, "on_exhausted": "fail"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@pytest.fixture
def sqlite(folder: Path) -> Database:
    return Database(f"sqlite:///{folder / 'jobs.db'}")


class Shop:
    """The jobs of the shop, as the test sees them."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def queue(self, count: int, *, kind: str = "nap", seconds: float = 0.1) -> None:
        drive = Driver(self.store)
        payload = encode({"seconds": seconds})
        await self.store.enqueue([drive.enqueue(kind=kind, payload=payload, policy=POLICY) for _ in range(count)])

    async def jobs(self) -> list[Job]:
        return (await self.store.find(JobFilter(), limit=1000)).jobs

    async def at_least(self, count: int, *statuses: str, seconds: float = 30.0) -> None:
        """Wait until so many jobs have one of these statuses."""

        async def enough() -> bool:
            return sum(job.status in statuses for job in await self.jobs()) >= count

        await until(enough, seconds=seconds)

    async def all_succeeded(self, *, seconds: float = 60.0) -> list[Job]:
        async def done() -> bool:
            return not any(job.live for job in await self.jobs())

        await until(done, seconds=seconds)
        jobs = await self.jobs()
        assert {job.status for job in jobs} == {"succeeded"}
        return jobs

    async def owners(self) -> set[str]:
        histories = await self.store.history([job.id for job in await self.jobs()])
        return {event.owner for history in histories.values() for event in history if event.type == "claimed"}


@asynccontextmanager
async def shop(database: Database) -> AsyncIterator[Shop]:
    async with database.opened() as store:
        yield Shop(store)


def arguments(database: Database, *options: str, target: str = "shop:app") -> Sequence[str]:
    return ("worker", target, "--database", database.url, *QUICK, *options)


async def pass_seconds(seconds: float) -> None:
    """Let real time pass: the clock of another process is not manual."""
    await asyncio.sleep(1.5 * seconds)


@pytest.mark.requirement("WC-05")
async def test_a_stop_under_load_loses_nothing_and_counts_no_failure(database: Database, folder: Path) -> None:
    async with shop(database) as jobs:
        await jobs.queue(120, seconds=0.3)
        with started(*arguments(database, "--concurrency", "6"), folder=folder) as worker:
            await jobs.at_least(6, "succeeded")
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0, worker.log
        left = await jobs.jobs()
        assert {job.status for job in left} == {"succeeded", "queued"}
        assert sum(job.failures + job.losses for job in left) == 0
        with started(*arguments(database, "--concurrency", "60"), folder=folder) as worker:
            await jobs.all_succeeded()
            worker.signal(signal.SIGINT)
            assert worker.ended() == 0, worker.log
        assert {job.attempt for job in await jobs.jobs()} == {1}


@pytest.mark.requirement("WC-05")
async def test_what_does_not_finish_within_the_grace_time_is_handed_back(database: Database, folder: Path) -> None:
    async with shop(database) as jobs:
        await jobs.queue(4, seconds=60)
        with started(*arguments(database, "--grace-seconds", "0.2"), folder=folder) as worker:
            await jobs.at_least(4, "running")
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0, worker.log
            assert "stopping: waiting up to 0.2 s for 4 running jobs" in worker.log
        for job in await jobs.jobs():
            assert (job.status, job.failures, job.losses) == ("stalled", 0, 0)
            assert [event.type for event in (await jobs.store.history([job.id]))[job.id]][-1] == "released"


@pytest.mark.parametrize(
    ("kind", "number", "code"),
    [
        ("nap", signal.SIGINT, 130),
        ("sit", signal.SIGTERM, 143),
        pytest.param("nap", signal.SIGTERM, 143, marks=pytest.mark.deep),
        pytest.param("sit", signal.SIGINT, 130, marks=pytest.mark.deep),
    ],
)
async def test_a_second_signal_aborts_at_once(
    sqlite: Database, folder: Path, number: signal.Signals, code: int, kind: str
) -> None:
    async with shop(sqlite) as jobs:
        await jobs.queue(2, kind=kind, seconds=90)
        with started(*arguments(sqlite, "--grace-seconds", "80"), folder=folder) as worker:
            await jobs.at_least(2, "running")
            worker.signal(number)
            # Logged once the reply to the last claim has arrived, which may be after the signal.
            worker.wait_for_log("stopping: waiting up to 80 s for 2 running jobs")
            await pass_seconds(SAME_SECONDS)
            worker.signal(number)
            assert worker.ended(seconds=20) == code, worker.log


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.deep)])
async def test_two_signals_in_a_row_are_one_stop(sqlite: Database, folder: Path, processes: str) -> None:
    async with shop(sqlite) as jobs:
        await jobs.queue(2, seconds=5)
        options = ("--processes", processes, "--concurrency", "2", "--grace-seconds", "60")
        with started(*arguments(sqlite, *options), folder=folder) as worker:
            await jobs.at_least(2, "running")
            for number in (signal.SIGTERM, signal.SIGINT):  # Two of a kind at the same time are one to the kernel.
                worker.signal(number)
            assert worker.ended() == 0, worker.log
            assert "abort" not in worker.log
        assert {job.status for job in await jobs.jobs()} == {"succeeded"}


async def test_a_thread_that_a_job_leaves_behind_does_not_keep_a_worker_from_its_end(
    sqlite: Database, folder: Path
) -> None:
    async with shop(sqlite) as jobs:
        await jobs.queue(1, kind="lean", seconds=100)
        with started(*arguments(sqlite, "--grace-seconds", "0.2"), folder=folder) as worker:
            await jobs.at_least(1, "running")
            worker.signal(signal.SIGTERM)
            assert worker.ended(seconds=30) == 0, worker.log
            assert "a thread of a job has not ended" in worker.log
        [job] = await jobs.jobs()
        assert (job.status, job.failures) == ("stalled", 0)


async def test_a_third_signal_ends_a_worker_whose_event_loop_is_stuck(sqlite: Database, folder: Path) -> None:
    async with shop(sqlite) as jobs:
        await jobs.queue(1, kind="spin", seconds=100)
        with started(*arguments(sqlite), folder=folder) as worker:
            await jobs.at_least(1, "running")
            for _ in range(3):
                worker.signal(signal.SIGTERM)
                await pass_seconds(SAME_SECONDS)
            assert worker.ended(seconds=20) == 143, worker.log
            assert "third signal" in worker.log


@pytest.mark.parametrize(
    ("queues", "served"),
    [
        ((), "letters, nights"),
        (("--queues", "*,urgent"), "letters, nights, urgent"),
        (("--queues", "nights"), "nights"),
    ],
)
async def test_a_worker_serves_and_logs_the_queues_of_its_app_unless_they_are_narrowed(
    sqlite: Database, folder: Path, queues: Sequence[str], served: str
) -> None:
    (folder / "post.py").write_text(POST)
    with started(*arguments(sqlite, *queues, target="post:app"), folder=folder) as worker:
        worker.wait_for_log(rf"  queues: +{served}\n")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.log


async def test_both_processes_of_two_claim_and_both_stop(sqlite: Database, folder: Path) -> None:
    async with shop(sqlite) as jobs:
        with started(*arguments(sqlite, "--processes", "2", "--concurrency", "2"), folder=folder) as workers:
            workers.wait_for_log(r"worker \d is up", times=2)
            await jobs.queue(120, seconds=0.1)
            await jobs.all_succeeded()
            assert len(await jobs.owners()) == 2
            workers.signal(signal.SIGTERM)
            assert workers.ended() == 0, workers.log
            assert "120 claimed, 120 succeeded" in workers.log.splitlines()[-1]
            assert not any(is_alive(pid) for pid in workers.workers)


@POSTGRES_IN_DEPTH
@pytest.mark.requirement("WC-05", "WC-10")
async def test_a_worker_that_is_killed_is_replaced_and_its_jobs_finish(database: Database, folder: Path) -> None:
    async with shop(database) as jobs:
        with started(*arguments(database, "--processes", "2", "--concurrency", "3"), folder=folder) as workers:
            workers.wait_for_log(r"worker \d is up", times=2)
            await jobs.queue(12, seconds=1.0)
            await jobs.at_least(4, "running")
            victim = workers.workers[0]
            os.kill(victim, signal.SIGKILL)
            workers.wait_for_log(rf"worker 1 \(pid {victim}\) was killed by SIGKILL; restarting in")
            workers.wait_for_log(r"worker \d is up", times=3)
            await jobs.all_succeeded()
            workers.signal(signal.SIGINT)
            assert workers.ended() == 0, workers.log
    assert tenure("verify", "--database", database.url).code == 0


async def test_when_the_supervisor_is_killed_its_workers_stop_and_hand_back(sqlite: Database, folder: Path) -> None:
    async with shop(sqlite) as jobs:
        await jobs.queue(3, seconds=60)
        options = ("--processes", "2", "--grace-seconds", "0.2")
        with started(*arguments(sqlite, *options), folder=folder) as workers:
            workers.wait_for_log(r"worker \d is up", times=2)
            await jobs.at_least(3, "running")
            workers.process.kill()
            assert wait_until(lambda: not any(map(is_alive, workers.workers)), seconds=30), workers.log
        assert {(job.status, job.failures) for job in await jobs.jobs()} == {("stalled", 0)}


async def test_a_second_signal_to_the_supervisor_aborts_its_workers(sqlite: Database, folder: Path) -> None:
    async with shop(sqlite) as jobs:
        await jobs.queue(4, seconds=90)
        options = ("--processes", "2", "--concurrency", "2", "--grace-seconds", "80")
        with started(*arguments(sqlite, *options), folder=folder) as workers:
            await jobs.at_least(2, "running")
            workers.signal(signal.SIGINT)
            workers.wait_for_log("stopping: worker processes finish or release")
            await pass_seconds(SAME_SECONDS)
            workers.signal(signal.SIGINT)
            assert workers.ended(seconds=30) == 130, workers.log
            assert not any(is_alive(pid) for pid in workers.workers)


async def test_a_stop_that_reaches_supervisor_and_workers_at_once_is_one_stop(sqlite: Database, folder: Path) -> None:
    async with shop(sqlite) as jobs:
        options = ("--processes", "2", "--concurrency", "1", "--grace-seconds", "60")
        with started(*arguments(sqlite, *options), folder=folder) as workers:
            workers.wait_for_log(r"worker \d is up", times=2)
            await jobs.queue(2, seconds=5)
            await jobs.at_least(2, "running")
            for pid in (*workers.workers, workers.process.pid):
                os.kill(pid, signal.SIGTERM)
            assert workers.ended() == 0, workers.log
            assert "abort" not in workers.log
        assert {job.status for job in await jobs.jobs()} == {"succeeded"}


@pytest.mark.requirement("WC-05")
@pytest.mark.parametrize("processes", ["2", pytest.param("1", marks=pytest.mark.deep)])
async def test_a_hangup_stops_gracefully_however_often_it_comes(sqlite: Database, folder: Path, processes: str) -> None:
    async with shop(sqlite) as jobs:
        await jobs.queue(2, seconds=5)
        options = ("--processes", processes, "--concurrency", "2", "--grace-seconds", "60")
        with started(*arguments(sqlite, *options), folder=folder) as worker:
            await jobs.at_least(2, "running")
            worker.signal(signal.SIGHUP)
            worker.wait_for_log("stopping: ")
            for pid in (*worker.workers, worker.process.pid, worker.process.pid):
                os.kill(pid, signal.SIGHUP)
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0, worker.log
            assert "abort" not in worker.log
            said = [line for line in worker.log.splitlines() if ("stopping: no" in line or "stopping: waiting" in line)]
            assert len(said) == int(processes), worker.log
        assert {job.status for job in await jobs.jobs()} == {"succeeded"}


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
async def test_a_worker_whose_file_is_deleted_or_replaced_ends_with_an_error(
    sqlite: Database, folder: Path, replaced: bool, tmp_path: Path
) -> None:
    async with shop(sqlite) as jobs:
        await jobs.queue(1, seconds=0)
        with started(*arguments(sqlite), folder=folder) as worker:
            await jobs.at_least(1, "succeeded")
            if replaced:
                other = Database(f"sqlite:///{tmp_path / 'other.db'}")
                async with other.opened():
                    pass
                other.path.replace(sqlite.path)
            else:
                sqlite.path.unlink()
            assert worker.ended() == 3, worker.log
            assert f"was {'replaced' if replaced else 'deleted'} while it was open" in worker.log
            assert "put the right file in its place" in worker.log
        with pytest.raises(DatabaseReplaced):
            await jobs.queue(1, seconds=0)


WRONG = [
    ("nowhere:app", "module 'nowhere' not found"),
    ("shop.nowhere:app", "module 'shop.nowhere' not found"),
    ("shop:nothing", "shop has no 'nothing'; its apps are: app"),
    ("shop:nap", "shop:nap is AsyncJobFunction, not a tenure.App"),
    ("shop:", "is not MODULE:APP"),
    (":app", "is not MODULE:APP"),
    ("", "is not MODULE:APP"),
    ("not a module", "is neither a module nor a Python file"),
    ("missing.py", "file missing.py does not exist"),
    ("notes.txt:app", "module 'notes' not found"),
    ("./notes.txt:app", "is not an importable Python file"),
    ("two", "give the name of the app, two:NAME; its apps are: one, other"),
    ("bare", "give the name of the app, bare:NAME; it has no tenure.App"),
    ("empty:app", "the app declares no jobs"),
    ("other/json.py", "importing other/json.py as 'json' finds"),
]


@pytest.mark.parametrize(("target", "expected_text"), WRONG)
def test_a_wrong_target_is_reported_in_one_line(folder: Path, target: str, expected_text: str) -> None:
    (folder / "notes.txt").write_text("Dear Ada")
    (folder / "two.py").write_text("import tenure\none, other = tenure.App(), tenure.App()\n")
    (folder / "bare.py").write_text("app = 1\n")
    (folder / "empty.py").write_text("import tenure\napp = tenure.App()\n")
    (folder / "other").mkdir()
    (folder / "other" / "json.py").write_text(SHOP)
    answer = tenure("worker", target, cwd=folder)
    assert (answer.code, answer.out) == (2, ""), answer
    assert expected_text in answer.err
    assert len(answer.err.splitlines()) == 1


DIVIDES, DIVIDED = "import tenure\n\n1 / 0\n", ["line 3", "ZeroDivisionError", "importing broken failed"]


@pytest.mark.parametrize(
    ("source", "shown", "processes"),
    [
        (DIVIDES, DIVIDED, "1"),
        (DIVIDES, DIVIDED, "2"),
        ("import no_such_library\n", ["line 1", "ModuleNotFoundError", "no_such_library"], "1"),
        ("raise SystemExit(0)\n", ["line 1", "SystemExit"], "1"),
        ("def f(:\n", ["line 1", "SyntaxError"], "1"),
    ],
)
def test_an_error_inside_the_module_shows_its_traceback_once(
    folder: Path, source: str, shown: list[str], processes: str
) -> None:
    (folder / "broken.py").write_text(source)
    with started("worker", "broken:app", "--processes", processes, folder=folder) as worker:
        assert worker.ended() == 1, worker.log
        for part in shown:
            assert part in worker.log
        assert worker.log.count('broken.py"') == 1
        assert "importing.py" not in worker.log
        assert "importlib" not in worker.log


@pytest.mark.parametrize(
    "options",
    [
        ("--concurrency", "0"), ("--concurrency", "many"), ("--processes", "0"), ("--queues", ""), ("--queues", "a,,b"),
        ("--grace-seconds", "-1"), ("--grace-seconds", "nan"), ("--poll-seconds", "0"), ("--scan-seconds", "inf"),
        ("--log-level", "loud"), ("--database", "mysql://x"), ("--database", "postgresql://h:port/x"),
        ("--supervised", "77"), ("--nonsense",),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(folder: Path, options: tuple[str, ...]) -> None:
    answer = tenure("worker", "shop:app", *options, cwd=folder)
    assert (answer.code, answer.out) == (2, ""), answer
    assert not list(folder.glob("*.db"))


def test_an_unusable_database_is_reported_at_the_start(folder: Path, postgres_dsn: str) -> None:
    for url, expected_text in [
        ("postgresql://a:secret@127.0.0.1:1/x", "cannot be reached"),
        (postgres_dsn, "tenure migrate"),
    ]:
        for processes in ("1", "2"):
            answer = tenure("worker", "shop:app", "--database", url, "--processes", processes, cwd=folder)
            assert answer.code == 3, answer
            assert expected_text in answer.err
            assert "secret" not in answer.err


async def test_a_worker_waits_for_the_database_where_it_is_asked_to(folder: Path, postgres_dsn: str) -> None:
    database = Database(postgres_dsn)
    port = free_port()
    before, _, name = postgres_dsn.rpartition("@")[2].partition("/")
    host, _, there = before.rpartition(":")
    user = postgres_dsn.rpartition("@")[0]
    away = f"{user}@127.0.0.1:{port}/{name}{'&' if '?' in name else '?'}sslmode=disable"
    async with shop(database) as jobs:
        await jobs.queue(1)
        options = ("worker", "shop:app", "--database", away, "--wait-for-database", *QUICK)
        with started(*options, folder=folder) as worker:
            worker.wait_for_log("waiting for the database")
            listener = await asyncio.start_server(Relay(host, int(there)).serve, "127.0.0.1", port)
            try:
                await jobs.all_succeeded()
                assert worker.log.count("waiting for the database") == 1
                worker.wait_for_log(r"database available after \d")
                worker.signal(signal.SIGTERM)
                # The wire to the database is in this very process, so that its event loop must go on meanwhile.
                assert await asyncio.to_thread(worker.ended) == 0, worker.log
            finally:
                listener.close()


def test_a_worker_that_waits_for_its_database_can_be_stopped(folder: Path) -> None:
    options = ("--database", "postgresql://127.0.0.1:1/x", "--wait-for-database")
    with started("worker", "shop:app", *options, folder=folder) as worker:
        worker.wait_for_log("waiting for the database")
        worker.signal(signal.SIGTERM)
        assert worker.ended(seconds=10) == 0, worker.log


async def test_the_log_can_be_json_lines(sqlite: Database, folder: Path) -> None:
    async with shop(sqlite) as jobs:
        await jobs.queue(3)
        with started(*arguments(sqlite, "--json", "--processes", "2"), folder=folder) as worker:
            await jobs.all_succeeded()
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0
            lines = [json.loads(line) for line in worker.log.splitlines()]
    assert {"at", "level", "logger", "pid", "message"} <= set(lines[0])
    assert lines[-1]["counts"] == {"claimed": 3, "succeeded": 3}
    assert len({line["pid"] for line in lines}) >= 2


async def test_the_level_of_the_log_is_heeded(sqlite: Database, folder: Path) -> None:
    async with shop(sqlite) as jobs:
        await jobs.queue(1)
        with started(*arguments(sqlite, "--log-level", "error"), folder=folder) as worker:
            await jobs.all_succeeded()
            worker.signal(signal.SIGTERM)
            assert (worker.ended(), worker.log) == (0, "")


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_on_a_terminal_a_table_is_kept_below_the_log(sqlite: Database, folder: Path, processes: str) -> None:
    (folder / "loud.py").write_text(
        "import tenure\napp = tenure.App()\n@app.job(lease_seconds=2)\n"
        "def nap(seconds: float) -> None:\n    print('the job says hello')\n"
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tenure", *arguments(sqlite, "--processes", processes, target="loud:app")]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    async with shop(sqlite) as jobs:
        await jobs.queue(5)
        with subprocess.Popen(command, cwd=folder, env=env, stdout=theirs, stderr=theirs, stdin=theirs) as process:
            os.close(theirs)
            try:
                os.set_blocking(ours, False)
                shown = Terminal(ours)
                await jobs.all_succeeded()
                expected = {"succeeded", "dead-lettered", "jobs/s", "the job says hello"}
                assert wait_until(lambda: all(map(shown.text().__contains__, expected)), seconds=20), shown.text()
                process.send_signal(signal.SIGINT)
                assert wait_until(lambda: shown.text() is not None and process.poll() is not None, seconds=30)
                assert process.returncode == 0, shown.text()
                assert "5 claimed, 5 succeeded" in shown.text()
            finally:
                process.kill()
    os.close(ours)


class Terminal:
    """Reads what was written to it, so that the writer never has to wait."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._read = descriptor, b""

    def text(self) -> str:
        try:
            while more := os.read(self._descriptor, 65_536):
                self._read += more
        except OSError:
            pass  # No output at present, or the other end is closed.
        return self._read.decode(errors="replace")


async def test_only_the_queues_that_were_named_are_served(sqlite: Database, folder: Path) -> None:
    async with shop(sqlite) as jobs:
        drive = Driver(jobs.store)
        payload = encode({"seconds": 0.0})
        for queue in ("mail", "bulk", "other"):
            await jobs.store.enqueue([drive.enqueue(kind="nap", queue=queue, payload=payload, policy=POLICY)])
        with started(*arguments(sqlite, "--queues", "mail, bulk"), folder=folder) as worker:
            await jobs.at_least(2, "succeeded")
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0
        assert {job.queue for job in await jobs.jobs() if job.status in LIVE} == {"other"}


def test_a_file_and_a_module_in_a_package_are_found(folder: Path) -> None:
    package = folder / "store" / "inner"
    package.mkdir(parents=True)
    for place in (package, package.parent):
        (place / "__init__.py").write_text("")
    (package / "jobs.py").write_text("from . import __name__ as own\n" + SHOP)
    for target in ("shop.py", "./shop.py:app", "shop", "store.inner.jobs", "store/inner/jobs.py:app"):
        with started("worker", target, folder=folder) as worker:
            worker.wait_for_log("  queues: +default")
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0, worker.log


ISOLATED = """
import os
import tenure

app = tenure.App("sqlite:///another.db")


@app.job(lease_seconds=5, isolation="process")
def nap(ctx: tenure.Context, seconds: float) -> int:
    with ctx.commit(result=os.getpid()) as tx:
        tx.execute("insert into effects values ($1)", seconds)
    return os.getpid()
"""


async def test_jobs_with_process_isolation_use_the_given_database(sqlite: Database, folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "own.py").write_text(ISOLATED)
    async with shop(sqlite) as jobs:
        async with jobs.store.transaction(deadline_seconds=5) as tx:
            await tx.execute("create table effects (seconds real)")
        await jobs.queue(2, seconds=1.5)
        target = "inner/own.py:app"
        with started(*arguments(sqlite, "--processes", "2", target=target), folder=folder) as workers:
            ended = await jobs.all_succeeded()
            workers.signal(signal.SIGTERM)
            assert workers.ended() == 0, workers.log
        assert not {int(job.result or 0) for job in ended} & {workers.process.pid, *workers.workers}
        async with jobs.store.transaction(deadline_seconds=5) as tx:
            assert await tx.fetch("select seconds from effects") == [{"seconds": 1.5}] * 2
    assert not list(folder.glob("another.db"))
