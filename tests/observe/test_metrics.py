"""The metrics of roles on a real store, beside the log that knows what happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

import tenure
from tenure.errors import InvalidInput, ValidationError
from tenure.lifecycle.records import EventType, Job
from tenure.observe.counting_store import count_changes
from tenure.observe.meter import Meter
from tenure.observe.snapshot import MetricsSnapshot
from tenure.seams import Seams
from tenure.stores.contract import JobFilter, Store
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.driver import Driver
from tenure.workers.maintenance.recovery import RecoveryWorker
from tenure.workers.pool import Slots, WorkerPool
from tests.support.databases import Database
from tests.support.faults import Fault, FaultyStore
from tests.support.in_process_worker import is_renewed, working
from tests.support.waiting import eventually

LEASE_SECONDS = 60.0


class Place:
    """A store by a manual clock, and a pool and a recovery worker that are counted."""

    def __init__(self, store: SqliteStore, clock: ManualClock) -> None:
        self.clock, self.seams = clock, Seams(clock=clock)
        self.store, self.drive = FaultyStore(store), Driver(store)
        self.meter = Meter(["mail"])
        self.began: list[Job] = []
        self.pool = WorkerPool(
            self.store,
            self.seams,
            worker="w",
            queues=("default",),
            kinds=("mail",),
            slots=Slots(10),
            poll_seconds=1.0,
            start=self._start,
            release=self._start,
            meter=self.meter,
        )

    def _start(self, job: Job, token: UUID, sent_at_seconds: float) -> None:
        self.began.append(job)

    def recovery(self) -> RecoveryWorker:
        store: Any = self.store
        return RecoveryWorker(count_changes(store, self.meter), self.seams, name="mender")

    def value(self, name: str, *labels: str) -> int:
        return self.meter.snapshot().value(f"tenure_{name}_total", "mail", *labels)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    clock = ManualClock()
    store = SqliteStore(":memory:", seams=Seams(clock=clock), database_clock=clock.now, inline=True)
    await store.migrate()
    await store.open()
    yield Place(store, clock)
    await store.close()


@pytest.mark.requirement("SM-15")
@pytest.mark.parametrize("fault", [None, *Fault])
async def test_a_claim_is_counted_once_although_its_answer_was_lost(place: Place, fault: Fault | None) -> None:
    for _ in range(3):
        await place.drive.add()
    place.store.faults.append(fault)
    assert await place.pool.claim() == 3
    assert (place.value("claims"), place.value("claim_conflicts")) == (3, 0)


@pytest.mark.requirement("SM-15")
async def test_a_job_that_was_claimed_too_late_to_start_is_a_conflict(place: Place) -> None:
    await place.drive.add()
    answer = place.store.claim

    async def late(request: object) -> object:
        jobs = await answer(request)  # type: ignore[arg-type]
        place.clock.advance(0.9 * LEASE_SECONDS)
        return jobs

    place.store.claim = late  # type: ignore[method-assign, assignment]
    assert await place.pool.claim() == 0
    assert (place.value("claim_conflicts", "late"), place.value("claim_conflicts", "taken")) == (1, 0)


@pytest.mark.requirement("SM-15")
async def test_a_job_that_another_worker_owns_by_then_is_counted_as_a_conflict(place: Place) -> None:
    """The answer to the first try is lost; before the second, the lease runs out and another worker has the job."""
    job = await place.drive.add()
    place.store.faults.append(Fault.REPLY_LOST)
    first_try, again = place.store.claim, False

    async def between(request: object) -> object:
        nonlocal again
        if again:
            place.clock.advance(LEASE_SECONDS)
            await place.recovery().scan()
            [taken] = await place.drive.claim(worker="other")
            assert taken.id == job.id
        again = True
        return await first_try(request)  # type: ignore[arg-type]

    place.store.claim = between  # type: ignore[method-assign, assignment]
    assert await place.pool.claim() == 0
    assert place.began == []
    assert (place.value("claim_conflicts", "taken"), place.value("claims")) == (1, 0)
    assert place.value("lease_expiries", "lease_expired") == 1


@pytest.mark.requirement("SM-15")
@pytest.mark.parametrize(
    ("policy", "seconds", "cause", "end"),
    [
        ({"lease_seconds": 30, "heartbeat_seconds": 30}, 30, "lease_expired", None),
        ({"lease_seconds": 120, "heartbeat_seconds": 10}, 20, "heartbeats_missed", None),
        ({"lease_seconds": 30, "max_attempts": 1, "on_exhausted": "fail"}, 30, "lease_expired", "failures"),
        ({"lease_seconds": 30, "on_lost": "dead_letter"}, 30, "lease_expired", "dead_letters"),
    ],
)
async def test_what_recovery_does_is_counted_by_cause_and_by_end(
    place: Place, policy: dict[str, Any], seconds: float, cause: str, end: str | None
) -> None:
    await place.drive.running(policy=policy)
    await place.recovery().scan()
    assert place.value("lease_expiries") == 0
    place.clock.advance(seconds)
    assert await place.recovery().scan() == 1
    assert await place.recovery().scan() == 0
    assert place.value("lease_expiries", cause) == place.value("lease_expiries") == 1
    ends = {name: place.value(name) for name in ("failures", "dead_letters", "retries")}
    assert ends == {name: int(name == end) for name in ends}


async def test_of_two_that_recover_at_once_one_counts(place: Place) -> None:
    await place.drive.running(policy={"lease_seconds": 30, "max_attempts": 1, "on_exhausted": "fail"})
    place.clock.advance(30)
    await asyncio.gather(place.recovery().scan(), place.recovery().scan())
    assert (place.value("lease_expiries"), place.value("failures")) == (1, 1)


def declare(app: tenure.App, *, renewed: asyncio.Event) -> None:
    """Jobs that come to every end."""

    @app.job(lease_seconds=6.0)
    async def slow() -> None:
        await renewed.wait()

    @app.job(max_attempts=3, on_exhausted="fail", backoff=tenure.Backoff(base_seconds=0.01))
    async def shaky(ctx: tenure.Context, failures: int) -> None:
        if ctx.attempt <= failures:
            raise OSError("not yet")

    @app.job()
    def invalid() -> None:
        raise ValidationError("never")

    @app.job()
    async def keeps(ctx: tenure.Context) -> str:
        ctx.attach("a.txt", "a")
        return "kept"

    @app.job(lease_seconds=0.5)
    async def abandoned() -> None: ...


async def logged(store: Store) -> Counter[tuple[str, str]]:
    """The number of events by kind and type, from the log."""
    found: Counter[tuple[str, str]] = Counter()
    jobs = {job.id: job for job in (await store.find(JobFilter(), limit=1000)).jobs}
    for job_id, events in (await store.history(list(jobs))).items():
        for event in events:
            renewed = event.type is EventType.HEARTBEAT and event.until_at is not None
            found[jobs[job_id].kind, "renewed" if renewed else event.type] += 1
    return found


def compared(metrics: MetricsSnapshot, events: Counter[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, int]]:
    """What was counted beside what is in the log, for each kind and metric."""
    names = {
        "claims": "claimed",
        "lease_renewals": "renewed",
        "lease_expiries": "stalled",
        "retries": "retry_scheduled",
        "failures": "failed",
        "dead_letters": "dead_lettered",
    }
    kinds = {kind for kind, _ in events}
    return {
        (kind, name): (metrics.value(f"tenure_{name}_total", kind), events[kind, event])
        for kind in kinds
        for name, event in names.items()
    }


@pytest.mark.requirement("SM-15", "EH-06")
async def test_a_workers_counts_agree_with_the_log(database: Database) -> None:
    async with database.opened() as store:
        app = tenure.App(database.url)
        renewed = asyncio.Event()
        declare(app, renewed=renewed)
        kinds = app.kinds
        drive = Driver(store)
        lost = await drive.add("abandoned", policy={"lease_seconds": 0.5, "max_attempts": 1, "on_exhausted": "fail"})
        [held] = await drive.claim(kinds=("abandoned",), worker="nobody")
        assert held.id == lost.id
        with pytest.raises(InvalidInput):
            await app.submit("shaky", '{"failures": "many"}')
        async with working(app, metrics=True) as worker:
            calls = ["slow", "invalid", "keeps", *["shaky"] * 3]
            payloads = ["{}", "{}", "{}", *(f'{{"failures":{number}}}' for number in (0, 2, 5))]
            handles = [await app.submit(kind, text) for kind, text in zip(calls, payloads, strict=True)]
            await eventually(lambda: is_renewed(store, handles[0].id), seconds=60)
            renewed.set()
            for handle in handles:
                await handle.wait(60)

            async def gone() -> bool:
                return not (await drive.job(lost.id)).live

            await eventually(gone)
            metrics = worker.metrics() + app.metrics()
        await app.close()
        events = await logged(store)
        events["abandoned", "claimed"] -= 1  # The claim of another worker, which counts nothing.
    found = compared(metrics, events)
    assert all(counted == written for counted, written in found.values()), found
    assert found["shaky", "retries"] == (4, 4)
    assert found["slow", "lease_renewals"][0] >= 1
    assert found["abandoned", "lease_expiries"] == (1, 1)
    assert (found["invalid", "dead_letters"], found["abandoned", "failures"]) == ((1, 1), (1, 1))
    assert metrics.value("tenure_rejections_total", "shaky") == 1
    assert metrics.value("tenure_attempts_total", "keeps", "succeeded") == 1
    runs, waits = (metrics.histogram(f"tenure_{name}_seconds", "slow") for name in ("run", "queue_wait"))
    assert runs is not None
    assert waits is not None
    assert (sum(runs.counts), sum(waits.counts)) == (1, 1)
    assert (runs.quantile(0.95) or 0) > 1.0
    assert set(kinds) == {one.labels[0] for one in metrics.histograms}


async def test_a_worker_without_counts_reports_zeros(tmp_path: Any) -> None:
    app = tenure.App(f"sqlite:///{tmp_path / 'jobs.db'}")
    declare(app, renewed=asyncio.Event())
    with pytest.raises(InvalidInput, match=r"make it with `app\.worker\(metrics=True\)`"):
        app.worker().metrics()
