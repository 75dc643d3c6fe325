"""A gateway and engines on sockets in memory, on both stores."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tenure
from tenure.engines.protocol import CancelJob, GatewayDrain, JobDispatch, Welcome
from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import CLAIMED, FAILED, QUEUED, RETRY, RUNNING, STALLED, SUCCEEDED, Status
from tenure.vocabularies import vocabulary
from tests.support.engine_socket import LIMIT_SECONDS, connected, declare, log_of, opened_gateway, until


async def types_of(app: tenure.App, handle: Any) -> list[str]:
    return [event.type.value for event in await log_of(app, handle) if event.type is not EventType.HEARTBEAT]


async def renewed(app: tenure.App, handle: Any, times: int) -> None:
    """Wait until this many more heartbeats of the job are written."""
    before = len(await log_of(app, handle))
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            if len(await log_of(app, handle)) >= before + times:
                return
            await asyncio.sleep(0.05)


@pytest.mark.requirement("EH-01")
async def test_an_engine_acknowledges_starts_and_completes_a_job(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        assert (dispatch.kind, bytes(dispatch.payload), dispatch.attempt) == ("render", b'{"scene":"intro"}', 1)
        messages: list[tuple[str, dict[str, Any]]] = [
            ("job_ack", {}),
            ("job_started", {}),
            ("job_progress", {"percent": 50, "message": "half"}),
            ("job_complete", {"result": "done.png"}),
        ]
        for type_, fields in messages:
            ack = await engine.acked(engine.about(dispatch, type_, **fields))
            assert ack.outcome == "recorded", ack
        assert await handle.result(timeout_seconds=LIMIT_SECONDS) == "done.png"
    assert await types_of(app, handle) == ["enqueued", "claimed", "acked", "started", "progress", "succeeded"]
    claimed = (await log_of(app, handle))[1]
    assert claimed.actor == "gateway:e1"


@pytest.mark.requirement("EH-01")
@pytest.mark.parametrize(("type_", "fields"), [("job_progress", {"percent": 1}), ("job_complete", {"result": "x"})])
async def test_progress_or_an_end_without_a_start_first_applies_start(
    app: tenure.App, type_: str, fields: dict[str, Any]
) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        assert (await engine.acked(engine.about(dispatch, type_, **fields))).outcome == "recorded"
        assert (await types_of(app, handle))[:3] == ["enqueued", "claimed", "started"]


async def test_a_worker_does_not_claim_remote_jobs(app: tenure.App) -> None:
    declare(app)

    @app.job
    def local(number: int) -> int:
        return number

    worker = app.worker()
    assert list(app.local_kinds) == ["local"]
    assert set(worker._definitions) == {"local"}


@pytest.mark.requirement("EH-11")
@pytest.mark.parametrize("error", ["BadAsset", "InvalidEntityData"])
async def test_an_error_that_the_engine_reports_as_final_fails_the_job(app: tenure.App, error: str) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        facts = {"type": error, "message": "scene 7 is missing"}
        assert (await engine.acked(engine.about(dispatch, "job_failed", error=facts, action="fail"))).status == "failed"
    store = await app.store()
    job = (await store.read([handle.id]))[handle.id]
    shown = vocabulary("engine").job(job, await log_of(app, handle))
    assert shown["error"] == f"{error}: scene 7 is missing"
    assert shown["errorCategory"] == "engine"


async def test_an_error_of_the_engine_is_retried_by_policy(app: tenure.App) -> None:
    render = declare(app, backoff=tenure.Backoff(base_seconds=0.01))
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        first = await engine.next(JobDispatch)
        error = {"type": "Flaky", "message": "again"}
        assert (await engine.acked(engine.about(first, "job_failed", error=error))).status == "retry"
        second = await engine.next(JobDispatch)
        assert (second.job_id, second.attempt) == (handle.id, 2)
        await engine.acked(engine.about(second, "job_complete", result="ok"))
        assert await handle.result(timeout_seconds=LIMIT_SECONDS) == "ok"


async def test_a_result_that_breaks_the_declaration_is_not_stored(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        ack = await engine.acked(engine.about(dispatch, "job_complete", result=7))
        assert ack.status == "dead_lettered"
        assert (await until(app, handle, Status.DEAD_LETTERED)).result is None


async def test_credit_counts_jobs_that_the_engine_has_not_finished(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway:
        handles = await app.enqueue_many(render.request(str(number)) for number in range(3))
        async with connected(gateway, "render", capacity=2) as engine:
            first, _ = await engine.next(JobDispatch), await engine.next(JobDispatch)
            [connection] = gateway.connections
            assert (connection.credit, connection.unfinished) == (0, 2)
            await engine.acked(engine.about(first, "job_complete", result="x"))
            third = await engine.next(JobDispatch)
            assert third.job_id == handles[2].id


@pytest.mark.requirement("EH-02")
async def test_a_job_that_is_not_acknowledged_fails_by_policy(app: tenure.App) -> None:
    strict = tenure.Timeouts(queued_seconds=30, claimed_seconds=0.3, running_seconds=60)
    render = declare(app, **{**tenure.STRICT, "timeouts": strict})
    async with opened_gateway(app, scan_seconds=3600.0) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        await engine.next(JobDispatch)
        cancel = await engine.next(CancelJob)
        assert (cancel.job_id, cancel.hard) == (handle.id, True)
        job = await until(app, handle, FAILED)
        shown = vocabulary("engine").job(job, await log_of(app, handle))
        assert (shown["errorCategory"], shown["dispatchedAt"]) == ("queue", None)


@pytest.mark.requirement("EH-02")
async def test_a_lost_dispatch_is_returned_after_claimed_seconds_and_not_after_the_lease(app: tenure.App) -> None:
    timeouts = tenure.Timeouts(claimed_seconds=2.0)
    render = declare(app, timeouts=timeouts, lease_seconds=3600, heartbeat_seconds=1000)
    async with opened_gateway(app, scan_seconds=3600.0) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        first = await engine.next(JobDispatch)
        second = await engine.next(JobDispatch)
        assert (second.job_id, second.attempt) == (first.job_id, 2)
        await engine.acked(engine.about(second, "job_complete", result="x"))
        # The late reply for the first dispatch has no effect.
        assert (await engine.acked(engine.about(first, "job_complete", result="y"))).outcome == "lost"
        assert await handle.result(timeout_seconds=LIMIT_SECONDS) == "x"


@pytest.mark.requirement("EH-02", "EH-03")
async def test_a_job_that_is_acknowledged_and_never_started_fails_by_policy(app: tenure.App) -> None:
    strict = tenure.Timeouts(queued_seconds=30, claimed_seconds=2.0, running_seconds=60)
    render = declare(app, **{**tenure.STRICT, "timeouts": strict})
    async with opened_gateway(app, scan_seconds=3600.0) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        await engine.acked(engine.about(await engine.next(JobDispatch), "job_ack"))
        await until(app, handle, FAILED)
    assert await types_of(app, handle) == ["enqueued", "claimed", "acked", "failed"]


@pytest.mark.requirement("EH-03", "EH-11")
async def test_a_job_that_runs_too_long_fails_by_policy_and_the_engine_is_told_to_stop(app: tenure.App) -> None:
    strict = tenure.Timeouts(queued_seconds=30, claimed_seconds=10, running_seconds=0.3)
    render = declare(app, **{**tenure.STRICT, "timeouts": strict})
    async with opened_gateway(app, scan_seconds=3600.0) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        await engine.acked(engine.about(await engine.next(JobDispatch), "job_started"))
        assert (await engine.next(CancelJob)).hard
        job = await until(app, handle, FAILED)
        shown = vocabulary("engine").job(job, await log_of(app, handle))
        assert shown["errorCategory"] == "system"


@pytest.mark.requirement("EH-03", "WF-15")
async def test_a_job_that_reaches_its_deadline_fails_and_the_engine_is_told_to_stop(app: tenure.App) -> None:
    render = declare(app, deadline_seconds=2.0)
    async with opened_gateway(app, scan_seconds=3600.0) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        await engine.acked(engine.about(await engine.next(JobDispatch), "job_started"))
        assert (await engine.next(CancelJob)).hard
        job = await until(app, handle, FAILED)
        assert (await log_of(app, handle))[-1].cause == "timeout"
        assert "at its deadline" in (job.error or "")


@pytest.mark.requirement("EH-04", "EH-11")
@pytest.mark.parametrize("on_lost", ["fail", "requeue"])
async def test_the_jobs_of_a_closed_socket_end_by_policy(app: tenure.App, on_lost: Any) -> None:
    render = declare(app, on_lost=on_lost, lease_seconds=3600, heartbeat_seconds=1.0)
    async with opened_gateway(app) as gateway:
        handles = await app.enqueue_many(render.request(str(number)) for number in range(5))
        async with connected(gateway, "render", capacity=5) as engine:
            for _ in handles:
                await engine.acked(engine.about(await engine.next(JobDispatch), "job_started"))
        for handle in handles:
            job = await until(app, handle, FAILED if on_lost == "fail" else QUEUED)
            assert job.losses == 1
            shown = vocabulary("engine").job(job, await log_of(app, handle))
            assert shown["errorCategory"] == ("system" if on_lost == "fail" else None)


@pytest.mark.requirement("EH-04", "EH-06")
async def test_an_engine_that_is_lost_before_it_starts_a_job_is_a_failure_of_the_queue(app: tenure.App) -> None:
    render = declare(app, on_lost="fail", lease_seconds=3600, heartbeat_seconds=1.0)
    async with opened_gateway(app) as gateway:
        handle = await render.enqueue("intro")
        async with connected(gateway, "render") as engine:
            await engine.acked(engine.about(await engine.next(JobDispatch), "job_ack"))
        job = await until(app, handle, FAILED)
        assert vocabulary("engine").job(job, await log_of(app, handle))["errorCategory"] == "queue"


@pytest.mark.requirement("EH-04")
async def test_a_silent_engine_is_disconnected_and_its_jobs_are_recovered(app: tenure.App) -> None:
    render = declare(app, on_lost="fail", lease_seconds=3600, heartbeat_seconds=1.0)
    silence = {"heartbeat_seconds": 0.4, "silence_seconds": 2.0}
    async with opened_gateway(app, **silence) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        engine.about(await engine.next(JobDispatch), "job_started")
        assert (await engine.refused()).code == "silent"
        await until(app, handle, FAILED)


async def test_a_connected_engine_keeps_its_lease(app: tenure.App) -> None:
    render = declare(app, on_lost="fail", lease_seconds=3.0, heartbeat_seconds=1.0)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        await engine.acked(engine.about(dispatch, "job_started"))
        await renewed(app, handle, 4)
        assert (await engine.acked(engine.about(dispatch, "job_complete", result="x"))).outcome == "recorded"


async def test_an_engine_resumes_its_jobs_through_another_gateway(app: tenure.App) -> None:
    render = declare(app, on_lost="fail")
    async with opened_gateway(app) as first, opened_gateway(app) as second:
        handle = await render.enqueue("intro")
        async with connected(first, "render") as engine:
            dispatch = await engine.next(JobDispatch)
            await engine.acked(engine.about(dispatch, "job_started"))
        held = [{"job_id": dispatch.job_id, "claim": dispatch.claim}]
        async with connected(second, "render", epoch=2, claim=dispatch.claim, jobs=held, wait=False) as engine:
            welcome = await engine.next(Welcome)
            assert [job.job_id for job in welcome.jobs] == [handle.id]
            assert (await engine.acked(engine.about(dispatch, "job_complete", result="x"))).outcome == "recorded"
            assert await handle.result(timeout_seconds=LIMIT_SECONDS) == "x"


async def test_a_dispatch_that_the_engine_never_saw_is_sent_again_through_another_gateway(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as first, opened_gateway(app) as second:
        handle = await render.enqueue("intro")
        async with connected(first, "render") as engine:
            lost = await engine.next(JobDispatch)
        async with connected(second, "render", epoch=2, claim=0) as engine:
            again = await engine.next(JobDispatch)
            assert (again.job_id, again.claim, again.attempt) == (handle.id, lost.claim, 1)


async def test_an_unacknowledged_reply_is_sent_again_after_a_reconnect_and_applied_once(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway:
        handle = await render.enqueue("intro")
        async with connected(gateway, "render") as engine:
            dispatch = await engine.next(JobDispatch)
            await engine.acked(engine.about(dispatch, "job_complete", result="x"))
        held = [{"job_id": dispatch.job_id, "claim": dispatch.claim}]
        async with connected(gateway, "render", epoch=2, claim=dispatch.claim, jobs=held) as engine:
            ack = await engine.acked(engine.about(dispatch, "job_complete", result="x"))
            assert (ack.outcome, ack.status) == ("recorded", "succeeded")
    assert (await types_of(app, handle)).count("succeeded") == 1


async def test_a_stale_ack_after_completion_is_ignored(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        await engine.acked(engine.about(dispatch, "job_complete", result="x"))
        before = await types_of(app, handle)
        await engine.acked(engine.about(dispatch, "job_ack"))
        await engine.acked(engine.about(dispatch, "job_started"))
        assert await types_of(app, handle) == before


async def test_a_retired_socket_starts_nothing(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as old:
        async with connected(gateway, "render", epoch=2) as new:
            assert (await old.refused()).code == "stale_epoch"
            handle = await render.enqueue("intro")
            assert (await new.next(JobDispatch)).job_id == handle.id
        assert [text for sender, text in old.socket.traffic if "job_dispatch" in text and sender == "gateway"] == []


async def test_an_older_epoch_of_a_session_is_refused(app: tenure.App) -> None:
    declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render", epoch=2) as engine:
        async with connected(gateway, "render", epoch=1, wait=False) as late:
            assert (await late.refused()).code == "stale_epoch"
        assert (await engine.acked(engine.say("heartbeat"))).outcome == "recorded"


async def test_a_drain_keeps_heartbeats_and_renewals_going(app: tenure.App) -> None:
    render = declare(app, lease_seconds=3.0, heartbeat_seconds=1.0)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        await engine.acked(engine.about(dispatch, "job_started"))
        gateway.connections[0].drain("a test")
        assert (await engine.next(GatewayDrain)).reason == "a test"
        later = await render.enqueue("not dispatched")
        await renewed(app, handle, 3)
        assert (await engine.acked(engine.say("heartbeat"))).outcome == "recorded"
        assert (await engine.acked(engine.about(dispatch, "job_complete", result="x"))).outcome == "recorded"
        # A claim that was under way at the drain may have taken it; then it is released.
        assert (await until(app, later, QUEUED, STALLED)).failures == 0
        dispatched = [text for sender, text in engine.socket.traffic if sender == "gateway" and "job_dispatch" in text]
        assert len(dispatched) == 1


async def test_a_soft_cancel_reaches_the_engine_which_ends_the_job(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        await engine.acked(engine.about(dispatch, "job_started"))
        await app.cancel(handle.id, reason="no longer wanted")
        cancel = await engine.next(CancelJob)
        assert (cancel.hard, cancel.reason) == (False, "no longer wanted")
        error = {"type": "Cancelled", "message": "stopped"}
        assert (
            await engine.acked(engine.about(dispatch, "job_failed", error=error, action="cancel"))
        ).status == "cancelled"


async def test_a_cancel_that_was_not_requested_is_an_error_of_the_attempt(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        error = {"type": "Cancelled", "message": "stopped"}
        number = engine.about(await engine.next(JobDispatch), "job_failed", error=error, action="cancel")
        ack = await engine.acked(number)
        assert (ack.outcome, ack.status) == ("recorded", "retry")
    assert (await until(app, handle, RETRY, CLAIMED)).failures == 1


async def test_a_refused_lease_cancels_the_local_work(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        await engine.acked(engine.about(dispatch, "job_started"))
        await app.cancel(handle.id, hard=True)
        assert (await engine.next(CancelJob)).hard
        assert (await engine.acked(engine.about(dispatch, "job_complete", result="x"))).outcome == "lost"
        [connection] = gateway.connections
        assert connection.unfinished == 0


async def test_a_lost_lease_does_not_end_the_connection(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        lost = await render.enqueue("lost")
        await engine.next(JobDispatch)
        await app.cancel(lost.id, hard=True)
        await engine.next(CancelJob)
        handle = await render.enqueue("next")
        dispatch = await engine.next(JobDispatch)
        await engine.acked(engine.about(dispatch, "job_complete", result="x"))
        assert await handle.result(timeout_seconds=LIMIT_SECONDS) == "x"


async def test_an_engine_that_stops_releases_its_job_without_a_failure(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        await engine.acked(engine.say("drain"))
        error = {"type": "Stopping", "message": "the engine stops"}
        await engine.acked(engine.about(dispatch, "job_failed", error=error, action="release"))
        job = await until(app, handle, STALLED)
        assert (job.failures, job.due_at is not None) == (0, True)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({"type": "heartbeat", "id": 1}, "hello_expected"),
        ({"type": "dance"}, "invalid_message"),
        ({"type": "hello", "engine_id": "e1", "session": "short", "kinds": ["render"]}, "invalid_message"),
        ({"type": "hello", "engine_id": "e1", "session": "s" * 32, "kinds": []}, "invalid_message"),
        (
            {"type": "hello", "engine_id": "e1", "session": "s" * 32, "kinds": ["render"], "capacity": 0},
            "invalid_message",
        ),
        ({"type": "hello", "engine_id": "e1", "session": "s" * 32, "kinds": ["unheard"]}, "unknown_kinds"),
    ],
)
async def test_a_bad_first_message_is_refused_with_its_reason(app: tenure.App, sent: dict[str, Any], code: str) -> None:
    import msgspec

    from tests.support.engine_socket import ManualEngine, MemorySocket

    declare(app)
    async with opened_gateway(app) as gateway:
        socket = MemorySocket()
        serving = asyncio.create_task(gateway.serve(socket, token_id="t1"))
        socket.engine_sends(msgspec.json.encode(sent).decode())
        error = await ManualEngine(socket).refused()
        assert error.code == code
        await asyncio.wait_for(serving, LIMIT_SECONDS)
        assert gateway.connections == []


async def test_an_engine_cannot_touch_the_job_of_another_engine(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        strangers: list[dict[str, Any]] = [{"session": "t" * 32}, {"engine_id": "e2"}, {"token_id": "t2"}]
        for stranger in strangers:
            async with connected(gateway, "render", **stranger) as other:
                ack = await other.acked(other.about(dispatch, "job_complete", result="stolen"))
                assert ack.outcome == "lost"
        assert (await until(app, handle, CLAIMED, RUNNING, SUCCEEDED, RETRY)).status is CLAIMED
        assert (await engine.acked(engine.about(dispatch, "job_complete", result="mine"))).outcome == "recorded"


async def test_a_second_answer_with_another_outcome_is_refused(app: tenure.App) -> None:
    render = declare(app)
    async with opened_gateway(app) as gateway, connected(gateway, "render") as engine:
        handle = await render.enqueue("intro")
        dispatch = await engine.next(JobDispatch)
        await engine.acked(engine.about(dispatch, "job_complete", result="first"))
        ack = await engine.acked(engine.about(dispatch, "job_complete", result="second"))
        assert ack.outcome in ("refused", "lost")
        assert await handle.result(timeout_seconds=LIMIT_SECONDS) == "first"
