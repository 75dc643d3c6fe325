"""What `tenure verify` reports about one job: nothing for a sound one, and exactly what is wrong with another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from simulation.model.store import ModelStore
from tenure.cli.output import NoProgress
from tenure.cli.verify import verify_store
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Commit,
    Complete,
    Fail,
    Halt,
    Progress,
    Reconcile,
    Release,
    Requeue,
    Retry,
    Signal,
    Stall,
)
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import Status
from tenure.lifecycle.verify import Problem, ProblemType, dead_letter_problems, problems_of, signal_problems
from tenure.testing.clock import ManualClock
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, RECOVERY, Driver, blank_verbose, prune_finished
from tests.support.sample_jobs import DEAD_LETTER, one_of_each


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> ModelStore:
    return ModelStore(clock)


@pytest.fixture
def driver(store: ModelStore) -> Driver:
    return Driver(store)


async def every_way(driver: Driver, clock: ManualClock) -> list[Job]:
    """Jobs in every status, and two whose worker was lost."""
    jobs = await one_of_each(driver)
    lost, committed = await driver.running(), await driver.apply(await driver.running(), Commit("2"))
    clock.advance(3600)
    jobs.append(await driver.apply(lost, Stall(), Requeue(), actor=RECOVERY))
    jobs.append(await driver.apply(committed, Stall(), Reconcile(), actor=RECOVERY))
    return jobs


async def finished(driver: Driver) -> tuple[Job, list[Event]]:
    job = await driver.apply(
        await driver.running(kind="finished", payload='{"to":"ada"}'), Commit('"sent"'), Complete('"sent"')
    )
    return await driver.job(job.id), await driver.events_of(job.id)


def with_event(events: Sequence[Event], rev: int, /, **changes: Any) -> list[Event]:
    return [msgspec.structs.replace(event, **changes) if event.rev == rev else event for event in events]


@pytest.mark.requirement("EL-02")
async def test_every_way_through_the_lifecycle_leaves_nothing_to_complain_about(
    driver: Driver, store: ModelStore, clock: ManualClock
) -> None:
    jobs = await every_way(driver, clock)
    assert {job.status for job in jobs} == set(Status)
    tally = await verify_store(store, NoProgress(), problems_max=100)
    assert tally.problems == []
    assert (tally.jobs, tally.complete) == (len(jobs), True)
    assert tally.events == sum(job.rev for job in jobs)


async def test_erased_and_blanked_jobs_are_still_sound(driver: Driver, store: ModelStore, clock: ManualClock) -> None:
    for job in await every_way(driver, clock):
        if not job.live:
            await store.erase(job.id, reason="asked", actor=OPERATOR)
    await blank_verbose(store, older_than_seconds=0)
    assert (await verify_store(store, NoProgress(), problems_max=100)).problems == []


JOB_DAMAGE: list[tuple[str, dict[str, Any], ProblemType, str]] = [
    (
        "status",
        {"status": Status.FAILED, "error": "1"},
        ProblemType.DIFFERS,
        "status is 'failed' in the record, 'succeeded'",
    ),
    ("rev", {"rev": 9}, ProblemType.DIFFERS, "rev is 9 in the record, 5 by the log"),
    ("attempt", {"attempt": 3}, ProblemType.DIFFERS, "attempt is 3 in the record, 1 by the log"),
    ("failures", {"failures": 1}, ProblemType.DIFFERS, "failures is 1 in the record, 0 by the log"),
    ("result", {"result": '"forged"'}, ProblemType.CONTENT, "result has the digest"),
    ("no result", {"result": None}, ProblemType.CONTENT, "result is missing"),
    ("an error", {"error": "1"}, ProblemType.DIFFERS, "error is '1' in the record, None by the log"),
    ("no commit", {"committed_at": None}, ProblemType.INVARIANT, "a succeeded job is committed"),
    ("an owner", {"owner": "mallory"}, ProblemType.INVARIANT, "a succeeded job has no owner and no lease"),
]


@pytest.mark.requirement("EL-02")
@pytest.mark.parametrize(
    ("changes", "problem_type", "expected_text"), [case[1:] for case in JOB_DAMAGE], ids=[c[0] for c in JOB_DAMAGE]
)
async def test_a_record_that_was_changed_by_hand_is_named(
    driver: Driver, changes: dict[str, Any], problem_type: ProblemType, expected_text: str
) -> None:
    job, events = await finished(driver)
    problems = problems_of(msgspec.structs.replace(job, **changes), events)
    assert [problem for problem in problems if problem.type is problem_type and expected_text in problem.message], (
        problems
    )
    assert {problem.job_id for problem in problems} == {job.id}


EVENT_DAMAGE: list[tuple[str, int, dict[str, Any], str]] = [
    ("a transition", 3, {"to_status": Status.FAILED}, "started from claimed to failed is not in the table"),
    ("the chain", 3, {"rev": 7}, "follows revision 2"),
    ("its attempt", 3, {"attempt": 2}, "has attempt 2 after attempt 1"),
    ("a second commit", 5, {"commits": True}, "succeeded is marked as the commit, and that is wrong"),
    ("no commit", 4, {"commits": False}, "committed is marked as no commit, and that is wrong"),
    ("its beginning", 1, {"type": EventType.WOKEN}, "the log begins with woken, not with enqueued"),
    ("its detail", 3, {"type": EventType.PROGRESS, "detail": "{"}, "progress from claimed to running is not in the"),
]


@pytest.mark.parametrize(
    ("rev", "changes", "expected_text"), [c[1:] for c in EVENT_DAMAGE], ids=[c[0] for c in EVENT_DAMAGE]
)
async def test_an_event_that_was_changed_by_hand_is_named_with_its_revision(
    driver: Driver, rev: int, changes: dict[str, Any], expected_text: str
) -> None:
    job, events = await finished(driver)
    problems = problems_of(job, with_event(events, rev, **changes))
    named = [
        problem for problem in problems if problem.type is ProblemType.BROKEN_LOG and expected_text in problem.message
    ]
    assert [problem.rev for problem in named] == [changes.get("rev", rev)], problems


async def test_an_event_that_was_removed_breaks_the_chain(driver: Driver) -> None:
    job, events = await finished(driver)
    [problem] = problems_of(job, [event for event in events if event.rev != 3])
    assert problem == Problem(job.id, ProblemType.BROKEN_LOG, "follows revision 2", 4)


async def test_the_last_events_removed_leave_a_record_ahead_of_its_log(driver: Driver) -> None:
    job, events = await finished(driver)
    expected_text = {problem.message for problem in problems_of(job, events[:-1])}
    assert "rev is 5 in the record, 4 by the log" in expected_text
    assert "status is 'succeeded' in the record, 'running' by the log" in expected_text


async def test_time_that_goes_back_within_a_log_is_named(driver: Driver) -> None:
    job, events = await finished(driver)
    [problem] = problems_of(job, with_event(events, 3, at=events[1].at - timedelta(seconds=1)))
    assert (problem.type, problem.rev) == (ProblemType.BROKEN_LOG, 3)
    assert "dated before" in problem.message


async def test_what_follows_a_commit_is_only_what_may_follow_it(driver: Driver, clock: ManualClock) -> None:
    job = await driver.apply(await driver.running(), Release())
    events = await driver.events_of(job.id)
    forged = [*events[:3], msgspec.structs.replace(events[2], rev=4, type=EventType.COMMITTED, commits=True)]
    forged[3] = msgspec.structs.replace(forged[3], from_status=Status.RUNNING)
    forged.append(msgspec.structs.replace(events[3], rev=5))
    expected_text = [problem.message for problem in problems_of(job, forged) if problem.rev == 5]
    assert expected_text == ["released follows the commit"]


@pytest.mark.parametrize("field", ["payload", "queue", "dedupe_key", "correlation_id"])
async def test_what_was_enqueued_cannot_be_changed_unnoticed(driver: Driver, field: str) -> None:
    job, events = await finished(driver)
    forged = msgspec.structs.replace(job, origin=msgspec.structs.replace(job.origin, **{field: '"other"'}))
    assert [(problem.type, problem.rev) for problem in problems_of(forged, events)] == [(ProblemType.ORIGIN, 1)]


async def test_a_policy_cannot_be_exchanged_unnoticed(driver: Driver) -> None:
    job, events = await finished(driver)
    policy = msgspec.structs.replace(job.policy, max_attempts=99)
    forged = msgspec.structs.replace(job, origin=msgspec.structs.replace(job.origin, policy=policy))
    assert [problem.type for problem in problems_of(forged, events)] == [ProblemType.ORIGIN]


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (Commit('"kept"'), "committed_result"),
        (Fail(ERROR), "error"),
        (Retry(ERROR), "last_error"),
        (Halt("too dear", "[1]"), "partial_result"),
    ],
    ids=["commit", "fail", "retry", "halt"],
)
@pytest.mark.parametrize("forgery", ['"forged"', None])
async def test_content_that_is_not_what_its_event_names_is_found(
    driver: Driver, operation: Any, field: str, forgery: str | None
) -> None:
    job = await driver.apply(await driver.running(), operation)
    shown, events = await driver.job(job.id), await driver.events_of(job.id)
    problems = problems_of(msgspec.structs.replace(shown, **{field: forgery}), events)
    named = [problem for problem in problems if problem.type is ProblemType.CONTENT]
    assert [(problem.rev, problem.message.split()[0]) for problem in named] == [(4, field)]


async def test_a_record_without_any_event_is_named(driver: Driver) -> None:
    job = await driver.add()
    assert [problem.type for problem in problems_of(job, [])] == [ProblemType.NO_EVENTS]


async def test_a_detail_that_is_no_json_is_a_broken_log_and_no_crash(driver: Driver) -> None:
    job = await driver.apply(await driver.running(), Progress(10))
    events = with_event(await driver.events_of(job.id), 4, detail="{")
    problems = problems_of(await driver.job(job.id), events)
    assert [problem.type for problem in problems] == [ProblemType.BROKEN_LOG]
    assert "cannot be replayed" in problems[0].message


@pytest.mark.requirement("SM-11")
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"last_owner": "mallory"}, "last_owner"),
        ({"attempts": 7}, "attempts"),
        ({"stage": Stage.OUTPUT}, "stage"),
        ({"reason_code": ReasonCode.TIMEOUT}, "reason_code"),
        ({"last_error": '"other"'}, "last_error"),
    ],
)
async def test_a_dead_letter_must_agree_with_the_log(driver: Driver, changes: dict[str, Any], field: str) -> None:
    job = await driver.apply(await driver.running(), DEAD_LETTER)
    shown, events = await driver.job(job.id), await driver.events_of(job.id)
    record = await driver.store.dead_letter(job.id)
    assert record is not None
    assert dead_letter_problems(shown, events, record) == []
    [problem] = dead_letter_problems(shown, events, msgspec.structs.replace(record, **changes))
    assert problem.message.startswith(f"{field} is ")
    assert [p.message for p in dead_letter_problems(shown, events, None)] == ["its dead-letter record is missing"]


async def test_signals_must_be_those_that_the_log_names(driver: Driver) -> None:
    job = await driver.apply(await driver.add(), Signal("go", "7"), actor=CLIENT)
    events = await driver.events_of(job.id)
    assert signal_problems(job, events, {2: ("go", "7")}) == []
    wrong: list[tuple[dict[int, tuple[str, str]], list[str]]] = [
        ({}, ["the signal is missing"]),
        ({2: ("go", "8")}, ["the signal is not the one that was sent"]),
        ({2: ("stop", "7")}, ["the signal is not the one that was sent"]),
        ({2: ("go", "7"), 3: ("go", "7")}, ["no event records the signal"]),
    ]
    for kept, expected_text in wrong:
        assert [problem.message for problem in signal_problems(job, events, kept)] == expected_text


class Tampered(ModelStore):
    """A model whose rows and events can be taken away or made unreadable."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.before_history: Callable[[], Any] | None = None
        self.unreadable: set[UUID] = set()

    def lose_row(self, job_id: UUID) -> None:
        del self._rows[job_id]

    def lose_events(self, job_id: UUID) -> None:
        del self._histories[job_id]
        self._log = [event for event in self._log if event.job_id != job_id]

    async def history(self, job_ids: Sequence[UUID]) -> dict[UUID, list[Event]]:
        if self.before_history is not None:
            meddle, self.before_history = self.before_history, None
            await meddle()
        if self.unreadable & set(job_ids):
            raise ValueError("'bogus' is not a valid EventType")
        return await super().history(job_ids)


