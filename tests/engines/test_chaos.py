"""Many jobs over engines that disconnect, fall silent and are killed: no job is lost, and each ends once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

import tenure
from tenure.engines.client import Engine, EngineJob
from tenure.lifecycle.statuses import TERMINAL
from tenure.vocabularies import vocabulary
from tests.support.engine_server import ServedGateway, served
from tests.support.engine_socket import declare, log_of

JOBS, ENGINES = 1000, 3
SECONDS_MAX = 240.0
ENDS = {"JOB_COMPLETED", "JOB_FAILED"}


class UnreliableEngine:
    """An engine that is disconnected, silenced or killed at random, and then started again."""

    def __init__(self, at: ServedGateway, name: str, rng: random.Random) -> None:
        self._at, self._name, self._rng, self.lives = at, name, rng, 0

    async def run(self) -> None:
        while True:
            self.lives += 1
            engine = Engine(self._at.socket_url, token=self._at.token, engine_id=self._name, capacity=20)
            engine.handles("render")(self._render)
            task = asyncio.create_task(engine.run())
            try:
                await self._disturb(engine)
            finally:
                task.cancel()
                for job in list(engine._tasks.values()):
                    job.cancel()
                await asyncio.wait({task})

    async def _render(self, job: EngineJob) -> str:
        # All jobs take some seconds, in which engines are killed.
        await asyncio.sleep(self._rng.random() * 0.1)
        if self._rng.random() < 0.05:
            raise RuntimeError("the asset server hiccuped")
        return str(job.payload["scene"])

    async def _disturb(self, engine: Engine) -> None:
        """Disconnect it a few times; then it is killed by its owner, which waits for the end of this."""
        for _ in range(self._rng.randint(1, 4)):
            await asyncio.sleep(0.2 + self._rng.random())
            if engine._socket is None:
                continue
            assert isinstance(engine._socket, ClientConnection)
            if self._rng.random() < 0.5:
                await engine._socket.close()
            else:
                # Silent: it reads no more, and sends nothing, until the gateway ends the connection.
                engine._socket.transport.pause_reading()


@pytest.mark.deep
@pytest.mark.requirement("EH-04", "EH-11", "EH-12")
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
    rng = random.Random(22)
    async with served(app, heartbeat_seconds=0.2, silence_seconds=1.0) as at:
        engines = [UnreliableEngine(at, f"e{number}", rng) for number in range(ENGINES)]
        tasks = [asyncio.create_task(engine.run()) for engine in engines]
        store = await app.store()
        ids = [handle.id for handle in handles]
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                jobs = await store.read(ids)
                if all(job.status in TERMINAL for job in jobs.values()):
                    break
                await asyncio.sleep(0.25)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert sum(engine.lives for engine in engines) > ENGINES
    assert {job.status.value for job in jobs.values()} == {"succeeded"}
    assert sum(job.losses + job.failures for job in jobs.values()) > 0
    for handle in handles:
        log = await log_of(app, handle)
        names = [one.name for one in vocabulary("engine").translate_log(jobs[handle.id].origin, log)]
        assert names[0] == "JOB_QUEUED"
        assert len(ENDS.intersection(names)) == sum(name in ENDS for name in names) == 1
