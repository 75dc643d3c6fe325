"""What every event has: its cause, in each read of the log."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tenure.errors import RequestIdReused
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Cancel,
    Commit,
    Complete,
    DeadLetter,
    Halt,
    Heartbeat,
    Progress,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    Signal,
    Stall,
    Suspend,
)
from tenure.lifecycle.provenance import provenance
from tenure.lifecycle.records import Actor, Event, Role
from tenure.lifecycle.schedules import DUE_TAG
from tenure.lifecycle.statuses import CANCELLED
from tenure.stores.contract import DeadLetterFilter, EventFilter, JobFilter, OutboxMessage
from tenure.stores.contract.outbox import MessageRecord
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver
from tenure.testing.store_check import whole_tail


def causes_of(events: list[Event]) -> dict[str, str | None]:
    return {event.type.value: event.cause for event in events}


class EventContract:
    """Every event has a cause, whether it is stored or follows from the type."""

    @pytest.mark.requirement("SM-17")
    @pytest.mark.parametrize("start", [True, False])
    async def test_every_event_of_a_plain_run_has_its_cause(self, drive: Driver, start: bool) -> None:
        job = await drive.running() if start else await drive.claimed()
        expected = {"enqueued": "requested", "claimed": "due", **({"started": "claimed"} if start else {})}
        assert causes_of(await drive.events_of(job.id)) == expected
        if start:
            for operation in (Heartbeat(), Progress(10), Commit("1"), Complete("1")):
                job = await drive.apply(job, operation)
            expected |= {"heartbeat": "alive", "progress": "reported", "committed": "effect_applied"}
            expected["succeeded"] = "returned"
        events = await drive.events_of(job.id)
        assert causes_of(events) == expected
        assert causes_of(await whole_tail(drive.store, expected=len(events))) == expected
        page = await drive.store.events(EventFilter(job_id=job.id))
        assert causes_of(list(page.events)) == expected

    @pytest.mark.requirement("SM-17")
    async def test_a_retry_names_the_class_of_its_error(self, drive: Driver) -> None:
        job = await drive.running()
        for error, cause in ((ERROR, "ValueError"), ('"no"', "error"), ('{"message":"no"}', "error")):
            await drive.apply(job, Retry(error, delay_seconds=0))
            assert (await drive.events_of(job.id))[-1].cause == cause
            [job] = await drive.claim()

    @pytest.mark.requirement("SM-17")
    async def test_other_transitions_name_their_causes(self, drive: Driver, clock: DatabaseClock) -> None:
        halted = await drive.apply(await drive.running(), Halt("the budget is used up", "1"))
        sleeping = await drive.apply(await drive.running(), Suspend(delay_seconds=100))
        waiting = await drive.apply(await drive.running(), Suspend())
        released = await drive.apply(await drive.running(), Release("snooze", delay_seconds=100))
        lost = await drive.running(policy={"lease_seconds": 10})
        clock.advance(10)
        await drive.apply(lost.id, Stall("heartbeats_missed"), Requeue(), actor=RECOVERY)
        await drive.apply(waiting.id, Signal("go"), actor=CLIENT)
        last = {job.id: causes_of(await drive.events_of(job.id)) for job in (halted, sleeping, waiting, released, lost)}
        assert last[halted.id]["halted"] == "the budget is used up"
        assert (last[sleeping.id]["suspended"], last[waiting.id]["suspended"]) == ("awaits_time", "awaits_signal")
        assert (last[waiting.id]["signalled"], last[released.id]["released"]) == ("sent", "snooze")
        assert (last[lost.id]["stalled"], last[lost.id]["requeued"]) == ("heartbeats_missed", "recovered")

    @pytest.mark.requirement("SM-17")
    @pytest.mark.parametrize("count", [1, 2])
    @pytest.mark.parametrize("keyed", [True, False])
    async def test_an_enqueue_names_its_cause(self, drive: Driver, keyed: bool, count: int) -> None:
        old = await drive.add()
        origins: dict[str, dict[str, Any]] = {
            "requested": {"tags": {"tenant": "x"}},
            "schedule": {"tags": {DUE_TAG: "2030-01-01T00:00:00Z"}},
            "redrive": {"redrive_of": old.id},
        }
        for cause, facts in origins.items():
            keys: dict[str, Any] = {"request_id": f"once-{cause}"} if keyed and count == 1 else {}
            results = await drive.store.enqueue([drive.enqueue(**facts, **keys) for _ in range(count)])
            for result in results:
                assert [event.cause for event in await drive.events_of(result.job.id)] == [cause]

    @pytest.mark.requirement("SM-16")
    async def test_a_root_job_has_its_own_id_as_correlation_id_and_is_found_by_it(self, drive: Driver) -> None:
        root = await drive.running(queue="roots")
        own = str(root.id)
        assert (root.correlation_id, (await drive.job(root.id)).correlation_id) == (own, own)
        child = await drive.add(correlation_id=root.correlation_id)
        given = await drive.add(correlation_id="order-7")
        assert (child.correlation_id, given.correlation_id) == (own, "order-7")
        found = await drive.store.find(JobFilter(correlation_id=own))
        assert [job.id for job in found.jobs] == sorted([root.id, child.id])
        first = await drive.store.find(JobFilter(correlation_id=own), limit=1)
        rest = await drive.store.find(JobFilter(correlation_id=own), limit=1, after=first.after)
        assert [job.id for job in (*first.jobs, *rest.jobs)] == sorted([root.id, child.id])
        of_queue = await drive.store.find(JobFilter(correlation_id=own, queues=("roots",)))
        assert [job.id for job in of_queue.jobs] == [root.id]
        for absent in (str(given.id), own.upper(), "order"):
            assert (await drive.store.find(JobFilter(correlation_id=absent))).jobs == []
            assert (await drive.store.events(EventFilter(correlation_id=absent))).events == []

    @pytest.mark.requirement("SM-16")
    async def test_every_event_of_a_root_job_has_its_id_as_correlation_id(self, drive: Driver) -> None:
        root = await drive.apply(await drive.running(), Complete("1"))
        own = str(root.id)
        child = await drive.add(correlation_id=own)
        for wanted in (EventFilter(correlation_id=own), EventFilter(job_id=root.id, correlation_id=own)):
            events = (await drive.store.events(wanted)).events
            assert {event.correlation_id for event in events} == {own}
            assert {event.job_id for event in events} - {child.id} == {root.id}
        assert (await drive.store.events(EventFilter(job_id=root.id, correlation_id="order-7"))).events == []
        tail = await whole_tail(drive.store, expected=root.rev + 1)
        assert {event.correlation_id for event in tail} == {own}

    @pytest.mark.requirement("SM-16")
    @pytest.mark.parametrize("given", [None, "order-7"])
    async def test_a_dead_letter_has_the_correlation_id_of_its_job(self, drive: Driver, given: str | None) -> None:
        job = await drive.running(correlation_id=given)
        await drive.apply(job, DeadLetter(ReasonCode.POLICY_VIOLATION, Stage.EXEC, ERROR))
        letter = await drive.store.dead_letter(job.id)
        assert letter is not None
        assert letter.correlation_id == (given or str(job.id))
        page = await drive.store.dead_letters(DeadLetterFilter(correlation_id=letter.correlation_id))
        assert [one.job_id for one in page.letters] == [job.id]

    @pytest.mark.requirement("SM-16")
    @pytest.mark.parametrize("given", [None, "order-7"])
    async def test_correlation_id_and_trace_travel_into_the_outbox(self, drive: Driver, given: str | None) -> None:
        job = await drive.running(correlation_id=given, trace="00-a-b-01")
        sent, own = (
            OutboxMessage(id=drive.random.job_id(), topic="mail.sent", body="1", aggregate="ada") for _ in range(2)
        )
        async with drive.store.transaction(deadline_seconds=60) as tx:
            await tx.post([sent], job=job)
            await tx.apply(drive.request(job, Commit("1")))
        async with drive.store.transaction(deadline_seconds=60) as tx:
            await tx.post([own])
        seen: dict[UUID, tuple[str, str | None]] = {}
        async with drive.store.archive.snapshot() as snapshot:
            async for page in snapshot.records(MessageRecord, limit=10):
                seen |= {one.id: (one.correlation_id, one.trace) for one in page if isinstance(one, MessageRecord)}
        assert seen == {sent.id: (given or str(job.id), "00-a-b-01"), own.id: (str(own.id), None)}

    @pytest.mark.requirement("WC-13")
    @pytest.mark.parametrize("start", [True, False])
    async def test_a_claim_records_the_version_of_the_code_that_runs_each_attempt(
        self, drive: Driver, start: bool
    ) -> None:
        jobs = [await drive.add() for _ in range(3)]
        for job in await drive.claim(limit=3, code_version="1.4.0", start=start):
            await drive.apply(job, Release(delay_seconds=0))
        for job in await drive.claim(limit=3, start=start):
            await drive.apply(job, Release(delay_seconds=0))
        ended = [await drive.apply(job, Complete("1")) for job in await drive.claim(limit=3, code_version='2.0 "rc"')]
        assert {job.id for job in ended} == {job.id for job in jobs}
        for job in ended:
            events = await drive.events_of(job.id)
            assert [one.code_version for one in provenance(job, events).attempts] == ["1.4.0", None, '2.0 "rc"']
            assert [event.detail for event in events if event.type == "started"] == [None] * (3 if start else 1)

    @pytest.mark.requirement("SM-10", "SM-17")
    async def test_an_owner_that_answers_a_cancel_request_ends_the_job_with_the_requesters_reason(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        asked = await drive.apply(job.id, RequestCancel("the order was withdrawn"), actor=CLIENT)
        assert asked.cancel_reason == "the order was withdrawn"
        again = await drive.apply(job.id, RequestCancel("once more"), actor=CLIENT)
        assert again.cancel_reason == "the order was withdrawn", "the first request counts"
        clock.advance(10)
        await drive.apply(job.id, Stall(), Requeue(), actor=RECOVERY)
        [claimed] = await drive.claim()
        assert claimed.cancel_reason == "the order was withdrawn"
        ended = await drive.apply(claimed, Cancel())
        assert (ended.status, ended.reason) == (CANCELLED, "the order was withdrawn")
        events = await drive.events_of(job.id)
        requested = [event.cause for event in events if event.type == "cancel_requested"]
        assert (requested, events[-1].cause) == (["the order was withdrawn", "once more"], "the order was withdrawn")

    @pytest.mark.requirement("SM-10", "SM-17")
    async def test_a_cancel_is_decided_on_the_current_reason_and_not_on_the_owners_record(self, drive: Driver) -> None:
        job = await drive.running()
        await drive.apply(job.id, RequestCancel("no need"), actor=CLIENT)
        owner = Actor(Role.RUNNER, "worker-1", job.token)
        assert (await drive.apply(job.id, Cancel(), actor=owner)).reason == "no need"

    @pytest.mark.requirement("SM-17")
    async def test_a_cancel_without_any_reason_was_requested(self, drive: Driver) -> None:
        ended = await drive.apply((await drive.add()).id, Cancel(), actor=CLIENT)
        assert (ended.reason, (await drive.events_of(ended.id))[-1].cause) == ("requested", "requested")

    @pytest.mark.requirement("SM-17")
    async def test_a_repeated_cancel_is_recognised_with_and_without_its_reason(self, drive: Driver) -> None:
        for operation in (Cancel(), Cancel("stop"), Cancel("requested")):
            request = drive.request((await drive.running()).id, operation, actor=CLIENT)
            await drive.try_apply(request)
            await drive.repeat(request)
            refusal = await drive.refuse(request.job_id, Cancel("other"), actor=CLIENT, request_id=request.request_id)
            assert isinstance(refusal, RequestIdReused)
