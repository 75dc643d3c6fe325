"""Jobs of a worker that was killed run again as their kind declares, in the worker that takes them over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import RUNNING
from tenure.stores.contract import JobFilter, Store
from tests.support.databases import Database
from tests.support.running_command import until
from tests.support.server_process import children_of

JOBS = 60
SECONDS = 90.0

PROGRAM = f"""
import asyncio, sys
import tenure

app = tenure.App(sys.argv[1])
settings = {{}}

@app.job(lease_seconds=3, max_attempts=2, on_exhausted="fail", timeouts=tenure.Timeouts(running_seconds=60))
async def work(ctx: tenure.Context) -> str:
    await asyncio.sleep(3600 if ctx.attempt == 1 else 2)
    return settings["name"]

async def main() -> None:
    settings["name"] = "set at the start"
    if sys.argv[2] == "enqueue":
        await app.enqueue_many([work.request() for _ in range({JOBS})])
    await app.worker(concurrency={JOBS}, poll_seconds=0.05, scan_seconds=0.2).run()

asyncio.run(main())
"""
"""It has no `__main__` guard, and state that only its own process has."""


@contextmanager
def worker_program(database: Database, folder: Path, argument: str) -> Iterator[subprocess.Popen[bytes]]:
    script = folder / "program.py"
    script.write_text(PROGRAM)
    with subprocess.Popen([sys.executable, str(script), database.url, argument]) as program:
        try:
            yield program
        finally:
            program.kill()


async def all_jobs(store: Store) -> list[Job]:
    return list((await store.find(JobFilter(), limit=2 * JOBS)).jobs)


@pytest.mark.requirement("WC-05", "EH-04")
@pytest.mark.timeout(240)
async def test_all_jobs_of_a_killed_worker_succeed_at_their_second_attempt(database: Database, tmp_path: Path) -> None:
    async with database.opened() as store:

        async def all_run() -> bool:
            return [job.status for job in await all_jobs(store)] == [RUNNING] * JOBS

        async def all_ended() -> bool:
            return all(job.finished_at is not None for job in await all_jobs(store))

        with worker_program(database, tmp_path, "enqueue") as first:
            await until(all_run, seconds=SECONDS)
            first.kill()
        with worker_program(database, tmp_path, "work") as second:
            await until(all_ended, seconds=SECONDS)
            assert children_of(second.pid) == []
        ended = [(job.status, job.attempt, job.failures, job.result) for job in await all_jobs(store)]
    assert ended == [("succeeded", 2, 1, '"set at the start"')] * JOBS
