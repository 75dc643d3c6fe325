"""The execution ledger (EL), on both stores, in its own vocabulary."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import psycopg
import pytest

import tenure
from tenure.errors import AlreadyCommitted, LeaseLost
from tenure.lifecycle.fold import contents_of, fold
from tenure.lifecycle.operations import Cancel, Commit, Complete, Fail, Requeue, Retry, Stall
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver, runner
from tenure.vocabularies import vocabulary
from tenure.vocabularies.vocabulary import histories
from tests.conformance.ledger_workers import duplicate
from tests.conformance.system import HandWritten, System, check_complete, reported_by
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.sample_jobs import one_of_each
from tests.support.worker_processes import all_at_once

WORDS = "ledger"
EFFECTS = "create table effects (job text not null, worker text not null)"
JOB_FIELDS = {"job_id", "payload", "state", "attempt", "created_at", "updated_at"}
EXECUTION_FIELDS = {"exec_id", "job_id", "attempt", "lease_owner", "lease_expires_at", "status"} | {
    "started_at",
    "finished_at",
}


def test_every_requirement_is_shown_here_or_listed_as_missing() -> None:
    check_complete("EL", Path(__file__).read_text(encoding="utf-8"), Path(__file__).name)


@pytest.mark.requirement("EL-01")
async def test_every_attempt_is_an_execution_that_is_never_rewritten_after_it_ended(system: System) -> None:
    job = await system.drive.running()
    await system.drive.apply(job, Retry(ERROR, delay_seconds=0))
    [first] = (await system.shown(job.id))["executions"]
    assert first["status"] == "ABORTED"
    [again] = await system.drive.claim(worker="worker-2")
    system.clock.advance(1)
    await system.drive.apply(again, Complete("1"))
    shown = await system.shown(job.id)
    assert set(shown) == {*JOB_FIELDS, "executions"}
    assert shown["executions"][0] == first
    assert all(set(one) == EXECUTION_FIELDS for one in shown["executions"])
    last = shown["executions"][1]
    assert (last["status"], last["attempt"], last["lease_owner"]) == ("DONE", 2, "worker-2")
    assert last["started_at"] < last["finished_at"]
    assert len({one["exec_id"] for one in shown["executions"]}) == 2


@pytest.mark.requirement("EL-01")
async def test_the_happy_path_is_leased_in_progress_committed_done(system: System) -> None:
    job = await system.drive.running()
    job = await system.drive.apply(job, Commit("1"))
    await system.drive.apply(job, Complete("1"))
    whole = ["PENDING", "LEASED", "RUNNING", "IN_PROGRESS", "COMMITTED", "DONE", "SUCCEEDED"]
    assert await system.names(job.id) == whole
    short = await system.drive.apply(await system.drive.running(), Complete("1"))
    assert await system.names(short.id) == whole, "a completion is also the commit"


@pytest.mark.requirement("EL-02")
async def test_the_state_of_every_job_is_recomputed_from_its_log_and_so_is_that_of_the_database(system: System) -> None:
    seen = set()
    for made in await one_of_each(system.drive):
        job, events = await system.drive.seen(made.id)
        assert job is not None
        state = None
        for history in histories(job.origin, events):
            reported = [one.fields["state"] for one in vocabulary(WORDS).translate(history) if "state" in one.fields]
            state = reported[-1] if reported else state
            then = fold(job.origin, history.events, contents_of(job))
            assert then is not None
            assert then.coarse_state == state
        assert (await system.shown(job.id))["state"] == state
        seen.add(state)
    assert seen == {"PENDING", "RUNNING", "SUCCEEDED", "FAILED"}


@pytest.mark.requirement("EL-02")
async def test_verify_finds_a_sound_database_sound_and_names_a_row_that_its_log_does_not_explain(
    database: Database,
) -> None:
    async with database.opened() as store:
        jobs = await one_of_each(Driver(store))
    assert command("verify", "--database", database.url).code == 0
    done = next(job for job in jobs if job.status == "succeeded")
    database.tamper(f"update {{jobs}} set attempt = 7 where id = '{done.id}'")
    wrong = command("verify", "--database", database.url)
    assert wrong.code == 1
    assert str(done.id) in wrong.out + wrong.err


@pytest.mark.requirement("EL-03")
async def test_at_most_one_execution_is_ever_committed_and_the_database_sees_to_it(system: System) -> None:
    job = await system.drive.running()
    job = await system.drive.apply(job, Commit("1"))
    assert isinstance(await system.drive.refuse(job, Commit("2")), AlreadyCommitted)
    columns = "type, from_status, to_status, at, attempt, actor, request_id, commits, version"
    another = (
        f"insert into {{events}} (job_id, rev, {columns}) select job_id, rev + 1, {columns} from {{events}}"
        f" where job_id = '{job.id}' and type = 'committed'"
    )
    with pytest.raises(HandWritten):
        system.by_hand(another)
    with pytest.raises((sqlite3.IntegrityError, psycopg.errors.UniqueViolation), match=r"(?i)unique"):
        # Also with every guard off: it is a constraint, not a convention.
        system.database.tamper(another)
    statuses = [one["status"] for one in (await system.shown(job.id))["executions"]]
    assert statuses == ["COMMITTED"]


@pytest.mark.requirement("EL-04")
async def test_nothing_is_visible_before_the_commit_and_everything_with_it(app: tenure.App) -> None:
    prepared, go = asyncio.Event(), asyncio.Event()
    store = await app.store()
    async with store.transaction(deadline_seconds=5) as tx:
        await tx.execute(EFFECTS)

    @app.job()
    async def follow() -> None: ...

    @app.job()
    async def work(ctx: tenure.Context) -> str:
        prepared.set()
        await go.wait()
        async with ctx.commit(result="kept") as tx:
            await tx.execute("insert into effects (job, worker) values ($1, 'me')", str(ctx.id))
            tx.outbox("done", {"job": str(ctx.id)})
            tx.enqueue(follow.request())
        return "kept"

    async def effects() -> int:
        async with store.transaction(deadline_seconds=5) as tx:
            return len(await tx.fetch("select job from effects"))

    async with working(app):
        job = await work.enqueue()
        await asyncio.wait_for(prepared.wait(), 20)
        assert await effects() == 0
        go.set()
        assert await job.result(20) == "kept"
    assert await effects() == 1
    assert [one.name for one in await reported_by(app, job.id, WORDS)][-3:] == ["COMMITTED", "DONE", "SUCCEEDED"]
    assert len((await app.find(tenure.JobFilter(kinds=("follow",)))).jobs) == 1


@pytest.mark.requirement("EL-05", "EL-06")
async def test_a_crash_after_the_commit_is_finished_with_its_result_and_never_run_again(system: System) -> None:
    job = await system.drive.apply(await system.drive.running(), Commit('"paid"'))
    system.clock.advance(60)
    stalled = await system.drive.apply(job.id, Stall(), actor=RECOVERY)
    lost = await system.shown(job.id)
    assert (lost["state"], lost["executions"][-1]["status"]) == ("RUNNING", "COMMITTED")
    assert await system.drive.claim() == [], "a later execution finds the commit"
    for operation, actor in ((Requeue(), RECOVERY), (Cancel(), CLIENT)):
        assert isinstance(await system.drive.refuse(stalled.id, operation, actor=actor), AlreadyCommitted)
    assert await system.recover() == 1
    shown = await system.shown(job.id)
    assert (shown["state"], shown["attempt"], shown["executions"][-1]["status"]) == ("SUCCEEDED", 1, "DONE")
    assert (await system.drive.job(job.id)).result == '"paid"'
    assert (await system.names(job.id)).count("COMMITTED") == 1


@pytest.mark.requirement("EL-06")
async def test_a_crash_before_the_commit_is_tried_again(system: System) -> None:
    job = await system.drive.running()
    system.clock.advance(60)
    await system.recover()
    assert (await system.names(job.id))[-2:] == ["ABORTED", "PENDING"]
    [again] = await system.drive.claim()
    await system.drive.apply(again, Commit("1"), Complete("1"))
    statuses = [one["status"] for one in (await system.shown(job.id))["executions"]]
    assert statuses == ["ABORTED", "DONE"]


@pytest.mark.requirement("EL-07", "EL-05")
async def test_two_processes_that_both_try_to_commit_apply_the_effect_once(database: Database) -> None:
    async with database.opened() as store:
        async with store.transaction(deadline_seconds=5) as tx:
            await tx.execute(EFFECTS)
        job = await Driver(store).add(policy={"lease_seconds": 4.0, "heartbeat_seconds": 4.0})
    arguments = [(database.url, worker, str(job.id), 40.0) for worker in ("first", "second")]
    came_to = await asyncio.to_thread(all_at_once, duplicate, arguments, seconds=60)
    assert came_to == ["LeaseLost", "committed"]
    async with database.opened() as store:
        async with store.transaction(deadline_seconds=5) as tx:
            assert await tx.fetch("select job, worker from effects") == [{"job": str(job.id), "worker": "second"}]
        row, events = await Driver(store).seen(job.id)
        assert row is not None
        ledger = vocabulary(WORDS).job(row, events)
    assert [one["status"] for one in ledger["executions"]] == ["ABORTED", "DONE"]
    assert (ledger["state"], row.result) == ("SUCCEEDED", '"once"')


@pytest.mark.requirement("EL-08")
async def test_delivery_is_at_least_once_and_duplicates_are_harmless(system: System) -> None:
    job = await system.drive.running()
    system.clock.advance(60)
    await system.recover()
    [again] = await system.drive.claim()
    done = system.drive.request(again, Complete("2"))
    await system.drive.try_apply(done)
    await system.drive.repeat(done)
    for operation in (Commit("1"), Complete("1"), Fail(ERROR)):
        refusal = await system.drive.refuse(job.id, operation, actor=runner(job))
        assert isinstance(refusal, LeaseLost | AlreadyCommitted), refusal
    assert (await system.drive.job(job.id)).result == "2"
    assert [one["attempt"] for one in (await system.shown(job.id))["executions"]] == [1, 2]
