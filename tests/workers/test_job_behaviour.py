"""What becomes of jobs: how errors end them, how they are tried again, cancelled, upgraded and surrounded.

Through the real pool, runner, completer and recovery, on a harness whose clock the test moves.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

import tenure
from tenure.app import UNKNOWN
from tenure.errors import (
    DependencyUnavailable,
    InvalidInput,
    JobCancelled,
    JobFailed,
    PayloadRefused,
    PermanentError,
    PolicyViolation,
    ResultRefused,
    Snooze,
    TransientError,
    UnknownKind,
    ValidationError,
)
from tenure.lifecycle.backoff import Backoff, retry_delay_ms
from tenure.lifecycle.dead_letter import DeadLetterRecord, ReasonCode, Stage
from tenure.lifecycle.records import Job, Origin
from tenure.stores.contract import DeadLetterFilter, JobFilter
from tenure.testing.harness.harness import Harness


@pytest.fixture
def app() -> tenure.App:
    return tenure.App("sqlite:///never.db", name="shop", version="1.2.3")


@pytest.fixture
async def harness(app: tenure.App) -> AsyncIterator[Harness]:
    async with app.testing() as harness:
        yield harness


async def test_a_result_that_breaks_the_annotation_ends_the_job_with_job_and_kind_in_the_message(
    app: tenure.App, harness: Harness
) -> None:
    @app.job(on_exhausted="fail")
    async def price(item: str) -> int:
        return cast(int, {"hat": "seven", "cap": None}[item])

    for item, got in (("hat", "str"), ("cap", "null")):
        handle = await price.enqueue(item)
        await harness.drain()
        job = await handle.refresh()
        assert (job.status, job.attempt) == ("failed", 1), "the function would return the same again"
        error = json.loads(job.error or "")
        assert error["type"] == "ResultRefused"
        assert error["message"].startswith(f"job {job.id}, result of price: does not fit the return annotation: ")
        assert f"Expected `int`, got `{got}`" in error["message"]


async def test_a_stored_result_that_newer_code_cannot_read_is_refused_with_job_and_kind(
    app: tenure.App, harness: Harness
) -> None:
    @app.job()
    async def price(item: str) -> int:
        return len(item)

    handle = await price.enqueue("hat")
    await harness.drain()
    newer = tenure.App("sqlite:///never.db")

    @newer.job(kind="price")
    async def priced(item: str) -> list[str]:
        return [item]

    later: tenure.Handle[list[str]] = tenure.Handle(app, await handle.refresh(), priced.definition, created=True)
    with pytest.raises(ResultRefused, match=f"job {handle.id}, result of price: .*Expected `array`, got `int`"):
        await later.result(20)


async def letter_of(app: tenure.App, job: Job) -> DeadLetterRecord:
    letter = await (await app.store()).dead_letter(job.id)
    assert letter is not None
    return letter


async def types_of(handle: tenure.Handle[Any]) -> list[str]:
    return [event.type.value for event in await handle.events()]


def seconds_until_due(job: Job) -> float:
    assert job.due_at is not None
    return (job.due_at - job.updated_at).total_seconds()


class TestErrorsDecide:
    @pytest.mark.requirement("SM-18")
    @pytest.mark.parametrize(
        ("error", "status"),
        [
            (TransientError("later"), "retry"),
            (DependencyUnavailable("away"), "retry"),
            (RuntimeError("whatever"), "retry"),
            (PermanentError("never"), "failed"),
            (ValidationError("not an address"), "dead_lettered"),
            (PolicyViolation("not allowed"), "dead_lettered"),
            (SystemExit(3), "retry"),
            (StopIteration(), "retry"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
    )
    @pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
    async def test_the_class_of_an_error_decides_what_becomes_of_its_job(
        self, app: tenure.App, harness: Harness, error: BaseException, status: str, is_async: bool
    ) -> None:
        async def work_async() -> None:
            raise error

        def work_plain() -> None:
            raise error

        job = app.job()(work_async) if is_async else app.job()(work_plain)
        await job.enqueue()
        [record] = (await harness.drain()).jobs
        assert (record.status, record.failures) == (status, 1)
        assert record.last_error is not None
        assert str(error) in json.loads(record.last_error)["message"]

    async def test_an_error_is_kept_with_its_class_and_where_it_came_from(
        self, app: tenure.App, harness: Harness
    ) -> None:
        @app.job()
        def work() -> None:
            deep_inside()

        def deep_inside() -> None:
            raise TransientError("no answer")

        await work.enqueue()
        [job] = (await harness.drain()).jobs
        described = json.loads(job.last_error or "")
        assert (described["type"], described["message"]) == ("TransientError", "no answer")
        assert "in deep_inside" in described["traceback"]

    @pytest.mark.requirement("SM-11")
    @pytest.mark.parametrize(
        ("error", "reason", "stage"),
        [
            (ValidationError("bad"), ReasonCode.VALIDATION_FAILED, Stage.INPUT),
            (PolicyViolation("no"), ReasonCode.POLICY_VIOLATION, Stage.EXEC),
            (DependencyUnavailable("away"), ReasonCode.DEPENDENCY_UNAVAILABLE, Stage.EXEC),
            (TransientError("later"), ReasonCode.EXHAUSTED_RETRIES, Stage.EXEC),
            (RuntimeError("odd"), ReasonCode.EXHAUSTED_RETRIES, Stage.EXEC),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
    )
    async def test_a_dead_letter_has_its_reason_stage_and_owner(
        self, app: tenure.App, harness: Harness, error: Exception, reason: ReasonCode, stage: Stage
    ) -> None:
        @app.job(max_attempts=2, on_exhausted="dead_letter", lease_seconds=45)
        def work() -> None:
            raise error

        handle = await work.options(correlation_id="order-7").enqueue()
        await harness.run_all()
        job = await handle.refresh()
        letter = await letter_of(app, job)
        assert (job.status, letter.reason_code, letter.stage) == ("dead_lettered", reason, stage)
        assert (letter.attempts, letter.correlation_id) == (job.attempt, "order-7")
        assert json.loads(letter.last_error)["message"] == str(error)
        assert letter.last_owner is not None
        assert letter.last_lease_expires_at is not None
        [last_claim] = [e for e in await handle.events() if e.type == "claimed" and e.attempt == job.attempt]
        assert (letter.last_owner, letter.last_lease_expires_at) == (last_claim.owner, last_claim.until_at)

    async def test_the_job_definition_decides_before_the_error_class(self, app: tenure.App, harness: Harness) -> None:
        @app.job(retry_on=PermanentError, fail_on=[KeyError, TransientError])
        def work(name: str) -> None:
            raise {"permanent": PermanentError, "key": KeyError, "transient": TransientError, "other": OSError}[name]

        names = ("permanent", "key", "transient", "other")
        await app.enqueue_many(work.request(name) for name in names)
        left = {json.loads(job.origin.payload)["name"]: job.status for job in (await harness.drain()).jobs}
        assert left == {"permanent": "retry", "key": "failed", "transient": "failed", "other": "retry"}

    async def test_what_is_both_to_be_retried_and_to_fail_is_retried(self, app: tenure.App, harness: Harness) -> None:
        @app.job(retry_on=LookupError, fail_on=KeyError)
        def work() -> None:
            raise KeyError("both")

        await work.enqueue()
        assert (await harness.drain()).counts == {"retry": 1}

    async def test_a_result_that_cannot_be_written_is_an_error_of_the_attempt(
        self, app: tenure.App, harness: Harness
    ) -> None:
        @app.job(max_attempts=1, on_exhausted="dead_letter")
        def work() -> Any:
            return object()

        await work.enqueue()
        [job] = (await harness.drain()).jobs
        letter = await letter_of(app, job)
        assert (job.status, letter.stage) == ("dead_lettered", Stage.OUTPUT)
        assert "cannot be encoded as JSON" in letter.last_error

    async def test_every_end_that_is_no_success_is_logged(
        self, app: tenure.App, harness: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.job()
        def work(name: str) -> None:
            raise {"fail": PermanentError, "retry": TransientError, "bury": ValidationError}[name](f"because {name}")

        await app.enqueue_many(work.request(name) for name in ("fail", "retry", "bury"))
        jobs = (await harness.drain()).jobs
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        for job in jobs:
            assert any(str(job.id) in line and job.status in line for line in lines), f"{job} is not in {lines}"

    async def test_the_result_of_a_failed_job_raises_job_failed(self, app: tenure.App, harness: Harness) -> None:
        @app.job()
        def work() -> None:
            raise PermanentError("no such thing")

        handle = await work.enqueue()
        with pytest.raises(JobFailed, match="no such thing"):
            await handle.result()


class TestTryingAgain:
    @pytest.mark.requirement("SM-08", "WC-11")
    async def test_each_delay_grows_within_its_bounds_and_can_be_recomputed(
        self, app: tenure.App, harness: Harness
    ) -> None:
        backoff = Backoff(base_seconds=2, factor=3, max_seconds=30)

        @app.job(max_attempts=6, on_exhausted="fail", backoff=backoff)
        def work() -> None:
            raise TransientError("again")

        handle = await work.enqueue()
        waits: list[float] = []
        for attempt, whole in enumerate((2, 6, 18, 30, 30), start=1):
            [job] = (await harness.drain()).jobs
            assert (job.attempt, job.failures, job.status) == (attempt, attempt, "retry")
            waits.append(seconds_until_due(job))
            assert whole / 2 <= waits[-1] <= whole
            expected_ms = retry_delay_ms(backoff, job_id=handle.id, attempt=attempt, failures=attempt)
            assert waits[-1] == expected_ms / 1000
            await harness.advance(waits[-1] - 0.001)
            harness.clock.advance(0.001)
        assert (await harness.drain()).counts == {"failed": 1}
        scheduled = [e.until_at - e.at for e in await handle.events() if e.type == "retry_scheduled" and e.until_at]
        assert scheduled == [timedelta(seconds=wait) for wait in waits], "the log has the due time of each attempt"

    @pytest.mark.requirement("SM-08")
    async def test_the_default_backoff_starts_at_half_a_second(self, app: tenure.App, harness: Harness) -> None:
        @app.job()
        def work() -> None:
            raise TransientError("again")

        await work.enqueue()
        [job] = (await harness.drain()).jobs
        assert 0.25 <= seconds_until_due(job) <= 0.5
        assert job.policy.backoff == Backoff(base_seconds=0.5, factor=2, max_seconds=14_400)

    @pytest.mark.requirement("WC-03")
    async def test_a_retry_is_dispatched_when_it_is_due_and_not_before(self, app: tenure.App, harness: Harness) -> None:
        @app.job()
        def work(ctx: tenure.Context) -> int:
            if ctx.attempt == 1:
                raise TransientError("again", delay_seconds=120)
            return ctx.attempt

        handle = await work.enqueue()
        await harness.drain()
        job = await handle.refresh()
        assert (job.status, job.due_at) == ("retry", harness.clock.now() + timedelta(seconds=120))
        assert (await harness.advance(119.999)).ran == ()
        assert (await harness.advance(0.001)).counts == {"succeeded": 1}
        assert await handle.result() == 2

    @pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "soon"])
    async def test_an_invalid_delay_does_not_prevent_the_outcome_from_being_written(
        self, app: tenure.App, harness: Harness, delay: Any
    ) -> None:
        @app.job()
        def work(ctx: tenure.Context) -> None:
            raise (TransientError("x", delay_seconds=delay) if ctx.attempt == 1 else Snooze(delay))

        await work.enqueue()
        [job] = (await harness.drain()).jobs
        assert (job.status, job.failures) == ("retry", 1)
        assert 0.25 <= seconds_until_due(job) <= 0.5
        [job] = (await harness.advance(seconds_until_due(job))).jobs
        assert (job.status, job.failures) == ("retry", 2)

    @pytest.mark.requirement("SM-09")
    @pytest.mark.parametrize(("policy", "end"), [("fail", "failed"), ("dead_letter", "dead_lettered")])
    @pytest.mark.parametrize("max_attempts", [1, 3])
    async def test_the_last_allowed_failure_ends_the_job_by_its_policy(
        self, app: tenure.App, harness: Harness, policy: Any, end: str, max_attempts: int
    ) -> None:
        @app.job(max_attempts=max_attempts, on_exhausted=policy)
        def work() -> None:
            raise TransientError("again")

        handle = await work.enqueue()
        report = await harness.run_all()
        assert [job.status for job in report.jobs] == ["retry"] * (max_attempts - 1) + [end]
        assert (await handle.refresh()).attempt == max_attempts
        last = (await handle.events())[-1]
        assert last.cause == "exhausted_retries"

    @pytest.mark.requirement("SM-09")
    async def test_a_snooze_takes_a_new_attempt_and_counts_no_failure(self, app: tenure.App, harness: Harness) -> None:
        @app.job(max_attempts=1, on_exhausted="fail")
        def work(ctx: tenure.Context) -> int:
            if ctx.attempt < 4:
                raise Snooze(60)
            return ctx.attempt

        handle = await work.enqueue()
        [job] = (await harness.drain()).jobs
        assert (job.status, job.failures, seconds_until_due(job)) == ("stalled", 0, 60)
        assert (await harness.advance(59)).ran == ()
        await harness.run_all()
        assert await handle.result() == 4
        assert (handle.job.attempt, handle.job.failures) == (4, 0)
        assert [e.cause for e in await handle.events() if e.type == "released"] == ["snooze"] * 3

    @pytest.mark.requirement("WC-06")
    async def test_the_outcome_is_recorded_once_although_the_job_was_changed_meanwhile(
        self, app: tenure.App, harness: Harness
    ) -> None:
        @app.job()
        async def work(ctx: tenure.Context) -> str:
            ctx.progress(10)
            await app.cancel(ctx.id)
            ctx.progress(90)
            return "done all the same"

        handle = await work.enqueue()
        await harness.drain()
        assert await handle.result() == "done all the same"
        assert (await types_of(handle)).count("succeeded") == 1
        assert handle.job.progress == 90


class TestInput:
    @pytest.mark.requirement("EH-05")
    async def test_what_does_not_fit_is_refused_counted_and_logged_and_nothing_is_stored(
        self, app: tenure.App, harness: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.job()
        def work(n: int, name: str = "x") -> int:
            return n

        refused: list[Callable[[], Awaitable[object]]] = [
            lambda: work.enqueue(name="y"),  # type: ignore[call-arg]
            lambda: work.enqueue("one"),  # type: ignore[arg-type]
            lambda: work.enqueue(1, "x", 2),  # type: ignore[call-arg]
            lambda: work.enqueue(1, colour="red"),  # type: ignore[call-arg]
            lambda: app.submit("work", '{"n":true}'),
        ]
        for call in refused:
            with pytest.raises(PayloadRefused, match="work"):
                await call()
        with pytest.raises(UnknownKind):
            await app.submit("other", "{}")
        assert app.rejections == {"work": 5, UNKNOWN: 1}
        assert len([r for r in caplog.records if "rejected: " in r.getMessage()]) == 6
        assert (await app.find(JobFilter())).jobs == []
        assert (await harness.drain()).ran == ()

    @pytest.mark.requirement("SM-11")
    async def test_a_payload_of_older_code_that_no_longer_fits_is_a_dead_letter_of_stage_input(
        self, app: tenure.App, harness: Harness
    ) -> None:
        calls: list[object] = []

        @app.job(kind="send")
        def old(to: str) -> None: ...

        await old.options(correlation_id="c-1").enqueue("ada@example.org")
        del app.kinds["send"]

        @app.job(kind="send")
        def new(to: str, subject: str) -> None:
            calls.append(to)

        [job] = (await harness.drain()).jobs
        letter = await letter_of(app, job)
        assert (letter.reason_code, letter.stage) == (ReasonCode.VALIDATION_FAILED, Stage.INPUT)
        assert (letter.correlation_id, letter.attempts, calls) == ("c-1", 1, [])
        assert "PayloadRefused" in letter.last_error
        assert [one.job_id for one in await self._open_letters(app)] == [job.id]

        del app.kinds["send"]
        app.job(kind="send")(old.function)
        again = await app.redrive(job.id)
        assert (await harness.drain()).counts == {"succeeded": 1}
        assert again.job.origin.redrive_of == job.id
        assert await self._open_letters(app) == []

    async def test_jobs_of_a_renamed_kind_run_under_the_new_name(self, app: tenure.App, harness: Harness) -> None:
        @app.job(kind="send_mail")
        def old(to: str) -> str:
            return f"old {to}"

        handle = await old.enqueue("ada")
        del app.kinds["send_mail"]

        @app.job(aliases=["send_mail"])
        def send(to: str) -> str:
            return f"new {to}"

        [job] = (await harness.drain()).jobs
        assert (job.kind, await handle.result()) == ("send_mail", "new ada")
        assert (await send.enqueue("bob")).job.kind == "send"

    async def test_old_payloads_are_upgraded_where_they_are_old_and_only_there(
        self, app: tenure.App, harness: Harness
    ) -> None:
        upgraded: list[dict[str, Any]] = []

        def upgrade(arguments: dict[str, Any]) -> dict[str, Any]:
            upgraded.append(arguments)
            return {"to": [arguments["address"]]}

        @app.job(kind="mail")
        def mail(address: str) -> None: ...

        @app.job(kind="send")
        def send_before(address: str) -> None: ...

        await mail.enqueue("ada")
        await send_before.enqueue("bob")
        app.kinds.clear()

        @app.job(kind="send", aliases=["mail"], upgrade=upgrade)
        def send(to: list[str]) -> list[str]:
            return to

        await send.enqueue(["cleo"])
        results = [job.result for job in (await harness.drain()).jobs]
        assert results == ['["ada"]', '["bob"]', '["cleo"]']
        assert upgraded == [{"address": "ada"}, {"address": "bob"}]

    async def test_a_payload_under_an_old_name_is_upgraded_although_it_would_fit(
        self, app: tenure.App, harness: Harness
    ) -> None:
        @app.job(kind="charge_euros")
        def before(amount: int) -> None: ...

        handle = await before.enqueue(7)
        app.kinds.clear()

        @app.job(aliases=["charge_euros"], upgrade=lambda arguments: {"amount": 100 * arguments["amount"]})
        def charge_cents(amount: int) -> int:
            return amount

        today = await charge_cents.enqueue(7)
        await harness.drain()
        assert (await handle.refresh()).result == "700"
        assert await today.result() == 7

    async def test_an_upgrade_that_leads_to_nothing_better_is_a_dead_letter(
        self, app: tenure.App, harness: Harness
    ) -> None:
        @app.job(kind="send")
        def before(to: int) -> None: ...

        await before.enqueue(6)
        app.kinds.clear()

        @app.job(kind="send", upgrade=lambda arguments: {"to": 7})
        def send(to: str) -> None: ...

        [job] = (await harness.drain()).jobs
        assert (await letter_of(app, job)).stage == Stage.INPUT

    async def test_an_upgrade_that_raises_is_a_dead_letter_too(self, app: tenure.App, harness: Harness) -> None:
        @app.job(kind="send")
        def before(to: int) -> None: ...

        await before.enqueue(6)
        app.kinds.clear()

        @app.job(kind="send", upgrade=lambda arguments: {"to": arguments["nonsense"]})
        def send(to: str) -> None: ...

        [job] = (await harness.drain()).jobs
        assert (await letter_of(app, job)).stage == Stage.INPUT
        assert "nonsense" in (job.last_error or "")

    @staticmethod
    async def _open_letters(app: tenure.App) -> list[DeadLetterRecord]:
        return (await (await app.store()).dead_letters(DeadLetterFilter())).letters


class TestCancelling:
    @pytest.mark.requirement("SM-10")
    @pytest.mark.parametrize("waits_as", ["queued", "retry", "snoozed"])
    async def test_a_job_without_a_lease_ends_at_once_and_never_runs(
        self, app: tenure.App, harness: Harness, waits_as: str
    ) -> None:
        @app.job()
        def work() -> None:
            if waits_as == "retry":
                raise TransientError("again")
            raise Snooze(60)

        handle = await work.enqueue()
        if waits_as != "queued":
            await harness.drain()
        runs = len(harness.ran)
        assert (await handle.cancel(reason="not needed")).status == "cancelled"
        assert (await harness.run_all()).ran == ()
        assert len(harness.ran) == runs
        with pytest.raises(JobCancelled, match="not needed"):
            await handle.result()

    @pytest.mark.requirement("SM-10")
    async def test_a_running_job_gets_the_cancel_request_may_clean_up_and_ends_cancelled(
        self, app: tenure.App, harness: Harness
    ) -> None:
        seen: list[str] = []

        @app.job()
        async def work(ctx: tenure.Context) -> None:
            ctx.check()
            requested = [ctx.cancel_requested]
            await app.cancel(ctx.id, reason="no longer wanted")
            requested.append(ctx.cancel_requested)
            assert requested == [False, True]
            ctx.progress(40, "tidying up")
            seen.append("tidied up")
            ctx.check()
            seen.append("went on")

        handle = await work.enqueue()
        [job] = (await harness.drain(raise_errors=True)).jobs
        assert (job.status, job.failures, seen) == ("cancelled", 0, ["tidied up"])
        types = await types_of(handle)
        assert [t for t in types if t != "heartbeat"] == [
            "enqueued", "claimed", "started", "cancel_requested", "progress", "cancelled",
        ]  # fmt: skip

    @pytest.mark.requirement("SM-10")
    async def test_a_request_survives_a_failed_attempt_and_the_function_is_not_called_again(
        self, app: tenure.App, harness: Harness
    ) -> None:
        calls: list[int] = []

        @app.job()
        async def work(ctx: tenure.Context) -> None:
            calls.append(ctx.attempt)
            await app.cancel(ctx.id)
            raise TransientError("too busy to notice")

        handle = await work.enqueue()
        await harness.run_all()
        assert ((await handle.refresh()).status, calls) == ("cancelled", [1])

    async def test_to_give_way_unasked_is_an_error_like_any_other(self, app: tenure.App, harness: Harness) -> None:
        @app.job()
        def work() -> None:
            raise tenure.CancelRequested("nobody asked")

        await work.enqueue()
        [job] = (await harness.drain()).jobs
        assert (job.status, job.failures) == ("retry", 1)
        assert job.last_error is not None
        assert "without a cancel request" in job.last_error

    @pytest.mark.requirement("SM-10", "SM-20")
    async def test_a_hard_cancel_ends_the_task_now_and_drops_what_it_had_made(
        self, app: tenure.App, harness: Harness
    ) -> None:
        began, seen = asyncio.Event(), list[str]()

        @app.job()
        async def work(ctx: tenure.Context) -> None:
            ctx.attach("half", "of it")
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("interrupted")

        handle = await work.enqueue()
        draining = asyncio.create_task(harness.drain())
        await asyncio.wait_for(began.wait(), 10)
        assert (await app.cancel(handle.id, hard=True)).status == "cancelled"
        report = await asyncio.wait_for(draining, 10)
        assert (seen, [ran.recorded for ran in report.ran]) == (["interrupted"], [False])
        assert await (await app.store()).artifacts(handle.id) == []
        assert (await types_of(handle))[-1] == "cancelled"


class TestArtifacts:
    @pytest.mark.requirement("SM-20")
    async def test_artifacts_become_visible_with_the_success_and_not_with_a_failure(
        self, app: tenure.App, harness: Harness
    ) -> None:
        @app.job()
        def work(ctx: tenure.Context) -> None:
            ctx.attach("report.txt", f"attempt {ctx.attempt}")
            if ctx.attempt == 1:
                raise TransientError("again")

        handle = await work.enqueue()
        await harness.drain()
        store = await app.store()
        assert await store.artifacts(handle.id) == []
        await harness.run_all()
        [artifact] = await store.artifacts(handle.id)
        assert (artifact.name, artifact.attempt) == ("report.txt", 2)
        body = await store.artifact(handle.id, "report.txt")
        assert body is not None
        assert body.body == b"attempt 2"


class TestStories:
    @pytest.mark.requirement("SM-16")
    async def test_jobs_enqueued_by_a_job_have_its_correlation_id(self, app: tenure.App, harness: Harness) -> None:
        @app.job()
        async def root(ctx: tenure.Context) -> None:
            await leaf.enqueue()
            async with ctx.commit() as tx:
                tx.enqueue(plain.request())

        @app.job()
        async def leaf() -> None: ...

        @app.job()
        def plain() -> None:
            leaf.options(correlation_id="my own").enqueue_sync()

        requested = root.options(correlation_id="order-7", trace="00-a-b-01", submitted_by="ada")
        await requested.enqueue()
        origins = [job.origin for job in (await harness.drain(raise_errors=True)).jobs]
        assert [origin.kind for origin in origins] == ["root", "leaf", "plain", "leaf"]
        assert [origin.correlation_id for origin in origins] == ["order-7", "order-7", "order-7", "my own"]
        assert {(origin.trace, origin.submitted_by) for origin in origins} == {("00-a-b-01", "ada")}

    async def test_without_a_correlation_id_a_root_job_has_its_own_id(self, app: tenure.App, harness: Harness) -> None:
        @app.job()
        async def root() -> None:
            await leaf.enqueue()

        @app.job()
        async def leaf() -> None: ...

        handle = await root.enqueue()
        _, child = (await harness.drain()).jobs
        assert child.origin.correlation_id == str(handle.id)

    async def test_jobs_enqueued_outside_of_a_job_have_no_parent(self, app: tenure.App, harness: Harness) -> None:
        @app.job()
        async def root() -> None: ...

        await root.options(correlation_id="order-7").enqueue()
        await harness.drain()
        assert (await root.enqueue()).job.origin.correlation_id is None

    @pytest.mark.requirement("WC-13")
    async def test_the_provenance_of_an_end_names_inputs_attempts_and_code(
        self, app: tenure.App, harness: Harness
    ) -> None:
        @app.job()
        def work(ctx: tenure.Context, n: int) -> int:
            if ctx.attempt == 1:
                raise TransientError("once")
            return n

        handle = await work.enqueue(7)
        await harness.run_all()
        provenance = await handle.provenance()
        assert provenance.inputs.payload == '{"n":7}'
        assert [attempt.code_version for attempt in provenance.attempts] == ["1.2.3", "1.2.3"]
        assert (provenance.outcome.status, provenance.outcome.result) == ("succeeded", "7")


class Noting(tenure.Middleware):
    """Writes down when it was passed."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def enqueue(self, origin: Origin, proceed: Callable[[Origin], Origin]) -> Origin:
        self.seen.append(f"{self.name} enqueue")
        tags = {**(origin.tags or {}), self.name: "was here"}
        return proceed(msgspec.structs.replace(origin, tags=tags))

    async def run(self, ctx: tenure.Context, proceed: Callable[[], Awaitable[Any]]) -> Any:
        self.seen.append(f"{self.name} before")
        try:
            return f"{await proceed()}, {self.name}"
        finally:
            self.seen.append(f"{self.name} after")


