"""The history checker accepts a correct recorded run, and reports each corrupted one by its own code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from uuid import UUID

import msgspec
import pytest

from simulation.model.store import ModelStore
from tenure.errors import InvalidInput, StoreUnavailable
from tenure.lifecycle.operations import Commit, Complete, Fail, Heartbeat, Progress
from tenure.lifecycle.records import EventType, Job
from tenure.lifecycle.statuses import Status
from tenure.stores.contract import Outcome, Request
from tenure.testing.clock import ManualClock
from tenure.testing.driver import ERROR, OPERATOR, Driver, blank_verbose
from tenure.testing.history.checker import (
    Code,
    Failed,
    History,
    HistoryProblem,
    Invoked,
    Ok,
    Record,
    Unknown,
    check_history,
    recorded,
    snapshot,
)
from tenure.vocabularies import engine_hardening
from tests.support.false_histories import CORRUPTIONS, Corruption
from tests.support.history_edits import CHANGED, followed, log
from tests.support.recorded_history import LEASE_SECONDS, RecordedRun, model, record_runs, sqlite
from tools.generated import DOCS

STORES = {"model": model, "sqlite": sqlite}


@cache
def true_runs(store: str) -> tuple[RecordedRun, RecordedRun]:
    """The correct recorded run on this store: while some jobs are live, and once all have ended."""
    return record_runs(STORES[store])


def problems(recorded_run: RecordedRun, *, drained: bool = False) -> list[HistoryProblem]:
    return check_history(recorded_run.history, recorded_run.database, drained=drained)


def codes(recorded_run: RecordedRun, *, drained: bool = False) -> set[Code]:
    return {problem.code for problem in problems(recorded_run, drained=drained)}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# What is true


@pytest.mark.parametrize("store", STORES)
def test_a_true_history_has_no_problems_while_jobs_are_live_and_after_all_have_ended(store: str) -> None:
    live, ended = true_runs(store)
    assert problems(live) == []
    assert problems(ended, drained=True) == []


@pytest.mark.parametrize("store", STORES)
def test_the_true_history_has_every_kind_of_record(store: str) -> None:
    live, ended = true_runs(store)
    assert {event.type for event in ended.database.tail} >= set(EventType) - {
        EventType.WOKEN,
        EventType.UNWINDING,
        EventType.COMPENSATED,
    }
    assert {job.status for job in live.database.jobs} >= {Status.QUEUED, Status.CLAIMED, Status.RUNNING}
    answers = [one.answer for one in live.history.requests()]
    assert {type(answer) for answer in answers} == {Ok, Failed, Unknown, type(None)}
    refusals = {answer.refusal for answer in answers if isinstance(answer, Failed)}
    assert refusals == {"LeaseLost", "JobNotFound", "RequestIdReused", "InvalidInput"}


# What is false


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda corruption: corruption.name)
def test_a_history_with_one_fault_is_reported_with_its_code(store: str, corruption: Corruption) -> None:
    live, ended = true_runs(store)
    false = corruption.edit(ended if corruption.drained else live)
    assert codes(false, drained=corruption.drained) == {corruption.code} | corruption.also


def test_every_problem_code_has_a_history_that_shows_it() -> None:
    # A vocabulary reports a sound log wrongly only where its code is wrong; the next test changes that instead.
    assert {corruption.code for corruption in CORRUPTIONS} == set(Code) - {Code.VOCABULARY}
    assert len(CORRUPTIONS) >= 24


@pytest.mark.requirement("EH-12")
@pytest.mark.parametrize("store", STORES)
def test_a_vocabulary_that_reports_a_forbidden_transition_is_reported(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine_hardening.STATUSES, Status.RETRY, "completed")
    _, ended = true_runs(store)
    assert codes(ended) == {Code.VOCABULARY}
    assert any("engine: completed → queued by claimed is neither" in str(one) for one in problems(ended))


def test_the_page_about_testing_names_every_code_and_no_other() -> None:
    section = (DOCS / "guides" / "testing.md").read_text(encoding="utf-8").partition("| what is checked | codes |")[2]
    table = section.partition("\n\n")[0]
    assert set(re.findall(r"`([a-z_]+)`", table)) == set(Code)


def test_every_problem_has_its_job_and_a_message() -> None:
    live, ended = true_runs("model")
    for corruption in CORRUPTIONS:
        for problem in problems(corruption.edit(ended if corruption.drained else live), drained=corruption.drained):
            assert isinstance(problem.job_id, UUID), corruption.name
            assert str(problem).startswith(f"{problem.code}: job {problem.job_id}")
            assert len(problem.message) > 10


def test_live_jobs_are_a_problem_only_where_everything_should_have_ended() -> None:
    live, _ = true_runs("model")
    assert codes(live, drained=True) == {Code.LIVE_LEFT}


def test_a_kind_that_must_have_effects_and_has_none_is_reported() -> None:
    live, _ = true_runs("model")
    silent = History.of([record for record in live.history.records if record not in live.history.effects()])
    assert check_history(silent, live.database) == []
    found = check_history(silent, live.database, effect_kinds=["pays"])
    assert {problem.code for problem in found} == {Code.COMMIT_WITHOUT_EFFECT}
    assert {problem.job_id for problem in found} == {live.jobs[name] for name in ("paid", "paid at once", "paid later")}


# What looks false and is not


def again(live: RecordedRun, op: str, *answers: Ok | Failed | Unknown | None) -> RecordedRun:
    """The held job's call of this operation, with these answers to it, one after the other, instead of its own."""
    [call, *_] = [
        one for one in live.history.requests() if (one.invoked.op, one.invoked.job_id) == (op, live.jobs["held"])
    ]
    kept = [record for record in live.history.records if record not in (call.invoked, call.answer)]
    for number, answer in enumerate(answers, start=10_000):
        kept.append(CHANGED(call.invoked, number=number))
        if answer is not None:
            kept.append(CHANGED(answer, process=call.invoked.process, number=number))
    return live.saw(History.of(kept))


