"""One trace from an enqueue to the job's runs and to what they enqueue, over retries, redrives, threads and stores."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import tenure
from tenure.errors import PermanentError, RequestIdReused, Snooze
from tenure.observe.tracing import Tracing
from tenure.outbox.processor import ProcessorOptions
from tenure.outbox.retry import RetrySchedule
from tenure.outbox.sinks import Delivery
from tenure.testing.harness.harness import Harness
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Watched:
    """What was traced."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    @property
    def traces(self) -> set[str]:
        return {f"{span.context.trace_id:032x}" for span in self.spans}


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def step_of(span: ReadableSpan) -> tuple[str, int]:
    """Key and attempt of the step that the span is of."""
    attributes = span.attributes or {}
    return str(attributes["tenure.step.key"]), int(str(attributes["tenure.step.attempt"]))


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def app(watched: Watched) -> tenure.App:
    return tenure.App(middleware=[Tracing(watched.provider)])


@pytest.fixture
async def harness(app: tenure.App) -> AsyncIterator[Harness]:
    async with app.testing() as harness:
        yield harness


async def ended(app: tenure.App, job: tenure.Job) -> tenure.Job:
    """The job's record once it has come to its end."""
    return await tenure.Handle(app, job, app.kinds[job.kind], created=True).wait(20)


@pytest.mark.requirement("SM-16")
async def test_one_trace_has_the_enqueue_the_retry_the_job_that_a_job_enqueues_and_its_redrive(
    database: Database, watched: Watched
) -> None:
    async with database.opened():
        pass
    app = tenure.App(database.url, middleware=[Tracing(watched.provider)])
    mended = False

    @app.job(backoff=tenure.Backoff(base_seconds=0.01))
    async def root(ctx: tenure.Context) -> str:
        if ctx.attempt == 1:
            raise OSError("not yet")
        with watched.tracer.start_as_current_span("inside"):
            return str((await leaf.enqueue()).id)

    @app.job()
    def leaf() -> None:
        if not mended:
            raise PermanentError("broken")

    async with working(app):
        with watched.tracer.start_as_current_span("request"):
            handle = await root.options(correlation_id="order-7").enqueue()
        leaf_id = await handle.result(20)
        [leaf_job] = (await app.find(tenure.JobFilter(kinds=("leaf",)))).jobs
        assert str(leaf_job.id) == leaf_id
        assert (await ended(app, leaf_job)).status == "failed"
        mended = True
        again = await app.redrive(leaf_job.id)
        assert (await ended(app, again.job)).status == "succeeded"
        store = await app.store()
        events = (await store.history([handle.id, leaf_job.id, again.job.id])).values()
    await app.close()

    assert len(watched.traces) == 1
    request, enqueue = watched.one("request"), watched.one("enqueue root")
    first, second = watched.named("run root")
    assert parent_of(enqueue) == request.context.span_id
    assert {parent_of(first), parent_of(second)} == {enqueue.context.span_id}
    assert [first.status.status_code, second.status.status_code] == [StatusCode.ERROR, StatusCode.UNSET]
    assert parent_of(watched.one("inside")) == second.context.span_id
    assert parent_of(watched.one("enqueue leaf")) == watched.one("inside").context.span_id
    runs = watched.named("run leaf")
    assert [parent_of(run) for run in runs] == [watched.one("enqueue leaf").context.span_id] * 2
    assert {run.attributes["messaging.message.id"] for run in runs if run.attributes} == {leaf_id, str(again.job.id)}
    carried = {event.trace for history in events for event in history}
    assert {one.split("-")[1] for one in carried if one} == watched.traces
    assert None not in carried


