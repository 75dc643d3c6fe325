"""The front door on real databases: declare, enqueue, wait, cancel."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.app import UNKNOWN
from tenure.client.job_function import PreparedCall
from tenure.errors import (
    DedupeKeyConflict,
    InvalidInput,
    JobCancelled,
    JobFailed,
    JobNotFound,
    PayloadRefused,
    RequestIdReused,
    SchemaMismatch,
    UnknownKind,
)
from tenure.lifecycle.operations import Complete, Fail
from tenure.lifecycle.records import Actor, Job, Role
from tenure.stores.contract import Applied, ClaimRequest, Request
from tests.support.databases import Database


@pytest.fixture
async def app(database: Database) -> AsyncIterator[tenure.App]:
    async with database.opened():
        pass
    async with tenure.App(database.url, name="shop") as app:
        yield app


async def run(app: tenure.App, *kinds: str) -> list[Job]:
    """Claim what is due, as a worker would."""
    token = app.seams.random.token()
    store = await app.store()
    return await store.claim(
        ClaimRequest(queues=("default", "mail"), kinds=kinds, limit=10, worker="w", token=token, request_id=str(token))
    )


async def end(app: tenure.App, job: Job, operation: Complete | Fail) -> None:
    request = Request(job=job, operations=(operation,), actor=Actor(Role.RUNNER, "w", job.token), request_id="end")
    [outcome] = await (await app.store()).apply([request])
    assert isinstance(outcome, Applied)


async def test_a_job_is_declared_enqueued_and_waited_for(app: tenure.App) -> None:
    @app.job(queue="mail", priority=3, max_attempts=7, lease_seconds=30, on_exhausted="dead_letter")
    async def send(ctx: tenure.Context, to: str) -> dict[str, int]:
        return {to: ctx.attempt}

    handle = await send.enqueue("ada")
    assert handle.created
    origin = (await handle.refresh()).origin
    assert (origin.kind, origin.queue, origin.priority, origin.payload) == ("send", "mail", 3, '{"to":"ada"}')
    assert (origin.policy.max_attempts, origin.policy.lease_seconds) == (7, 30)
    [job] = await run(app, "send")
    with pytest.raises(TimeoutError):
        await handle.result(timeout_seconds=0.02)
    await end(app, job, Complete('{"ada":1}'))
    assert await handle.result(timeout_seconds=10) == {"ada": 1}
    assert [event.type for event in await handle.events()] == ["enqueued", "claimed", "started", "succeeded"]


async def test_options_travel_with_the_job(app: tenure.App) -> None:
    @app.job()
    def work(n: int) -> int:
        return n

    options = work.options(
        queue="other", priority=9, delay_seconds=60, dedupe_key="k", correlation_id="c", trace="00-a-b-01",
        submitted_by="ada", tags={"tenant": "x"}, partition_key="p",
    )  # fmt: skip
    job = (await options.enqueue(1)).job
    assert (job.origin.queue, job.origin.priority, job.origin.dedupe_key) == ("other", 9, f"{job.kind}:k")
    assert (job.origin.correlation_id, job.origin.trace, job.origin.submitted_by) == ("c", "00-a-b-01", "ada")
    assert (job.origin.tags, job.origin.partition_key) == ({"tenant": "x"}, "p")
    assert job.due_at is not None
    assert (job.due_at - job.created_at).total_seconds() == 60
    again = await options.enqueue(2)
    assert (again.created, again.id) == (False, job.id)


async def test_a_call_may_have_its_own_due_time_and_number_of_attempts(app: tenure.App) -> None:
    @app.job(max_attempts=7, lease_seconds=30)
    def work(n: int) -> int:
        return n

    at = datetime(2090, 1, 31, 9, 30, tzinfo=UTC)
    job = (await work.options(at=at, max_attempts=2).enqueue(1)).job
    assert (job.due_at, job.policy.max_attempts, job.policy.lease_seconds) == (at, 2, 30)
    assert (await work.enqueue(1)).job.policy.max_attempts == 7
    for options, problem in (
        ({"at": at.replace(tzinfo=None)}, "at: must be a datetime with a time zone"),
        ({"at": at, "delay_seconds": 5}, "at: and delay_seconds exclude each other"),
        ({"max_attempts": 0}, "max_attempts: is 0"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            await work.options(**options).enqueue(1)


@pytest.mark.requirement("LC-11")
async def test_a_dedupe_key_belongs_to_its_kind_unless_its_scope_is_global(app: tenure.App) -> None:
    @app.job(kind="mail")
    def mail(n: int) -> int:
        return n

    @app.job(kind="a:b%")
    def other(n: int) -> int:
        return n

    first = await mail.options(dedupe_key="k").enqueue(1)
    second = await other.options(dedupe_key="k").enqueue(1)
    assert (first.job.origin.dedupe_key, second.job.origin.dedupe_key) == ("mail:k", "a%3Ab%25:k")
    shared = await mail.options(dedupe_key="k", scope="global").enqueue(1)
    assert (shared.created, shared.job.origin.dedupe_key) == (True, "k")
    again = await mail.options(dedupe_key="k", scope="global").enqueue(2)
    assert (again.created, again.id) == (False, shared.id)
    with pytest.raises(DedupeKeyConflict) as conflict:
        await app.enqueue_many([mail.request(1), other.options(dedupe_key="k", scope="global").request(1)])
    assert (conflict.value.dedupe_key, conflict.value.job_id, conflict.value.kind) == ("k", shared.id, "mail")


@pytest.mark.requirement("LC-11")
@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"dedupe_key": ""}, "dedupe_key"),
        ({"dedupe_key": "k", "scope": "queue"}, "scope"),
        ({"scope": "global"}, "scope"),
    ],
)
async def test_a_dedupe_key_or_scope_that_cannot_be_is_refused(
    app: tenure.App, options: dict[str, Any], where: str
) -> None:
    @app.job()
    def work(n: int) -> int:
        return n

    with pytest.raises(InvalidInput) as refusal:
        await work.options(**options).enqueue(1)
    assert refusal.value.where == where


async def test_a_request_id_queues_a_call_once_and_refuses_another_body(app: tenure.App) -> None:
    @app.job()
    def pay(amount: int) -> None: ...

    once = pay.options(request_id="order-7")
    first, second = await once.enqueue(5), await once.enqueue(5)
    assert (first.created, second.created, first.id == second.id) == (True, False, True)
    with pytest.raises(RequestIdReused, match="order-7"):
        await once.enqueue(6)


async def test_many_calls_are_queued_at_once(app: tenure.App) -> None:
    @app.job()
    def work(n: int) -> int:
        return n

    handles = await app.enqueue_many(work.request(n) for n in range(1500))
    assert len({handle.id for handle in handles}) == 1500
    assert [handle.job.origin.payload for handle in handles[:2]] == ['{"n":0}', '{"n":1}']


async def test_requests_are_made_while_those_before_are_written_and_keep_their_order(app: tenure.App) -> None:
    @app.job()
    def work(n: int) -> int:
        return n

    handles = await app.enqueue_many(map(work.request, range(3000)))
    assert [handle.job.origin.payload for handle in handles] == [f'{{"n":{n}}}' for n in range(3000)]
    created = [handle.job.created_at for handle in handles]
    assert created == sorted(created)
    assert len(set(created)) == 3, "a thousand at a time"
    assert await app.enqueue_many([]) == []
    assert len(await app.enqueue_many(map(work.request, range(1000)))) == 1000


async def test_an_error_between_batches_leaves_whole_batches(app: tenure.App) -> None:
    @app.job()
    def work(n: int) -> int:
        return n

    def calls() -> Iterator[PreparedCall[int]]:
        yield from map(work.request, range(2500))
        raise LookupError("no more addresses")

    with pytest.raises(LookupError, match="no more addresses"):
        await app.enqueue_many(calls())
    assert (await (await app.store()).stats()).tallies[0].jobs == 2000
    refused = work.options(request_id="order-7")
    await refused.enqueue(1)
    with pytest.raises(RequestIdReused):
        await app.enqueue_many([*map(work.request, range(999)), refused.request(2), *map(work.request, range(1500))])
    assert (await (await app.store()).stats()).tallies[0].jobs == 2001, "nothing follows a thousand that was refused"


@pytest.mark.requirement("EH-05")
async def test_a_call_that_does_not_fit_is_counted_and_leaves_nothing(app: tenure.App) -> None:
    @app.job()
    def work(n: int) -> int:
        return n

    with pytest.raises(PayloadRefused, match="`n`"):
        await work.enqueue("one")  # type: ignore[arg-type]
    for name in ("wrok", "krow"):
        with pytest.raises(UnknownKind, match=rf"{name}.*known are: work"):
            await app.submit(name, "{}")
    with pytest.raises(PayloadRefused, match="the argument `n` is missing"):
        await app.submit("work", "{}")
    with pytest.raises(InvalidInput, match="twice"):
        await app.submit("work", '{"n":1,"n":2}')
    assert app.rejections == {"work": 3, UNKNOWN: 2}, "names that callers make up take no room"
    assert await run(app, "work") == []
    assert (await app.submit("work", '{"n":1}')).job.origin.payload == '{"n":1}'


@pytest.mark.requirement("SM-10")
async def test_a_soft_cancel_ends_unleased_jobs_and_requests_the_cancel_of_others(app: tenure.App) -> None:
    @app.job()
    def work() -> None: ...

    waiting = await work.enqueue()
    assert (await waiting.cancel(reason="not needed")).status == "cancelled"
    with pytest.raises(JobCancelled, match="not needed"):
        await waiting.result(timeout_seconds=1)
    held = await work.enqueue()
    await run(app, "work")
    assert (await held.cancel()).cancel_requested
    assert held.job.status == "running"
    assert (await held.cancel(hard=True)).status == "cancelled"


async def test_waiting_for_a_failed_job_raises_job_failed(app: tenure.App) -> None:
    @app.job()
    def work() -> None: ...

    handle = await work.enqueue()
    [job] = await run(app, "work")
    await end(app, job, Fail('{"type":"ValueError","message":"no such thing"}'))
    with pytest.raises(JobFailed, match="no such thing"):
        await handle.result(timeout_seconds=1)


async def test_a_job_that_does_not_exist_cannot_be_cancelled(app: tenure.App) -> None:
    with pytest.raises(JobNotFound):
        await app.cancel(app.seams.random.job_id())


def test_a_kind_is_declared_once_under_each_of_its_names() -> None:
    app = tenure.App("sqlite://:memory:")

    @app.job(aliases=["old_name"])
    def work() -> None: ...

    def other() -> None: ...

    with pytest.raises(InvalidInput, match="declared already"):
        app.job(kind="old_name")(other)
    assert app.kinds["old_name"] is app.kinds["work"]


async def test_a_new_sqlite_file_is_ready_at_once_and_a_new_postgres_database_is_not(database: Database) -> None:
    app = tenure.App(database.url)

    @app.job()
    def work() -> None: ...

    if database.is_sqlite:
        assert (await work.enqueue()).created
        await app.close()
    else:
        with pytest.raises(SchemaMismatch, match="tenure migrate"):
            await work.enqueue()


SYNC = """
import os, sys
import tenure
from tenure.client.job_function import PreparedCall

