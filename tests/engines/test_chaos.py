"""Many jobs over engine processes that are disconnected, fall silent and are killed: no job is lost, each ends once."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.lifecycle.statuses import TERMINAL
from tenure.vocabularies import vocabulary
from tests.support.engine_server import served
from tests.support.engine_socket import declare, log_of
from tests.support.load_balancer import Connections, balanced

JOBS = 1000
SECONDS_MAX = 240.0
SILENCE_SECONDS = 1.0
ENDS = {"JOB_COMPLETED", "JOB_FAILED"}
SUPPORT = Path(__file__).parents[1] / "support"
PYTHON = (sys.executable, "-m", "tests.support.unreliable_program")
NODE = ("node", "--experimental-websocket", str(SUPPORT / "unreliable_program.mjs"))
PROGRAMS = (PYTHON, PYTHON, NODE if shutil.which("node") else PYTHON)
FAULTS = ("disconnected", "silent", "killed")


class UnreliableEngine:
    """An engine process that is disconnected, stopped for a while or killed at random, and then started again."""

    def __init__(self, number: int, url: str, token: str, connections: Connections, faults: Counter[str]) -> None:
        self._command = (*PROGRAMS[number], url)
        self._env = {**os.environ, "TENURE_TOKEN": token, "ENGINE_ID": f"e{number}"}
        self._rng, self._connections, self._faults, self._next = random.Random(number), connections, faults, number

    async def run(self) -> None:
        while True:
            process = await asyncio.create_subprocess_exec(*self._command, env=self._env, start_new_session=True)
            try:
                while process.returncode is None:
                    await asyncio.sleep(0.3 + 1.5 * self._rng.random())
                    await self._disturb(process)
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _disturb(self, process: asyncio.subprocess.Process) -> None:
        # Each engine meets all faults in turn, and each begins with another one.
        fault = FAULTS[self._next % len(FAULTS)]
        self._next += 1
        if fault == "disconnected" and not self._connections.cut_one(self._rng):
            return
        self._faults[fault] += 1
        if fault == "silent":
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(2 * SILENCE_SECONDS)
            process.send_signal(signal.SIGCONT)
        elif fault == "killed":
            process.kill()
            await process.wait()


@pytest.mark.deep
@pytest.mark.requirement("EH-04", "EH-07", "EH-11", "EH-12")
@pytest.mark.timeout(300)
async def test_no_job_is_lost_and_each_ends_once(app: tenure.App) -> None:
    options: dict[str, Any] = {
        "lease_seconds": 3.0,
        "heartbeat_seconds": 0.5,
        "max_attempts": 1000,
        "timeouts": tenure.Timeouts(claimed_seconds=1.0, running_seconds=10.0),
        "backoff": tenure.Backoff(base_seconds=0.01, max_seconds=0.1),
    }
    render = declare(app, **options)
    handles = await app.enqueue_many(render.request(str(number)) for number in range(JOBS))
    faults, connections, store = Counter[str](), Connections(), await app.store()
    settings: dict[str, Any] = {"heartbeat_seconds": SILENCE_SECONDS / 5, "silence_seconds": SILENCE_SECONDS}
    async with (
        served(app, **settings) as first,
        served(app, token=first.token, **settings) as second,
        balanced([first.port, second.port], connections) as port,
    ):
        url = f"ws://127.0.0.1:{port}/engine"
        engines = [UnreliableEngine(number, url, first.token, connections, faults) for number in range(len(PROGRAMS))]
        tasks = [asyncio.create_task(engine.run()) for engine in engines]
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while True:
                    jobs = await store.read([handle.id for handle in handles])
                    if all(job.status in TERMINAL for job in jobs.values()) and set(faults) == set(FAULTS):
                        break
                    await asyncio.sleep(0.25)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    assert sum(job.losses for job in jobs.values()) > 0
    for number, handle in enumerate(handles):
        log = await log_of(app, handle)
        names = [one.name for one in vocabulary("engine").translate_log(jobs[handle.id].origin, log)]
        assert names[0] == "JOB_QUEUED"
        assert [name for name in names if name in ENDS] == ["JOB_COMPLETED" if number % 50 else "JOB_FAILED"]