async def test_the_walk_finds_jobs_without_events_and_events_without_a_job(clock: ManualClock) -> None:
    store = Tampered(clock)
    driver = Driver(store)
    await every_way(driver, clock)
    rowless, eventless = await finished(driver), await finished(driver)
    store.lose_row(rowless[0].id)
    store.lose_events(eventless[0].id)
    tally = await verify_store(store, NoProgress(), problems_max=100)
    assert [(problem.job_id, problem.type) for problem in tally.problems] == [
        (eventless[0].id, ProblemType.NO_EVENTS),
        (rowless[0].id, ProblemType.NO_JOB),
    ]
    assert tally.problems[1].message == "the log has 5 events of this job, which does not exist"


async def test_a_job_that_moves_on_while_it_is_read_is_no_problem(clock: ManualClock) -> None:
    store = Tampered(clock)
    driver = Driver(store)
    job = await driver.running()
    store.before_history = lambda: driver.apply(job, Complete("1"))
    assert (await verify_store(store, NoProgress(), problems_max=100)).problems == []
    assert (await driver.job(job.id)).status is Status.SUCCEEDED


async def test_a_job_that_retention_removes_while_it_is_read_is_no_problem(clock: ManualClock) -> None:
    store = Tampered(clock)
    await finished(Driver(store))
    store.before_history = lambda: prune_finished(store, older_than_seconds=0)
    assert (await verify_store(store, NoProgress(), problems_max=100)).problems == []


async def test_one_unreadable_log_does_not_hide_the_others(clock: ManualClock) -> None:
    store = Tampered(clock)
    driver = Driver(store)
    jobs = [(await finished(driver))[0] for _ in range(7)]
    store.unreadable = {jobs[3].id}
    tally = await verify_store(store, NoProgress(), problems_max=100)
    assert [(problem.job_id, problem.type) for problem in tally.problems] == [(jobs[3].id, ProblemType.UNREADABLE)]
    assert tally.jobs == 7


async def test_the_walk_stops_at_the_most_problems_that_were_asked_for(clock: ManualClock) -> None:
    store = Tampered(clock)
    driver = Driver(store)
    for _ in range(5):
        store.lose_events((await finished(driver))[0].id)
    for most, complete in ((3, False), (5, True), (6, True)):
        tally = await verify_store(store, NoProgress(), problems_max=most)
        assert (len(tally.problems), tally.complete) == (min(most, 5), complete)
