"""What operators do, on real databases: cancel, redrive and discard, one and many; and what overtakes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

import msgspec
import pytest

import tenure
from tenure.client.admin import DeadLetterFilter, JobAdmin, JobFilter, SkippedJob
from tenure.client.cancel import ROUNDS_MAX
from tenure.client.matching_records import PAGE
from tenure.errors import (
    AlreadyCommitted,
    DedupeKeyConflict,
    IllegalTransition,
    InvalidInput,
    JobNotFound,
    NotYet,
    RequestIdReused,
    StoreError,
)
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Cancel,
    Commit,
    Complete,
    DeadLetter,
    Fail,
    Halt,
    Heartbeat,
    Operation,
    Release,
    Retry,
    Suspend,
)
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import CANCELLED, FAILED, QUEUED, RUNNING, STALLED, SUCCEEDED
from tenure.stores import Store
from tenure.stores.contract import Outcome, Request
from tenure.testing.driver import ERROR, OPERATOR, Driver, runner
from tests.support.databases import Database
from tests.support.sample_jobs import DEAD_LETTER

Overtaking = Callable[[], Awaitable[object]]


class Overtaken:
    """A store on which something else happens just before each of the next changes."""

    def __init__(self, store: Store, *happenings: Overtaking) -> None:
        self._store = store
        self._happenings = list(happenings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        if self._happenings:
            await self._happenings.pop(0)()
        return await self._store.apply(requests)

    def admin(self) -> JobAdmin:
        return JobAdmin(cast(Store, self), actor=OPERATOR)


@pytest.fixture
async def store(database: Database) -> AsyncIterator[Store]:
    async with database.opened() as opened:
        yield opened


@pytest.fixture
def drive(store: Store) -> Driver:
    return Driver(store)


@pytest.fixture
def admin(store: Store) -> JobAdmin:
    return JobAdmin(store, actor=OPERATOR)


async def ended(drive: Driver, operation: Operation, **facts: Any) -> Job:
    return await drive.apply(await drive.running(**facts), operation)


@pytest.mark.requirement("SM-10")
async def test_a_soft_cancel_ends_a_job_without_a_lease_at_once(drive: Driver, admin: JobAdmin) -> None:
    stalled = await drive.apply(await drive.running(), Release())
    waiting = await drive.apply(await drive.running(kind="nap"), Suspend())
    for job in (await drive.add(), stalled, waiting):
        cancelled = await admin.cancel(job.id, reason="not needed")
        assert (cancelled.status, cancelled.reason) == (CANCELLED, "not needed")
        assert (await drive.types_of(job.id))[-2:] == ["cancel_requested", "cancelled"]
        assert (await drive.events_of(job.id))[-1].actor == "client:operator"


@pytest.mark.requirement("SM-10")
async def test_a_soft_cancel_of_a_leased_job_is_a_cancel_request(drive: Driver, admin: JobAdmin) -> None:
    for job in (await drive.claimed(), await drive.running()):
        asked = await admin.cancel(job.id)
        assert (asked.status, asked.cancel_requested, asked.token) == (job.status, True, None)
        assert (await drive.apply(job.id, Cancel(), actor=runner(job))).status is CANCELLED


@pytest.mark.requirement("SM-10")
async def test_a_hard_cancel_ends_a_leased_job_at_once(drive: Driver, admin: JobAdmin) -> None:
    running = await drive.running()
    assert (await admin.cancel(running.id, hard=True)).status is CANCELLED
    assert (await admin.cancel((await drive.add()).id, hard=True)).status is CANCELLED
    refused = await drive.refuse(running, Complete("1"))
    assert "stop the work" in str(refused)


async def test_what_has_ended_or_is_committed_cannot_be_cancelled(drive: Driver, admin: JobAdmin) -> None:
    done, committed = await ended(drive, Complete("1")), await ended(drive, Commit("1"))
    for hard in (False, True):
        with pytest.raises(IllegalTransition, match="none, the status is terminal"):
            await admin.cancel(done.id, hard=hard)
        with pytest.raises(AlreadyCommitted):
            await admin.cancel(committed.id, hard=hard)
    assert (await drive.job(done.id)).rev == done.rev
    assert (await drive.job(committed.id)).rev == committed.rev
    with pytest.raises(JobNotFound):
        await admin.cancel(drive.random.job_id())


async def test_a_job_that_is_claimed_just_before_its_soft_cancel_gets_a_cancel_request(
    store: Store, drive: Driver
) -> None:
    job = await drive.add()
    asked = await Overtaken(store, drive.claim).admin().cancel(job.id)
    assert (asked.status, asked.cancel_requested) == (RUNNING, True)
    assert (await drive.types_of(job.id)) == ["enqueued", "claimed", "started", "cancel_requested"]


async def test_a_job_that_is_released_just_before_its_cancel_request_ends_at_once(store: Store, drive: Driver) -> None:
    job = await drive.running()
    cancelled = await Overtaken(store, lambda: drive.apply(job, Release())).admin().cancel(job.id)
    assert cancelled.status is CANCELLED


async def test_a_job_that_ends_between_its_cancel_request_and_the_next_decision_is_no_failure(
    store: Store, drive: Driver
) -> None:
    job = await drive.running()

    async def cancelled_by_another_worker() -> None:
        [held] = await drive.claim()
        await drive.apply(held, Cancel(), actor=runner(held))

    overtaken = Overtaken(store, lambda: drive.apply(job, Suspend(3600.0)), cancelled_by_another_worker)
    assert (await overtaken.admin().cancel(job.id)).status is CANCELLED


async def test_the_heartbeats_of_a_busy_owner_do_not_hold_up_a_cancel(store: Store, drive: Driver) -> None:
    job = await drive.running()
    asked = await Overtaken(store, lambda: drive.apply(job, Heartbeat())).admin().cancel(job.id)
    assert (asked.rev, asked.cancel_requested) == (job.rev + 2, True)


async def test_a_job_that_ends_just_before_its_cancel_is_refused_as_ended(store: Store, drive: Driver) -> None:
    for hard in (False, True):
        job = await drive.running()
        overtaken = Overtaken(store, partial(drive.apply, job, Complete("1")))
        with pytest.raises(IllegalTransition, match="is succeeded"):
            await overtaken.admin().cancel(job.id, hard=hard)
        assert (await drive.job(job.id)).status is SUCCEEDED


async def test_a_soft_cancel_that_always_conflicts_is_given_up_with_a_clear_error(store: Store, drive: Driver) -> None:
    job = await drive.add()

    async def claim_and_release() -> None:
        [held] = await drive.claim()
        await drive.apply(held, Release())

    overtaken = Overtaken(store, *[claim_and_release] * ROUNDS_MAX)
    with pytest.raises(StoreError, match="was claimed or released 10 times"):
        await overtaken.admin().cancel(job.id)
    assert (await drive.job(job.id)).status is STALLED


@pytest.mark.requirement("SM-10")
async def test_many_jobs_are_cancelled_by_a_filter_and_the_rest_is_reported(drive: Driver, admin: JobAdmin) -> None:
    waiting = [await drive.add(tags={"tenant": "x"}) for _ in range(3)]
    running = await drive.running(tags={"tenant": "x"})
    committed = await drive.apply(await drive.running(tags={"tenant": "x"}), Commit("1"))
    done = await ended(drive, Complete("1"), tags={"tenant": "x"})
    others = await drive.add(tags={"tenant": "y"})

    report = await admin.cancel_many(JobFilter(tags={"tenant": "x"}), reason="tenant left")

    assert (report.cancelled, report.requested, report.more) == (3, 1, False)
    [skipped] = report.skipped
    assert skipped.job_id == committed.id
    assert "its effect has been applied" in skipped.reason
    assert [(await drive.job(job.id)).reason for job in waiting] == ["tenant left"] * 3
    assert (await drive.job(running.id)).cancel_requested
    assert (await drive.job(done.id)).rev == done.rev
    assert (await drive.job(others.id)).status is QUEUED


@pytest.mark.requirement("SM-10")
async def test_many_are_cancelled_hard(drive: Driver, admin: JobAdmin) -> None:
    running = [await drive.running() for _ in range(2)]
    await drive.add()
    report = await admin.cancel_many(JobFilter(statuses=(RUNNING,)), hard=True)
    assert (report.cancelled, report.requested, report.skipped) == (2, 0, ())
    assert [(await drive.job(job.id)).status for job in running] == [CANCELLED] * 2


async def test_many_are_taken_page_by_page_up_to_the_limit(store: Store, drive: Driver, admin: JobAdmin) -> None:
    await store.enqueue([drive.enqueue() for _ in range(PAGE + 7)])
    few = await admin.cancel_many(JobFilter(), limit=3)
    assert (few.cancelled, few.more) == (3, True)
    page = await admin.cancel_many(JobFilter(), limit=PAGE)
    assert (page.cancelled, page.more) == (PAGE, True)
    rest = await admin.cancel_many(JobFilter(), limit=4)
    assert (rest.cancelled, rest.more) == (4, False)
    assert (await admin.cancel_many(JobFilter())).cancelled == 0
    for limit in (0, -1, True):
        with pytest.raises(InvalidInput, match="limit"):
            await admin.cancel_many(JobFilter(), limit=limit)


async def test_what_is_added_while_many_are_cancelled_is_not_for_them(store: Store, drive: Driver) -> None:
    await store.enqueue([drive.enqueue() for _ in range(PAGE + 1)])
    added: list[Job] = []

    async def add_another() -> None:
        added.append(await drive.add())

    report = await Overtaken(store, add_another).admin().cancel_many(JobFilter())
    assert (report.cancelled, report.more) == (PAGE + 1, False)
    assert (await drive.job(added[0].id)).status is QUEUED


async def test_some_of_many_that_change_hands_meanwhile_are_decided_upon_anew(store: Store, drive: Driver) -> None:
    jobs = [await drive.add() for _ in range(5)]
    overtaken = Overtaken(store, lambda: drive.claim(limit=2))
    report = await overtaken.admin().cancel_many(JobFilter())
    assert (report.cancelled, report.requested, report.skipped) == (3, 2, ())
    states = [(await drive.job(job.id)).status for job in jobs]
    assert (states.count(CANCELLED), states.count(RUNNING)) == (3, 2)


async def test_a_filter_on_what_has_ended_cancels_nothing(admin: JobAdmin) -> None:
    with pytest.raises(InvalidInput, match="succeeded jobs have ended"):
        await admin.cancel_many(JobFilter(statuses=(QUEUED, SUCCEEDED)))


# Redrive.


REDRIVABLE: list[Operation] = [DEAD_LETTER, Fail(ERROR), Halt("too dear", "[1]")]


@pytest.mark.requirement("SM-11")
@pytest.mark.parametrize("end", REDRIVABLE, ids=lambda end: end.type.value)
async def test_a_redrive_is_a_new_job_linked_to_the_old_which_does_not_change(
    drive: Driver, admin: JobAdmin, end: Operation
) -> None:
    facts: dict[str, Any] = {
        "payload": '{"to":"ada"}',
        "queue": "post",
        "tags": {"tenant": "x"},
        "correlation_id": "order-7",
        "trace": "00-a-b-01",
        "submitted_by": "grace",
        "partition_key": "p",
        "dedupe_key": "ada",
    }
    old = await ended(drive, end, policy={"max_attempts": 2, "on_exhausted": "fail"}, **facts)
    before = await drive.seen(old.id)

    again = await admin.redrive(old.id)

    assert again.created
    kept = ("kind", "payload", "policy", "priority", *facts)
    assert [getattr(again.job.origin, name) for name in kept] == [getattr(old.origin, name) for name in kept]
    assert (again.job.origin.redrive_of, again.job.origin.request_id) == (old.id, f"redrive.{old.id}")
    assert (again.job.status, again.job.id != old.id) == (QUEUED, True)
    assert (await drive.events_of(again.job.id))[0].actor == "client:operator"
    assert await drive.seen(old.id) == before


@pytest.mark.requirement("SM-11")
async def test_a_job_is_redriven_once_however_often_it_is_asked_for(drive: Driver, admin: JobAdmin) -> None:
    old = await ended(drive, Fail(ERROR))
    first = await admin.redrive(old.id)
    [running] = await drive.claim()
    assert running.id == first.job.id
    await drive.apply(running, Fail(ERROR))
    second = await admin.redrive(old.id)
    assert (second.created, second.job.id, second.job.status) == (False, first.job.id, FAILED)
    third = await admin.redrive(first.job.id)
    assert (third.created, third.job.origin.redrive_of) == (True, first.job.id)


async def test_what_succeeded_was_cancelled_lives_or_is_gone_is_not_redriven(drive: Driver, admin: JobAdmin) -> None:
    cancelled = await admin.cancel((await drive.add()).id)
    with pytest.raises(IllegalTransition, match="it was cancelled on request; enqueue it again"):
        await admin.redrive(cancelled.id)
    for job in (await ended(drive, Complete("1")), await drive.running(), await drive.add()):
        with pytest.raises(IllegalTransition, match="only dead-lettered, failed and halted jobs"):
            await admin.redrive(job.id)
    with pytest.raises(JobNotFound):
        await admin.redrive(drive.random.job_id())
    assert (await drive.store.find(JobFilter())).jobs[-1].origin.redrive_of is None


async def test_an_erased_job_is_not_redriven(store: Store, drive: Driver, admin: JobAdmin) -> None:
    old = await ended(drive, Fail(ERROR))
    await store.erase(old.id, reason="asked", actor=OPERATOR)
    with pytest.raises(IllegalTransition, match="its content was erased"):
        await admin.redrive(old.id)


async def test_a_job_whose_dedupe_key_is_taken_is_not_redriven(drive: Driver, admin: JobAdmin) -> None:
    old = await ended(drive, Fail(ERROR), dedupe_key="ada")
    live = await drive.add(dedupe_key="ada")
    with pytest.raises(IllegalTransition, match=f"live job {live.id} has the same dedupe key"):
        await admin.redrive(old.id)


@pytest.mark.requirement("LC-11")
async def test_a_job_whose_dedupe_key_another_kind_has_is_not_redriven(drive: Driver, admin: JobAdmin) -> None:
    old, fine = await ended(drive, Fail(ERROR), dedupe_key="ada"), await ended(drive, Fail(ERROR))
    live = await drive.add("report", dedupe_key="ada")
    with pytest.raises(DedupeKeyConflict, match=f"live job {live.id}"):
        await admin.redrive(old.id)
    report = await admin.redrive_many(JobFilter())
    assert (report.redriven, [skipped.job_id for skipped in report.skipped]) == (1, [old.id])
    assert fine.id != old.id


async def test_a_request_id_of_another_request_is_reported(drive: Driver, admin: JobAdmin) -> None:
    old, fine = await ended(drive, Fail(ERROR)), await ended(drive, Fail(ERROR))
    await drive.add(request_id=f"redrive.{old.id}")
    with pytest.raises(RequestIdReused):
        await admin.redrive(old.id)
    report = await admin.redrive_many(JobFilter())
    assert (report.redriven, [skipped.job_id for skipped in report.skipped]) == (1, [old.id])
    assert (await admin.redrive(fine.id)).created is False


@pytest.mark.requirement("SM-11")
async def test_a_redriven_dead_letter_is_resolved(store: Store, drive: Driver, admin: JobAdmin) -> None:
    old = await ended(drive, DEAD_LETTER)
    await admin.redrive(old.id)
    letter = await store.dead_letter(old.id)
    assert letter is not None
    assert (letter.handled_as, letter.handled_at is not None) == ("redriven", True)
    assert (await store.dead_letters(DeadLetterFilter())).letters == []
    await admin.redrive(old.id)
    assert await store.dead_letter(old.id) == letter


@pytest.mark.requirement("SM-11")
async def test_many_dead_letters_are_redriven_by_filter(store: Store, drive: Driver, admin: JobAdmin) -> None:
    wanted = [await ended(drive, DEAD_LETTER, kind="mail") for _ in range(3)]
    erased = await ended(drive, DEAD_LETTER, kind="mail")
    await store.erase(erased.id, reason="asked", actor=OPERATOR)
    late = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR)
    other = await ended(drive, late, kind="mail")
    await ended(drive, Fail(ERROR), kind="mail")

    report = await admin.redrive_many(DeadLetterFilter(reason_codes=(ReasonCode.VALIDATION_FAILED,)))

    assert (report.redriven, report.already_redriven, report.more) == (3, 0, False)
    assert [skipped.job_id for skipped in report.skipped] == [erased.id]
    links = {job.origin.redrive_of for job in (await store.find(JobFilter(statuses=(QUEUED,)))).jobs}
    assert links == {job.id for job in wanted}
    still_open = {letter.job_id for letter in (await store.dead_letters(DeadLetterFilter())).letters}
    assert still_open == {erased.id, other.id}
    again = await admin.redrive_many(DeadLetterFilter(reason_codes=(ReasonCode.VALIDATION_FAILED,)))
    assert (again.redriven, again.already_redriven, len(again.skipped)) == (0, 0, 1)


async def test_many_failed_and_halted_jobs_are_redriven_by_filter(drive: Driver, admin: JobAdmin) -> None:
    await ended(drive, Fail(ERROR))
    await ended(drive, Halt("too dear", "[1]"))
    await ended(drive, DEAD_LETTER)
    first = await admin.redrive_many(JobFilter(), limit=1)
    assert (first.redriven, first.already_redriven, first.more) == (1, 0, True)
    rest = await admin.redrive_many(JobFilter())
    assert (rest.redriven, rest.already_redriven, rest.more) == (1, 1, False)
    with pytest.raises(InvalidInput, match="select dead letters by a DeadLetterFilter"):
        await admin.redrive_many(JobFilter(statuses=(FAILED, CANCELLED)))


# Discard.


@pytest.mark.requirement("SM-11")
async def test_a_discarded_dead_letter_stays_and_needs_no_attention(
    store: Store, drive: Driver, admin: JobAdmin
) -> None:
    job = await ended(drive, DEAD_LETTER)
    letter = await admin.discard(job.id)
    assert (letter.handled_as, letter.last_error) == ("discarded", ERROR)
    assert (await store.dead_letters(DeadLetterFilter())).letters == []
    assert (await store.dead_letters(DeadLetterFilter(handled=True))).letters == [letter]
    assert await admin.discard(job.id) == letter
    assert await drive.job(job.id) == job


async def test_only_a_dead_letter_that_was_not_redriven_is_discarded(drive: Driver, admin: JobAdmin) -> None:
    with pytest.raises(IllegalTransition, match="it is not a dead letter"):
        await admin.discard((await ended(drive, Fail(ERROR))).id)
    with pytest.raises(JobNotFound):
        await admin.discard(drive.random.job_id())
    redriven = await ended(drive, DEAD_LETTER)
    await admin.redrive(redriven.id)
    with pytest.raises(IllegalTransition, match="it was redriven already"):
        await admin.discard(redriven.id)


async def test_a_discarded_dead_letter_can_still_be_redriven_by_its_id(drive: Driver, admin: JobAdmin) -> None:
    job = await ended(drive, DEAD_LETTER)
    await admin.discard(job.id)
    assert (await admin.redrive_many(DeadLetterFilter())).redriven == 0
    assert (await admin.redrive(job.id)).created


@pytest.mark.requirement("SM-11")
async def test_many_dead_letters_are_discarded_by_filter(store: Store, drive: Driver, admin: JobAdmin) -> None:
    jobs = [await ended(drive, DEAD_LETTER, kind="mail") for _ in range(3)]
    other = await ended(drive, DEAD_LETTER, kind="bill")
    some = await admin.discard_many(DeadLetterFilter(kinds=("mail",)), limit=2)
    assert (some.discarded, some.more) == (2, True)
    rest = await admin.discard_many(DeadLetterFilter(kinds=("mail",), handled=True))
    assert (rest.discarded, rest.more) == (1, False)
    assert rest.skipped == tuple(SkippedJob(job.id, "it was discarded already") for job in jobs[:2])
    assert [letter.job_id for letter in (await store.dead_letters(DeadLetterFilter())).letters] == [other.id]


# Through the front door.


@pytest.mark.requirement("WC-12", "WC-13")
async def test_the_provenance_of_an_ended_job_names_the_version_of_the_program_that_ran_it(
    store: Store, drive: Driver, admin: JobAdmin
) -> None:
    await drive.add(policy={"max_attempts": 3, "on_exhausted": "fail"})
    [running] = await drive.claim(code_version="2.1")
    with pytest.raises(NotYet, match="it is running"):
        await admin.provenance(running.id)
    await drive.apply(running, Retry(ERROR, delay_seconds=0))
    await drive.claim(worker="stranger")
    await admin.cancel(running.id, hard=True, reason="enough")
    found = await admin.provenance(running.id)
    assert [(one.owner, one.code_version, one.error) for one in found.attempts] == [
        ("worker-1", "2.1", ERROR),
        ("stranger", None, None),
    ]
    assert (found.outcome.status, found.outcome.by, found.outcome.reason) == (CANCELLED, "client:operator", "enough")
    assert msgspec.json.encode(found)
    with pytest.raises(JobNotFound):
        await admin.provenance(drive.random.job_id())


async def test_an_app_does_all_of_this_in_its_own_name(database: Database) -> None:
    async with database.opened() as store:
        drive = Driver(store)
        failed, buried = await ended(drive, Fail(ERROR)), await ended(drive, DEAD_LETTER)
        rest = await ended(drive, DEAD_LETTER)
        waiting = [await drive.add("other") for _ in range(2)]
        async with tenure.App(database.url, name="desk") as app:
            assert [job.id for job in (await app.find(JobFilter(kinds=("other",)), limit=1)).jobs] == [waiting[0].id]
            assert (await app.cancel_many(JobFilter(kinds=("other",)))).cancelled == 2
            assert (await app.redrive(failed.id)).created
            assert (await app.discard(rest.id)).handled_as == "discarded"
            assert (await app.redrive_many(DeadLetterFilter())).redriven == 1
        assert {(await drive.events_of(job.id))[-1].actor for job in waiting} == {"client:desk"}
        assert (await store.dead_letter(buried.id)) is not None


async def test_a_handle_returns_its_jobs_provenance(database: Database) -> None:
    async with database.opened(), tenure.App(database.url) as app:

        @app.job()
        def work() -> None: ...

        handle = await work.enqueue()
        with pytest.raises(NotYet):
            await handle.provenance()
        await handle.cancel(reason="no need")
        assert (await handle.provenance()).outcome.reason == "no need"