REFUSED, REUSED, LOST = Failed("", 0, "NotYet"), Failed("", 0, "RequestIdReused"), Unknown("", 0)
DONE, BUSY = Ok("", 0, rev=5), Failed("", 0, "Busy")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([REFUSED, DONE], set()),
        ([LOST, DONE], set()),
        ([LOST], set()),
        ([None], set()),
        ([LOST, REFUSED], set()),
        ([DONE, REUSED], set()),
        ([REUSED], set()),
        ([DONE, DONE], set()),
        ([DONE, BUSY, DONE], set()),
        ([REFUSED, REFUSED], {Code.REFUSED_WRITTEN}),
        ([DONE, LOST, REFUSED], {Code.REFUSED_AFTER_OK}),
        ([LOST, DONE, REFUSED], {Code.REFUSED_AFTER_OK}),
    ],
)
def test_a_request_may_be_refused_before_it_is_applied_but_not_afterwards(
    answers: list[Ok | Failed | Unknown | None], expected: set[Code]
) -> None:
    live, _ = true_runs("model")
    assert codes(again(live, "heartbeat", *answers)) == expected


def test_a_refusal_in_another_process_may_precede_the_result() -> None:
    live, _ = true_runs("model")
    recorded_run = again(live, "heartbeat", DONE)
    call = next(
        record for record in recorded_run.history.records if isinstance(record, Invoked) and record.number == 10_000
    )
    other: list[Record] = [CHANGED(call, process="other"), Failed("other", call.number, "NotYet")]
    assert codes(recorded_run.saw(History.of([*recorded_run.history.records, *other]))) == set()


def test_a_request_without_a_result_may_not_have_been_applied() -> None:
    live, _ = true_runs("model")
    history = History("late")
    history.invoke("cancel", "never-came", live.jobs["held"], live.database.tail[-1].at).unknown()
    history.invoke("enqueue", "never-came", UUID(int=9), live.database.tail[-1].at)
    history.invoke("claim", "never-came", None, live.database.tail[-1].at)
    assert codes(live.saw(History.merged([live.history, history]))) == set()


