"""Engines that lose their connection or their gateway, and go on with their jobs."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

import tenure
from tenure.engines.client import Engine, EngineJob
from tenure.engines.protocol import EngineMessage, JobAck, JobStarted
from tenure.lifecycle.statuses import RUNNING
from tests.engines.test_engines import process, running
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.engine_server import served
from tests.support.engine_socket import LIMIT_SECONDS, declare, log_of, until
from tests.support.load_balancer import balanced
from tests.support.running_command import Started, started

PROGRAM = Path(__file__).parents[1] / "support" / "engine_program.mjs"
NO_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
NODE = ("node", "--experimental-websocket")
JOBS = """
import tenure

app = tenure.App()


@app.remote_job(on_lost="fail", heartbeat_seconds=15)
def render(scene: str) -> str: ...
"""


class CutEngine(Engine):
    """An engine whose first connection breaks before the start of its job arrives."""

    async def send(self, message: EngineMessage) -> None:
        if self._epoch == 1 and isinstance(message, JobAck | JobStarted):
            if self._socket is not None:
                await self._socket.close()  # type: ignore[attr-defined]
            return
        await super().send(message)


@pytest.mark.requirement("EH-01", "EH-02")
async def test_a_start_that_was_lost_with_the_connection_is_reported_on_the_next_one(app: tenure.App) -> None:
    render = declare(app)
    release = asyncio.Event()
    async with served(app) as at:
        engine = CutEngine(at.socket_url, token=at.token, engine_id="py")

        @engine.handles("render")
        async def handle(job: EngineJob) -> str:
            await release.wait()
            return "kept"

        async with running(engine):
            job = await render.enqueue("intro")
            await until(app, job, RUNNING)
            release.set()
            assert await job.result(timeout_seconds=LIMIT_SECONDS) == "kept"
    assert [event.type.value for event in await log_of(app, job)].count("claimed") == 1


def gateway_port(gateway: Started) -> int:
    gateway.wait_for_log(r"at http://127\.0\.0\.1:\d+/engine", seconds=60)
    return int(gateway.log.partition("at http://127.0.0.1:")[2].partition("/")[0])


@pytest.mark.requirement("EH-01", "EH-04")
@NO_NODE
async def test_the_javascript_engine_goes_on_through_another_gateway_when_the_first_is_killed(
    database: Database, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    token = json.loads(command("engines", "token", "node", "--json").out)
    (tmp_path / "tokens").write_text(token["line"])
    serve = ("engines", "serve", "jobs:app", "--tokens", "tokens", "--port", "0", "--database", database.url)
    async with database.opened(), tenure.App(database.url) as app:
        render = declare(app, on_lost="fail", heartbeat_seconds=15)
        with ExitStack() as stack:
            first, second = (stack.enter_context(started(*serve, folder=tmp_path)) for _ in range(2))
            ports = [gateway_port(first), gateway_port(second)]
            async with balanced(ports) as port:
                url = f"ws://127.0.0.1:{port}/engine"
                async with process(*NODE, str(PROGRAM), url, str(tmp_path), token=token["token"]) as engine:
                    jobs = [await render.enqueue(scene) for scene in ("one", "two")]
                    for job in jobs:
                        await until(app, job, RUNNING)
                    first.signal(signal.SIGKILL)
                    await asyncio.to_thread(second.wait_for_log, "2 resumed jobs")
                    for scene in ("one", "two"):
                        (tmp_path / scene).touch()
                    results = [await job.result(timeout_seconds=60) for job in jobs]
        assert results == [f"{scene} by {engine.pid}" for scene in ("one", "two")]
        for job in jobs:
            types = [event.type.value for event in await log_of(app, job)]
            assert [types.count(type_) for type_ in ("claimed", "started", "succeeded")] == [1, 1, 1]
            assert "stalled" not in types
