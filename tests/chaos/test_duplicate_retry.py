"""The duplicate retry: worker A is paused beyond its lease, B reclaims the job, and A continues. The effect is applied
once, and nothing that A does under its old lease is written.

The last tests run a worker with a fault: the checks above must detect it.
"""

from __future__ import annotations

import re
from collections import Counter
from uuid import UUID

import pytest

from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import EventType
from tenure.stores.contract import Store
from tests.chaos.checks import (
    check_applied_once,
    check_everything,
    effects,
    ended,
    history,
    of_type,
    queue,
)
from tests.chaos.processes import WorkerProcess, WorkerProcesses, until
from tests.support.databases import POSTGRES_IN_DEPTH, SQLITE_IN_DEPTH, Database

pytestmark = [pytest.mark.requirement("EL-07"), pytest.mark.timeout(150)]

SCAN_SECONDS = 0.2
POLICY: dict[str, object] = {"lease_seconds": 4.0, "max_attempts": 10, "on_exhausted": "fail"}

REFUSED = dict.fromkeys(("commit block", "heartbeat", "progress", "commit", "complete"), "LeaseLost")


async def paused_past_its_lease(
    processes: WorkerProcesses, store: Store, *, ending: str = "return", **facts: object
) -> tuple[WorkerProcess, UUID]:
    """A worker that was paused in the middle of its job, and the job. It continues as soon as it is resumed."""
    [job_id] = await queue(store, "duplicate", policy=POLICY, ending=ending)
    first = processes.start("first", scan_seconds=SCAN_SECONDS, claims_most=1, **facts)
    await processes.noted("begun-1")
    first.pause(processes.database)
    processes.notes.leave("go-1")
    return first, job_id


async def taken_over(processes: WorkerProcesses, store: Store, job_id: UUID) -> WorkerProcess:
    """Another worker, once it has started the second attempt."""
    second = processes.start("second", scan_seconds=SCAN_SECONDS)
    await processes.noted("begun-2")
    return second


async def check_second_alone(processes: WorkerProcesses, store: Store, database: Database, job_id: UUID) -> None:
    """The second attempt's result and effect are final, and the first attempt wrote nothing after it had lost its
    lease."""
    first, second = processes.workers[0], processes.workers[1]
    await check_applied_once(store, database, [job_id])
    events = await history(store, job_id)
    assert (await store.read([job_id]))[job_id].result == "2"
    [_, claim] = of_type(events, EventType.CLAIMED)
    assert second.signed(claim.actor)
    assert not any(first.signed(event.actor) and event.type is not EventType.STALLED for event in events[claim.rev :])
    assert len(of_type(events, EventType.STALLED)) == 1
    assert of_type(events, EventType.RETRY_SCHEDULED, EventType.FAILED) == []


async def check_first_stopped(first: WorkerProcess) -> None:
    """The process that lost its lease logs that, and that nothing of its attempt was written; it keeps running.

    Either its heartbeat or the end of its function is the first to notice.
    """

    refusal_line = re.compile(
        r"lost its lease; attempt 1 is not recorded|lost its lease; the outcome of attempt 1 was refused"
    )
    await until(lambda: refusal_line.search(first.log) is not None, "A logs that its lease is lost")
    assert first.exit_code is None


