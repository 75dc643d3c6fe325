"""Every status, operation, role, holder, revision, lease, commit and request id: each has the verdict that the
requirements give it, from the pure policy in all combinations, and from the real stores in a seeded sample."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from simulation.model.store import ModelStore
from tenure.errors import IllegalTransition, NotYet, Refused, RevisionConflict
from tenure.lifecycle.causes import CAUSES
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.decide import Change, decide_chain, expand
from tenure.lifecycle.invariants import violations
from tenure.lifecycle.operation_types import OperationType
from tenure.lifecycle.operations import (
    Ack,
    Cancel,
    Claim,
    Commit,
    Compensate,
    Complete,
    DeadLetter,
    Fail,
    GiveUp,
    Halt,
    Heartbeat,
    Operation,
    Progress,
    Reconcile,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    Signal,
    Stall,
    Start,
    Suspend,
    TimeOut,
    Unwind,
    Wake,
)
from tenure.lifecycle.records import Actor, Event, EventType, Job, Role
from tenure.lifecycle.size_limits import REV_MAX
from tenure.lifecycle.statuses import Status
from tenure.seams import SystemRandom
from tenure.stores.contract import Applied, Failure, Outcome, Repeated, Request, Store, decide_request
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.contract import DatabaseClock
from tenure.testing.driver import ERROR, Driver
from tests.support.expected_lifecycle import AFTER_COMMIT, EXPECTED, LEASED, Facts, Requested, allowed, verdict
from tests.support.manual_postgres import PostgresClock, copied_database, prepared_database
from tests.support.postgres import Postgres
from tests.support.situations import SITUATIONS, JobWithTokens, Setup, Situation

TOKEN = UUID(int=7)
SAMPLES = [150, pytest.param(1500, marks=pytest.mark.deep)]
"""How many combinations are tried on a real store."""
SEED = 20_300_101

OPERATIONS: tuple[tuple[Operation, dict[str, bool]], ...] = (
    (Claim(TOKEN), {}),
    (Ack(), {}),
    (Start(), {}),
    (Heartbeat(), {}),
    (Progress(5, "five"), {}),
    (Commit("1"), {}),
    (Complete("1"), {"same_result": True}),
    (Complete("2"), {"same_result": False}),
    (Retry(ERROR), {}),
    (Fail(ERROR), {"permanent": True}),
    (Fail(ERROR, permanent=False), {"permanent": False}),
    (Halt("limit", "1"), {}),
    (Suspend(), {}),
    (Suspend(seen_rev=REV_MAX), {"seen_rev_reached": False}),
    (Signal("go", "1"), {}),
    (Wake(), {}),
    (Unwind("failed", "permanent_error", ERROR), {}),
    (Compensate(), {"same_end": True}),
    (Compensate("cancelled", "requested"), {"same_end": False}),
    (Release(), {}),
    (RequestCancel(), {}),
    (Cancel(), {}),
    (Stall(), {}),
    (Stall("timeout"), {"timed_out": True}),
    (Requeue(), {}),
    (Reconcile(), {}),
    (GiveUp(ERROR), {}),
    (TimeOut(ERROR), {}),
    (DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR), {}),
)
HOLDERS = ("owner", "former", "stranger")
REVS = {"stale": -1, "current": 0, "future": 1}
REQUESTS = ("new", "repeated", "other_body")


@dataclass(frozen=True, slots=True)
class Case:
    """One combination."""

    operation: Operation
    asked: Requested


CASES = [
    Case(operation, Requested(operation.type, role, holder, rev, request, **fields))
    for (operation, fields), role, holder, rev, request in product(OPERATIONS, Role, HOLDERS, REVS, REQUESTS)
]


def answer_of(outcome: Outcome | Change) -> str:
    if isinstance(outcome, Failure):
        return type(outcome.error).__name__
    return "Applied" if isinstance(outcome, Change) else type(outcome).__name__


def actor_of(case: Case, tokens: JobWithTokens, stranger: UUID) -> Actor:
    token = {"owner": tokens.owner, "former": tokens.former, "stranger": stranger}[case.asked.holder]
    return Actor(Role(case.asked.role), "worker-1", token)


def request_of(case: Case, job: Job, tokens: JobWithTokens, request_id: str) -> Request:
    rev = job.rev + REVS[case.asked.rev]
    actor = actor_of(case, tokens, UUID(int=99))
    return Request(job=job.id, operations=(case.operation,), actor=actor, request_id=request_id, expected_rev=rev)


def logged_before(case: Case, job: Job) -> list[Event]:
    """What the log would hold of this request if it had been applied before, with this body or with another."""
    if case.asked.request == "new":
        return []
    fields = case.operation.event_fields()
    written = Event(
        job_id=job.id,
        rev=job.rev,
        type=EventType(EXPECTED[case.asked.operation].event),
        from_status=job.status,
        to_status=job.status,
        at=job.updated_at,
        attempt=job.attempt,
        actor="somebody",
        request_id="r",
        cause=fields.cause or CAUSES[EventType(EXPECTED[case.asked.operation].event)],
        detail=fields.detail,
        digest=fields.digest,
    )
    if case.asked.request == "repeated":
        return [written]
    return [written, written]


async def brought_about(situation: Situation) -> tuple[Job, JobWithTokens, ManualClock]:
    clock = ManualClock()
    store = ModelStore(clock)
    tokens = await situation.recipe(Setup(Driver(store), clock))
    return store._rows[tokens.id], tokens, clock


@pytest.mark.requirement("LC-01", "LC-03", "LC-04", "LC-05", "LC-06", "LC-07", "WC-01", "EL-03", "SM-01")
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
async def test_every_combination_has_the_verdict_of_the_requirements(situation: Situation) -> None:
    job, tokens, clock = await brought_about(situation)
    check_facts(situation.facts, job, clock)
    wrong: list[str] = []
    for case in CASES:
        request = request_of(case, job, tokens, "r")
        found = decide_request(job, request, logged=logged_before(case, job), now=clock.now())
        expected = verdict(situation.facts, case.asked)
        if answer_of(found) != expected:
            wrong.append(f"{case.asked}: {answer_of(found)} instead of {expected}")
        else:
            check_answer(found, case, situation.facts, job, clock)
    assert wrong == []


def check_facts(facts: Facts, job: Job, clock: ManualClock) -> None:
    """The situation is the one of its name; otherwise the verdicts would prove nothing."""
    now = clock.now()
    assert (job.status.value, job.committed, job.cancel_requested) == (
        facts.status,
        facts.committed,
        facts.cancel_asked,
    )
    assert (job.token is not None) == (facts.status in LEASED)
    if facts.status in LEASED:
        assert job.lease_expires_at is not None
        assert job.heartbeat_deadline_at is not None
        runs, beats = job.lease_expires_at > now, job.heartbeat_deadline_at > now
        assert {(True, True): "live", (True, False): "silent"}.get((runs, beats), "expired") == facts.lease


def check_answer(found: Outcome | Change, case: Case, facts: Facts, job: Job, clock: ManualClock) -> None:
    """An accepted change writes one event of the table; a refusal carries its facts and no secret."""
    if isinstance(found, Change):
        [event], after = expand(found, max(clock.now(), job.updated_at))
        rule = EXPECTED[case.asked.operation]
        assert (event.type.value, event.from_status, event.to_status.value) == (
            rule.event,
            job.status,
            rule.to(facts.status),
        )
        assert (after.status.value, after.rev) == (rule.to(facts.status), job.rev + 1)
        assert after.attempt == job.attempt + (case.asked.operation == "claim")
        assert event.commits == (case.asked.operation in ("commit", "complete") and not facts.committed)
        assert violations(after) == []
    elif isinstance(found, Failure):
        current = getattr(found.error, "current", None)
        assert current is not None
        assert current.rev == job.rev
        assert current.token in (None, actor_of(case, JobWithTokens(job.id, job.token or TOKEN, TOKEN), TOKEN).token)
        if isinstance(found.error, IllegalTransition):
            assert set(found.error.allowed) | {case.asked.operation} >= allowed(facts)
            assert set(found.error.allowed) <= allowed(facts)
            assert (found.error.status.value, found.error.operation) == (facts.status, case.asked.operation)
        if isinstance(found.error, RevisionConflict):
            assert found.error.expected_rev == job.rev + REVS[case.asked.rev]


def test_the_combinations_reach_every_verdict_and_every_arrow() -> None:
    """Whatever is never expected is never checked."""
    verdicts: Counter[str] = Counter()
    transitions: set[tuple[str, str]] = set()
    for situation, case in product(SITUATIONS, CASES):
        expected = verdict(situation.facts, case.asked)
        verdicts[expected] += 1
        if expected == "Applied":
            transitions.add((case.asked.operation, situation.facts.status))
    assert transitions == {(operation, status) for operation, rule in EXPECTED.items() for status in rule.sources}
    assert set(verdicts) == {
        "Applied",
        "Repeated",
        "RequestIdReused",
        "NotAuthorised",
        "LeaseLost",
        "RevisionConflict",
        "AlreadyCommitted",
        "IllegalTransition",
        NotYet.__name__,
    }
    assert {situation.facts.status for situation in SITUATIONS} == {status.value for status in Status}
    assert {operation.type for operation, _ in OPERATIONS} == set(OperationType) - {OperationType.ENQUEUE}
    assert {s.facts.status for s in SITUATIONS if s.facts.committed} == {"running", "stalled", "succeeded"}
    assert set(AFTER_COMMIT) < set(EXPECTED)


WAITERS: tuple[Operation, ...] = (Claim(TOKEN), Stall(), TimeOut(ERROR))
"""What waits for a time of the database's clock, except a requeue."""


