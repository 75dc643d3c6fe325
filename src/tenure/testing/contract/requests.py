"""Compare-and-set, and repeated requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import msgspec
import pytest

from tenure.errors import IllegalTransition, InvalidInput, JobNotFound, RequestIdReused, RevisionConflict
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Cancel,
    Commit,
    Complete,
    DeadLetter,
    Heartbeat,
    Operation,
    Progress,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    Signal,
    Stall,
    Start,
    Suspend,
    TimeOut,
    Wake,
)
from tenure.lifecycle.records import Actor, Role
from tenure.lifecycle.statuses import CANCELLED, QUEUED
from tenure.lifecycle.timeouts import Timeouts
from tenure.stores.contract import Applied, Failure, Repeated
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver, runner

DEAD_LETTERING = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR)


class RequestContract:
    """Revisions and request ids."""

    @pytest.mark.requirement("LC-04")
    async def test_a_change_decided_on_an_old_record_is_a_conflict_with_the_current_one(self, drive: Driver) -> None:
        job = await drive.running()
        current = await drive.apply(job, Progress(10))
        refusal = await drive.refuse(job, Complete("1"))
        assert isinstance(refusal, RevisionConflict)
        assert refusal.expected_rev == job.rev
        assert refusal.current == current, "the owner may see its own token, and the rest as it is"
        await drive.apply(refusal.current, Complete("1"))

    @pytest.mark.requirement("LC-04")
    async def test_a_conflict_shows_no_token_to_another_actor(self, drive: Driver) -> None:
        job = await drive.running()
        refusal = await drive.refuse(job.id, Cancel(), actor=CLIENT, expected_rev=1)
        assert isinstance(refusal, RevisionConflict)
        assert refusal.current == await drive.job(job.id)
        assert refusal.current is not None
        assert refusal.current.token is None

    @pytest.mark.requirement("LC-04")
    async def test_a_future_revision_is_a_conflict_too(self, drive: Driver) -> None:
        job = await drive.running()
        future = msgspec.structs.replace(job, rev=job.rev + 1)
        assert isinstance(await drive.refuse(future, Complete("1")), RevisionConflict)

    @pytest.mark.requirement("LC-04", "LC-06")
    async def test_recovery_too_needs_the_current_revision(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        seen = await drive.job(job.id)
        await drive.apply(job, Heartbeat())
        clock.advance(100)
        assert isinstance(await drive.refuse(seen, Stall(), actor=RECOVERY), RevisionConflict)

    async def test_a_request_without_a_revision_is_decided_on_the_current_record(self, drive: Driver) -> None:
        job = await drive.running()
        await drive.apply(job, Progress(10))
        assert (await drive.apply(job.id, Cancel(), actor=CLIENT)).status is CANCELLED

    async def test_a_record_without_its_token_is_accepted_if_the_actor_has_it(self, drive: Driver) -> None:
        job = await drive.running()
        read = await drive.job(job.id)
        assert (await drive.apply(read, Complete("1"), actor=runner(job))).rev == 4

    async def test_a_job_that_does_not_exist_is_reported(self, drive: Driver) -> None:
        refusal = await drive.refuse(drive.random.job_id(), Cancel(), actor=CLIENT)
        assert isinstance(refusal, JobNotFound)

    @pytest.mark.requirement("LC-09", "LC-10")
    async def test_every_accepted_change_is_one_revision_and_one_event(self, drive: Driver) -> None:
        job = await drive.claimed()
        for count, operation in enumerate((Start(), Heartbeat(), Progress(1), Commit("1"), Complete("1")), start=3):
            request = drive.request(job, operation)
            outcome = await drive.try_apply(request)
            assert isinstance(outcome, Applied)
            job = outcome.job
            events = await drive.events_of(job.id)
            assert (job.rev, len(events)) == (count, count)
            last = events[-1]
            assert (last.rev, last.at, last.attempt) == (count, job.updated_at, 1)
            assert (last.actor, last.request_id) == ("runner:worker-1", request.request_id)
            assert last.to_status is job.status

    @pytest.mark.requirement("LC-07")
    async def test_a_repeated_request_is_a_success_that_changes_nothing(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running()
        for operation in (Heartbeat(), Progress(10, "ten"), Commit("[1]"), Complete("[1]")):
            request = drive.request(job, operation)
            outcome = await drive.try_apply(request)
            assert isinstance(outcome, Applied)
            clock.advance(1)
            assert msgspec.structs.replace(await drive.repeat(request), token=job.token) == msgspec.structs.replace(
                outcome.job, token=job.token
            )
            job = outcome.job

    @pytest.mark.requirement("LC-07")
    async def test_requests_of_clients_and_recovery_can_be_repeated_too(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        signal = drive.request(job.id, Signal("go", "[1]"), actor=CLIENT)
        asked = drive.request(job.id, RequestCancel(), actor=CLIENT)
        await drive.store.apply([signal, asked])
        clock.advance(10)
        rescue = drive.request(job.id, Stall(), Requeue(), actor=RECOVERY)
        await drive.store.apply([rescue])
        cancel = drive.request(job.id, Cancel(), actor=CLIENT)
        await drive.store.apply([cancel])
        for request in (signal, asked, rescue, cancel):
            assert (await drive.repeat(request)).status is CANCELLED
        assert len(await drive.store.signals(job.id)) == 1

    @pytest.mark.requirement("LC-07")
    async def test_a_request_can_be_repeated_after_the_job_has_moved_on_and_the_lease_is_lost(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        request = drive.request(job, Retry(ERROR, delay_seconds=0))
        await drive.store.apply([request])
        [again] = await drive.claim(worker="worker-2")
        seen = await drive.repeat(request)
        assert (seen.rev, seen.owner, seen.token) == (again.rev, "worker-2", None)
        clock.advance(100)
        await drive.repeat(request)
        await drive.apply(job.id, Cancel(), actor=CLIENT)
        assert (await drive.repeat(request)).status is CANCELLED

    @pytest.mark.requirement("LC-07")
    async def test_a_repetition_is_recognised_although_it_is_marked_fresh(self, drive: Driver) -> None:
        job = await drive.running()
        request = drive.request(job, Complete("1"), fresh=True)
        assert isinstance(await drive.try_apply(request), Applied)
        await drive.repeat(request)

    @pytest.mark.requirement("LC-07")
    async def test_a_fused_request_is_repeated_as_a_whole_or_refused(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        clock.advance(10)
        request = drive.request(job.id, Stall(), Requeue(), actor=RECOVERY)
        await drive.store.apply([request])
        await drive.repeat(request)
        half = drive.request(job.id, Stall(), actor=RECOVERY, request_id=request.request_id)
        [outcome] = await drive.store.apply([half])
        assert isinstance(outcome, Failure)
        assert isinstance(outcome.error, RequestIdReused)

    @pytest.mark.requirement("LC-07")
    async def test_a_request_id_with_another_body_is_refused(self, drive: Driver) -> None:
        job = await drive.running()
        request = drive.request(job.id, Signal("go", "[1]"), actor=CLIENT)
        await drive.store.apply([request])
        for other in (Signal("go", "[2]"), Signal("stop", "[1]"), RequestCancel(), Cancel()):
            refusal = await drive.refuse(job.id, other, actor=CLIENT, request_id=request.request_id)
            assert isinstance(refusal, RequestIdReused)
            assert refusal.request_id == request.request_id

    @pytest.mark.requirement("LC-07")
    async def test_the_request_ids_of_enqueue_and_claim_cannot_be_reused(self, drive: Driver) -> None:
        added = await drive.add()
        claim = drive.claim_request()
        [job] = await drive.store.claim(claim)
        for used in (str(added.id), claim.request_id):
            assert isinstance(await drive.refuse(job, Complete("1"), request_id=used), RequestIdReused)

    async def test_one_request_id_may_be_used_for_several_jobs(self, drive: Driver) -> None:
        jobs = [await drive.add(), await drive.add()]
        requests = [drive.request(job.id, Cancel(), actor=CLIENT, request_id="shutdown") for job in jobs]
        assert [type(outcome) for outcome in await drive.store.apply(requests)] == [Applied, Applied]
        assert [type(outcome) for outcome in await drive.store.apply(requests)] == [Repeated, Repeated]

    @pytest.mark.requirement("LC-07")
    async def test_concurrent_repetitions_of_one_request_are_applied_once(self, drive: Driver) -> None:
        job = await drive.add()
        request = drive.request(job.id, Signal("go"), actor=CLIENT)
        async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
            tasks = [group.create_task(drive.try_apply(request)) for _ in range(8)]
        kinds = [type(task.result()) for task in tasks]
        assert (kinds.count(Applied), kinds.count(Repeated)) == (1, 7)
        assert len(await drive.store.signals(job.id)) == 1

    @pytest.mark.requirement("LC-04")
    async def test_concurrent_changes_without_a_revision_are_all_applied_in_some_order(self, drive: Driver) -> None:
        job = await drive.apply(await drive.running(), Suspend())
        requests = [drive.request(job.id, Signal("go", str(number)), actor=CLIENT) for number in range(8)]
        requests += [drive.request(job.id, Wake(), actor=RECOVERY) for _ in range(4)]
        async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
            tasks = [group.create_task(drive.apply_when_free(request)) for request in requests]
        assert all(isinstance(task.result(), Applied) for task in tasks)
        assert (await drive.job(job.id)).rev == job.rev + 12
        assert len(await drive.store.signals(job.id)) == 8

    async def test_a_chain_is_applied_as_a_whole_or_not_at_all(self, drive: Driver) -> None:
        job = await drive.running()
        await drive.refuse(job, Progress(50), Release(), Complete("1"))
        await drive.refuse(job, Commit("1"), Complete("2"))
        done = await drive.apply(job, Progress(50), Commit("1"), Complete("1"))
        assert (done.rev, done.progress) == (6, 50)

    @pytest.mark.requirement("LC-09")
    async def test_a_heartbeat_cannot_be_combined_with_other_operations(self, drive: Driver) -> None:
        job = await drive.running()
        before = await drive.seen(job.id)
        chains: tuple[tuple[Operation, ...], ...] = (
            (Heartbeat(), Progress(1)),
            (Progress(1), Heartbeat()),
            (Progress(50), Heartbeat(), Complete("1")),
            (Heartbeat(), Heartbeat()),
        )
        for chain in chains:
            with pytest.raises(InvalidInput) as refusal:
                await drive.try_apply(drive.request(job, *chain))
            assert refusal.value.where == "operations"
        assert await drive.seen(job.id) == before
        await drive.apply(job, Heartbeat())

    @pytest.mark.requirement("LC-06")
    async def test_only_the_first_operation_of_a_chain_may_depend_on_the_clock(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        for number, timeouts in enumerate((Timeouts(), Timeouts(queued_seconds=0.001))):
            lost = await drive.running(kind=f"lost-{number}", policy={"lease_seconds": 10, "timeouts": timeouts})
            held = await drive.running(kind=f"released-{number}", policy={"timeouts": timeouts})
            released = await drive.apply(held, Release())
            clock.advance(10)
            for job, chain in ((lost, (Stall(), Requeue(), TimeOut(ERROR))), (released, (Requeue(), TimeOut(ERROR)))):
                for asked in (job.id, await drive.job(job.id)):
                    refusal = await drive.refuse(asked, *chain, actor=RECOVERY)
                    assert isinstance(refusal, IllegalTransition)
                    assert refusal.operation == "time_out"

    @pytest.mark.requirement("LC-06")
    async def test_a_requeue_may_follow_the_stall_that_it_answers(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running(policy={"lease_seconds": 10})
        clock.advance(10)
        requeued = await drive.apply(job.id, Stall(), Requeue(), actor=RECOVERY)
        assert (requeued.status, requeued.due_at) == (QUEUED, job.due_at)

    @pytest.mark.requirement("LC-07")
    @pytest.mark.parametrize("make", [Suspend, Release], ids=["suspend", "release"])
    async def test_another_delay_under_the_same_request_id_is_another_request(
        self, drive: Driver, make: Callable[..., Operation]
    ) -> None:
        delays: tuple[dict[str, float], ...] = ({}, {"delay_seconds": 60.0}, {"delay_seconds": 30.0})
        for number, first in enumerate(delays):
            job = await drive.running(kind=f"kind-{number}")
            request = drive.request(job, make(**first))
            await drive.try_apply(request)
            for other in (delay for delay in delays if delay != first):
                refusal = await drive.refuse(job, make(**other), request_id=request.request_id)
                assert isinstance(refusal, RequestIdReused), (first, other)
            await drive.repeat(request)

    @pytest.mark.requirement("LC-05")
    @pytest.mark.parametrize("way", ["id", "record", "fresh"])
    async def test_no_result_for_another_actor_has_the_token_of_the_lease(
        self, drive: Driver, clock: DatabaseClock, way: str
    ) -> None:
        others: tuple[tuple[Actor, tuple[Operation, ...]], ...] = (
            (CLIENT, (Signal("go"),)),
            (CLIENT, (Signal("go"), RequestCancel())),
            (CLIENT, (RequestCancel(),)),
            (CLIENT, (Cancel(),)),
            (CLIENT, (Complete("1"),)),
            (RECOVERY, (Stall(),)),
            (RECOVERY, (Stall(), Requeue())),
            (RECOVERY, (TimeOut(ERROR),)),
            (RECOVERY, (Requeue(),)),
            (RECOVERY, (DEAD_LETTERING,)),
            (Actor(Role.RUNNER, "worker-1", drive.random.token()), (Complete("1"),)),
            (Actor(Role.RUNNER, "worker-1"), (Heartbeat(),)),
            (Actor(Role.POOL, "worker-1"), (Start(),)),
        )
        policy = {"lease_seconds": 20, "timeouts": Timeouts(claimed_seconds=5, running_seconds=5)}
        cases = product((drive.running, drive.claimed), (1, 30), others)
        for number, (held, seconds, (actor, operations)) in enumerate(cases):
            job = await held(kind=f"kind-{number}", policy=policy)
            clock.advance(seconds)
            asked = job.id if way == "id" else await drive.job(job.id)
            request = drive.request(asked, *operations, actor=actor, fresh=way == "fresh")
            reused = drive.request(job.id, Signal("other"), actor=CLIENT, request_id=request.request_id)
            stale = drive.request(job.id, *operations, actor=actor, expected_rev=1)
            for outcome in await drive.store.apply([request, request, reused, stale]):
                assert job.token not in parts(outcome), (operations, outcome)
                assert str(job.token) not in repr(outcome)


def parts(value: Any) -> list[Any]:
    """Everything that is reachable from a value: fields, items, and the attributes of an error."""
    return list(_walked(value))


def _walked(value: Any) -> Iterator[Any]:
    yield value
    inner: list[Any] = []
    if isinstance(value, msgspec.Struct):
        inner += [getattr(value, name) for name in value.__struct_fields__]
        inner += [value.job] if isinstance(value, Applied) else []
    elif isinstance(value, BaseException):
        inner += [*value.args, *vars(value).values(), value.__cause__, value.__context__]
    elif isinstance(value, Mapping):
        inner += [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inner += value
    for item in inner:
        yield from _walked(item)
