"""Ends whose content cannot be stored fail their jobs. Refused, an engine would send them again for ever."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.engines.client import EngineJob
from tenure.engines.protocol import JobDispatch
from tenure.lifecycle.statuses import FAILED, RETRY, RUNNING
from tests.engines.test_engines import process, python_engine, running
from tests.support.engine_server import served
from tests.support.engine_socket import LIMIT_SECONDS, connected, declare, opened_gateway, until

PROGRAM = Path(__file__).parents[1] / "support" / "engine_program.mjs"


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


INVALID: dict[str, tuple[str, dict[str, Any], str]] = {
    "NUL in a result": ("job_complete", {"result": "a\0"}, "failed"),
    "lone surrogate in a result": ("job_complete", {"result": "\ud800"}, "failed"),
    "result nested too deep": ("job_complete", {"result": nested(70)}, "failed"),
    "no result": ("job_complete", {}, "failed"),
    "NUL in an error": ("job_failed", {"error": {"type": "E", "message": "\0"}, "action": "fail"}, "failed"),
    "error that is too long": ("job_failed", {"error": {"type": "E", "message": "x" * 20_000}}, "retry"),
    "error without a type": ("job_failed", {"error": {"type": "", "message": "m"}}, "retry"),
}


@pytest.mark.requirement("EH-01", "EH-06")
@pytest.mark.parametrize("name", INVALID)
async def test_an_end_that_is_not_valid_fails_its_job_once_and_closes_no_socket(app: tenure.App, name: str) -> None:
    type_, fields, status = INVALID[name]
    render = declare(app, backoff=tenure.Backoff(base_seconds=3600))
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        about = {"type": type_, "job_id": str(dispatch.job_id), "claim": dispatch.claim, **fields}
        for number in (1001, 1002):
            engine.socket.engine_sends(json.dumps({**about, "id": number}))
            ack = await engine.acked(number)
            assert (ack.outcome, ack.status) == ("recorded", status)
        job = await until(app, handle, FAILED, RETRY)
        assert (job.status, job.failures) == (status, 1)
        error = json.loads(job.last_error)
        assert (error["type"], error["message"].startswith(f"{type_} is not valid: ")) == ("InvalidMessage", True)
        later = await render.enqueue("next")
        await engine.acked(engine.about(await engine.next(JobDispatch), "job_complete", result="x"))
        assert await later.result(timeout_seconds=LIMIT_SECONDS) == "x"


async def cancelled_by_itself() -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


@pytest.mark.requirement("EH-06")
async def test_whatever_a_handler_of_the_python_engine_does_its_job_ends(app: tenure.App) -> None:
    render = declare(app, max_attempts=1, on_exhausted="fail")
    errors = {
        "text": "LookupError",
        "huge": "the result has 2000002 bytes",
        "no JSON": "TypeError",
        "cancelled": "CancelledError",
        "long": "characters left out",
        "none": "ResultRefused",
    }
    async with served(app) as at:
        engine = python_engine(at)

        @engine.handles("render")
        async def handle(job: EngineJob) -> Any:
            scene = job.payload["scene"]
            if scene == "text":
                await job.progress(1, "\0")
                raise LookupError("\0 and \udc80")
            if scene == "cancelled":
                await cancelled_by_itself()
            if scene == "long":
                raise ValueError("x" * 100_000)
            return {"huge": "x" * 2_000_000, "no JSON": object()}.get(scene)

        async with running(engine):
            for scene, error in errors.items():
                job = await until(app, await render.enqueue(scene), FAILED)
                assert error in (job.error or "")
        assert engine._epoch == 1


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_a_result_of_the_javascript_engine_that_is_too_large_fails_its_job(
    app: tenure.App, tmp_path: Path
) -> None:
    render = declare(app)
    (tmp_path / "huge").touch()
    async with served(app) as at:
        node = ("node", "--experimental-websocket", str(PROGRAM), at.socket_url, str(tmp_path))
        async with process(*node, token=at.token):
            running_job = await render.enqueue("other")
            await until(app, running_job, RUNNING)
            job = await until(app, await render.enqueue("huge"), FAILED)
            assert "bytes" in (job.error or "")
            assert [connection.epoch for connection in at.gateway.connections] == [1]
