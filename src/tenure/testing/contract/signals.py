"""The limit of signals: a job is sent `signals_max` at most, read or not."""

from __future__ import annotations

import asyncio

import pytest

from tenure.errors import IllegalTransition, InvalidInput, TooManySignals
from tenure.lifecycle.operations import Cancel, Signal
from tenure.lifecycle.records import Job, Policy
from tenure.lifecycle.size_limits import SIGNALS_MAX
from tenure.stores.contract import Applied, Repeated
from tenure.testing.driver import CLIENT, Driver, errors_of

GO = Signal("go")


async def payloads(drive: Driver, job: Job) -> list[str]:
    return [signal.payload for signal in await drive.store.signals(job.id)]


class SignalContract:
    """`signal` at and beyond the limit of the job's policy."""

    @pytest.mark.requirement("WF-11")
    async def test_a_signal_beyond_the_limit_is_refused_and_nothing_is_stored(self, drive: Driver) -> None:
        job = await drive.running(policy={"signals_max": 2})
        for number in range(2):
            await drive.apply(job.id, Signal("go", str(number)), actor=CLIENT)
        # Whatever its name: the limit is that of the job.
        refusal = await drive.refuse(job.id, Signal("stop", '"2"'), actor=CLIENT)
        assert isinstance(refusal, TooManySignals)
        assert (refusal.signals_max, refusal.current and refusal.current.id) == (2, job.id)
        assert refusal.current is not None
        assert refusal.current.token is None, "the owner's secret was shown to a client"
        assert "run.continue_as" in str(refusal)
        assert await payloads(drive, job) == ["0", "1"]

    @pytest.mark.requirement("WF-11")
    async def test_a_signal_that_was_sent_is_recognised_once_the_limit_is_reached(self, drive: Driver) -> None:
        job = await drive.add(policy={"signals_max": 1})
        request = drive.request(job.id, GO, actor=CLIENT)
        assert isinstance(await drive.try_apply(request), Applied)
        assert isinstance(await drive.try_apply(request), Repeated)
        assert isinstance(await drive.refuse(job.id, GO, actor=CLIENT), TooManySignals)

    @pytest.mark.requirement("WF-11")
    async def test_the_limit_holds_for_senders_at_the_same_time(self, drive: Driver) -> None:
        job = await drive.add(policy={"signals_max": 3})
        requests = [drive.request(job.id, Signal("go", str(number)), actor=CLIENT) for number in range(8)]
        async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
            tasks = [group.create_task(drive.try_apply(request)) for request in requests]
        outcomes = [task.result() for task in tasks]
        assert sorted(map(str, errors_of(outcomes))) == sorted(map(str, [None] * 3 + [TooManySignals] * 5))
        assert len(await drive.store.signals(job.id)) == 3

    @pytest.mark.requirement("WF-11")
    async def test_signals_at_the_same_time_each_have_their_own_outcome(self, drive: Driver) -> None:
        jobs = [await drive.add() for _ in range(5)]
        over = await drive.apply((await drive.add()).id, Cancel(), actor=CLIENT)
        requests = [drive.request(job.id, Signal("go", str(turn)), actor=CLIENT) for turn in range(4) for job in jobs]
        refused = drive.request(over.id, GO, actor=CLIENT)
        sent = [*requests[:7], refused, requests[0], *requests[7:]]
        async with asyncio.TaskGroup() as group:  # noqa: TID251 - a test of races needs tasks of its own
            tasks = [group.create_task(drive.try_apply(request)) for request in sent]
        outcomes = [task.result() for task in tasks]
        assert errors_of(outcomes[7:8]) == [IllegalTransition]
        assert isinstance(outcomes[8], Repeated)
        assert all(isinstance(outcome, Applied) for outcome in outcomes[:7] + outcomes[9:])
        assert [outcome.job.id for outcome in outcomes if isinstance(outcome, Applied)] == [
            one.job_id for one in requests
        ]
        for job in jobs:
            # Those of one caller are stored in the order in which they were sent.
            assert await payloads(drive, job) == ["0", "1", "2", "3"]

    @pytest.mark.requirement("WF-11")
    async def test_the_limit_holds_within_one_batch_and_one_request(self, drive: Driver) -> None:
        job, other = await drive.add(policy={"signals_max": 2}), await drive.add(policy={"signals_max": 1})
        assert isinstance(await drive.refuse(job.id, GO, GO, GO, actor=CLIENT), TooManySignals)
        requests = [drive.request(one.id, GO, actor=CLIENT) for one in (job, other, job, other, job)]
        outcomes = await drive.store.apply(requests)
        assert errors_of(outcomes) == [None, None, None, TooManySignals, TooManySignals]

    @pytest.mark.requirement("WF-11")
    async def test_a_request_that_brings_its_record_is_counted_too(self, drive: Driver) -> None:
        job = await drive.apply((await drive.add(policy={"signals_max": 1})).id, GO, actor=CLIENT)
        assert isinstance(await drive.refuse(job, GO, actor=CLIENT, fresh=True), TooManySignals)

    async def test_an_ended_job_is_named_before_the_limit(self, drive: Driver) -> None:
        job = await drive.add(policy={"signals_max": 0})
        assert isinstance(await drive.refuse(job.id, GO, actor=CLIENT), TooManySignals)
        await drive.apply(job.id, Cancel(), actor=CLIENT)
        assert isinstance(await drive.refuse(job.id, GO, actor=CLIENT), IllegalTransition)

    @pytest.mark.parametrize("signals_max", [-1, 1_000_001, 1.5, True])
    def test_a_limit_is_a_whole_number_in_range(self, signals_max: object) -> None:
        with pytest.raises(InvalidInput, match="signals_max"):
            Policy(signals_max=signals_max)  # type: ignore[arg-type]

    def test_the_usual_limit_is_the_documented_one(self) -> None:
        assert Policy().signal_limit == SIGNALS_MAX == 10_000