def test_a_claim_without_jobs_may_return_jobs_when_repeated() -> None:
    live, _ = true_runs("model")
    [call] = [one.invoked for one in live.history.requests() if one.invoked.request_id == "claim-1"][:1]
    nothing: list[Record] = [CHANGED(call, process="before"), Ok("before", call.number)]
    assert codes(live.saw(History.of([*nothing, *live.history.records]))) == set()


def test_an_owner_is_not_blamed_for_a_clock_that_was_set_back() -> None:
    """A signal was dated after the lease's end; then the clock went back, and the lease ran again by it."""
    live, _ = true_runs("model")
    signal = followed(EventType.SIGNALLED, seconds=LEASE_SECONDS * 2, actor="client:ada", request_id="late")
    in_that_moment = followed(EventType.HEARTBEAT, seconds=0, actor="runner:worker-1")
    later = followed(EventType.HEARTBEAT, seconds=1, actor="runner:worker-1")
    assert codes(log("working", lambda events: in_that_moment(tuple(signal(events))))(live)) == set()
    assert codes(log("working", lambda events: later(tuple(signal(events))))(live)) == {Code.LEASE_ENDED}


def test_jobs_of_one_key_may_overlap_in_a_tail_ordered_by_transactions() -> None:
    """PostgreSQL's tail goes by when transactions began, so an enqueue may stand before the end that it waited for."""
    live, _ = true_runs("model")
    second = live.jobs["second of its key"]
    early = [event for event in live.database.tail if event.job_id == second]
    rest = [event for event in live.database.tail if event.job_id != second]
    [first_end] = [
        place for place, event in enumerate(rest) if event.job_id == live.jobs["first of its key"] and event.commits
    ]
    moved = (*rest[:first_end], *early, *rest[first_end:])
    assert codes(live.stored(CHANGED(live.database, tail=moved))) == set()


async def test_erasure_and_blanking_are_no_problem(clock: ManualClock) -> None:
    store = ModelStore(clock)
    drive = Driver(store)
    job = await drive.apply(await drive.running(), Progress(1), Progress(2), Commit("1"), Complete("1"))
    await store.erase(job.id, reason="asked", actor=OPERATOR)
    await drive.apply(await drive.running(kind="other"), Progress(1), Progress(2))
    await blank_verbose(store, older_than_seconds=0)
    assert check_history(History(), await snapshot(store, clock=clock)) == []


@pytest.mark.requirement("WF-15")
@pytest.mark.parametrize(("deadline_seconds", "found"), [(None, {Code.AGAINST_POLICY}), (10.0, set())])
async def test_a_job_that_retries_timeouts_may_only_fail_by_one_if_it_has_a_deadline(
    clock: ManualClock, deadline_seconds: float | None, found: set[Code]
) -> None:
    store = ModelStore(clock)
    drive = Driver(store)
    job = await drive.running(policy={"deadline_seconds": deadline_seconds, "on_timeout": "retry"})
    clock.advance(11)
    await drive.apply(job, Fail(ERROR, permanent=True, timed_out=True))
    problems = check_history(History(), await snapshot(store, clock=clock))
    assert {problem.code for problem in problems} == found


# Writing it down


def test_a_history_is_read_back_from_json_lines_and_several_are_merged(clock: ManualClock) -> None:
    live, _ = true_runs("sqlite")
    texts = [
        History.of(record for record in live.history.records if record.process == process).to_lines()
        for process in ("client", "worker")
    ]
    read = History.from_lines(*texts)
    assert read.records == live.history.records
    assert check_history(read, live.database) == []


def test_a_history_is_written_at_once_and_an_incomplete_last_line_is_ignored(clock: ManualClock) -> None:
    lines: list[bytes] = []
    history = History("killed", write=lines.append)
    history.invoke("enqueue", "a", UUID(int=1), clock.now()).ok(UUID(int=1), created=True)
    history.invoke("claim", "b", None, clock.now())
    history.effect(UUID(int=1), 1, clock.now())
    assert b"".join(lines) == history.to_lines()
    torn = History.from_lines(history.to_lines()[:-5])
    assert torn.records == history.records[:-1]


