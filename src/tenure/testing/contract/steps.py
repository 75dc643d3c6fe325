"""Checkpoints: who may save a step and when, that the first writer of a key wins, and what the log records of steps."""

# ruff: noqa: PT012 - a transaction is one thing, with everything in it

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

import msgspec
import pytest

from tenure.errors import (
    AlreadyCommitted,
    IllegalTransition,
    InvalidInput,
    JobNotFound,
    LeaseLost,
    NotAuthorised,
    TenureError,
)
from tenure.lifecycle.forks import forked_steps
from tenure.lifecycle.operations import (
    Cancel,
    Commit,
    Heartbeat,
    Requeue,
    Stall,
)
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.size_limits import STORED_STEP_BYTES_MAX
from tenure.lifecycle.steps import STATE_NAME, NewStep, StepKind, StepRecord, StepsDigest, new_step_digests
from tenure.lifecycle.verify import content_problems
from tenure.stores.contract import (
    EnqueueRequest,
    Failure,
    SaveStep,
    StepExists,
    StepOutcome,
    StepSaved,
    Store,
)
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.contract.outbox_and_artifacts import LONG_SECONDS, of_another_job
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver, runner


def new_step(key: str = "main/1", **facts: Any) -> NewStep:
    defaults = {"kind": StepKind.STEP, "name": "charge", "result": '"paid"'}
    if facts.get("status") == "failed":
        defaults |= {"result": None, "error": ERROR}  # type: ignore[dict-item]
    return NewStep(**{"key": key, **defaults, **facts})


def digest_of(request: SaveStep) -> str:
    return new_step_digests(request.step, job_id=request.job.id, attempt=request.job.attempt)[1]


def save_request(job: Job, key: str = "main/1", *, actor: Actor | None = None, **facts: Any) -> SaveStep:
    """By default from the workflow engine that has the job's token."""
    return SaveStep(job, new_step(key, **facts), actor or runner(job, role=Role.WORKFLOW))


async def save(store: Store, *requests: SaveStep) -> list[StepRecord]:
    """The records of steps that must be saved."""
    outcomes = await store.save_steps(requests)
    assert all(isinstance(outcome, StepSaved) for outcome in outcomes), f"not saved: {outcomes}"
    return [outcome.step for outcome in outcomes if isinstance(outcome, StepSaved)]


async def recorded(store: Store, job: Job) -> str | None:
    """What the owner's request brings of the job's steps."""
    return StepsDigest.of(step.digest for step in await store.steps(job.id)).recorded


def errors_of_steps(outcomes: Sequence[StepOutcome]) -> list[type[TenureError] | None]:
    """For each outcome the type of its error, or None."""
    return [type(outcome.error) if isinstance(outcome, Failure) else None for outcome in outcomes]