@pytest.mark.requirement("LC-06")
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
async def test_what_waits_for_the_clock_comes_first_in_its_chain_or_not_at_all(situation: Situation) -> None:
    job, tokens, _ = await brought_about(situation)
    actors = [Actor(role, "worker-1", tokens.owner) for role in Role]
    firsts = [operation for operation, _ in OPERATIONS if not isinstance(operation, Claim)]
    for first, waiter, actor in product(firsts, WAITERS, actors):
        with pytest.raises(Refused):
            decide_chain(job, (first, waiter), actor, request_id="r")
    for first, actor in product(firsts, actors):
        try:
            change = decide_chain(job, (first, Requeue()), actor, request_id="r")
        except Refused:
            continue
        assert isinstance(first, Stall), f"a requeue followed {first}"
        assert [step.type for step in change.planned] == [EventType.STALLED, EventType.REQUEUED]


@pytest.mark.requirement("LC-06")
@pytest.mark.parametrize(
    ("name", "role", "chain"),
    [
        ("stalled, released", Role.RECOVERY, (Requeue(), TimeOut(ERROR))),
        ("running, expired", Role.RECOVERY, (Stall(), Requeue(), TimeOut(ERROR))),
        ("running, live", Role.GATEWAY, (Release(), Claim(TOKEN))),
        ("running, live", Role.GATEWAY, (Progress(1), Suspend(delay_seconds=0), Claim(TOKEN))),
    ],
)
async def test_a_chain_that_the_arrows_alone_would_allow_is_illegal_where_its_clock_is_not_the_first(
    name: str, role: Role, chain: tuple[Operation, ...]
) -> None:
    [situation] = [situation for situation in SITUATIONS if situation.name == name]
    job, tokens, _ = await brought_about(situation)
    with pytest.raises(IllegalTransition) as refusal:
        decide_chain(job, chain, Actor(role, "worker-1", tokens.owner), request_id="r")
    assert refusal.value.operation == chain[-1].type