@pytest.mark.parametrize(
    ("lines", "expected_text"),
    [
        (b'{"type":"invoked"}\n', "line 1 is no record of a history"),
        (b'\n{"type":"guessed"}\n', "line 2 is no record of a history"),
        (b'{"type":"unknown","process":"a","number":1}\n', "call 1 of process 'a' has an answer and was never invoked"),
    ],
)
def test_invalid_history_lines_are_refused(lines: bytes, expected_text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        History.from_lines(lines)
    assert expected_text in str(caught.value)


def test_two_processes_cannot_share_a_name(clock: ManualClock) -> None:
    history = History("worker")
    history.invoke("claim", "a", None, clock.now()).ok()
    for records, expected_text in (
        (history.records * 2, "call 1 of process 'worker' is there twice"),
        ([*history.records, Unknown("worker", 1)], "call 1 of process 'worker' has two answers"),
    ):
        with pytest.raises(InvalidInput) as caught:
            History.of(records)
        assert expected_text in str(caught.value)


def test_a_call_has_one_result(clock: ManualClock) -> None:
    call = History().invoke("claim", "a", None, clock.now())
    call.unknown()
    with pytest.raises(InvalidInput) as caught:
        call.ok()
    assert "call 1 was answered before" in str(caught.value)


def test_a_recorded_call_names_an_operation_and_a_change_names_its_job(clock: ManualClock) -> None:
    for op, job_id, expected_text in (
        ("finish", UUID(int=1), "'finish' is no operation"),
        ("cancel", None, "a request for one job"),
    ):
        with pytest.raises(InvalidInput) as caught:
            History().invoke(op, "a", job_id, clock.now())
        assert expected_text in str(caught.value)


class Mute(ModelStore):
    """A model whose line breaks when it has done, or not yet done, what was asked."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.breaks = ""

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        if self.breaks == "before":
            raise StoreUnavailable("the line is gone")
        outcomes = await super().apply(requests)
        if self.breaks == "after":
            raise StoreUnavailable("the line is gone")
        return outcomes


@pytest.mark.parametrize("breaks", ["before", "after"])
async def test_a_request_whose_connection_breaks_is_recorded_as_unknown(clock: ManualClock, breaks: str) -> None:
    store, history = Mute(clock), History()
    drive = Driver(recorded(store, history, now=clock.now))
    job = await drive.running()
    store.breaks = breaks
    with pytest.raises(StoreUnavailable):
        await drive.apply(job, Heartbeat())
    assert history.records[-1] == Unknown("main", 3)
    assert check_history(history, await snapshot(store, clock=clock)) == []


async def test_requests_inside_a_transaction_get_their_result_at_its_end(clock: ManualClock) -> None:
    store, history = ModelStore(clock), History()
    drive = Driver(recorded(store, history, now=clock.now))
    kept, undone = await drive.running(), await drive.running()
    async with drive.store.transaction(deadline_seconds=10) as tx:
        await tx.apply(drive.request(kept, Commit("1")))
        await tx.enqueue([drive.enqueue("child")])
    assert [type(one.answer) for one in history.requests()] == [Ok] * 6
    with pytest.raises(ZeroDivisionError):
        await _undo(drive, undone)
    undoing = [one.answer for one in history.requests()][6:]
    assert undoing == [Failed("main", 7, "rolled back"), Failed("main", 8, "rolled back")]
    assert check_history(history, await snapshot(store, clock=clock)) == []


async def _undo(drive: Driver, job: Job) -> None:
    async with drive.store.transaction(deadline_seconds=10) as tx:
        await tx.apply(drive.request(job, Commit("1")))
        await tx.enqueue([drive.enqueue("child")])
        raise ZeroDivisionError


async def test_calls_that_are_not_recorded_are_delegated_to_the_store(clock: ManualClock) -> None:
    store, history = ModelStore(clock), History()
    drive = Driver(recorded(store, history, now=clock.now))
    job = await drive.add()
    clock.advance(1)
    assert await drive.store.now() == clock.now()
    assert (await drive.job(job.id)).id == job.id
    assert len(history.records) == 2


def test_a_snapshot_can_be_stored_with_its_history() -> None:
    live, _ = true_runs("sqlite")
    text = msgspec.json.encode(live.database)
    assert msgspec.json.decode(text, type=type(live.database)) == live.database
