"""Reference engines in Python, JavaScript and shell against a gateway behind a real server."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

import tenure
from tenure.engines.client import Engine, EngineJob
from tenure.engines.protocol import SUBPROTOCOL
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, Status
from tests.support.engine_server import ServedGateway, served
from tests.support.engine_socket import LIMIT_SECONDS, SECRET, declare, log_of, until

EXAMPLES = Path(__file__).parents[2] / "examples"
PROTOCOLS = [Subprotocol(SUBPROTOCOL)]
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[Engine]:
    task = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        engine.stop()
        await asyncio.wait_for(task, LIMIT_SECONDS)


def python_engine(at: ServedGateway, **options: Any) -> Engine:
    return Engine(at.socket_url, token=at.token, **{"engine_id": "py", **options})


@pytest.mark.requirement("EH-01", "SM-16")
async def test_the_python_engine_runs_jobs_and_receives_their_trace(app: tenure.App) -> None:
    render = declare(app)
    async with served(app) as at:
        engine = python_engine(at)
        traces: list[str | None] = []

        @engine.handles("render")
        async def handle(job: EngineJob) -> str:
            traces.append(job.dispatch.trace)
            await job.progress(50)
            return f"{job.payload['scene']}.png"

        async with running(engine):
            handles = [await render.options(trace=TRACE).enqueue(str(number)) for number in range(10)]
            results = [await one.result(timeout_seconds=LIMIT_SECONDS) for one in handles]
        assert results == [f"{number}.png" for number in range(10)]
        assert traces == [TRACE] * 10
        assert {event.trace for event in await log_of(app, handles[0])} == {TRACE}


async def test_errors_of_a_python_engine_are_retried_or_final(app: tenure.App) -> None:
    render = declare(app, max_attempts=2, backoff=tenure.Backoff(base_seconds=0.01))
    async with served(app) as at:
        engine = python_engine(at)

        @engine.handles("render")
        async def handle(job: EngineJob) -> str:
            if job.payload["scene"] == "bad asset":
                raise tenure.PermanentError("no such asset")
            raise RuntimeError("try again")

        async with running(engine):
            final, retried = await render.enqueue("bad asset"), await render.enqueue("flaky")
            assert (await until(app, final, FAILED)).attempt == 1
            assert (await until(app, retried, DEAD_LETTERED)).attempt == 2


async def test_the_python_engine_goes_on_with_its_jobs_after_a_gateway_restart(app: tenure.App) -> None:
    render = declare(app, on_lost="fail")
    release, started = asyncio.Event(), asyncio.Event()
    async with served(app) as at:
        engine = python_engine(at)

        @engine.handles("render")
        async def handle(job: EngineJob) -> str:
            started.set()
            await release.wait()
            return "kept"

        task = asyncio.create_task(engine.run())
        job = await render.enqueue("intro")
        await asyncio.wait_for(started.wait(), LIMIT_SECONDS)
    async with served(app, port=at.port, token=at.token):
        release.set()
        assert await job.result(timeout_seconds=LIMIT_SECONDS) == "kept"
        engine.stop()
        await asyncio.wait_for(task, LIMIT_SECONDS)
    assert (await until(app, job, Status.SUCCEEDED)).attempt == 1


@asynccontextmanager
async def process(*command: str, token: str) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "TENURE_TOKEN": token}, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, 9)
        await child.wait()


NO_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
PROGRAMS = {
    "javascript": ("node", "--experimental-websocket", str(EXAMPLES / "engine-js" / "render.mjs")),
    "python": (sys.executable, str(EXAMPLES / "engine.py")),
}


@pytest.mark.requirement("EH-01")
@pytest.mark.parametrize("language", ["python", pytest.param("javascript", marks=NO_NODE)])
async def test_the_example_engine_runs_jobs(app: tenure.App, language: str) -> None:
    render = declare(app)
    async with served(app) as at, process(*PROGRAMS[language], at.socket_url, token=at.token):
        bad = await render.enqueue("")
        handles = [await render.enqueue(str(number)) for number in range(10)]
        assert [await one.result(timeout_seconds=60) for one in handles] == [f"{number}.png" for number in range(10)]
        assert "the scene has no name" in ((await until(app, bad, FAILED)).error or "")
    types = [event.type.value for event in await log_of(app, handles[0])]
    assert types == ["enqueued", "claimed", "acked", "started", "progress", "succeeded"]


@pytest.mark.requirement("EH-01")
@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("jq") is None, reason="curl or jq is not installed")
async def test_the_shell_engine_runs_jobs_over_http(app: tenure.App) -> None:
    render = declare(app)
    async with served(app) as at, process("sh", str(EXAMPLES / "engine.sh"), at.url, token=at.token):
        good, bad = await render.enqueue("intro"), await render.enqueue("")
        assert await good.result(timeout_seconds=60) == "intro.png"
        assert "BadAsset" in ((await until(app, bad, FAILED)).error or "")


async def test_a_wrong_token_is_refused_on_every_endpoint(app: tenure.App) -> None:
    declare(app)
    async with served(app) as at:
        for header in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(InvalidStatus):
                async with connect(at.socket_url, subprotocols=PROTOCOLS, additional_headers=header):
                    pass
        for path in ("claim", "renew", "report"):
            assert await post(at, path, {}, token="wrong") == (401, {"error": "the access token is missing or wrong"})


async def post(at: ServedGateway, path: str, body: Any, *, token: str | None = None) -> tuple[int, Any]:
    """POST by curl's protocol, on a plain socket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    head = f"POST /engine/{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n"
    writer.write(f"{head}Authorization: Bearer {token or at.token}\r\n\r\n".encode() + data)
    answer = await asyncio.wait_for(reader.read(), LIMIT_SECONDS)
    writer.close()
    status, _, rest = answer.partition(b"\r\n")
    return int(status.split()[1]), msgspec.json.decode(rest.partition(b"\r\n\r\n")[2])