app = tenure.App(sys.argv[1])

@app.job()
def work(n: int) -> int:
    return n

print(work.enqueue_sync(1).created, flush=True)
child = os.fork()
if child == 0:
    print(work.enqueue_sync(2).created, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


async def test_plain_code_enqueues_without_a_loop_also_after_a_fork(database: Database) -> None:
    async with database.opened():
        pass
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SYNC, database.url],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr


async def test_the_sync_form_refuses_to_block_a_running_loop(app: tenure.App) -> None:
    @app.job()
    def work() -> None: ...

    with pytest.raises(RuntimeError, match="await it"):
        work.enqueue_sync()


def test_an_error_of_the_sync_form_has_no_other_error_before_it(tmp_path: Path) -> None:
    app = tenure.App(f"sqlite:///{tmp_path / 'jobs.db'}")
    with pytest.raises(JobNotFound) as found:
        app.get_sync("01890a5d-ac96-774b-bcce-b302099a8057")
    assert "no running event loop" not in "".join(traceback.format_exception(found.value))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"database": 5}, "database: must be a URL as text, such as sqlite:///jobs.db .*, not int"),
        ({"database": Path("jobs.db")}, "database: must be a URL .*, not PosixPath"),
        ({"name": 5}, "name: must be text, not int"),
        ({"version": 5}, "version: must be text, not int"),
        ({"limits": 5}, r"limits: must be tenure.ContentLimits\(…\), not int"),
        ({"retention": 5}, r"retention: must be tenure.Retention\(…\), not int"),
        ({"middleware": 5}, "middleware: must be a list of tenure.Middleware, not int"),
        ({"middleware": [tenure.Middleware]}, "middleware: must be a list of instances .*, not type"),
    ],
)
def test_a_setting_of_another_type_is_refused_when_the_app_is_made(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        tenure.App(**settings)
