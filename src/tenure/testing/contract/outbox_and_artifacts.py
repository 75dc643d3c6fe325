"""Artifacts and outbox messages of a job's commit."""

# ruff: noqa: PT012 - a transaction is one thing, with everything in it

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tenure.errors import AlreadyCommitted, InvalidInput, JobNotFound, LeaseLost
from tenure.lifecycle.content import RowsDigest, StoredContent, logged_digests
from tenure.lifecycle.operations import Cancel, Commit, Complete, Operation, Progress
from tenure.lifecycle.records import Job
from tenure.lifecycle.verify import ProblemType, content_problems
from tenure.stores.contract import (
    Applied,
    Artifact,
    OutboxMessage,
    Transaction,
    digest_artifacts,
    digest_messages,
    without_token,
)
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import CLIENT, OPERATOR, Driver, prune_finished

LONG_SECONDS = 30.0


def artifact(name: str = "report.txt", body: bytes = b"42") -> Artifact:
    return Artifact(name=name, media_type="text/plain", body=body)


def message(drive: Driver, aggregate: str = "ada", **facts: Any) -> OutboxMessage:
    return OutboxMessage(
        **{"id": drive.random.job_id(), "topic": "paid", "body": "{}", **facts, "aggregate": aggregate}
    )


def of_another_job(job: Job, drive: Driver) -> Job:
    return msgspec.structs.replace(job, origin=msgspec.structs.replace(job.origin, id=drive.random.job_id()))


class OutboxAndArtifactsContract:
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

    async def test_only_the_owner_of_the_lease_attaches(self, drive: Driver) -> None:
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
    async def test_a_completion_is_a_commit_too(self, drive: Driver) -> None:
        job = await drive.running()
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.attach(job, [artifact()])
            await tx.apply(drive.request(job, Complete("1"), fresh=True))
        assert len(await drive.store.artifacts(job.id)) == 1

    @pytest.mark.requirement("SM-20")
    @pytest.mark.parametrize("what", ["artifact", "message"])
    async def test_a_committed_job_gets_no_more_artifacts_or_messages(self, drive: Driver, what: str) -> None:
        async def give(tx: Transaction, job: Job) -> None:
            await (tx.attach(job, [artifact()]) if what == "artifact" else tx.post([message(drive)], job=job))

        job = await drive.running()
        with pytest.raises(AlreadyCommitted):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.apply(drive.request(job, Commit("1"), fresh=True))
                await give(tx, job)
        job = await drive.apply(job, Commit("1"))
        with pytest.raises(AlreadyCommitted):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await give(tx, job)
        assert (await drive.store.content([job.id]))[job.id] == StoredContent()

    async def test_messages_of_a_job_without_its_commit_are_refused(self, drive: Driver) -> None:
        job = await drive.running()
        with pytest.raises(InvalidInput, match="no commit"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.post([message(drive)], job=job)
        assert (await drive.store.content([job.id]))[job.id] == StoredContent()

    @pytest.mark.requirement("SM-20")
    @pytest.mark.parametrize("operation", [Commit("1"), Complete("1")])
    async def test_the_event_that_commits_has_the_digests_of_artifacts_and_messages(
        self, drive: Driver, operation: Operation
    ) -> None:
        job, bare = await drive.running(), await drive.running()
        artifacts, messages = [artifact("b", b"\x00"), artifact("a")], [message(drive, headers='{"x":"1"}')]
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.attach(job, artifacts)
            await tx.post(messages, job=job)
            await tx.post([message(drive)])
            await tx.apply(drive.request(job, operation, fresh=True))
            await tx.apply(drive.request(bare, operation, fresh=True))
        stored = await drive.store.content([job.id, bare.id])
        assert sorted(stored[job.id].artifacts) == sorted(digest_artifacts(artifacts, attempt=1))
        assert [*stored[job.id].messages] == digest_messages(messages)
        events = await drive.store.history([job.id, bare.id])
        assert events[bare.id][-1].detail is None
        assert logged_digests(events[job.id][-1].detail) == {
            "artifacts": RowsDigest.of(stored[job.id].artifacts),
            "messages": RowsDigest.of(stored[job.id].messages),
        }
        current = await drive.store.read([job.id])
        assert content_problems(current[job.id], events[job.id], stored[job.id]) == []
        assert [found.type for found in content_problems(current[job.id], events[job.id], StoredContent())] == [
            ProblemType.ARTIFACT,
            ProblemType.MESSAGE,
        ]

    @pytest.mark.requirement("SM-20")
    async def test_erasure_empties_messages_and_the_job_still_verifies(self, drive: Driver) -> None:
        job = await drive.running()
        sent = message(drive, body='{"to":"ada"}', headers='{"x":"1"}')
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.attach(job, [artifact()])
            await tx.post([sent], job=job)
            await tx.apply(drive.request(job, Complete("1"), fresh=True))
        erased = await drive.store.erase(job.id, reason="asked", actor=OPERATOR)
        stored = (await drive.store.content([job.id]))[job.id]
        blank = msgspec.structs.replace(sent, body="null", headers=None)
        assert stored == StoredContent(messages=tuple(digest_messages([blank])))
        assert content_problems(erased, (await drive.store.history([job.id]))[job.id], stored) == []

    async def test_artifacts_are_removed_with_their_job(self, drive: Driver, clock: DatabaseClock) -> None:
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
                await prune_finished(drive.store, older_than_seconds=5)
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
    async def test_an_invalid_message_is_refused(self, drive: Driver, facts: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.post([message(drive, **facts)])

    @pytest.mark.parametrize("made", [artifact(""), artifact(body=7), artifact("a\x00")])  # type: ignore[arg-type]
    async def test_an_invalid_artifact_is_refused(self, drive: Driver, made: Artifact) -> None:
        job = await drive.running()
        with pytest.raises(InvalidInput):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.attach(job, [made])