@pytest.mark.requirement("SM-16")
async def test_each_execution_of_a_step_has_a_span_within_its_attempt(
    app: tenure.App, harness: Harness, watched: Watched
) -> None:
    tries: list[int] = []

    async def flaky(number: int) -> int:
        tries.append(number)
        if len(tries) == 1:
            raise ConnectionError("busy")
        with watched.tracer.start_as_current_span("inside"):
            return number

    def plain() -> None:
        with watched.tracer.start_as_current_span("in the thread"):
            pass

    async def nothing(tx: tenure.StepTransaction) -> None:
        await tx.fetch("select 1")

    @app.workflow()
    async def research(run: tenure.Run) -> None:
        await run.using(on_error="retry", max_attempts=2).step(flaky, 7)
        await run.step(plain)
        await run.transaction(nothing)

    @app.job()
    async def stepped(ctx: tenure.Context) -> None:
        await ctx.step("page", flaky, 8)

    handle = await research.enqueue()
    await stepped.enqueue()
    await harness.run_all()
    assert (await handle.refresh()).status == "succeeded"
    first, second, of_job = sorted(watched.named("step flaky"), key=step_of)
    # A retry is another attempt of the run, which returns the recorded steps without executing them.
    attempts = {run.context.span_id for run in watched.named("run research")}
    of_run = [first, second, watched.one("step plain"), watched.one("step nothing")]
    assert {parent_of(span) for span in of_run} <= attempts
    assert parent_of(of_job) == watched.one("run stepped").context.span_id
    assert [first.status.status_code, second.status.status_code] == [StatusCode.ERROR, StatusCode.UNSET]
    assert [step_of(span) for span in (first, second, of_job)] == [("0", 1), ("0", 2), ("page", 1)]
    assert {parent_of(span) for span in watched.named("inside")} == {second.context.span_id, of_job.context.span_id}
    assert parent_of(watched.one("in the thread")) == watched.one("step plain").context.span_id


