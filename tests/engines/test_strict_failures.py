"""Every failure of the strict profile: its transition, log line, event, metric and category, on both stores."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

import tenure
from tenure.engines.gateway import Gateway
from tenure.engines.protocol import JobDispatch
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import FAILED, RUNNING
from tenure.observe.tracing import Tracing
from tenure.vocabularies import vocabulary
from tests.engines.test_engines import process
from tests.observe.test_tracing import Watched
from tests.support.databases import Database
from tests.support.engine_server import ServedGateway, served
from tests.support.engine_socket import ManualEngine, connected, declare, log_of, until

SUPPORT = Path(__file__).parents[1] / "support"
WORDS = vocabulary("engine")
OF_A_PROCESS = ["enqueued", "claimed", "acked", "started", "stalled", "failed"]
OF_A_LOST_ENGINE = {"tenure_lease_expiries_total": {("render", "heartbeats_missed"): 1}}


@dataclass
class Place:
    """An app with a strict kind, and its gateway."""

    app: tenure.App
    at: ServedGateway
    render: Any
    engines: AsyncExitStack
    watched: Watched
    caplog: pytest.LogCaptureFixture
    jobs: list[Any] = field(default_factory=list)

    @property
    def gateway(self) -> Gateway:
        return self.at.gateway

    async def enqueued(self, count: int = 1, scene: str = "intro") -> list[Any]:
        self.jobs = await self.app.enqueue_many(self.render.request(scene) for _ in range(count))
        return self.jobs

    async def dispatched(self) -> tuple[ManualEngine, JobDispatch]:
        """A job, and the engine that has received it."""
        engine = await self.engines.enter_async_context(connected(self.gateway, "render"))
        await self.enqueued()
        return engine, await engine.next(JobDispatch)

    async def started(self) -> ManualEngine:
        engine, dispatch = await self.dispatched()
        await engine.acked(engine.about(dispatch, "job_started"))
        return engine


async def ack_is_missing(place: Place) -> None:
    await place.dispatched()


async def is_acked_and_never_started(place: Place) -> None:
    engine, dispatch = await place.dispatched()
    assert (await engine.acked(engine.about(dispatch, "job_ack"))).outcome == "recorded"


async def engine_is_silent(place: Place) -> None:
    engine = await place.started()
    assert (await engine.refused()).code == "silent"


async def socket_is_closed(place: Place) -> None:
    (await place.started()).close()


async def engine_crashes_with_50_running_jobs(place: Place) -> None:
    jobs = await place.enqueued(50)
    program = (sys.executable, "-m", "tests.support.engine_program", place.at.socket_url, place.at.token, "50")
    engine = await place.engines.enter_async_context(process(*program, token=""))
    for job in jobs:
        await until(place.app, job, RUNNING)
    os.kill(engine.pid, signal.SIGKILL)
    await engine.wait()


async def engine_runs_out_of_memory(place: Place, folder: Path) -> None:
    [job] = await place.enqueued(scene="memory")
    node = ("node", "--experimental-websocket", "--max-old-space-size=30", str(SUPPORT / "engine_program.mjs"))
    engine = await place.engines.enter_async_context(
        process(*node, place.at.socket_url, str(folder), token=place.at.token)
    )
    await until(place.app, job, RUNNING)
    (folder / "memory").touch()
    assert engine.stderr is not None
    errors = await asyncio.wait_for(engine.stderr.read(), 60)
    assert b"heap out of memory" in errors
    assert await engine.wait() != 0


async def engine_reports(place: Place, error: str, message: str) -> None:
    engine, dispatch = await place.dispatched()
    facts = {"type": error, "message": message}
    ack = await engine.acked(engine.about(dispatch, "job_failed", error=facts, action="fail"))
    assert ack.status == "failed"


@dataclass
class Failure:
    """A failure, and what is recorded of it."""

    happens: Callable[..., Awaitable[None]]
    types: list[str]
    category: str
    error: str
    logged: str
    engine: str | None = "e1"
    counts: dict[str, dict[tuple[str, ...], int]] = field(default_factory=dict)
    claimed_seconds: float = 10.0
    heartbeat_seconds: float = 1.0
    silence_seconds: float = 15.0
    jobs: int = 1
    span: str | None = None
    """The class of the error in the gateway's span. None: no attempt was ended by its engine."""


def reported(error: str, message: str) -> Failure:
    return Failure(
        partial(engine_reports, error=error, message=message),
        ["enqueued", "claimed", "started", "failed"],
        "engine",
        f"{error}: {message}",
        f"failed in .* s \\({error}: {message}\\), not retrying: the job is failed",
        counts={"tenure_attempts_total": {("render", "failed"): 1}},
        span=error,
    )


