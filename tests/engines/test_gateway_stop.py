"""A gateway that stops: idle engines leave at once, requests over HTTP are sent elsewhere, and the log is short."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

import tenure
from tenure.engines.long_poll import LongPoll, PollClaim
from tenure.engines.protocol import GatewayDrain, JobDispatch
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import CLAIMED, QUEUED
from tenure.stores.contract import ClaimRequest
from tests.engines.test_engines import WHO, post
from tests.engines.test_hostile_conditions import refused_some, unreliable_gateway
from tests.support.engine_server import ServedGateway, served
from tests.support.engine_socket import LIMIT_SECONDS, SECRET, ManualEngine, connected, declare, opened_gateway, until


async def health(at: ServedGateway) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), LIMIT_SECONDS)
    writer.close()
    return answer.decode().rpartition("\r\n\r\n")[2]


async def test_an_idle_engine_leaves_at_once_and_another_one_finishes_its_job(app: tenure.App) -> None:
    render = declare(app)
    async with (
        opened_gateway(app, grace_seconds=LIMIT_SECONDS) as gateway,
        connected(gateway, "render", capacity=1) as busy,
    ):
        handle = await render.enqueue("intro")
        dispatch = await busy.next(JobDispatch)
        async with connected(gateway, "render", engine_id="e2") as idle:
            stopping = asyncio.create_task(gateway.stop())
            assert (await idle.refused()).code == "stopping"
        await busy.next(GatewayDrain)
        assert (await busy.acked(busy.about(dispatch, "job_complete", result="x"))).outcome == "recorded"
        assert (await busy.refused()).code == "stopping"
        await asyncio.wait_for(stopping, LIMIT_SECONDS)
        assert await handle.result(timeout_seconds=LIMIT_SECONDS) == "x"


@pytest.mark.requirement("EH-01")
async def test_a_claim_over_http_that_waits_at_a_stop_is_sent_elsewhere(app: tenure.App) -> None:
    render = declare(app)
    claim = {**WHO, "kinds": ["render"], "claim": 2, "wait_seconds": 50}
    async with served(app) as at:
        await render.enqueue("intro")
        [job] = (await post(at, "claim", {**claim, "claim": 1}))[1]["jobs"]
        assert await health(at) == "ok\n"
        waiting = asyncio.create_task(post(at, "claim", claim))
        await polled(at)
        await at.gateway.stop()
        refused = (503, {"error": "this gateway stops; connect to another one"})
        assert await waiting == refused
        assert await post(at, "claim", claim) == refused
        assert await health(at) == "stopping\n"
        done = {**WHO, "job_id": job["job_id"], "claim": 1, "type": "job_complete", "id": 1, "result": "x"}
        assert (await post(at, "report", done))[1]["outcome"] == "recorded"


async def polled(at: ServedGateway) -> None:
    """Wait until the gateway has claimed for an engine over HTTP."""
    store, claimed = at.gateway.services.store, asyncio.Event()
    claim = store.claim

    async def noticed(request: ClaimRequest) -> list[Job]:
        found = await claim(request)
        claimed.set()
        return found

    store.claim = noticed  # type: ignore[method-assign]
    await asyncio.wait_for(claimed.wait(), LIMIT_SECONDS)


async def test_nothing_is_claimed_for_an_engine_over_http_that_is_gone(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway:
        handle = await render.enqueue("intro")
        request = PollClaim(engine_id="poller", session=SECRET, kinds=("render",), claim=1, wait_seconds=50.0)

        async def disconnected() -> bool:
            return True

        reply = await LongPoll(gateway).claim(request, token_id="t1", disconnected=disconnected)
        assert reply.jobs == ()
        assert (await until(app, handle, QUEUED)).attempt == 0


async def test_an_outage_of_the_database_has_one_line_at_its_begin_and_one_at_its_end(
    app: tenure.App, caplog: pytest.LogCaptureFixture
) -> None:
    render = declare(app)
    caplog.set_level("INFO")
    async with unreliable_gateway(app) as (gateway, store), AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(connected(gateway, "render", engine_id=f"e{n}")) for n in range(3)]
        store.down = True
        handle = await render.enqueue("intro")
        await refused_some(store, 6)
        async with connected(gateway, "render", engine_id="gone"):
            await refused_some(store, 6)
        store.down = False
        await asyncio.wait_for(first_of(engines), LIMIT_SECONDS)
        await until(app, handle, CLAIMED)
        async with asyncio.timeout(LIMIT_SECONDS):
            while "database available again" not in caplog.text:  # noqa: ASYNC110 - it is the log that is tested
                await asyncio.sleep(0.05)
    about = [record.getMessage() for record in caplog.records if "database" in record.getMessage()]
    assert [line.partition(":")[0].partition(" after")[0] for line in about] == [
        "database unavailable, retrying",
        "database available again",
    ]


async def first_of(engines: list[ManualEngine]) -> None:
    """Wait until one of them has received a job."""
    waits = [asyncio.ensure_future(engine.next(JobDispatch)) for engine in engines]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await asyncio.wait(waits)
