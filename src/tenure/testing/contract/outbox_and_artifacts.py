"""What goes along with a job's change: artifacts, and messages for the outside."""

# ruff: noqa: PT012 - a transaction is one thing, with everything in it

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tenure.errors import InvalidInput, JobNotFound, LeaseLost
from tenure.lifecycle.operations import Cancel, Commit, Complete, Progress
from tenure.lifecycle.records import Job
from tenure.stores.contract import Applied, Artifact, OutboxMessage, without_token
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, OPERATOR, Driver

LONG_SECONDS = 3.0


def artifact(name: str = "report.txt", body: bytes = b"42") -> Artifact:
    return Artifact(name=name, media_type="text/plain", body=body)


def message(drive: Driver, aggregate: str = "ada", **facts: Any) -> OutboxMessage:
    return OutboxMessage(
        **{"id": drive.random.job_id(), "topic": "paid", "body": "{}", **facts, "aggregate": aggregate}
    )


def of_another_job(job: Job, drive: Driver) -> Job:
    return msgspec.structs.replace(job, origin=msgspec.structs.replace(job.origin, id=drive.random.job_id()))


class BelongingsContract:
    """`attach`, `artifacts`, `artifact`, `post`."""

    @pytest.mark.requirement("SM-20")
    async def test_artifacts_are_listed_by_name_and_read_one_by_one(self, drive: Driver, clock: DatabaseClock) -> None:
        job = await drive.running()
        clock.advance(1)
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.attach(job, [artifact("b", b"\x00\xff"), artifact("a", b"")])
            await tx.attach(job, [artifact("c")])
            await tx.apply(drive.request(job, Commit("1"), fresh=True))
        listed = await drive.store.artifacts(job.id)
        assert [(made.name, made.bytes, made.attempt, made.job_id) for made in listed] == [
            ("a", 0, 1, job.id),
            ("b", 2, 1, job.id),
            ("c", 2, 1, job.id),
        ]
        assert {made.at for made in listed} == {await drive.store.now()}
        assert await drive.store.artifact(job.id, "b") == artifact("b", b"\x00\xff")
        assert await drive.store.artifact(job.id, "d") is None
        assert await drive.store.artifact(drive.random.job_id(), "b") is None
        assert await drive.store.artifacts(drive.random.job_id()) == []

    async def test_a_name_that_the_job_has_used_is_refused(self, drive: Driver) -> None:
        job = await drive.running()
        with pytest.raises(InvalidInput, match="'x'"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.attach(job, [artifact("x", b"1"), artifact("y"), artifact("x", b"2")])
        with pytest.raises(InvalidInput, match="'x'"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.attach(job, [artifact("x", b"1")])
                await tx.attach(job, [artifact("y"), artifact("x", b"2")])
        assert await drive.store.artifacts(job.id) == []
        job = await drive.apply(job, Commit("1"))
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.attach(job, [artifact("x", b"1")])
        with pytest.raises(InvalidInput, match="'x'"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.attach(job, [artifact("y"), artifact("x", b"2")])
        assert [made.name for made in await drive.store.artifacts(job.id)] == ["x"]

    async def test_only_the_holder_of_the_lease_attaches(self, drive: Driver) -> None:
        job = await drive.running()
        for record, error in ((without_token(job), LeaseLost), (of_another_job(job, drive), JobNotFound)):
            with pytest.raises(error):
                async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                    await tx.attach(record, [artifact()])
        await drive.apply(job.id, Cancel(), actor=CLIENT)
        with pytest.raises(LeaseLost):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.attach(job, [artifact()])
        assert await drive.store.artifacts(job.id) == []

    @pytest.mark.requirement("SM-20")
    async def test_artifacts_without_the_jobs_commit_are_refused_so_that_a_cancelled_job_has_none(
        self, drive: Driver
    ) -> None:
        job = await drive.running()
        for operation in (None, Progress(50)):
            with pytest.raises(InvalidInput, match="no commit"):
                async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                    await tx.attach(job, [artifact()])
                    if operation is not None:
                        await tx.apply(drive.request(job, operation, fresh=True))
        await drive.apply(job.id, Cancel(), actor=CLIENT)
        assert await drive.store.artifacts(job.id) == []

    @pytest.mark.requirement("SM-20")
    async def test_a_completion_is_a_commit_too_and_a_committed_job_may_have_more(self, drive: Driver) -> None:
        job = await drive.running()
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.attach(job, [artifact()])
            await tx.apply(drive.request(job, Complete("1"), fresh=True))
        assert len(await drive.store.artifacts(job.id)) == 1
        other = await drive.apply(await drive.running(), Commit("1"))
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.attach(other, [artifact()])
        assert len(await drive.store.artifacts(other.id)) == 1

    async def test_artifacts_go_with_their_job(self, drive: Driver, clock: DatabaseClock) -> None:
        for forget in ("erase", "prune"):
            job = await drive.running()
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.attach(job, [artifact()])
                outcome = await tx.apply(drive.request(job, Commit("1"), fresh=True))
            assert isinstance(outcome, Applied)
            await drive.apply(outcome.job, Complete("1"))
            clock.advance(10)
            if forget == "erase":
                await drive.store.erase(job.id, reason="asked", actor=OPERATOR)
            else:
                await drive.store.prune(older_than_seconds=5, actor=OPERATOR)
            assert await drive.store.artifacts(job.id) == []
            assert await drive.store.artifact(job.id, "report.txt") is None

    async def test_a_message_that_was_posted_before_is_refused(self, drive: Driver) -> None:
        once = message(drive)
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.post([once])
        for again in ([once], [message(drive, "bob"), once], [message(drive, "bob", id=once.id)]):
            with pytest.raises(InvalidInput, match=str(once.id)):
                async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                    await tx.post(again)
        twice = message(drive)
        with pytest.raises(InvalidInput, match=str(twice.id)):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.post([twice])
                await tx.post([twice])

    @pytest.mark.parametrize(
        "facts", [{"topic": ""}, {"body": "{"}, {"body": None}, {"headers": "]"}, {"id": "x"}, {"topic": "a\x00"}]
    )
    async def test_a_message_that_no_store_could_hold_is_refused(self, drive: Driver, facts: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.post([message(drive, **facts)])

    @pytest.mark.parametrize("made", [artifact(""), artifact(body=7), artifact("a\x00")])  # type: ignore[arg-type]
    async def test_an_artifact_that_no_store_could_hold_is_refused(self, drive: Driver, made: Artifact) -> None:
        job = await drive.running()
        with pytest.raises(InvalidInput):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.attach(job, [made])