@SQLITE_IN_DEPTH
@pytest.mark.requirement("LC-05", "EL-05", "EL-08", "SM-02", "SM-03")
async def test_a_paused_worker_cannot_write_once_another_has_done_its_job(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    first, job_id = await paused_past_its_lease(processes, store)
    await taken_over(processes, store, job_id)
    processes.notes.leave("go-2")
    await ended(store, [job_id])
    before = await history(store, job_id)

    first.resume()
    await processes.noted("answers")

    assert load(processes.notes.read("answers")) == REFUSED
    await check_first_stopped(first)
    assert await history(store, job_id) == before
    await check_second_alone(processes, store, database, job_id)


@POSTGRES_IN_DEPTH
@pytest.mark.requirement("LC-05", "EL-08", "SM-02", "SM-03")
async def test_a_paused_worker_cannot_write_while_another_is_at_its_job(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    first, job_id = await paused_past_its_lease(processes, store)
    await taken_over(processes, store, job_id)

    first.resume()
    await processes.noted("answers")
    assert load(processes.notes.read("answers")) == REFUSED
    await check_first_stopped(first)
    assert effects(database) == Counter()

    processes.notes.leave("go-2")
    await ended(store, [job_id])
    await check_second_alone(processes, store, database, job_id)


@pytest.mark.deep
async def test_an_error_of_the_paused_worker_does_not_count_for_the_other(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    first, job_id = await paused_past_its_lease(processes, store, ending="error")
    await taken_over(processes, store, job_id)

    first.resume()
    await processes.noted("first-is-over")
    await check_first_stopped(first)

    processes.notes.leave("go-2")
    [job] = await ended(store, [job_id])
    assert job.failures == 1, "the loss counts, the error of a worker without a lease does not"
    await check_second_alone(processes, store, database, job_id)


@pytest.mark.deep
@pytest.mark.requirement("WC-10")
async def test_a_worker_that_took_its_own_job_back_by_recovery_cannot_finish_it(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    """The other worker never recovers: A itself finds its job without an owner when it continues."""
    first, job_id = await paused_past_its_lease(processes, store)
    processes.start("second", recovers=False, claims_after_note="may-claim")
    lost = (await store.read([job_id]))[job_id].lease_expires_at
    assert lost is not None

    async def lease_is_over() -> bool:
        return await store.now() > lost

    await until(lease_is_over, "A's lease has run out")
    processes.notes.leave("may-claim")
    first.resume()
    await processes.noted("answers")
    assert load(processes.notes.read("answers")) == REFUSED
    await check_first_stopped(first)

    await processes.noted("begun-2")
    processes.notes.leave("go-2")
    await ended(store, [job_id])
    [stall] = of_type(await history(store, job_id), EventType.STALLED)
    assert first.signed(stall.actor), "another worker was faster, so that this is not what was tried"
    await check_applied_once(store, database, [job_id])
    assert (await store.read([job_id]))[job_id].result == "2"


@pytest.mark.deep
async def test_a_continued_worker_stops_the_job_it_lost_and_runs_others(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    [job_id] = await queue(store, "nap_at_first", policy=POLICY, seconds=120.0)
    first = processes.start("first", concurrency=1)
    await processes.noted(f"begun-{job_id}-1")
    first.pause(database)
    second = processes.start("second", scan_seconds=SCAN_SECONDS, claims_most=1)
    await ended(store, [job_id])

    first.resume()
    await processes.noted(f"cancelled-{job_id}-1")
    await check_first_stopped(first)
    [other] = await queue(store, "pay", policy=POLICY)
    await ended(store, [other])
    await check_applied_once(store, database, [job_id, other])
    assert second.signed((await history(store, job_id))[-1].actor)
    assert first.signed((await history(store, other))[-1].actor), "it has but one place, which was freed"


@POSTGRES_IN_DEPTH
async def test_the_proof_fails_for_a_worker_that_matches_by_id_alone(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    first, job_id = await paused_past_its_lease(processes, store, mutant="match_by_id_alone")
    await taken_over(processes, store, job_id)

    first.resume()
    await processes.noted("answers")
    assert load(processes.notes.read("answers"))["commit block"] == "accepted", "the mutant is not one"

    processes.notes.leave("go-2")
    await ended(store, [job_id])
    with pytest.raises(AssertionError, match=r"was written by .* under attempt 2"):
        await check_everything(store)


@pytest.mark.deep
async def test_the_proof_fails_for_a_worker_whose_effect_does_not_depend_on_its_mark(
    database: Database, store: Store, processes: WorkerProcesses
) -> None:
    first, job_id = await paused_past_its_lease(processes, store, mutant="keep_the_effect_without_the_mark")
    await taken_over(processes, store, job_id)
    processes.notes.leave("go-2")
    await ended(store, [job_id])

    first.resume()
    await processes.noted("answers")
    assert effects(database) == Counter({str(job_id): 2})
    with pytest.raises(AssertionError):
        await check_applied_once(store, database, [job_id])
