"""Engines that lose their connection or their gateway, and go on with their jobs."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.engines.client import Engine, EngineJob, EngineStopped
from tenure.engines.protocol import CancelJob, EngineMessage, JobAck, JobDispatch, JobStarted, Welcome
from tenure.lifecycle.statuses import RUNNING
from tests.engines.test_engines import process, running
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.engine_server import served
from tests.support.engine_socket import LIMIT_SECONDS, connected, declare, log_of, opened_gateway, until
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


@pytest.mark.requirement("EH-01")
async def test_an_engine_connects_once_its_load_balancer_has_a_gateway_again(
    app: tenure.App, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a gateway it replies with a status, or closes the connection in the middle of the handshake."""
    render = declare(app)
    replies = [
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        b"",
        b"HTTP/1.1 502 Bad Gateway\r\n\r\n",
    ]
    sent = asyncio.Semaphore(0)

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(replies.pop(0) if replies else b"")
        writer.close()
        sent.release()

    balancer = await asyncio.start_server(reply, "127.0.0.1", 0)
    port = balancer.sockets[0].getsockname()[1]
    engine = Engine(f"ws://127.0.0.1:{port}/engine", token="tnr_balanced", engine_id="py")

    @engine.handles("render")
    async def handle(job: EngineJob) -> str:
        return "fine"

    async with running(engine):
        for _ in range(4):
            await asyncio.wait_for(sent.acquire(), LIMIT_SECONDS)
        balancer.close()
        async with served(app, port=port, token="tnr_balanced"):
            assert await (await render.enqueue("intro")).result(timeout_seconds=LIMIT_SECONDS) == "fine"
            engine.stop()
    losses = [record for record in caplog.records if "lost or refused" in record.getMessage()]
    assert [(record.levelname, record.name) for record in losses] == [("WARNING", "tenure.engine")]


async def test_an_engine_that_no_gateway_would_accept_stops_with_the_reason(app: tenure.App) -> None:
    declare(app)

    async def reason(url: str, *kinds: str, token: str) -> str:
        engine = Engine(url, token=token, engine_id="py")
        for kind in kinds:
            engine.handles(kind)(None)  # type: ignore[arg-type]
        with pytest.raises(EngineStopped) as stopped:
            await asyncio.wait_for(engine.run(), LIMIT_SECONDS)
        return str(stopped.value)

    async with served(app) as at:
        url = at.socket_url
        assert await reason(url, "render", token="wrong") == (
            f"{url} refused the engine: its access token is missing or wrong, or the path is not /engine (HTTP 403)"
        )
        assert await reason(url, "unheard", token=at.token) == (
            f"{url} refused the engine: not declared as remote jobs of this app: unheard"
        )
        assert "or the path is not /engine (HTTP 403)" in await reason(f"{url}s", "render", token=at.token)
        assert "ws://127.0.0.1:8080/engine" in await reason(at.url, "render", token=at.token)
        assert "declare a function" in await reason(url, token=at.token)


@pytest.mark.requirement("EH-04")
async def test_all_jobs_of_an_engine_are_resumed_at_the_same_time(app: tenure.App) -> None:
    render = declare(app)
    jobs = await app.enqueue_many(render.request(str(number)) for number in range(200))
    async with opened_gateway(app) as gateway, connected(gateway, "render", capacity=201) as engine:
        dispatches = [await engine.next(JobDispatch) for _ in jobs]
        held = [{"job_id": dispatch.job_id, "claim": dispatch.claim} for dispatch in dispatches]
        # One of them has ended meanwhile.
        await app.cancel(jobs[7].id, hard=True)
        store, calls = gateway.services.store, Counter[str]()
        gateway.services.store = CountingStore(store, calls)
        again = connected(gateway, "render", capacity=201, epoch=2, claim=dispatches[-1].claim, jobs=held, wait=False)
        async with again as engine:
            kept = {job.job_id for job in (await engine.next(Welcome)).jobs}
    assert kept == {job.id for job in jobs} - {jobs[7].id}
    assert (calls["read"], calls["apply"]) <= (2, 6), calls


class CountingStore:
    """Counts the calls of a store."""

    def __init__(self, store: Any, calls: Counter[str]) -> None:
        self._store, self._calls = store, calls

    def __getattr__(self, name: str) -> Any:
        self._calls[name] += 1
        return getattr(self._store, name)


async def test_a_connection_keeps_nothing_of_jobs_that_it_has_lost(app: tenure.App) -> None:
    render = declare(app, on_timeout="fail", timeouts=tenure.Timeouts(claimed_seconds=0.3))
    async with opened_gateway(app) as gateway, connected(gateway, "render", capacity=3) as engine:
        for _ in range(3):
            await render.enqueue("intro")
            await engine.next(CancelJob)
        [connection] = gateway.connections
        assert connection.unfinished == 0
        assert (await engine.acked(engine.say("heartbeat"))).outcome == "recorded"
        assert len(connection._job_locks) == 0


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