async def test_spans_say_what_they_are_about(app: tenure.App, harness: Harness, watched: Watched) -> None:
    @app.job(queue="post")
    async def mail() -> None:
        raise ValueError("no stamps")

    handle = await mail.options(correlation_id="c-1").enqueue()
    await harness.drain()
    enqueue, run = watched.one("enqueue mail"), watched.one("run mail")
    assert (enqueue.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    facts = {
        "messaging.system": "tenure",
        "messaging.destination.name": "post",
        "messaging.message.id": str(handle.id),
        "messaging.message.conversation_id": "c-1",
        "tenure.job.kind": "mail",
    }
    assert enqueue.attributes == facts
    assert run.attributes == {**facts, "tenure.job.attempt": 1}
    assert run.status.description == "ValueError"
    [recorded] = run.events
    assert recorded.attributes is not None
    assert recorded.attributes["exception.message"] == "no stamps"


async def test_a_run_that_is_put_off_or_gives_way_has_not_failed(
    app: tenure.App, harness: Harness, watched: Watched
) -> None:
    @app.job()
    async def later() -> None:
        raise Snooze(60)

    await later.enqueue()
    await harness.drain()
    run = watched.one("run later")
    assert (run.status.status_code, run.events) == (StatusCode.UNSET, ())


async def test_a_plain_function_in_its_thread_is_inside_the_span(
    app: tenure.App, harness: Harness, watched: Watched
) -> None:
    threads = set()

    @app.job()
    def plain() -> None:
        threads.add(threading.current_thread())
        leaf.enqueue_sync()
        with watched.tracer.start_as_current_span("inside"):
            pass

    @app.job()
    async def leaf() -> None: ...

    await plain.enqueue()
    await harness.drain(raise_errors=True)
    assert threads
    assert threading.main_thread() not in threads
    run = watched.one("run plain").context.span_id
    assert [parent_of(watched.one(name)) for name in ("inside", "enqueue leaf")] == [run, run]


async def test_jobs_enqueued_in_different_traces_keep_them(app: tenure.App, harness: Harness, watched: Watched) -> None:
    @app.job()
    async def work() -> None:
        await asyncio.sleep(0)

    await asyncio.gather(*(work.enqueue() for _ in range(5)))
    await harness.drain()
    assert len(watched.traces) == 5
    assert trace.get_current_span().get_span_context().is_valid is False


async def test_a_trace_that_is_named_is_the_one_that_is_used(
    app: tenure.App, harness: Harness, watched: Watched
) -> None:
    @app.job()
    async def work() -> None: ...

    with watched.tracer.start_as_current_span("elsewhere"):
        await work.options(trace=GIVEN).enqueue()
    await harness.drain()
    enqueue = watched.one("enqueue work")
    assert parent_of(enqueue) == 0x00F067AA0BA902B7
    assert parent_of(watched.one("run work")) == enqueue.context.span_id
    assert f"{enqueue.context.trace_id:032x}" == GIVEN.split("-")[1]


async def test_what_came_in_as_a_trace_and_is_none_does_no_harm(
    app: tenure.App, harness: Harness, watched: Watched
) -> None:
    @app.job()
    async def work() -> None: ...

    await work.options(trace="nonsense").enqueue()
    report = await harness.drain(raise_errors=True)
    assert report.counts == {"succeeded": 1}
    assert len(watched.traces) == 1


@pytest.mark.requirement("SM-16", "LC-07")
async def test_a_request_that_comes_again_is_the_same_request_although_its_span_is_another(
    database: Database, watched: Watched
) -> None:
    async with database.opened():
        pass
    app = tenure.App(database.url, middleware=[Tracing(watched.provider)])

    @app.job()
    async def work(number: int) -> None: ...

    ids = set()
    for _ in range(2):
        with watched.tracer.start_as_current_span("request"):
            ids.add((await work.options(request_id="r-1").enqueue(7)).id)
    with pytest.raises(RequestIdReused):
        await work.options(request_id="r-1").enqueue(8)
    async with working(app):
        [job_id] = ids
        await ended(app, (await (await app.store()).read([job_id]))[job_id])
    await app.close()
    run = watched.one("run work")
    for enqueue in watched.named("enqueue work")[:2]:
        [link] = enqueue.links
        assert link.context.trace_id == run.context.trace_id
        assert enqueue.context.trace_id != run.context.trace_id


async def test_a_job_under_a_request_id_that_a_job_enqueues_stays_in_its_trace(
    app: tenure.App, harness: Harness, watched: Watched
) -> None:
    @app.job(backoff=tenure.Backoff(base_seconds=0.01))
    async def root(ctx: tenure.Context) -> None:
        await leaf.options(request_id=f"leaf-of-{ctx.id}").enqueue()
        if ctx.attempt == 1:
            raise OSError("after the leaf was queued")

    @app.job()
    async def leaf() -> None: ...

    await root.enqueue()
    report = await harness.run_all()
    assert [job.kind for job in report.jobs].count("leaf") == 1
    assert len(watched.traces) == 1


async def test_a_decision_not_to_sample_travels_along(app: tenure.App, harness: Harness, watched: Watched) -> None:
    @app.job()
    async def work() -> None: ...

    quiet = TracerProvider(sampler=ALWAYS_OFF).get_tracer("test")
    with quiet.start_as_current_span("request"):
        handle = await work.enqueue()
    await harness.drain()
    assert handle.job.origin.trace is not None
    assert watched.spans == ()


async def test_without_a_provider_nothing_is_made_up_and_what_came_in_is_passed_on() -> None:
    app = tenure.App(middleware=[Tracing()])

    @app.job()
    async def root() -> None:
        await leaf.enqueue()

    @app.job()
    async def leaf() -> None: ...

    async with app.testing() as harness:
        assert (await root.enqueue()).job.origin.trace is None
        assert (await root.options(trace=GIVEN).enqueue()).job.origin.trace == GIVEN
        jobs = (await harness.drain(raise_errors=True)).jobs
    assert sorted(job.origin.trace or "" for job in jobs) == ["", "", GIVEN, GIVEN]


@pytest.mark.requirement("SM-16")
async def test_each_attempt_to_deliver_a_message_has_a_span_in_the_trace_of_the_job_that_wrote_it(
    database: Database, watched: Watched
) -> None:
    async with database.opened():
        pass
    options = ProcessorOptions(retry=RetrySchedule(delays_seconds=(0.0,)), poll_seconds=0.01)
    app = tenure.App(database.url, middleware=[Tracing(watched.provider)], outbox_options=options)
    received = list[int]()

    @app.job()
    async def pay(ctx: tenure.Context) -> None:
        async with ctx.commit() as tx:
            tx.outbox("order.paid", {}, aggregate="order/7")

    @app.endpoint("crm", topics=["order.*"])
    async def crm(message: Delivery) -> None:
        received.append(trace.get_current_span().get_span_context().span_id)
        if message.attempt == 1:
            raise tenure.TransientError("busy", delay_seconds=0)

    async with app, app.outbox_role()(await app.store(), "p"), working(app, outbox=False):
        handle = await pay.options(correlation_id="order-7").enqueue()
        await handle.result(60)
        await eventually(lambda: len(received) == 2, seconds=60)
    first, second = watched.named("deliver order.paid")
    written = watched.one("run pay")
    assert {one.context.trace_id for one in (first, second)} == {written.context.trace_id}
    assert [one.context.span_id for one in (first, second)] == received
    assert [one.status.status_code for one in (first, second)] == [StatusCode.ERROR, StatusCode.UNSET]
    facts = second.attributes or {}
    assert facts["messaging.message.conversation_id"] == "order-7"
    assert (facts["tenure.endpoint"], facts["tenure.aggregate"], facts["tenure.delivery.attempt"]) == (
        "crm",
        "order/7",
        2,
    )