WHO = {"engine_id": "poller", "session": SECRET}


async def test_an_engine_claims_renews_and_completes_over_http(app: tenure.App) -> None:
    render = declare(app)
    async with served(app) as at:
        handle = await render.options(trace=TRACE).enqueue("intro")
        claim = {**WHO, "kinds": ["render"], "claim": 1, "wait_seconds": 20}
        status, reply = await post(at, "claim", claim)
        [job] = reply["jobs"]
        assert (status, job["payload"], job["trace"]) == (200, {"scene": "intro"}, TRACE)
        # The same claim number returns the same job.
        assert (await post(at, "claim", claim))[1] == reply
        held = {"job_id": job["job_id"], "claim": 1}
        renewed = {"jobs": [{"job_id": job["job_id"], "outcome": "renewed", "cancel_requested": False}]}
        assert await post(at, "renew", {**WHO, "jobs": [held]}) == (200, renewed)
        stolen = {**WHO, "session": "t" * 32, "jobs": [held]}
        assert (await post(at, "renew", stolen))[1]["jobs"][0]["outcome"] == "lost"
        done = {**WHO, **held, "type": "job_complete", "id": 1, "result": "x"}
        for _ in range(2):
            assert (await post(at, "report", done))[1]["outcome"] == "recorded"
        assert await handle.result(timeout_seconds=LIMIT_SECONDS) == "x"
        assert (await post(at, "renew", {**WHO, "jobs": [held]}))[1]["jobs"][0]["outcome"] == "lost"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("claim", b"{", 422),
        ("claim", {**WHO, "kinds": ["unheard"], "claim": 1, "wait_seconds": 0}, 422),
        ("claim", {**WHO, "kinds": ["render"], "claim": 0}, 422),
        ("claim", b"[" + b"1," * 600_000 + b"1]", 413),
        ("renew", {**WHO, "jobs": []}, 422),
        ("report", {**WHO, "type": "heartbeat", "id": 1}, 422),
        ("report", {**WHO, "type": "job_complete", "id": 1}, 422),
    ],
)
async def test_a_bad_request_is_refused_with_its_reason(app: tenure.App, path: str, body: Any, status: int) -> None:
    declare(app)
    async with served(app) as at:
        answered, reply = await post(at, path, body)
        assert answered == status
        assert reply["error"]


async def closed_by_gateway(engine: ClientConnection) -> None:
    """Read until the gateway has closed the socket."""
    async with asyncio.timeout(LIMIT_SECONDS):
        with suppress(ConnectionClosed):
            async for _ in engine:
                continue


HUGE = "x" * 100_000_000


async def test_a_hostile_engine_harms_only_itself(app: tenure.App) -> None:
    render = declare(app)
    async with served(app) as at:
        header = {"Authorization": f"Bearer {at.token}"}
        engine = python_engine(at)

        @engine.handles("render")
        async def handle(job: EngineJob) -> str:
            return "fine"

        hello = {"type": "hello", "engine_id": "evil", "session": "e" * 32, "kinds": ["render"], "capacity": 1}
        async with running(engine):
            for frame in (HUGE, b"\x00\x01", '{"type":"job_ack"}', '{"type":"hello"}', "[" * 100_000):
                # Compressed, the huge frame has a thousandth of its size.
                for compression in ("deflate", None) if frame is HUGE else ("deflate",):
                    async with connect(
                        at.socket_url,
                        subprotocols=PROTOCOLS,
                        additional_headers=header,
                        max_size=None,
                        compression=compression,
                        close_timeout=1,
                    ) as evil:
                        await evil.send(msgspec.json.encode(hello).decode())
                        with suppress(ConnectionClosed):
                            await evil.send(frame)
                        await closed_by_gateway(evil)
            async with connect(
                at.socket_url,
                subprotocols=PROTOCOLS,
                additional_headers=header,
            ) as flood:
                await flood.send(msgspec.json.encode({**hello, "epoch": 99}).decode())
                about = '"id":1,"job_id":"01a1efc1-15ba-718a-9b69-be67e6246fad","claim":1'
                foreign = f'{{"type":"job_complete",{about},"result":1}}'
                for _ in range(500):
                    await flood.send(foreign)
                handles = [await render.enqueue(str(number)) for number in range(10)]
                # Jobs that the hostile engine was given come back after claimed_seconds; most are not its.
                results = [await one.result(timeout_seconds=60) for one in handles]
            assert results == ["fine"] * 10
