"""Registered workers, statistics, and `doctor`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import InvalidInput
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import Complete, DeadLetter, Retry
from tenure.stores.contract import Tally, WorkerRecord
from tenure.stores.findings import SEEN_SECONDS
from tenure.testing.clock import START
from tenure.testing.contract.clock import DatabaseClock
from tenure.testing.driver import ERROR, OPERATOR, Driver


def worker(name: str = "worker-1", **facts: Any) -> WorkerRecord:
    defaults = {
        "id": name,
        "host": "machine",
        "pid": 7,
        "version": "1.0",
        "queues": ("default", "slow"),
        "kinds": ("mail",),
        "concurrency": 4,
        "started_at": START - timedelta(days=1),
        "seen_at": START - timedelta(days=1),
    }
    return WorkerRecord(**{**defaults, **facts})


class WorkerContract:
    """`register`, `unregister`, `workers`, `stats`, and the findings of `doctor` about kinds."""

    async def test_a_worker_is_registered_by_the_databases_clock(self, drive: Driver) -> None:
        now = await drive.store.now()
        await drive.store.register(worker())
        assert await drive.store.workers() == [worker(started_at=now, seen_at=now)]

    async def test_a_worker_that_registers_again_keeps_its_start_time(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        first = await drive.store.now()
        await drive.store.register(worker())
        clock.advance(30)
        await drive.store.register(worker(kinds=("mail", "post"), queues=(), concurrency=8, version="1.1", pid=8))
        [seen] = await drive.store.workers()
        assert (seen.started_at, seen.seen_at) == (first, first + timedelta(seconds=30))
        assert (seen.kinds, seen.queues, seen.concurrency) == (("mail", "post"), (), 8)
        assert (seen.version, seen.pid) == ("1.1", 8)

    async def test_a_stopped_worker_is_not_listed_and_still_known(self, drive: Driver, clock: DatabaseClock) -> None:
        for name in ("b", "a", "c"):
            await drive.store.register(worker(name))
        clock.advance(5)
        await drive.store.unregister("b")
        stopped_at = await drive.store.now()
        clock.advance(5)
        await drive.store.unregister("b")
        await drive.store.unregister("nobody")
        assert [one.id for one in await drive.store.workers()] == ["a", "c"]
        found = await drive.store.workers(["c", "b", "nobody"])
        assert [(one.id, one.stopped_at) for one in found] == [("b", stopped_at), ("c", None)]
        assert await drive.store.workers([]) == []

    async def test_a_worker_that_registers_after_its_stop_is_listed_again(self, drive: Driver) -> None:
        await drive.store.register(worker())
        await drive.store.unregister("worker-1")
        await drive.store.register(worker())
        assert [one.stopped_at for one in await drive.store.workers()] == [None]

    @pytest.mark.parametrize(
        "facts",
        [
            {"id": ""},
            {"host": "a\x00"},
            {"pid": -1},
            {"pid": True},
            {"concurrency": 0},
            {"kinds": ("",)},
            {"queues": (7,)},
        ],
    )
    async def test_an_invalid_worker_is_refused(self, drive: Driver, facts: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            await drive.store.register(worker(**facts))
        assert await drive.store.workers() == []

    async def test_an_empty_database_has_empty_statistics(self, drive: Driver) -> None:
        stats = await drive.store.stats()
        assert (stats.tallies, stats.workers, stats.dead_letters) == ([], [], 0)
        assert stats.at == await drive.store.now()

    async def test_jobs_are_counted_by_queue_kind_and_status(self, drive: Driver, clock: DatabaseClock) -> None:
        since = await drive.store.now()
        await drive.apply(await drive.running(), Complete("1"))
        await drive.apply(await drive.running(kind="b"), Retry(ERROR, delay_seconds=60))
        await drive.apply(await drive.running(), DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR))
        await drive.running(kind="b")
        for delay_ms in (0, 0, 5000, 900_000):
            await drive.add(delay_ms=delay_ms)
        await drive.add(queue="slow")
        await drive.store.register(worker())
        clock.advance(10)
        stats = await drive.store.stats()
        due = {"due": 1, "oldest_due_at": since}
        retry = {"queue": "default", "kind": "b", "status": "retry", "jobs": 1}
        assert [as_facts(tally) for tally in stats.tallies] == [
            {**retry, "due": 0, "oldest_due_at": None},
            {**retry, "status": "running", "due": 0, "oldest_due_at": None},
            {**retry, "kind": "mail", "status": "dead_lettered", "due": 0, "oldest_due_at": None},
            {**retry, "kind": "mail", "status": "queued", "jobs": 4, "due": 3, "oldest_due_at": since},
            {**retry, "kind": "mail", "status": "succeeded", "due": 0, "oldest_due_at": None},
            {"queue": "slow", "kind": "mail", "status": "queued", "jobs": 1, **due},
        ]
        assert ([one.id for one in stats.workers], stats.dead_letters) == (["worker-1"], 1)

    async def test_the_count_of_dead_letters_excludes_resolved_ones(self, drive: Driver) -> None:
        jobs = [await drive.running() for _ in range(2)]
        for job in jobs:
            await drive.apply(job, DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR))
        await drive.store.resolve_dead_letters([jobs[0].id], how="discarded", actor=OPERATOR)
        assert (await drive.store.stats()).dead_letters == 1

    async def test_doctor_names_queues_and_kinds_with_due_jobs_that_no_worker_serves(
        self, drive: Driver, clock: DatabaseClock
    ) -> None:
        for kind, delay_ms in (("mail", 0), ("mail", 0), ("post", 0), ("later", 30_000)):
            await drive.add(kind, delay_ms=delay_ms)
        await drive.add("mail", queue="urgent")
        await drive.running(kind="held")
        assert await warned(drive) == [
            "queue 'default' has 3 due jobs and no worker that serves it",
            "queue 'urgent' has 1 due job and no worker that serves it",
        ]
        await drive.store.register(worker(kinds=("mail", "other")))
        await drive.store.register(worker("worker-2", queues=("urgent",), kinds=("post", "mail")))
        post = "kind 'post' in queue 'default' has 1 due job and no worker that runs it"
        assert await warned(drive) == [post], "the worker that has the kind serves another queue"
        await drive.store.register(worker("worker-3", kinds=("post",)))
        assert await warned(drive) == []
        await drive.store.unregister("worker-3")
        assert await warned(drive) == [post]
        await drive.store.unregister("worker-2")
        assert await warned(drive) == ["queue 'urgent' has 1 due job and no worker that serves it", post]
        clock.advance(SEEN_SECONDS + 1)
        later = "queue 'default' has 4 due jobs and no worker that serves it"
        assert (await warned(drive))[0] == later, "workers that were not seen for long do not count"


def as_facts(tally: Tally) -> dict[str, Any]:
    return {name: getattr(tally, name) for name in Tally.__struct_fields__}


async def warned(drive: Driver) -> list[str]:
    findings = [finding for finding in await drive.store.doctor() if finding.about == "workers"]
    assert {finding.level for finding in findings} <= {"warning"}
    return [finding.message for finding in findings]
