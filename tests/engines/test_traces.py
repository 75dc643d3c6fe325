"""Traces of remote attempts: from the enqueuer to the engine, and from the engine back into the log and the spans."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

import tenure
from tenure.engines.client import EngineJob
from tenure.engines.protocol import JobDispatch
from tenure.lifecycle.records import Event
from tenure.lifecycle.statuses import DEAD_LETTERED
from tenure.observe.tracing import Tracing
from tests.engines.test_engines import post, python_engine, running
from tests.observe.test_tracing import Watched
from tests.support.databases import Database
from tests.support.engine_server import served
from tests.support.engine_socket import LIMIT_SECONDS, SECRET, connected, declare, log_of, opened_gateway, until

ENQUEUER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OF_ENGINE = "00-4bf92f3577b34da6a3ce929d0e0e4736-aaaaaaaaaaaaaaaa-01"
LATER = "00-4bf92f3577b34da6a3ce929d0e0e4736-bbbbbbbbbbbbbbbb-01"
ERROR = {"type": "BadAsset", "message": "scene 7 is missing"}


def logged(log: list[Event]) -> list[str]:
    """The traces of an engine in the log."""
    details = [msgspec.json.decode(event.detail) for event in log if event.type == "started" and event.detail]
    return [detail["trace"] for detail in details]


def linked(span: ReadableSpan) -> list[str]:
    return [f"{link.context.span_id:016x}" for link in span.links]


@pytest.mark.requirement("SM-16")
@pytest.mark.parametrize(
    ("messages", "in_log", "in_span"),
    [
        ([("job_started", OF_ENGINE), ("job_complete", None)], [OF_ENGINE], "a" * 16),
        ([("job_complete", OF_ENGINE)], [OF_ENGINE], "a" * 16),
        ([("job_failed", OF_ENGINE)], [OF_ENGINE], "a" * 16),
        ([("job_started", OF_ENGINE), ("job_complete", LATER)], [OF_ENGINE], "b" * 16),
        ([("job_started", None), ("job_failed", LATER)], [], "b" * 16),
        ([("job_complete", None)], [], None),
    ],
)
async def test_the_trace_that_an_engine_reports_is_in_the_log_and_linked_from_the_span(
    database: Database, messages: list[tuple[str, str | None]], in_log: list[str], in_span: str | None
) -> None:
    watched = Watched()
    fields: dict[str, dict[str, Any]] = {"job_complete": {"result": "x"}, "job_failed": {"error": ERROR}}
    async with database.opened(), tenure.App(database.url, middleware=[Tracing(watched.provider)]) as app:
        render = declare(app, max_attempts=1)
        async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
            handle = await render.options(trace=ENQUEUER).enqueue("intro")
            dispatch = await engine.next(JobDispatch)
            for type_, trace in messages:
                given = {} if trace is None else {"trace": trace}
                ack = await engine.acked(engine.about(dispatch, type_, **fields.get(type_, {}), **given))
                assert ack.outcome == "recorded", ack
        log = await log_of(app, handle)
    assert logged(log) == in_log
    span = watched.one("run render")
    assert linked(span) == ([] if in_span is None else [in_span])
    producer = watched.one("enqueue render")
    assert span.parent is not None
    assert span.parent.span_id == producer.context.span_id
    assert f"{span.context.trace_id:032x}" == ENQUEUER.split("-")[1]
    assert span.kind is SpanKind.CLIENT
    failed = messages[-1][0] == "job_failed"
    assert span.status.status_code is (StatusCode.ERROR if failed else StatusCode.UNSET)
    assert (span.attributes or {})["tenure.engine.id"] == "e1"
    times = [event.at.timestamp() for event in log if event.type.value in ("started", "succeeded", "dead_lettered")]
    assert [span.start_time, span.end_time] == pytest.approx([at * 1e9 for at in times], abs=2000)


@pytest.mark.requirement("SM-16")
async def test_the_python_engine_continues_the_trace_and_reports_its_span(database: Database) -> None:
    watched, of_engine = Watched(), Watched()
    async with database.opened(), tenure.App(database.url, middleware=[Tracing(watched.provider)]) as app:
        render = declare(app, max_attempts=1)
        async with served(app) as at:
            engine = python_engine(at, tracing=Tracing(of_engine.provider))

            @engine.handles("render")
            async def handle(job: EngineJob) -> str:
                if job.payload["scene"] == "bad":
                    raise LookupError("no such scene")
                return str(job.trace)

            async with running(engine):
                good, bad = await render.enqueue("intro"), await render.enqueue("bad")
                traceparent = await good.result(timeout_seconds=LIMIT_SECONDS)
                await until(app, bad, DEAD_LETTERED)
        assert logged(await log_of(app, good)) == [traceparent]
    for job, mine in zip((good, bad), of_engine.named("run render"), strict=True):
        [of_gateway] = [one for one in watched.named("run render") if _job_of(one) == _job_of(mine)]
        assert _job_of(mine) == str(job.id)
        assert linked(of_gateway) == [f"{mine.context.span_id:016x}"]
        assert of_gateway.context.trace_id == mine.context.trace_id
        assert of_gateway.parent is not None
        assert mine.parent is not None
        assert of_gateway.parent.span_id == mine.parent.span_id
    assert [one.status.status_code for one in of_engine.spans] == [StatusCode.UNSET, StatusCode.ERROR]


def _job_of(span: ReadableSpan) -> object:
    return (span.attributes or {})["messaging.message.id"]


@pytest.mark.requirement("SM-16")
async def test_an_engine_over_http_reports_its_trace(app: tenure.App) -> None:
    render = declare(app)
    who = {"engine_id": "poller", "session": SECRET}
    async with served(app) as at:
        handle = await render.enqueue("intro")
        _, reply = await post(at, "claim", {**who, "kinds": ["render"], "claim": 1})
        held = {**who, "job_id": reply["jobs"][0]["job_id"], "claim": 1, "id": 1}
        for trace, status in (("not a trace", 422), (OF_ENGINE, 200)):
            done = {**held, "type": "job_complete", "result": "x", "trace": trace}
            answered, body = await post(at, "report", done)
            assert answered == status
            assert status == 200 or "$.trace" in body["error"]
    assert logged(await log_of(app, handle)) == [OF_ENGINE]


class Broken(tenure.Middleware):
    def remote(self, attempt: tenure.RemoteAttempt) -> None:
        raise RuntimeError("middleware is broken")


async def test_a_middleware_that_fails_harms_no_job(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    async with database.opened(), tenure.App(database.url, middleware=[Broken()]) as app:
        render = declare(app)
        async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
            handle = await render.enqueue("intro")
            dispatch = await engine.next(JobDispatch)
            assert (await engine.acked(engine.about(dispatch, "job_complete", result="x"))).outcome == "recorded"
            assert await handle.result(timeout_seconds=LIMIT_SECONDS) == "x"
    assert f"Broken.remote failed for job {handle.id}" in caplog.text
