"""The model, SQLite and PostgreSQL get the same requests at the same times, and must return the same results and write
the same rows and events.

More examples: TENURE_LOCKSTEP_EXAMPLES=2000. A failure prints its steps and how to run them again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, get_args
from uuid import UUID

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from simulation.model.store import ModelStore
from tenure.errors import DedupeKeyConflict, Refused, RequestIdReused, TenureError
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.deadlines import DEADLINE_TAG, stamp
from tenure.lifecycle.operations import (
    Ack,
    Cancel,
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
    Wake,
)
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Actor, Event, EventType, Job, Origin, Policy, Role
from tenure.lifecycle.size_limits import REV_MAX
from tenure.lifecycle.statuses import Status
from tenure.lifecycle.steps import NewStep, StepKind, StepRecord
from tenure.lifecycle.timeouts import Timeouts
from tenure.stores.contract import (
    Applied,
    Artifact,
    Busy,
    ClaimRequest,
    DeadLetterFilter,
    EnqueueRequest,
    EnqueueResult,
    EventFilter,
    Failure,
    JobFilter,
    Repeated,
    Request,
    Resolution,
    SaveStep,
    StepExists,
    StepSaved,
    Store,
    Transaction,
    WorkerRecord,
)
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import START, ManualClock
from tenure.testing.contract import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, RECOVERY, blank_verbose, prune_finished
from tenure.testing.store_check import check_store
from tests.support.expected_lifecycle import EXPECTED
from tests.support.manual_postgres import PostgresClock, copied_database, prepared_database
from tests.support.postgres import Postgres

KINDS = ("a", "b")
QUEUES = ("default", "slow")
POLICIES = (
    Policy(lease_seconds=30, heartbeat_seconds=10),
    Policy(max_attempts=1, on_exhausted="fail", lease_seconds=10),
    Policy(
        max_attempts=2,
        on_exhausted="fail",
        lease_seconds=10,
        on_lost="fail",
        timeouts=Timeouts(queued_seconds=20, claimed_seconds=5),
    ),
    Policy(max_attempts=2, on_exhausted="dead_letter", timeouts=Timeouts(running_seconds=60)),
    Policy(on_lost="dead_letter", lease_seconds=20, heartbeat_seconds=30),
    Policy(
        max_attempts=2, on_timeout="fail", timeouts=Timeouts(queued_seconds=10, claimed_seconds=5, running_seconds=5)
    ),
    Policy(max_attempts=2, on_exhausted="dead_letter", timeouts=Timeouts(queued_seconds=10, running_seconds=5)),
    Policy(lease_seconds=10, deadline_seconds=25),
    Policy(lease_seconds=10, deadline_seconds=15, on_timeout="fail", timeouts=Timeouts(queued_seconds=10)),
)
INHERITED = {DEADLINE_TAG: stamp(START + timedelta(seconds=40))}
"""The tag of a job that a run with a deadline has spawned."""
OPERATIONS: tuple[tuple[Operation, ...], ...] = (
    (Ack(),),
    (Start(),),
    (Start(),),
    (Heartbeat(),),
    (Heartbeat(),),
    (Progress(10, "ten"),),
    (Progress(90),),
    (Commit("[1]"),),
    (Complete("[1]"),),
    (Complete('"two"'),),
    (Commit("3"), Complete("3")),
    (Progress(99), Complete("4")),
    (Progress(99), Heartbeat(), Complete("4")),
    (Retry(ERROR),),
    (Retry('"again"', delay_seconds=5),),
    (Fail(ERROR),),
    (Fail('"last"', permanent=False),),
    (Halt("limit", '{"kept":1}'),),
    (Suspend(),),
    (Suspend(delay_seconds=10),),
    (Suspend(seen_rev=4),),
    (Suspend(seen_rev=REV_MAX),),
    (Suspend(5, seen_rev=6, waiting_for="children"),),
    (Suspend(waiting_for="children", children_max=0),),
    (Suspend(waiting_for="children", children_max=0),),
    (Suspend(5, seen_rev=6, waiting_for="children", children_max=1),),
    (Signal("go"),),
    (Signal("go", "[7]"),),
    (Wake(),),
    (Signal("go"), Wake()),
    (Compensate(),),
    (Compensate(), Fail(ERROR)),
    (Release(),),
    (Release("snooze", delay_seconds=15),),
    (RequestCancel(),),
    (Cancel(),),
    (Cancel("enough"),),
    (Stall(),),
    (Stall("heartbeats_missed"), Requeue()),
    (Stall("timeout"),),
    (Stall("timeout"), Requeue()),
    (Stall("timeout"), GiveUp(ERROR, "exhausted_retries")),
    (Retry(ERROR, timed_out=True),),
    (Fail(ERROR, timed_out=True),),
    (Stall(), GiveUp(ERROR)),
    (Stall(), Reconcile()),
    (Stall(), Requeue(), TimeOut(ERROR)),
    (Requeue(), TimeOut(ERROR)),
    (Requeue(),),
    (Reconcile(),),
    (GiveUp(ERROR),),
    (TimeOut(ERROR),),
    (DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR),),
    (DeadLetter(ReasonCode.PARSE_ERROR, Stage.INPUT, '"bad"'),),
)
QUEUE_RULES = (
    QueueLimits(),
    QueueLimits(concurrency_max=2),
    QueueLimits(key_concurrency_max=1),
    QueueLimits(rate=Rate(2, 10)),
    QueueLimits(fair=True),
    QueueLimits(fair=True, key_rate=Rate(1, 10)),
    QueueLimits(fair=True, concurrency_max=3, key_concurrency_max=1, rate=Rate(5, 60), key_rate=Rate(2, 20)),
)
CLIENTS = (CLIENT, CLIENT, Actor(Role.CLIENT, "bob"))
UNKNOWN_ID = UUID(int=5)
SECONDS = (0.0, 0.001, 1.0, 5.0, 5.0, 10.0, 20.0, 60.0, -5.0)


@dataclass(slots=True)
class Side:
    """One of the stores, and its clock."""

    name: str
    store: Store
    clock: DatabaseClock


OpenSides = Callable[[ExitStack, asyncio.Runner], list[Side]]


@dataclass(frozen=True, slots=True)
class Wish:
    """A change before it is bound: the job, the right actor or another, a revision, a request id."""

    job: int
    operations: tuple[Operation, ...]
    manner: str
    other_role: Role
    revision: str
    repeat: int | None


wishes = st.builds(
    Wish,
    job=st.integers(0, 30),
    operations=st.sampled_from(OPERATIONS),
    manner=st.sampled_from(["right"] * 8 + ["stranger", "former", "other_role"]),
    other_role=st.sampled_from(Role),
    revision=st.sampled_from(["none", "record", "record", "fresh", "fresh", "stale", "future"]),
    repeat=st.none() | st.integers(0, 30),
)


@dataclass(frozen=True, slots=True)
class StepWish:
    """A step to be saved, before it is known of which job and by whom."""

    job: int
    key: str
    failed: bool
    manner: str
    other_role: Role


step_wishes = st.builds(
    StepWish,
    job=st.integers(0, 30),
    key=st.sampled_from(["main/1", "main/2", "left/1", ""]),
    failed=st.booleans(),
    manner=st.sampled_from(["right"] * 8 + ["stranger", "other_attempt", "other_role"]),
    other_role=st.sampled_from(Role),
)
enqueues: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    kind=st.sampled_from(KINDS),
    queue=st.sampled_from(QUEUES),
    priority=st.integers(-1, 1),
    policy=st.sampled_from(POLICIES),
    payload=st.sampled_from(["{}", '{"n":1}']),
    dedupe_key=st.sampled_from([None, None, "x", "y"]),
    request_id=st.sampled_from([None, None, None, "order-1", "order-2"]),
    correlation_id=st.sampled_from([None, "c"]),
    tags=st.sampled_from([None, None, {"t": "1"}, {"t": "1"}, INHERITED]),
    partition_key=st.sampled_from([None, "k", "l", "m"]),
    delay_ms=st.sampled_from([0, 0, 0, 5000]),
    parent=st.none() | st.integers(0, 3),
    awaited=st.booleans(),
    actor=st.sampled_from(CLIENTS),
    again=st.none() | st.integers(0, 10),
)


class Lockstep(RuleBasedStateMachine):
    """Every rule calls all stores, and compares."""

    def __init__(self, open_sides: OpenSides) -> None:
        super().__init__()
        self._open_sides = open_sides
        self._stack = ExitStack()
        self._count = 0
        self.jobs: list[UUID] = []
        self.enqueued: list[EnqueueRequest] = []
        self.claims: list[ClaimRequest] = []
        self.asked: list[Request] = []

    @initialize()
    def begin(self) -> None:
        self.runner = self._stack.enter_context(asyncio.Runner())
        self.sides = self._open_sides(self._stack, self.runner)
        model = self.sides[0].store
        assert isinstance(model, ModelStore)
        self.model = model

    def teardown(self) -> None:
        try:
            if self.sides:
                for side in self.sides:
                    self.runner.run(check_store(side.store))
                self._compare_attachments()
        finally:
            self._stack.close()
        super().teardown()

    sides: list[Side] = []  # noqa: RUF012 - until `begin` there are none

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _ask(self, what: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        """The result of every store, which must be the same."""
        answers = [self.runner.run(answered(what(side.store))) for side in self.sides]
        for side, answer in zip(self.sides[1:], answers[1:], strict=True):
            assert answer == answers[0], f"{side.name} and the model differ at {difference(answer, answers[0])}"
        return answers[0]

    @rule(wanted=st.lists(enqueues, min_size=1, max_size=3))
    def add(self, wanted: list[dict[str, Any]]) -> None:
        requests = [self._enqueue(facts) for facts in wanted]
        self.enqueued += requests
        if isinstance(self._ask(lambda store: enqueued(store, requests)), Sequence):
            self.jobs += [request.origin.id for request in requests if request.origin.id not in self.jobs]

    @rule(wanted=st.lists(enqueues, min_size=2, max_size=6))
    def add_at_once(self, wanted: list[dict[str, Any]]) -> None:
        """Concurrent enqueues share a write. Those with keys are left out: their order among the others is open."""
        requests = [request for request in map(self._enqueue, wanted) if not request.has_key]
        self.enqueued += requests
        results = self._ask(lambda store: enqueued_at_once(store, requests))
        self.jobs += [
            request.origin.id
            for request, result in zip(requests, results, strict=True)
            if isinstance(result, Sequence) and request.origin.id not in self.jobs
        ]

    def _enqueue(self, wanted: dict[str, Any]) -> EnqueueRequest:
        facts = dict(wanted)
        again: int | None = facts.pop("again")
        delay_ms: int = facts.pop("delay_ms")
        parent: int | None = facts.pop("parent")
        if parent is not None and parent < len(self.jobs):
            facts["parent_id"] = self.jobs[parent]
        else:
            facts["awaited"] = False
        actor: Actor = facts.pop("actor")
        if again is not None and again < len(self.enqueued):
            return self.enqueued[again]
        # An id of version 7, ordered by the count.
        job_id = UUID(int=(self._next() << 80) | (7 << 76) | (2 << 62))
        return EnqueueRequest(Origin(id=job_id, **facts), actor, delay_ms=delay_ms)

    @rule(
        limit=st.integers(1, 4),
        start=st.booleans(),
        kinds=st.sampled_from([KINDS, KINDS, ("a",), ()]),
        queues=st.sampled_from([QUEUES, QUEUES, ("slow",)]),
        role=st.sampled_from([Role.POOL, Role.POOL, Role.GATEWAY]),
        again=st.none() | st.none() | st.integers(0, 10),
        changed=st.booleans(),
    )
    def claim(self, again: int | None, changed: bool, **facts: Any) -> None:
        number = self._next()
        request = ClaimRequest(
            worker=f"worker-{number % 3}", token=UUID(int=number), request_id=f"claim-{number}", **facts
        )
        if again is not None and again < len(self.claims):
            request_id = self.claims[again].request_id
            request = msgspec.structs.replace(request, request_id=request_id) if changed else self.claims[again]
        else:
            self.claims.append(request)
        self._ask(lambda store: store.claim(request))

    @rule(name=st.sampled_from(QUEUES), rules=st.sampled_from(QUEUE_RULES))
    def give_rules(self, name: str, rules: QueueLimits) -> None:
        self._ask(lambda store: store.queues.put(name, rules, actor=OPERATOR))

    @rule(name=st.sampled_from(QUEUES), how=st.sampled_from(["pause", "resume", "resume", "forget", "forget"]))
    def steer_queue(self, name: str, how: str) -> None:
        self._ask(lambda store: getattr(store.queues, how)(name, actor=OPERATOR))
        self._ask(lambda store: store.queues.known())

    @rule(wanted=st.lists(wishes, min_size=1, max_size=4))
    def apply(self, wanted: list[Wish]) -> None:
        requests = [self._request(wish) for wish in wanted]
        self.asked += requests
        self._ask(lambda store: store.apply(requests))

    @rule(numbers=st.lists(st.integers(0, 30), min_size=2, max_size=6))
    def signal_at_once(self, numbers: list[int]) -> None:
        """Concurrent signals share a write."""
        requests = [
            Request(
                job=self.jobs[number % len(self.jobs)] if self.jobs else UNKNOWN_ID,
                operations=(Signal("go", str(number)),),
                actor=OPERATOR,
                request_id=f"request-{self._next()}",
            )
            for number in numbers
        ]
        self.asked += requests
        self._ask(lambda store: signalled_at_once(store, requests))

    def _request(self, wish: Wish) -> Request:
        if wish.repeat is not None and wish.repeat < len(self.asked):
            before = self.asked[wish.repeat]
            # Repeated by an owner who has saved more since: that does not make it another request.
            before = msgspec.structs.replace(before, steps=self.model._steps_digest(before.job_id))
            return before if wish.manner == "right" else msgspec.structs.replace(before, operations=wish.operations)
        job_id = self.jobs[wish.job % len(self.jobs)] if self.jobs else UNKNOWN_ID
        current = self.model._rows.get(job_id)
        request = Request(
            job=job_id,
            operations=wish.operations,
            actor=self._actor(wish, current),
            request_id=f"request-{self._next()}",
            steps=self.model._steps_digest(job_id),
        )
        if current is None or wish.revision == "none":
            return request
        if wish.revision in ("stale", "future"):
            return msgspec.structs.replace(request, expected_rev=current.rev + (1 if wish.revision == "future" else -1))
        return msgspec.structs.replace(request, job=current, fresh=wish.revision == "fresh")

    def _actor(self, wish: Wish, current: Job | None) -> Actor:
        if wish.manner == "other_role":
            return Actor(wish.other_role, "someone", current.token if current else None)
        rule_ = EXPECTED[wish.operations[0].type]
        if "client" in rule_.free:
            return CLIENT
        if "recovery" in rule_.free:
            return RECOVERY
        token = current.token if current and wish.manner == "right" else UUID(int=1 if wish.manner == "former" else 2)
        return Actor(Role.RUNNER, "worker-0", token)

    @rule(new=enqueues, wanted=st.lists(step_wishes, min_size=2, max_size=4))
    def run_and_save_steps(self, new: dict[str, Any], wanted: list[StepWish]) -> None:
        """Rules that come in any order seldom have a job running."""
        requests = [self._enqueue(new)]
        self.enqueued += requests
        if isinstance(self._ask(lambda store: enqueued(store, requests)), Sequence):
            self.jobs += [request.origin.id for request in requests if request.origin.id not in self.jobs]
        claim = ClaimRequest(
            queues=QUEUES,
            kinds=KINDS,
            limit=4,
            worker="worker-0",
            token=UUID(int=self._next()),
            request_id=f"claim-{self._next()}",
        )
        self._ask(lambda store: store.claim(claim))
        self._save_steps(wanted)

    @rule(wanted=st.lists(step_wishes, min_size=1, max_size=4))
    def save_steps(self, wanted: list[StepWish]) -> None:
        self._save_steps(wanted)

    def _save_steps(self, wanted: list[StepWish]) -> None:
        requests = [request for wish in wanted if (request := self._step(wish)) is not None]
        self._ask(lambda store: store.save_steps(requests))

    def _step(self, wish: StepWish) -> SaveStep | None:
        """Mostly a step of a running job, as of others it is refused."""
        jobs = [*self.model._rows.values()]
        if wish.job < 25:
            jobs = [job for job in jobs if job.status is Status.RUNNING] or jobs
        if not jobs:
            return None
        job = jobs[wish.job % len(jobs)]
        role = wish.other_role if wish.manner == "other_role" else Role.WORKFLOW
        actor = Actor(role, "worker-0", UUID(int=2) if wish.manner == "stranger" else job.token)
        if wish.manner == "other_attempt":
            job = msgspec.structs.replace(job, attempt=job.attempt - 1)
        content: dict[str, Any] = {"status": "failed", "error": ERROR} if wish.failed else {"result": f"{self._next()}"}
        step = NewStep(key=wish.key, kind=StepKind.STEP, name="pay", undo='"refund"', duration_ms=250, **content)
        return SaveStep(job, step, actor)

    @rule(
        wanted=st.lists(wishes, max_size=3),
        new=st.lists(enqueues, max_size=2),
        name=st.sampled_from([None, "report", "log"]),
        step=st.none() | step_wishes,
        kept=st.booleans(),
    )
    def transact(
        self, wanted: list[Wish], new: list[dict[str, Any]], name: str | None, step: StepWish | None, kept: bool
    ) -> None:
        requests, enqueues_ = [self._request(wish) for wish in wanted], [self._enqueue(facts) for facts in new]
        self.asked += requests
        self.enqueued += enqueues_
        self.jobs += [request.origin.id for request in enqueues_ if request.origin.id not in self.jobs]
        maker = self.model._rows.get(requests[0].job_id) if requests and name else None
        made = (maker, Artifact(name=name or "", media_type="text/plain", body=b"1")) if maker else None
        saved = None if step is None else self._step(step)
        self._ask(partial(together, requests=requests, new=enqueues_, made=made, saved=saved, kept=kept))

    @rule(number=st.integers(0, 30), how=st.sampled_from(get_args(Resolution)))
    def resolve_dead_letters(self, number: int, how: Resolution) -> None:
        job_ids = [self.jobs[number % len(self.jobs)], UNKNOWN_ID] if self.jobs else [UNKNOWN_ID]
        self._ask(lambda store: store.resolve_dead_letters(job_ids, how=how, actor=OPERATOR))

    @rule(number=st.integers(0, 2), kinds=st.sampled_from([KINDS, ("a",), ()]), stops=st.booleans())
    def work(self, number: int, kinds: tuple[str, ...], stops: bool) -> None:
        worker = WorkerRecord(
            id=f"worker-{number}",
            host="machine",
            pid=1,
            version="1",
            queues=QUEUES,
            kinds=kinds,
            concurrency=1,
            started_at=START,
            seen_at=START,
        )
        self._ask(lambda store: store.unregister(worker.id) if stops else store.register(worker))

    @rule(stages=st.sets(st.sampled_from(Stage), max_size=2), handled=st.booleans(), limit=st.integers(1, 3))
    def glance(self, stages: set[Stage], handled: bool, limit: int) -> None:
        wanted = DeadLetterFilter(stages=tuple(sorted(stages)), handled=handled)
        self._ask(partial(at_a_glance, wanted=wanted, limit=limit))

    @rule(seconds=st.sampled_from(SECONDS))
    def advance(self, seconds: float) -> None:
        for side in self.sides:
            side.clock.advance(seconds)

    @rule()
    def recover(self) -> None:
        self._ask(lambda store: store.recoverable(limit=3))

    @rule(number=st.integers(0, 3), live_only=st.booleans(), limit=st.integers(1, 3))
    def children(self, number: int, live_only: bool, limit: int) -> None:
        parent_id = self.jobs[number] if number < len(self.jobs) else UNKNOWN_ID
        self._ask(lambda store: children_of(store, parent_id, live_only=live_only, limit=limit))

    @rule(statuses=st.sets(st.sampled_from(Status), max_size=3), limit=st.integers(1, 5))
    def find(self, statuses: set[Status], limit: int) -> None:
        wanted = JobFilter(statuses=tuple(sorted(statuses)), queues=("default",), tags={"t": "1"})
        self._ask(lambda store: found(store, wanted, limit))
        self._ask(lambda store: found(store, JobFilter(reasons=("timeout", "limit", "enough")), limit))

    @rule(types=st.sets(st.sampled_from(EventType), max_size=2))
    def search(self, types: set[EventType]) -> None:
        self._ask(lambda store: events_of(store, EventFilter(types=tuple(sorted(types)), correlation_id="c")))

    @rule(older_than_seconds=st.sampled_from([0, 5, 60]))
    def prune(self, older_than_seconds: float) -> None:
        self._ask(lambda store: prune_finished(store, older_than_seconds=older_than_seconds))

    @rule(older_than_seconds=st.sampled_from([0, 5, 60]))
    def blank(self, older_than_seconds: float) -> None:
        self._ask(lambda store: blank_verbose(store, older_than_seconds=older_than_seconds))

    @rule(number=st.integers(0, 30))
    def erase(self, number: int) -> None:
        job_id = self.jobs[number % len(self.jobs)] if self.jobs else UNKNOWN_ID
        self._ask(partial(erased, job_id=job_id))

    @invariant()
    def rows_and_histories_are_the_same(self) -> None:
        if self.sides:
            self._ask(rows_and_histories)

    def _compare_attachments(self) -> None:
        for job_id in self.jobs:
            self._ask(partial(attachments, job_id=job_id))


async def enqueued(store: Store | Transaction, requests: list[EnqueueRequest]) -> Sequence[EnqueueResult]:
    """The results. Of several refusals in one batch each store may raise another; nothing is enqueued either way."""
    try:
        return await store.enqueue(requests)
    except (RequestIdReused, DedupeKeyConflict) as error:
        if len(requests) == 1:
            raise
        raise Refused("one of several enqueues was refused") from error


async def enqueued_at_once(store: Store, requests: list[EnqueueRequest]) -> list[Any]:
    """The results of single enqueues that are sent at the same time."""
    return await asyncio.gather(*(answered(store.enqueue([request])) for request in requests))


async def signalled_at_once(store: Store, requests: list[Request]) -> list[Any]:
    """The outcomes of signals that are sent at the same time."""
    return await asyncio.gather(*(answered(store.apply([request])) for request in requests))


async def answered(asked: Coroutine[Any, Any, Any]) -> Any:
    """The result, or the error, without what depends on the store."""
    try:
        return plain(await asked)
    except TenureError as error:
        return plain(error)


def plain(value: Any) -> Any:
    """A value to compare: tokens and positions differ between stores."""
    match value:
        case Job():
            return msgspec.structs.replace(value, token=None)
        case Event():
            return msgspec.structs.replace(value, position=None)
        case Applied() | Repeated() | Busy():
            return (type(value).__name__, plain(value.job), getattr(value, "at", None), getattr(value, "renewed", None))
        case StepRecord():
            return msgspec.structs.replace(value, number=0)
        case StepSaved() | StepExists():
            return (type(value).__name__, plain(value.step))
        case Failure():
            current = value.error.current if isinstance(value.error, Refused) else None
            # Erasure keeps the revision, so a store may return the record that was passed in.
            ended = current is not None and not current.live
            return ("Failure", plain(value.error), current.rev if ended and current else plain(current))
        case EnqueueResult():
            return (plain(value.job), value.created)
        case TenureError():
            return (type(value).__name__, str(value))
        case [*items]:
            return [plain(item) for item in items]
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case _:
            return value


def difference(one: Any, other: Any, path: str = "answer") -> str:
    """Where two results first differ, and how."""
    if isinstance(one, msgspec.Struct) and type(one) is type(other):
        one, other = msgspec.structs.asdict(one), msgspec.structs.asdict(other)
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = [(f"{path}.{key}", one[key], other[key]) for key in one]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = [(f"{path}[{n}]", *pair) for n, pair in enumerate(zip(one, other, strict=True))]
    else:
        return f"{path}: {one!r} instead of {other!r}"
    return next((difference(a, b, where) for where, a, b in pairs if a != b), path)


async def found(store: Store, wanted: JobFilter, limit: int) -> list[Any]:
    page = await store.find(wanted, limit=limit)
    return [page.jobs, page.after]


async def children_of(store: Store, parent_id: UUID, *, live_only: bool, limit: int) -> list[Any]:
    page = await store.children(parent_id, live_only=live_only, limit=limit)
    return [page.jobs, page.after]


class NotKept(Exception):
    """Ends a transaction without a commit."""


async def together(
    store: Store,
    *,
    requests: list[Request],
    new: list[EnqueueRequest],
    made: tuple[Job, Artifact] | None,
    saved: SaveStep | None,
    kept: bool,
) -> list[Any]:
    """The results inside a transaction, and whether it was committed."""
    answers: list[Any] = []
    try:
        async with store.transaction(deadline_seconds=60) as tx:
            answers.append(await enqueued(tx, new))
            if made is not None:
                await tx.attach(made[0], [made[1]])
            answers += [await tx.apply(request) for request in requests]
            if saved is not None:
                answers.append(await tx.save_step(saved))
            if not kept:
                raise NotKept
    except NotKept:
        answers.append("not kept")
    except TenureError as error:
        answers.append(error)
    return answers


async def at_a_glance(store: Store, *, wanted: DeadLetterFilter, limit: int) -> list[Any]:
    stats, page = await store.stats(), await store.dead_letters(wanted, limit=limit)
    warnings = [finding.message for finding in await store.doctor() if finding.about == "workers"]
    return [stats.at, stats.tallies, stats.workers, stats.dead_letters, page.letters, page.after, warnings]


async def erased(store: Store, *, job_id: UUID) -> Job | str:
    """The erased job, or the type of the refusal: its message depends on the store."""
    try:
        return await store.erase(job_id, reason="asked to", actor=OPERATOR)
    except Refused as refusal:
        return type(refusal).__name__


async def events_of(store: Store, wanted: EventFilter) -> list[Event]:
    events = (await store.events(wanted, limit=10_000)).events
    return sorted(events, key=lambda event: (event.job_id.bytes, event.rev))


async def rows_and_histories(store: Store) -> list[Any]:
    jobs = (await store.find(JobFilter(), limit=10_000)).jobs
    histories = await store.history([UNKNOWN_ID, *(job.id for job in jobs)])
    return [jobs, [histories[job.id] for job in jobs], histories[UNKNOWN_ID]]


async def attachments(store: Store, *, job_id: UUID) -> list[Any]:
    executions, letter = await store.executions(job_id), await store.dead_letter(job_id)
    return [
        executions,
        letter,
        await store.signals(job_id),
        await store.artifacts(job_id),
        await store.steps(job_id),
        (await store.content([job_id]))[job_id],
    ]


def model_side() -> Side:
    clock = ManualClock()
    return Side("model", ModelStore(clock), clock)


def sqlite_side(stack: ExitStack, runner: asyncio.Runner) -> Side:
    clock = ManualClock()
    store = SqliteStore(":memory:", database_clock=clock.now)
    runner.run(store.migrate())
    open_until(stack, runner, store)
    return Side("SQLite", store, clock)


def postgres_side(stack: ExitStack, runner: asyncio.Runner, server: Postgres, prepared: str) -> Side:
    dsn = stack.enter_context(copied_database(server, prepared))
    clock = PostgresClock(dsn)
    stack.callback(clock.close)
    store = PostgresStore.from_url(dsn)
    open_until(stack, runner, store)
    return Side("PostgreSQL", store, clock)


def open_until(stack: ExitStack, runner: asyncio.Runner, store: Store) -> None:
    runner.run(store.open())
    stack.callback(lambda: runner.run(store.close()))


def check_in_lockstep(sides: OpenSides, how: settings) -> None:
    class Machine(Lockstep):
        def __init__(self) -> None:
            super().__init__(sides)

    run_state_machine_as_test(Machine, settings=how)


def examples(usual: int, *, shrink: bool = True) -> settings:
    """Shrinking repeats many requests: on PostgreSQL that takes too long for every run."""
    number = int(os.environ.get("TENURE_LOCKSTEP_EXAMPLES") or usual)
    return settings(
        max_examples=number,
        stateful_step_count=40,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=[phase for phase in Phase if shrink or phase not in (Phase.shrink, Phase.explain)],
    )


@pytest.fixture(scope="module")
def prepared(postgres_server: Postgres) -> Iterator[str]:
    with prepared_database(postgres_server) as name:
        yield name


@pytest.mark.requirement("LC-13", "LC-07", "LC-09", "LC-10", "SM-17")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [50, pytest.param(150, marks=pytest.mark.deep)])
def test_the_model_and_sqlite_go_in_lockstep(number: int) -> None:
    def sides(stack: ExitStack, runner: asyncio.Runner) -> list[Side]:
        return [model_side(), sqlite_side(stack, runner)]

    check_in_lockstep(sides, examples(number))


@pytest.mark.requirement("LC-13", "LC-07", "LC-09", "LC-10", "SM-17")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [10, pytest.param(40, marks=pytest.mark.deep)])
def test_the_model_sqlite_and_postgres_go_in_lockstep(postgres_server: Postgres, prepared: str, number: int) -> None:
    def sides(stack: ExitStack, runner: asyncio.Runner) -> list[Side]:
        postgres = postgres_side(stack, runner, postgres_server, prepared)
        return [model_side(), sqlite_side(stack, runner), postgres]

    check_in_lockstep(sides, examples(number, shrink=False))
