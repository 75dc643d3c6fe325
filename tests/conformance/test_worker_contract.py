"""The worker contract (WC), on both stores, in its own vocabulary."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.errors import IllegalTransition, NotAuthorised
from tenure.lifecycle.backoff import retry_delay_ms
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Cancel,
    Complete,
    DeadLetter,
    Fail,
    Halt,
    Heartbeat,
    Operation,
    Requeue,
    Retry,
    Stall,
    Start,
)
from tenure.lifecycle.records import Actor, Role
from tenure.lifecycle.timeouts import Timeouts
from tenure.seams import SYSTEM
from tenure.stores.contract import OutboxMessage
from tenure.stores.contract.steps import all_steps
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, runner
from tenure.workflow.golden import replay_golden_file
from tenure.workflow.golden_file import golden_file
from tests.conformance.system import System, check_complete, reported_by, word_of
from tests.support.in_process_worker import working
from tests.support.sample_jobs import one_of_each

WORDS = "worker"


def test_every_requirement_is_shown_here_or_listed_as_missing() -> None:
    check_complete("WC", Path(__file__).read_text(encoding="utf-8"), Path(__file__).name)


@pytest.mark.requirement("WC-01")
async def test_each_transition_has_one_authority(system: System) -> None:
    job = await system.drive.running()
    await system.drive.apply(job, Retry(ERROR, delay_seconds=0))
    await system.drive.claim()
    system.clock.advance(60)
    await system.recover()
    [again] = await system.drive.claim()
    await system.drive.apply(again, Complete("1"))
    assert [
        (one.fields["from"], one.fields["to"], one.fields["authority"]) for one in await system.reported(job.id)
    ] == [
        (None, "queued", "API"),
        ("queued", "running", "WorkerPool"),
        ("running", "retry", "RunRunner"),
        ("retry", "running", "WorkerPool"),
        ("running", "retry", "RecoveryWorker"),
        ("retry", "running", "WorkerPool"),
        ("running", "succeeded", "RunRunner"),
    ]


DEAD_LETTER = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR)
FORBIDDEN: dict[Role, tuple[Operation, ...]] = {
    Role.POOL: (Complete("1"), Fail(ERROR), Retry(ERROR), Halt("cost", "1"), Stall(), Requeue(), Cancel()),
    Role.RUNNER: (Stall(), Requeue()),
    Role.RECOVERY: (Start(), Heartbeat(), Complete("1"), Fail(ERROR), Retry(ERROR), Halt("cost", "1"), Cancel()),
    Role.CLIENT: (Start(), Heartbeat(), Complete("1"), Fail(ERROR), Stall()),
    Role.OUTBOX: (Start(), Complete("1"), Fail(ERROR), Retry(ERROR), Stall(), Cancel(), DEAD_LETTER),
    Role.WORKFLOW: (Start(), Complete("1"), Fail(ERROR), Retry(ERROR), Stall(), Cancel(), DEAD_LETTER),
}


@pytest.mark.requirement("WC-01", "WC-11")
@pytest.mark.parametrize("role", list(FORBIDDEN))
async def test_no_role_changes_what_another_owns_even_if_it_holds_the_token(system: System, role: Role) -> None:
    job = await system.drive.running()
    for operation in FORBIDDEN[role]:
        refusal = await system.drive.refuse(job.id, operation, actor=Actor(role, "worker-1", job.token))
        assert isinstance(refusal, NotAuthorised | IllegalTransition), (operation, refusal)
    assert await system.names(job.id) == ["queued", "running"]


@pytest.mark.requirement("WC-02")
async def test_runs_are_dispatched_by_priority_and_then_by_age_and_none_is_skipped(system: System) -> None:
    made = []
    for priority in (0, 5, 0, 9, 5):
        made.append(await system.drive.add(priority=priority))
        system.clock.advance(1)
    order = []
    while jobs := await system.drive.claim(limit=2):
        order += [job.id for job in jobs]
    assert order == [made[number].id for number in (3, 1, 4, 0, 2)]
    assert {(await system.shown(job.id))["status"] for job in made} == {"running"}


@pytest.mark.requirement("WC-03")
async def test_a_retry_has_its_due_time_and_is_dispatched_from_then_on(system: System) -> None:
    job = await system.drive.running()
    await system.drive.apply(job, Retry(ERROR, delay_seconds=30))
    waiting = await system.shown(job.id)
    reported = (await system.reported(job.id))[-1]
    assert (waiting["status"], waiting["attempts"], reported.name) == ("retry", 1, "retry")
    assert waiting["next_attempt_at"] == reported.fields["next_attempt_at"]
    assert (waiting["next_attempt_at"] - reported.fields["at"]).total_seconds() == 30
    system.clock.advance(29.999)
    assert await system.drive.claim() == []
    system.clock.advance(0.001)
    [again] = await system.drive.claim()
    assert (again.id, (await system.shown(job.id))["attempts"]) == (job.id, 2)


@pytest.mark.requirement("WC-04")
async def test_a_halted_run_keeps_what_there_is_and_running_it_again_is_a_new_run(system: System) -> None:
    job = await system.drive.running()
    await system.drive.apply(job, Halt("the budget of 2.0 is used up", '{"pages":3}'))
    halted = await system.shown(job.id)
    assert (halted["status"], halted["halt_reason"]) == ("halted", "the budget of 2.0 is used up")
    assert (halted["partial_result"], halted["error"], halted["result"]) == ({"pages": 3}, None, None)
    assert isinstance(await system.drive.refuse(job.id, Cancel(), actor=CLIENT), IllegalTransition)
    again = await system.operator().redrive(job.id)
    assert again.job.id != job.id
    assert ((await system.shown(job.id))["status"], (await system.shown(again.job.id))["status"]) == (
        "halted",
        "queued",
    )


@pytest.mark.requirement("WC-05")
async def test_pools_side_by_side_run_every_run_and_a_stopping_one_finishes_what_it_has(app: tenure.App) -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    @app.job()
    async def work(number: int) -> int:
        begun.set()
        await go.wait()
        return number

    async with working(app), working(app, concurrency=3):
        jobs = await app.enqueue_many(work.request(number) for number in range(30))
        await asyncio.wait_for(begun.wait(), 20)
        go.set()
        assert [await job.result(20) for job in jobs] == list(range(30))
    go.clear()
    begun.clear()
    # With one slot no claim is under way while it runs: jobs of such a claim would still be accepted.
    async with working(app, concurrency=1) as stopping:
        last = await work.enqueue(99)
        await asyncio.wait_for(begun.wait(), 20)
        stopping.stop()
        unclaimed = await work.enqueue(100)
        go.set()
    assert (await unclaimed.refresh()).attempt == 0
    assert await word_of(app, last.id, WORDS) == "succeeded"
    assert (await last.refresh()).attempt == 1


@pytest.mark.requirement("WC-06")
async def test_the_outcome_of_a_run_is_recorded_exactly_once(system: System) -> None:
    job = await system.drive.running()
    request = system.drive.request(job, Complete("1"))
    await system.drive.try_apply(request)
    for _ in range(3):
        assert (await system.drive.repeat(request)).status == "succeeded"
    refusal = await system.drive.refuse(job.id, Fail(ERROR), actor=runner(job))
    assert "nothing, it is terminal" in str(refusal) or "revoked or replaced" in str(refusal)
    assert (await system.names(job.id)).count("succeeded") == 1


@pytest.mark.requirement("WC-07")
async def test_messages_are_written_with_the_outcome_or_not_at_all_and_keep_their_order(app: tenure.App) -> None:
    @app.job(max_attempts=1, on_exhausted="fail")
    async def pay(ctx: tenure.Context, wrong: bool) -> str:
        async with ctx.commit(result="paid") as tx:
            for number in range(3):
                tx.outbox("paid", {"number": number}, aggregate="account-1")
            if wrong:
                raise tenure.PermanentError("no")
        return "paid"

    async with working(app):
        failed = await (await pay.enqueue(wrong=True)).wait(20)
        assert await word_of(app, failed.id, WORDS) == "failed"
        assert await (await pay.enqueue(wrong=False)).result(20) == "paid"
    name = "tenure_outbox" if app.database.startswith("sqlite") else "tenure.outbox"
    query = f"select sequence, id, body from {name} order by sequence"
    async with (await app.store()).transaction(deadline_seconds=5) as tx:
        rows = await tx.fetch(query)
    assert len({row["id"] for row in rows}) == len(rows) == 3
    assert [str(row["body"]) for row in rows] == [f'{{"number":{number}}}' for number in range(3)]


@pytest.mark.requirement("WC-07")
async def test_a_message_that_was_rolled_back_is_gone_and_the_others_keep_their_order(system: System) -> None:
    async def post(*, fails: bool) -> None:
        message = OutboxMessage(id=SYSTEM.random.job_id(), topic="paid", body="{}", aggregate="account-1")
        async with system.store.transaction(deadline_seconds=5) as tx:
            await tx.post([message])
            if fails:
                raise TimeoutError

    await post(fails=False)
    with pytest.raises(TimeoutError):
        await post(fails=True)
    await post(fails=False)
    name = "tenure_outbox" if system.database.is_sqlite else "tenure.outbox"
    async with system.store.transaction(deadline_seconds=5) as tx:
        rows = await tx.fetch(f"select sequence from {name} order by sequence")
    first, second = (row["sequence"] for row in rows)
    assert second > first


@pytest.mark.requirement("WC-10", "WC-11")
async def test_every_orphan_is_evaluated_within_a_scan_also_when_many_recover_at_once(system: System) -> None:
    await system.store.enqueue([system.drive.enqueue() for _ in range(60)])
    jobs = await system.drive.claim(limit=60)
    system.clock.advance(60)
    changed = await asyncio.gather(*(system.recover() for _ in range(4)))
    assert sum(changed) == 60
    for job in jobs:
        assert (await system.names(job.id))[-2:] == ["running", "retry"]
    assert await system.recover() == 0


@pytest.mark.requirement("WC-11")
async def test_no_run_stays_running_for_ever_even_if_it_heartbeats(system: System) -> None:
    job = await system.drive.running(policy={"timeouts": Timeouts(running_seconds=100), "on_timeout": "fail"})
    for _ in range(11):
        system.clock.advance(10)
        job = await system.drive.apply(job, Heartbeat())
    assert await system.recover() == 1
    ended = await system.shown(job.id)
    assert (ended["status"], ended["error"]["type"]) == ("failed", "Timeout")


@pytest.mark.requirement("WC-11")
async def test_the_jitter_of_a_retry_can_be_recomputed_from_the_job_and_its_attempt(system: System) -> None:
    job = await system.drive.running()
    retried = await system.drive.apply(job, Retry(ERROR))
    reported = (await system.reported(job.id))[-1].fields
    delay_ms = retry_delay_ms(job.policy.backoff, job_id=job.id, attempt=1, failures=retried.failures)
    assert round((reported["next_attempt_at"] - reported["at"]).total_seconds() * 1000) == delay_ms


@pytest.mark.requirement("WC-12")
async def test_what_has_ended_never_changes_and_its_times_are_in_order(system: System) -> None:
    for job in await one_of_each(system.drive):
        if job.live:
            continue
        before = await system.shown(job.id)
        for operation, actor in (
            (Cancel(), CLIENT),
            (Requeue(), RECOVERY),
            (Start(), runner(job)),
            (DEAD_LETTER, RECOVERY),
        ):
            await system.drive.refuse(job.id, operation, actor=actor)
        assert await system.shown(job.id) == before
        times = [before[name] for name in ("created_at", "started_at", "completed_at") if before[name] is not None]
        assert times == sorted(times)
        assert before["completed_at"] is not None


@pytest.mark.requirement("WC-12")
async def test_attempts_only_grow_and_a_key_is_unique_among_live_runs(system: System) -> None:
    job = await system.drive.add(dedupe_key="order-7")
    for number in range(1, 4):
        assert (await system.drive.add(dedupe_key="order-7")).id == job.id
        [claimed] = await system.drive.claim()
        await system.drive.apply(claimed, Retry(ERROR, delay_seconds=0))
        assert (await system.shown(job.id))["attempts"] == number
    attempts = [one.fields["attempts"] for one in await system.reported(job.id)]
    assert attempts == sorted(attempts)


@pytest.mark.requirement("WC-12", "WC-13")
async def test_every_ended_run_has_its_provenance_however_it_ended(system: System) -> None:
    ended = [job for job in await one_of_each(system.drive) if not job.live]
    queued = await system.drive.add("late", policy={"timeouts": Timeouts(queued_seconds=1)})
    system.clock.advance(2)
    await system.recover()
    for job in [*ended, await system.drive.job(queued.id)]:
        provenance = await system.operator().provenance(job.id)
        assert (provenance.outcome.status, provenance.inputs.payload) == (job.status, job.origin.payload)
        assert len(provenance.attempts) == (await system.shown(job.id))["attempts"]


@pytest.mark.requirement("WC-13")
async def test_the_provenance_names_the_inputs_the_code_and_every_attempt(app: tenure.App) -> None:
    @app.job(max_attempts=2, on_exhausted="fail", backoff=tenure.Backoff(base_seconds=0.01))
    async def work(ctx: tenure.Context, topic: str) -> str:
        if ctx.attempt == 1:
            raise tenure.TransientError("not yet")
        return topic

    async with working(app):
        handle = await work.enqueue("sleep")
        assert await handle.result(20) == "sleep"
    provenance = await handle.provenance()
    assert (provenance.inputs.payload, provenance.code_versions) == ('{"topic":"sleep"}', ("2026.11",))
    assert [attempt.status for attempt in provenance.attempts] == ["aborted", "done"]
    assert "not yet" in (provenance.attempts[0].error or "")
    states: list[Any] = [one.name for one in await reported_by(app, handle.id, WORDS)]
    assert states == ["queued", "running", "retry", "running", "succeeded"]


@pytest.mark.requirement("WC-08")
async def test_a_run_continues_after_its_last_checkpoint(app: tenure.App) -> None:
    executed: list[int] = []

    def double(number: int) -> int:
        executed.append(number)
        return 2 * number

    @app.workflow(max_attempts=2, backoff=tenure.Backoff(base_seconds=0.01))
    async def doubling(run: tenure.Run) -> list[float]:
        drawn = run.random.random()
        results: list[float] = [await run.step(double, 1), await run.step(double, 10)]
        if len(executed) == 2:
            executed.append(0)
            raise tenure.TransientError("the attempt ends between two steps")
        return [*results, await run.step(double, 100), drawn]

    async with working(app):
        handle = await doubling.enqueue()
        *results, drawn = await handle.result(timeout_seconds=60)
    assert (results, executed) == ([2, 20, 200], [1, 10, 0, 100])
    async with app.testing() as harness:
        again = await doubling.enqueue()
        await harness.run_all()
        assert len({drawn, (await again.result())[-1]}) == 2, "another run has another seed"


@pytest.mark.requirement("WC-09")
async def test_a_change_that_alters_a_recorded_run_is_named(app: tenure.App) -> None:
    async def adding(run: tenure.Run) -> int:
        return await run.step(sum, [1, 2])

    async def multiplying(run: tenure.Run) -> int:
        return await run.step(max, [1, 2])

    app.workflow(kind="calculate")(adding)
    async with working(app):
        handle = await app.submit("calculate", "{}")
        await handle.result(timeout_seconds=60)
    file = golden_file(await handle.refresh(), await all_steps(await app.store(), handle.id))
    found = {}
    for body in (adding, multiplying):
        today = tenure.App("sqlite:///unused.db")
        today.workflow(kind="calculate")(body)
        found[body] = await replay_golden_file(file, today.kinds, today.seams)
    assert found[adding] == []
    assert [(one.kind, one.name) for one in found[multiplying]] == [("renamed", "max")]