@pytest.fixture(scope="module")
def prepared(postgres_server: Postgres) -> Iterator[str]:
    with prepared_database(postgres_server) as name:
        yield name


@pytest.mark.requirement("LC-03", "LC-04", "LC-05", "LC-06", "WC-01", "EL-03")
@pytest.mark.parametrize("size", SAMPLES)
async def test_sqlite_gives_the_same_verdicts_in_a_sample(tmp_path: Path, size: int) -> None:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "jobs.db", database_clock=clock.now)
    await store.migrate()
    async with opened(store):
        await check_sample(store, clock, size)


@pytest.mark.requirement("LC-03", "LC-04", "LC-05", "LC-06", "WC-01", "EL-03")
@pytest.mark.parametrize("size", SAMPLES)
async def test_postgres_gives_the_same_verdicts_in_a_sample(
    postgres_server: Postgres, prepared: str, size: int
) -> None:
    with copied_database(postgres_server, prepared) as dsn:
        clock = PostgresClock(dsn)
        async with opened(PostgresStore.from_url(dsn)) as store:
            await check_sample(store, clock, size)
        clock.close()


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def check_sample(store: Store, clock: DatabaseClock, size: int) -> None:
    """Some of the combinations on a real store, situation by situation. A job that changed is brought about anew."""
    setup = Setup(Driver(store, random=SystemRandom()), clock)
    chooser = random.Random(SEED)
    # A claim goes through `claim`, which chooses by itself; and a repetition needs a log that really has it.
    choice = [case for case in CASES if case.asked.operation != "claim" and case.asked.request == "new"]
    for situation in SITUATIONS:
        chosen = chooser.sample(choice, size // len(SITUATIONS))
        # Most combinations are refused, so the ones that are to be applied are chosen on purpose.
        legal = [case for case in choice if verdict(situation.facts, case.asked) == "Applied"]
        chosen += chooser.sample(legal, min(len(legal), 12))
        tokens: JobWithTokens | None = None
        for case in chosen:
            tokens = tokens or await situation.recipe(setup)
            if await same_verdict(setup.drive, situation, case, tokens, as_record=chooser.random() < 0.5):
                tokens = None


async def same_verdict(
    drive: Driver, situation: Situation, case: Case, tokens: JobWithTokens, *, as_record: bool
) -> bool:
    """Ask, compare, and ask again under the same id: True when the job was changed.

    With `as_record` the store is given the record that the caller decided upon, and the promise that the id is new.
    """
    before = await drive.seen(tokens.id)
    assert before[0] is not None
    request = request_of(case, before[0], tokens, drive.request_id())
    if as_record:
        record = msgspec.structs.replace(before[0], rev=before[0].rev + REVS[case.asked.rev])
        request = msgspec.structs.replace(request, job=record, expected_rev=None, fresh=True)
    outcome = await drive.try_apply(request)
    expected = verdict(situation.facts, case.asked)
    assert answer_of(outcome) == expected, f"{situation.name}: {case.asked}: {outcome}"
    if not isinstance(outcome, Applied):
        assert await drive.seen(tokens.id) == before
        return False
    after = await drive.seen(tokens.id)
    assert isinstance(await drive.try_apply(request), Repeated)
    alone = isinstance(case.operation, Heartbeat)
    another = Request(
        job=tokens.id,
        operations=(Progress(6),) if alone else (case.operation, case.operation),
        actor=request.actor,
        request_id=request.request_id,
    )
    assert answer_of(await drive.try_apply(another)) == "RequestIdReused"
    assert await drive.seen(tokens.id) == after
    return True
