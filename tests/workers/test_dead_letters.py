"""A real worker on each store produces every reason and every stage of a dead letter.

`compensation_failed` comes with workflows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import tenure
from tenure.client.handle import Handle
from tenure.lifecycle.dead_letter import DeadLetterRecord, ReasonCode, Stage
from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Origin, Policy
from tenure.lifecycle.size_limits import CONTENT_BYTES_MAX
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED
from tenure.seams import SYSTEM
from tenure.stores import base
from tenure.stores.contract import ClaimRequest, EnqueueRequest
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

AT_ONCE = tenure.Backoff(base_seconds=0.01, max_seconds=0.01)
DEAD_LETTER: dict[str, Any] = {"max_attempts": 2, "backoff": AT_ONCE, "on_exhausted": "dead_letter"}
BURIED_POLICY = Policy(**DEAD_LETTER)


@pytest.fixture
async def app(database: Database) -> AsyncIterator[tenure.App]:
    async with database.opened():
        pass
    app = tenure.App(database.url)
    yield app
    await app.close()


async def letter_of(app: tenure.App, handle: Handle[Any]) -> DeadLetterRecord:
    """The dead letter of a job that a worker has ended, with every field that its record must have."""
    job = await handle.wait(60)
    assert job.status is DEAD_LETTERED, job.last_error
    letter = await (await app.store()).dead_letter(handle.id)
    assert letter is not None
    assert (letter.job_id, letter.attempts, letter.at) == (job.id, job.attempt, job.finished_at)
    assert (letter.last_error, letter.reason_code) == (job.last_error, job.reason)
    assert letter.last_owner
    assert letter.last_lease_expires_at is not None
    assert letter.correlation_id == "order-7"
    return letter


async def enqueue_raw(app: tenure.App, payload: str, monkeypatch: pytest.MonkeyPatch) -> Handle[Any]:
    """A job of a client that does not validate its payload."""
    origin = Origin(
        id=SYSTEM.random.job_id(), kind="work", payload=payload, policy=BURIED_POLICY, correlation_id="order-7"
    )
    with monkeypatch.context() as careless:
        careless.setattr(base, "validate_enqueues", lambda *_args, **_options: None)
        [added] = await (await app.store()).enqueue([EnqueueRequest(origin, app.client)])
    return Handle(app, added.job, app.kinds["work"], created=True)


@pytest.mark.requirement("SM-11")
async def test_a_payload_that_cannot_be_decoded_is_a_parse_error_at_fetch(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job(kind="work", **DEAD_LETTER)
    async def work(number: int) -> None: ...

    async with working(app):
        letter = await letter_of(app, await enqueue_raw(app, '{"number":', monkeypatch))
    assert (letter.reason_code, letter.stage, letter.attempts) == (ReasonCode.PARSE_ERROR, Stage.FETCH, 1)


@pytest.mark.requirement("SM-11")
async def test_a_payload_that_does_not_fit_is_a_failed_validation_at_input(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job(kind="work", **DEAD_LETTER)
    async def work(number: int) -> None: ...

    async with working(app):
        letter = await letter_of(app, await enqueue_raw(app, '{"number":"three"}', monkeypatch))
    assert (letter.reason_code, letter.stage, letter.attempts) == (ReasonCode.VALIDATION_FAILED, Stage.INPUT, 1)


@pytest.mark.requirement("SM-11", "SM-18")
@pytest.mark.parametrize(
    ("error", "reason", "stage", "attempts"),
    [
        (tenure.ValidationError("bad"), ReasonCode.VALIDATION_FAILED, Stage.INPUT, 1),
        (tenure.PolicyViolation("no"), ReasonCode.POLICY_VIOLATION, Stage.EXEC, 1),
        (tenure.DependencyUnavailable("away"), ReasonCode.DEPENDENCY_UNAVAILABLE, Stage.EXEC, 2),
        (RuntimeError("odd"), ReasonCode.EXHAUSTED_RETRIES, Stage.EXEC, 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_an_error_of_the_function_has_the_reason_of_its_class(
    app: tenure.App, error: Exception, reason: ReasonCode, stage: Stage, attempts: int
) -> None:
    @app.job(kind="work", **DEAD_LETTER)
    async def work() -> None:
        raise error

    async with working(app):
        letter = await letter_of(app, await work.options(correlation_id="order-7").enqueue())
    assert (letter.reason_code, letter.stage, letter.attempts) == (reason, stage, attempts)


@pytest.mark.requirement("SM-11", "EH-03")
async def test_an_attempt_that_runs_too_long_has_the_reason_timeout(app: tenure.App) -> None:
    @app.job(kind="work", **DEAD_LETTER, timeouts=tenure.Timeouts(running_seconds=0.2), on_timeout="dead_letter")
    async def work() -> None:
        await asyncio.Event().wait()

    async with working(app):
        letter = await letter_of(app, await work.options(correlation_id="order-7").enqueue())
    assert (letter.reason_code, letter.stage, letter.attempts) == (ReasonCode.TIMEOUT, Stage.EXEC, 1)


@pytest.mark.requirement("SM-11", "EH-03")
async def test_a_due_job_that_no_worker_takes_in_time_has_the_reason_timeout_at_fetch(app: tenure.App) -> None:
    @app.job(kind="work", **DEAD_LETTER, timeouts=tenure.Timeouts(queued_seconds=0.05), on_timeout="dead_letter")
    async def work() -> None: ...

    await app.queues.pause("default")
    handle = await work.options(correlation_id="order-7").enqueue()
    async with working(app):
        job = await handle.wait(60)
    letter = await (await app.store()).dead_letter(handle.id)
    assert letter is not None
    assert (job.status, letter.reason_code, letter.stage) == (DEAD_LETTERED, ReasonCode.TIMEOUT, Stage.FETCH)
    assert (letter.attempts, letter.last_owner) == (0, None)


@pytest.mark.requirement("SM-11", "SM-07")
@pytest.mark.parametrize("on_lost", ["requeue", "dead_letter"])
async def test_a_job_that_only_lost_its_workers_is_a_failure_of_the_infrastructure(
    app: tenure.App, on_lost: Any
) -> None:
    """Two owners vanish after their claim; a worker that serves another queue recovers the job."""

    @app.job(kind="work", **DEAD_LETTER, queue="abandoned", lease_seconds=0.2, on_lost=on_lost)
    async def work() -> None: ...

    store = await app.store()
    handle = await work.options(correlation_id="order-7").enqueue()
    async with working(app, queues=["default"]):
        for number in range(2 if on_lost == "requeue" else 1):
            claim = ClaimRequest(
                queues=("abandoned",),
                kinds=("work",),
                limit=1,
                worker=f"vanished-{number}",
                token=SYSTEM.random.token(),
                request_id=f"claim-{number}",
            )

            async def claims(claim: ClaimRequest = claim) -> bool:
                return bool(await store.claim(claim))

            await eventually(claims)
        letter = await letter_of(app, handle)
    assert (letter.reason_code, letter.stage) == (ReasonCode.INFRASTRUCTURE_FAILURE, Stage.EXEC)
    assert load(letter.last_error)["type"] == "WorkerLost"


@pytest.mark.requirement("SM-11")
@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ("x" * CONTENT_BYTES_MAX, f"is {CONTENT_BYTES_MAX + 2} bytes of JSON, and at most {CONTENT_BYTES_MAX}"),
        (object(), "cannot be encoded as JSON"),
    ],
    ids=["too large", "not JSON"],
)
@pytest.mark.parametrize("commits", [True, False])
async def test_a_result_that_cannot_be_stored_is_not_retried_and_is_of_stage_output(
    app: tenure.App, result: Any, problem: str, commits: bool
) -> None:
    runs: list[int] = []

    @app.job(kind="work", **DEAD_LETTER)
    async def work(ctx: tenure.Context) -> Any:
        runs.append(ctx.attempt)
        if commits:
            async with ctx.commit(result=result):
                pass
        return result

    async with working(app):
        letter = await letter_of(app, await work.options(correlation_id="order-7").enqueue())
    assert (letter.reason_code, letter.stage) == (ReasonCode.VALIDATION_FAILED, Stage.OUTPUT)
    assert problem in load(letter.last_error)["message"]
    assert runs == [1]


@pytest.mark.requirement("SM-11", "SM-09")
async def test_a_result_that_cannot_be_stored_fails_the_job_where_on_exhausted_is_fail(app: tenure.App) -> None:
    @app.job(max_attempts=5, on_exhausted="fail")
    def too_much() -> str:
        return "x" * CONTENT_BYTES_MAX

    async with working(app):
        job = await (await too_much.enqueue()).wait(60)
    assert (job.status, job.attempt, job.failures) == (FAILED, 1, 1)
    assert f"is {CONTENT_BYTES_MAX + 2} bytes of JSON" in load(job.error or "")["message"]


@pytest.mark.requirement("SM-11", "EL-04")
@pytest.mark.parametrize("how", ["async", "sync", "wrapped"])
async def test_a_commit_block_that_fails_for_good_is_of_stage_commit(app: tenure.App, how: str) -> None:
    async def work(ctx: tenure.Context) -> None:
        try:
            async with ctx.commit() as tx:
                await tx.execute("insert into no_such_table values (1)")
        except Exception as error:
            if how == "wrapped":
                raise RuntimeError("not sent") from error
            raise

    def work_in_thread(ctx: tenure.Context) -> None:
        with ctx.commit() as tx:
            tx.execute("insert into no_such_table values (1)")

    job = app.job(kind="work", **DEAD_LETTER)(work_in_thread if how == "sync" else work)
    async with working(app):
        letter = await letter_of(app, await job.options(correlation_id="order-7").enqueue())
    assert (letter.reason_code, letter.stage, letter.attempts) == (ReasonCode.EXHAUSTED_RETRIES, Stage.COMMIT, 2)
    assert "no_such_table" in load(letter.last_error)["traceback"]


@pytest.mark.requirement("SM-11")
async def test_an_error_after_a_failed_commit_block_that_was_handled_is_of_stage_exec(app: tenure.App) -> None:
    @app.job(kind="work", **DEAD_LETTER)
    async def work(ctx: tenure.Context) -> None:
        try:
            async with ctx.commit() as tx:
                await tx.execute("insert into no_such_table values (1)")
        except Exception:  # noqa: BLE001 - a job may go on without its commit
            ctx.progress(50)
        raise RuntimeError("something else")

    async with working(app):
        letter = await letter_of(app, await work.options(correlation_id="order-7").enqueue())
    assert letter.stage is Stage.EXEC