class StepContract:
    """`save_steps`, `steps`, `tx.save_step`, and `Event.steps`."""

    sql_prefix: ClassVar[str | None] = None

    @pytest.mark.requirement("WC-08", "SM-20")
    async def test_a_saved_step_is_read_as_it_was_returned(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running()
        clock.advance(5)
        child = drive.random.job_id()
        requests = [
            save_request(
                job,
                "main/1",
                branch="left",
                ordinal=7,
                arguments_digest="abc",
                code_version="1.2",
                duration_ms=1500,
                undo='{"name":"refund"}',
                spend='{"cost":0.5}',
                child_id=child,
                signal_rev=3,
            ),
            save_request(job, "main/2", kind=StepKind.WAIT, status="failed"),
        ]
        first, second = await save(drive.store, *requests)
        now = await drive.store.now()
        assert (first.job_id, first.attempt, first.finished_at) == (job.id, 1, now)
        assert first.started_at == now - timedelta(milliseconds=1500)
        assert (first.undo, first.spend, first.child_id) == ('{"name":"refund"}', '{"cost":0.5}', child)
        assert (first.branch, first.ordinal, first.arguments_digest, first.code_version) == ("left", 7, "abc", "1.2")
        assert (first.result, first.error, first.signal_rev, first.kind) == ('"paid"', None, 3, StepKind.STEP)
        assert (second.status, second.result, second.error, second.kind) == ("failed", None, ERROR, StepKind.WAIT)
        assert await drive.store.steps(job.id) == [first, second]
        assert await drive.store.steps(drive.random.job_id()) == []

    @pytest.mark.requirement("WC-08")
    @pytest.mark.parametrize("role", [Role.RUNNER, Role.GATEWAY, Role.WORKFLOW])
    async def test_the_owners_roles_may_save(self, drive: Driver, role: Role) -> None:
        job = await drive.running()
        await save(drive.store, save_request(job, actor=runner(job, role=role)))

    @pytest.mark.requirement("WC-01")
    @pytest.mark.parametrize("role", [Role.CLIENT, Role.POOL, Role.RECOVERY, Role.OUTBOX])
    async def test_no_other_role_may_save_even_with_the_token(self, drive: Driver, role: Role) -> None:
        job = await drive.running()
        await self._refuse(drive, save_request(job, actor=runner(job, role=role)), NotAuthorised)

    @pytest.mark.requirement("WC-08")
    async def test_steps_are_numbered_in_the_order_in_which_they_were_saved_and_read_in_pages(
        self, drive: Driver
    ) -> None:
        job, other = await drive.running(), await drive.running()
        keys = [f"main/{number}" for number in (9, 10, 2, 1)]
        await save(drive.store, *(save_request(job, key) for key in keys[:2]), save_request(other, "main/3"))
        await save(drive.store, *(save_request(job, key) for key in keys[2:]))
        steps = await drive.store.steps(job.id)
        assert [step.key for step in steps] == keys
        assert [step.number for step in steps] == sorted({step.number for step in steps})
        assert await drive.store.steps(job.id, limit=3) == steps[:3]
        assert await drive.store.steps(job.id, after=steps[0].number, limit=2) == steps[1:3]
        assert await drive.store.steps(job.id, after=steps[-1].number) == []
        with pytest.raises(InvalidInput, match="limit"):
            await drive.store.steps(job.id, limit=0)
        with pytest.raises(InvalidInput, match="after"):
            await drive.store.steps(job.id, after=-1)

    @pytest.mark.requirement("WC-08", "SM-20")
    async def test_the_first_writer_of_a_key_wins_and_the_second_gets_what_was_recorded(self, drive: Driver) -> None:
        job, other = await drive.running(), await drive.running()
        [first] = await save(drive.store, save_request(job, result="1"))
        outcomes = await drive.store.save_steps(
            [
                save_request(job, result="2", name="other"),
                save_request(job, "main/2", result="3"),
                save_request(other, result="4"),
            ]
        )
        assert outcomes[0] == StepExists(first)
        assert [type(outcome) for outcome in outcomes[1:]] == [StepSaved, StepSaved]
        assert [step.result for step in await drive.store.steps(job.id)] == ["1", "3"]

    @pytest.mark.requirement("WC-08")
    async def test_of_one_key_twice_in_a_batch_the_first_wins(self, drive: Driver) -> None:
        job = await drive.running()
        outcomes = await drive.store.save_steps([save_request(job, result=result) for result in ("1", "2", "3")])
        [step] = await drive.store.steps(job.id)
        assert outcomes == [StepSaved(step), StepExists(step), StepExists(step)]
        assert step.result == "1"

    async def test_a_batch_is_numbered_in_its_order_also_where_a_refused_key_comes_again(self, drive: Driver) -> None:
        job = await drive.running()
        stranger = Actor(Role.WORKFLOW, "stranger", drive.random.token())
        refused = save_request(job, "main/1", actor=stranger)
        outcomes = await drive.store.save_steps([refused, save_request(job, "main/1"), save_request(job, "main/2")])
        assert errors_of_steps(outcomes) == [LeaseLost, None, None]
        assert [step.key for step in await drive.store.steps(job.id)] == ["main/1", "main/2"]

    @pytest.mark.requirement("SM-03", "WC-08")
    async def test_a_step_needs_the_token_of_the_current_lease(self, drive: Driver, clock: DatabaseClock) -> None:
        lost = await drive.running(policy={"lease_seconds": 60.0})
        for token in (None, drive.random.token()):
            await self._refuse(drive, save_request(lost, actor=Actor(Role.WORKFLOW, "worker-1", token)), LeaseLost)
        clock.advance(61)
        await drive.apply(lost.id, Stall(), Requeue(), actor=RECOVERY)
        await self._refuse(drive, save_request(lost), LeaseLost)
        [again] = await drive.claim()
        await self._refuse(drive, save_request(lost), LeaseLost)
        first_attempt = msgspec.structs.replace(again, attempt=1)
        await self._refuse(drive, save_request(first_attempt), LeaseLost)
        [step] = await save(drive.store, save_request(again))
        assert step.attempt == 2

    @pytest.mark.requirement("SM-03", "WC-08")
    async def test_a_step_needs_a_lease_that_runs_by_the_databases_clock(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        job = await drive.running(policy={"lease_seconds": 60.0})
        clock.advance(59.999)
        await save(drive.store, save_request(job, "in time"))
        clock.advance(0.001)
        await self._refuse(drive, save_request(job, "late"), LeaseLost)
        await self._refuse(drive, save_request(job, "in time"), LeaseLost)

    @pytest.mark.requirement("WC-08")
    async def test_a_record_of_an_earlier_revision_will_do(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running(policy={"lease_seconds": 60.0})
        clock.advance(40)
        assert (await drive.apply(job, Heartbeat())).rev > job.rev
        clock.advance(40)
        await save(drive.store, save_request(job))

    @pytest.mark.requirement("WC-08", "EL-04")
    async def test_only_a_running_job_that_is_not_committed_has_steps_saved(self, drive: Driver) -> None:
        claimed = await drive.claimed()
        await self._refuse(drive, save_request(claimed), IllegalTransition)
        committed = await drive.running()
        await save(drive.store, save_request(committed))
        await drive.apply(committed, Commit("1"), steps=await recorded(drive.store, committed))
        for key in ("main/1", "main/2"):
            await self._refuse(drive, save_request(committed, key), AlreadyCommitted)
        cancelled = await drive.running()
        await drive.apply(cancelled.id, Cancel(), actor=CLIENT)
        await self._refuse(drive, save_request(cancelled), LeaseLost)
        await self._refuse(drive, save_request(of_another_job(cancelled, drive)), JobNotFound)

    @pytest.mark.requirement("SM-18", "WC-08")
    @pytest.mark.parametrize(
        "facts",
        [
            {"key": ""},
            {"key": "k" * 501},
            {"key": "k\x00"},
            {"name": ""},
            {"name": "n" * 501},
            {"branch": "b" * 501},
            {"kind": "dance"},
            {"status": "halted"},
            {"result": None},
            {"error": ERROR},
            {"status": "failed", "result": "1"},
            {"result": "not JSON"},
            {"result": f'"{"x" * STORED_STEP_BYTES_MAX}"'},
            {"undo": f'"{"x" * 262_144}"'},
            {"spend": "{"},
            {"ordinal": -1},
            {"duration_ms": -1},
            {"duration_ms": 1.5},
            {"signal_rev": 0},
            {"child_id": "7"},
            {"code_version": "v" * 201},
        ],
        ids=lambda facts: str(facts)[:60],
    )
    async def test_an_invalid_step_is_refused_and_its_neighbours_are_saved(
        self, drive: Driver, facts: dict[str, Any]
    ) -> None:
        job = await drive.running()
        asked = [save_request(job, "a"), save_request(job, **{"key": "b", **facts}), save_request(job, "c")]
        assert errors_of_steps(await drive.store.save_steps(asked)) == [None, InvalidInput, None]
        assert [step.key for step in await drive.store.steps(job.id)] == ["a", "c"]

    @pytest.mark.requirement("WC-08")
    async def test_refused_neighbours_do_not_keep_a_step_from_being_saved(self, drive: Driver) -> None:
        job, lost, committed = await drive.running(), await drive.running(), await drive.running()
        await drive.apply(lost.id, Cancel(), actor=CLIENT)
        await drive.apply(committed, Commit("1"))
        stranger = of_another_job(job, drive)
        asked = [save_request(one) for one in (lost, stranger, job, committed)]
        outcomes = await drive.store.save_steps(asked)
        assert errors_of_steps(outcomes) == [LeaseLost, JobNotFound, None, AlreadyCommitted]
        assert isinstance(outcomes[2], StepSaved)
        assert await drive.store.save_steps([]) == []

    @pytest.mark.requirement("WC-08")
    async def test_a_long_result_is_kept_whole(self, drive: Driver) -> None:
        job = await drive.running()
        long = f'"{"é" * ((STORED_STEP_BYTES_MAX - 2) // 2)}"'
        await save(drive.store, save_request(job, "a", result=long), save_request(job, "b", result="2"))
        assert [step.result for step in await drive.store.steps(job.id)] == [long, "2"]

    @pytest.mark.requirement("SM-20")
    async def test_copies_of_steps_are_written_with_the_enqueue_of_their_job(self, drive: Driver) -> None:
        old = await drive.running()
        steps = await save(drive.store, save_request(old, "a"), save_request(old, "b", signal_rev=1))
        origin = msgspec.structs.replace(old.origin, id=drive.random.job_id(), redrive_of=old.id)
        copies = forked_steps(old, steps, origin.id, from_step=None, replace={"b": "7"}, succeeded_children=())
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            [new] = await tx.enqueue([EnqueueRequest(origin, CLIENT)])
            await tx.write_steps(new.job, copies)
        read = await drive.store.steps(origin.id)
        assert [(one.key, one.result, one.attempt, one.signal_rev) for one in read[1:]] == [
            ("a", '"paid"', 1, None),
            ("b", "7", 1, None),
        ]
        assert [one.finished_at for one in read[1:]] == [one.finished_at for one in steps]
        stored = (await drive.store.content([origin.id]))[origin.id]
        assert content_problems(new.job, await drive.events_of(origin.id), stored) == []

    async def test_copies_of_steps_are_refused_for_a_job_that_has_begun_and_roll_back_with_their_job(
        self, drive: Driver
    ) -> None:
        old = await drive.running()
        steps = await save(drive.store, save_request(old, "a"))
        origin = msgspec.structs.replace(old.origin, id=drive.random.job_id(), redrive_of=old.id)
        with pytest.raises(InvalidInput, match="was not enqueued by this transaction"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.enqueue([EnqueueRequest(origin, CLIENT)])
                await tx.write_steps(old, [msgspec.structs.replace(steps[0], key="c")])
        with pytest.raises(InvalidInput, match="are not all of job"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                [new] = await tx.enqueue([EnqueueRequest(origin, CLIENT)])
                await tx.write_steps(new.job, steps)
        assert await drive.store.read([origin.id]) == {}
        assert [one.key for one in await drive.store.steps(old.id)] == ["a"]

    async def test_the_state_of_a_run_is_the_last_decision_of_that_name(self, drive: Driver) -> None:
        job, other = await drive.running(), await drive.running()
        assert await drive.store.run_state(job.id) is None
        facts: dict[str, Any] = {"kind": StepKind.DECISION, "name": STATE_NAME}
        for key, result in (("0", "1"), ("1", "2")):
            await save(drive.store, save_request(job, key, result=result, **facts))
        await save(drive.store, save_request(job, "2", kind=StepKind.STEP, name=STATE_NAME, result="3"))
        await save(drive.store, save_request(job, "3", kind=StepKind.DECISION, name="first", result="4"))
        assert await drive.store.run_state(job.id) == "2"
        assert await drive.store.run_state(other.id) is None

    @staticmethod
    async def _refuse(drive: Driver, request: SaveStep, error: type[TenureError]) -> None:
        """The step must be refused with this error, and nothing must be written."""
        before = await drive.seen(request.job.id), await drive.store.steps(request.job.id)
        assert errors_of_steps(await drive.store.save_steps([request])) == [error]
        assert (await drive.seen(request.job.id), await drive.store.steps(request.job.id)) == before