LOST_AT_WORK: dict[str, Any] = {
    "types": ["enqueued", "claimed", "started", "stalled", "failed"],
    "category": "system",
    "error": "WorkerLost: its worker vanished at attempt 1",
    "logged": r"recovered from running: failed \(heartbeats_missed, lost\)",
    "counts": OF_A_LOST_ENGINE,
}
NO_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
FAILURES = {
    "ack missing": Failure(
        ack_is_missing,
        ["enqueued", "claimed", "failed"],
        "queue",
        "Timeout: ",
        r"recovered from claimed: failed \(timeout\)",
        claimed_seconds=0.5,
    ),
    "acked but never started": Failure(
        is_acked_and_never_started,
        ["enqueued", "claimed", "acked", "failed"],
        "queue",
        "Timeout: ",
        r"recovered from claimed: failed \(timeout\)",
        claimed_seconds=3.0,
    ),
    "engine silent": Failure(engine_is_silent, **LOST_AT_WORK, silence_seconds=2.0),
    "socket closed": Failure(socket_is_closed, **LOST_AT_WORK),
    "engine crash with 50 running jobs": Failure(
        engine_crashes_with_50_running_jobs,
        **{
            **LOST_AT_WORK,
            "types": OF_A_PROCESS,
            "counts": {"tenure_lease_expiries_total": {("render", "heartbeats_missed"): 50}},
        },
        jobs=50,
        heartbeat_seconds=3.0,
    ),
    "out of memory": Failure(
        engine_runs_out_of_memory,
        **{**LOST_AT_WORK, "types": OF_A_PROCESS},
        engine="engine-js",
        heartbeat_seconds=3.0,
    ),
    "bad asset reference": reported("BadAsset", "asset 7 of scene intro does not exist"),
    "invalid entity data": reported("InvalidEntityData", "entity 12 has no position"),
}


@asynccontextmanager
async def placed(database: Database, failure: Failure, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Place]:
    watched = Watched()
    timeouts = tenure.Timeouts(queued_seconds=30, claimed_seconds=failure.claimed_seconds, running_seconds=60)
    strict: dict[str, Any] = {**tenure.STRICT, "timeouts": timeouts, "heartbeat_seconds": failure.heartbeat_seconds}
    silence: dict[str, Any] = {
        "heartbeat_seconds": failure.silence_seconds / 5,
        "silence_seconds": failure.silence_seconds,
    }
    async with database.opened(), tenure.App(database.url, middleware=[Tracing(watched.provider)]) as app:
        render = declare(app, **strict)
        async with served(app, **silence) as at, AsyncExitStack() as engines:
            yield Place(app, at, render, engines, watched, caplog)


def without_heartbeats(log: Sequence[Event]) -> list[str]:
    return [event.type.value for event in log if event.type is not EventType.HEARTBEAT]


def counted(place: Place, name: str) -> dict[tuple[str, ...], int]:
    return {one.labels: one.value for one in place.gateway.metrics().counters if one.metric == name and one.value}


@pytest.mark.requirement("EH-02", "EH-03", "EH-04", "EH-06", "EH-07", "EH-11", "EH-12")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[NO_NODE] if name == "out of memory" else []) for name in FAILURES]
)
async def test_a_failure_has_its_transition_log_line_event_metric_and_category(
    name: str, database: Database, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    failure = FAILURES[name]
    caplog.set_level("INFO")
    async with placed(database, failure, caplog) as place:
        await (failure.happens(place, tmp_path) if name == "out of memory" else failure.happens(place))
        assert len(place.jobs) == failure.jobs
        for handle in place.jobs:
            check_job(place, failure, await until(place.app, handle, FAILED), await log_of(place.app, handle))
        check_telemetry(place, failure)


def check_job(place: Place, failure: Failure, job: Job, log: Sequence[Event]) -> None:
    assert without_heartbeats(log) == failure.types
    assert (log[-1].to_status, job.attempt) == (FAILED, 1)
    shown = WORDS.job(job, log)
    assert (shown["status"], shown["errorCategory"], shown["engineId"]) == ("failed", failure.category, failure.engine)
    assert shown["error"].startswith(failure.error)
    events = list(WORDS.translate_log(job.origin, log))
    assert [events[0].name, events[-1].name] == ["JOB_QUEUED", "JOB_FAILED"]
    assert [event.name for event in events].count("JOB_FAILED") == 1
    assert events[-1].fields["error"] == shown["error"]
    assert events[-1].fields["engineId"] == failure.engine
    lines = [record for record in place.caplog.records if getattr(record, "job_id", None) == str(job.id)]
    [line] = [record for record in lines if re.search(failure.logged, record.getMessage())]
    assert str(job.id) in line.getMessage()


def check_telemetry(place: Place, failure: Failure) -> None:
    expected = {
        "tenure_claims_total": {("render",): failure.jobs},
        "tenure_failures_total": {("render",): failure.jobs},
        **failure.counts,
    }
    assert {name: counted(place, name) for name in expected} == expected
    spans = place.watched.named("run render")
    described = [(span.status.status_code, span.status.description) for span in spans]
    assert described == ([] if failure.span is None else [(StatusCode.ERROR, failure.span)])
