"""A gateway whose database fails, whose jobs are removed, and whose engines misbehave, on sockets in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import tenure
from tenure.engines.client import Engine, EngineJob
from tenure.engines.gateway import Gateway
from tenure.engines.protocol import CancelJob, GatewayDrain, JobDispatch, Welcome, decode_gateway_message
from tenure.errors import StoreUnavailable
from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import CANCELLED, STALLED
from tenure.stores.contract import FinishedJobs
from tests.engines.test_gateway import renewed
from tests.support.engine_server import served
from tests.support.engine_socket import (
    LIMIT_SECONDS,
    QUICK,
    ManualEngine,
    MemorySocket,
    connected,
    declare,
    log_of,
    opened_gateway,
    until,
)


class UnreliableStore:
    """A store that is unavailable while `down` is set. `refused` counts the requests that it has refused."""

    def __init__(self, store: Any) -> None:
        self._store, self.down, self.refused = store, False, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("read", "history", "apply", "claim", "recoverable", "register"):
            return found

        async def call(*values: Any, **named: Any) -> Any:
            if self.down:
                self.refused += 1
                raise StoreUnavailable("the database is away")
            return await found(*values, **named)

        return call


@asynccontextmanager
async def unreliable_gateway(app: tenure.App, **settings: Any) -> AsyncIterator[tuple[Gateway, UnreliableStore]]:
    """A gateway, and the store of its connections. Its maintenance has another one, which is reliable."""
    gateway = app.gateway(**{**QUICK, **settings})
    open_store, opened = gateway._open_store, list[UnreliableStore]()

    async def open_unreliable() -> Any:
        store = await open_store()
        if opened:
            return store
        opened.append(UnreliableStore(store))
        return opened[0]

    gateway._open_store = open_unreliable
    async with gateway.open():
        yield gateway, opened[0]


async def refused_some(store: UnreliableStore, times: int = 3) -> None:
    """Wait until the database has refused so many more requests."""
    before = store.refused
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            if store.refused >= before + times:
                return
            await asyncio.sleep(0.01)


@pytest.mark.requirement("EH-04")
@pytest.mark.parametrize("held", [True, False])
async def test_a_passing_gateway_error_closes_no_healthy_socket(app: tenure.App, held: bool) -> None:
    render = declare(app, lease_seconds=600, heartbeat_seconds=300)
    async with unreliable_gateway(app) as (gateway, store):
        handle = await render.enqueue("intro")
        async with connected(gateway, "render") as engine:
            dispatch = await engine.next(JobDispatch)
            if held:
                await outlast(store, engine, dispatch)
        if not held:
            # It sends the end again after a reconnect, without the job among those of its hello.
            async with connected(gateway, "render", epoch=2, claim=dispatch.claim) as engine:
                await outlast(store, engine, dispatch)
        assert await handle.result(timeout_seconds=LIMIT_SECONDS) == "x"


async def beat(engine: ManualEngine) -> None:
    while True:
        engine.say("heartbeat")
        await asyncio.sleep(0.2)


@pytest.mark.requirement("EH-04")
async def test_an_engine_whose_many_messages_wait_for_the_database_is_not_silent(app: tenure.App) -> None:
    render = declare(app, lease_seconds=600, heartbeat_seconds=300)
    async with unreliable_gateway(app, heartbeat_seconds=0.2, silence_seconds=2.0) as (gateway, store):
        handle = await render.enqueue("intro")
        async with connected(gateway, "render") as engine:
            dispatch = await engine.next(JobDispatch)
            store.down = True
            numbers = [engine.about(dispatch, "job_progress", percent=percent) for percent in range(90)]
            beats = asyncio.create_task(beat(engine))
            # Longer than the gateway waits for a silent engine.
            await asyncio.sleep(3.0)
            store.down = False
            for number in numbers:
                assert (await engine.acked(number)).outcome == "recorded"
            beats.cancel()
            assert (await engine.acked(engine.about(dispatch, "job_complete", result="x"))).outcome == "recorded"
        assert await handle.result(timeout_seconds=LIMIT_SECONDS) == "x"


async def outlast(store: UnreliableStore, engine: ManualEngine, dispatch: JobDispatch) -> None:
    """Report the end of the job while the database is away. It is recorded once the database is back."""
    store.down = True
    number = engine.about(dispatch, "job_complete", result="x")
    assert (await engine.acked(engine.say("heartbeat"))).outcome == "recorded"
    await refused_some(store)
    store.down = False
    assert (await engine.acked(number)).outcome == "recorded"
    assert engine.socket.closed is None


@pytest.mark.requirement("EH-04")
async def test_an_engine_that_connects_while_the_database_is_away_is_welcomed_afterwards(app: tenure.App) -> None:
    render = declare(app, on_lost="fail", lease_seconds=600, heartbeat_seconds=300)
    async with unreliable_gateway(app) as (gateway, store):
        handle = await render.enqueue("intro")
        async with connected(gateway, "render") as engine:
            dispatch = await engine.next(JobDispatch)
        held = [{"job_id": dispatch.job_id, "claim": dispatch.claim}]
        store.down = True
        async with connected(gateway, "render", epoch=2, claim=dispatch.claim, jobs=held, wait=False) as engine:
            await refused_some(store)
            store.down = False
            assert [one.job_id for one in (await engine.next(Welcome)).jobs] == [handle.id]
            assert (await engine.acked(engine.about(dispatch, "job_complete", result="x"))).outcome == "recorded"


async def removed(app: tenure.App, handle: Any) -> None:
    """Cancel the job, and remove it as retention does."""
    await app.cancel(handle.id, hard=True)
    await until(app, handle, CANCELLED)
    store = await app.store()
    batch = await store.prune(FinishedJobs(kind="render", status=CANCELLED, older_than_seconds=0.0), limit=10)
    assert batch.removed == 1


async def test_the_welcome_is_the_first_message_also_if_a_drain_comes_while_jobs_are_resumed(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway:
        async with connected(gateway, "render") as engine:
            await render.enqueue("intro")
            dispatch = await engine.next(JobDispatch)
        held = [{"job_id": dispatch.job_id, "claim": dispatch.claim}]
        async with connected(gateway, "render", epoch=2, claim=dispatch.claim, jobs=held, wait=False) as engine:
            async with asyncio.timeout(LIMIT_SECONDS):
                while not any(one.epoch == 2 for one in gateway.connections):  # noqa: ASYNC110 - within a few iterations
                    await asyncio.sleep(0)
            gateway.connections[0].drain("the gateway stops")
            welcome = await engine.next(Welcome)
            assert [one.job_id for one in welcome.jobs] == [dispatch.job_id]
            await engine.next(GatewayDrain)
            sent = [text for sender, text in engine.socket.traffic if sender == "gateway"]
            assert isinstance(decode_gateway_message(sent[0]), Welcome)


async def test_a_deleted_lease_does_not_loop_reconnects(app: tenure.App) -> None:
    render = declare(app, lease_seconds=600, heartbeat_seconds=300)
    async with opened_gateway(app) as gateway:
        async with connected(gateway, "render") as engine:
            handle = await render.enqueue("intro")
            dispatch = await engine.next(JobDispatch)
        await removed(app, handle)
        held = [{"job_id": dispatch.job_id, "claim": dispatch.claim}]
        async with connected(gateway, "render", epoch=2, claim=dispatch.claim, jobs=held, wait=False) as engine:
            assert (await engine.next(Welcome)).jobs == ()
            late = await engine.acked(engine.about(dispatch, "job_complete", result="x"))
            assert (late.outcome, late.reason) == ("lost", f"there is no job {dispatch.job_id}")
            later = await render.enqueue("next")
            await engine.acked(engine.about(await engine.next(JobDispatch), "job_complete", result="y"))
            assert await later.result(timeout_seconds=LIMIT_SECONDS) == "y"
            assert engine.socket.closed is None


async def test_a_job_that_is_deleted_before_its_start_is_recorded_is_cancelled(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        await removed(app, handle)
        ack = await engine.acked(engine.about(dispatch, "job_started"))
        cancel = await engine.next(CancelJob)
        assert (ack.outcome, cancel.job_id, cancel.hard) == ("lost", dispatch.job_id, True)


async def test_the_python_engine_stays_connected_when_the_job_that_it_runs_is_deleted(app: tenure.App) -> None:
    render = declare(app, heartbeat_seconds=1.0)
    async with served(app) as at:
        engine = Engine(at.socket_url, token=at.token, engine_id="py")
        started, stopped = asyncio.Event(), asyncio.Event()

        @engine.handles("render")
        async def handle(job: EngineJob) -> str:
            if job.payload["scene"] != "deleted":
                return "fine"
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
            return "never"

        task = asyncio.create_task(engine.run())
        deleted = await render.enqueue("deleted")
        await asyncio.wait_for(started.wait(), LIMIT_SECONDS)
        await removed(app, deleted)
        await asyncio.wait_for(stopped.wait(), LIMIT_SECONDS)
        assert await (await render.enqueue("next")).result(timeout_seconds=LIMIT_SECONDS) == "fine"
        assert engine._epoch == 1
        engine.stop()
        await asyncio.wait_for(task, LIMIT_SECONDS)


async def test_renewals_never_use_a_draining_socket(app: tenure.App) -> None:
    """Once the engine has resumed its jobs through another socket. Until then the draining one keeps their leases."""
    render = declare(app, lease_seconds=6.0, heartbeat_seconds=1.0)
    async with opened_gateway(app) as first, opened_gateway(app) as second:
        handle = await render.enqueue("intro")
        async with connected(first, "render") as engine:
            dispatch = await engine.next(JobDispatch)
            await engine.acked(engine.about(dispatch, "job_started"))
            first.connections[0].drain("a test")
            await engine.next(GatewayDrain)
            await renewed(app, handle, 1)
        held = [{"job_id": dispatch.job_id, "claim": dispatch.claim}]
        async with connected(second, "render", epoch=2, claim=dispatch.claim, jobs=held, wait=False) as engine:
            assert len((await engine.next(Welcome)).jobs) == 1
            before = len(await log_of(app, handle))
            await renewed(app, handle, 2)
            assert first.connections == []
            log = await log_of(app, handle)
            renewals = [event.request_id for event in log[before:] if event.type is EventType.HEARTBEAT]
            # The last part of a renewal's request id is the epoch of its connection.
            assert {one.rpartition(".")[2] for one in renewals} == {"2"}
            await engine.acked(engine.about(dispatch, "job_complete", result="x"))


class StuckSocket(MemorySocket):
    """A socket whose engine reads nothing after its welcome."""

    async def send(self, text: str) -> None:
        await super().send(text)
        if '"type":"welcome"' not in text:
            await asyncio.Event().wait()


@pytest.mark.requirement("EH-04")
async def test_an_engine_that_never_reads_is_disconnected_and_harms_no_other(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as good:
        socket = StuckSocket()
        stuck = ManualEngine(socket)
        serving = asyncio.create_task(gateway.serve(socket, token_id="t1"))
        stuck.say("hello", engine_id="stuck", session="x" * 32, kinds=["render"], capacity=1)
        await stuck.next(Welcome)
        for _ in range(500):
            stuck.say("heartbeat")
        await asyncio.wait_for(serving, LIMIT_SECONDS)
        assert socket.closed is not None
        assert [one.engine_id for one in gateway.connections] == ["e1"]
        handle = await render.enqueue("intro")
        dispatch = await good.next(JobDispatch)
        await good.acked(good.about(dispatch, "job_complete", result="x"))
        assert await handle.result(timeout_seconds=LIMIT_SECONDS) == "x"


async def test_an_answer_for_a_lost_lease_changes_nothing(app: tenure.App) -> None:
    render = declare(app, lease_seconds=3600, heartbeat_seconds=1.0)
    async with opened_gateway(app) as gateway:
        handle = await render.enqueue("intro")
        async with connected(gateway, "render") as engine:
            lost = await engine.next(JobDispatch)
            await engine.acked(engine.about(lost, "job_started"))
        other: dict[str, Any] = {"engine_id": "e2", "session": "o" * 32}
        async with connected(gateway, "render", **other) as owner:
            dispatch = await owner.next(JobDispatch)
            assert (dispatch.job_id, dispatch.attempt) == (lost.job_id, 2)
            error = {"type": "Late", "message": "too late"}
            async with connected(gateway, "render", epoch=2, claim=lost.claim) as late:
                late_reports: dict[str, dict[str, Any]] = {
                    "job_progress": {"percent": 99},
                    "job_failed": {"error": error},
                }
                for type_, fields in late_reports.items():
                    ack = await late.acked(late.about(lost, type_, **fields))
                    assert ack.outcome == "lost"
            done = await owner.acked(owner.about(dispatch, "job_complete", result="x"))
            assert done.outcome == "recorded"
        assert await handle.result(timeout_seconds=LIMIT_SECONDS) == "x"


async def test_a_job_whose_claim_was_under_way_at_a_drain_is_released(app: tenure.App) -> None:
    render = declare(app)
    async with unreliable_gateway(app) as (gateway, store):
        store.down = True
        async with connected(gateway, "render") as engine:
            await refused_some(store, 1)
            handle = await render.enqueue("intro")
            gateway.connections[0].drain("a test")
            store.down = False
            job = await until(app, handle, STALLED)
            assert (job.attempt, job.failures) == (1, 0)
            assert not any("job_dispatch" in text for _, text in engine.socket.traffic)