class Refusing(tenure.Middleware):
    """Lets nothing through."""

    def __init__(self, where: str) -> None:
        self.where = where

    def enqueue(self, origin: Origin, proceed: Callable[[Origin], Origin]) -> Origin:
        if self.where == "enqueue":
            raise InvalidInput("tenant", "is over its limit")
        return proceed(origin)

    async def run(self, ctx: tenure.Context, proceed: Callable[[], Awaitable[Any]]) -> Any:
        raise PolicyViolation("not for this tenant")


class TestMiddleware:
    @pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
    async def test_the_first_layer_is_the_outermost_on_both_ways(self, is_async: bool) -> None:
        seen: list[str] = []
        app = tenure.App("sqlite:///never.db", middleware=[Noting("outer", seen), Noting("inner", seen)])

        async def work_async() -> str:
            seen.append("function")
            return "done"

        def work_plain() -> str:
            seen.append("function")
            return "done"

        job = app.job()(work_async) if is_async else app.job()(work_plain)
        async with app.testing() as harness:
            handle = await job.enqueue()
            assert handle.job.origin.tags == {"outer": "was here", "inner": "was here"}
            await harness.drain()
            assert await handle.result() == "done, inner, outer"
        assert seen == [
            "outer enqueue", "inner enqueue",
            "outer before", "inner before", "function", "inner after", "outer after",
        ]  # fmt: skip

    async def test_a_layer_may_refuse_an_enqueue_and_then_nothing_is_queued(self) -> None:
        seen: list[str] = []
        app = tenure.App("sqlite:///never.db", middleware=[Refusing("enqueue"), Noting("inner", seen)])

        @app.job()
        def work() -> None: ...

        async with app.testing():
            with pytest.raises(InvalidInput, match="over its limit"):
                await work.enqueue()
            assert (await app.find(JobFilter())).jobs == []
        assert seen == []

    async def test_a_layer_may_refuse_a_run_and_its_error_decides(self) -> None:
        seen: list[str] = []
        app = tenure.App("sqlite:///never.db", middleware=[Noting("outer", seen), Refusing("run")])

        @app.job()
        def work() -> None:
            seen.append("function")

        async with app.testing() as harness:
            await work.enqueue()
            [job] = (await harness.drain()).jobs
            assert (await letter_of(app, job)).reason_code == ReasonCode.POLICY_VIOLATION
        assert seen == ["outer enqueue", "outer before", "outer after"]

    async def test_a_middleware_sees_each_error_and_may_replace_it(self) -> None:
        class Translating(tenure.Middleware):
            async def run(self, ctx: tenure.Context, proceed: Callable[[], Awaitable[Any]]) -> Any:
                try:
                    return await proceed()
                except ConnectionError as error:
                    raise DependencyUnavailable(f"attempt {ctx.attempt}: {error}") from error

        app = tenure.App("sqlite:///never.db", middleware=[Translating()])

        @app.job(fail_on=OSError)
        async def work() -> None:
            raise ConnectionError("refused")

        async with app.testing() as harness:
            await work.enqueue()
            [job] = (await harness.drain()).jobs
            assert (job.status, json.loads(job.last_error or "")["message"]) == ("retry", "attempt 1: refused")
