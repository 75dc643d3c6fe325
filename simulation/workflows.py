"""Runs of the real workflow engine: steps one after the other and at the same time, sleeps, signals, children, undo.

What the functions execute is counted here, outside of every process. The rules that are checked: no attempt executes a
call that an earlier one has recorded; a run that succeeds has the result that its inputs determine, whatever happened
to its workers; a run that ends otherwise has undone what it had done, in reverse order; a run with a deadline does not
succeed long after it, and its children have it too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from simulation.invariants import InvariantViolated
from simulation.random_streams import RandomStream
from tenure.app import App
from tenure.client.job_function import JobFunction
from tenure.errors import PermanentError, StepFailed, StoreUnavailable, TransientError
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.deadlines import deadline_of
from tenure.lifecycle.json_text import load
from tenure.lifecycle.operations import RequestCancel, Signal
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.lifecycle.steps import StepKind, StepRecord
from tenure.stores.contract import Busy, EnqueueRequest, Request
from tenure.workflow.current_step import current_step
from tenure.workflow.run import Run

RUNS = 2
LEASE_SECONDS = 6.0
BACKOFF = Backoff(base_seconds=0.5, factor=2.0, max_seconds=5.0)
CLIENT = Actor(Role.CLIENT, "workflows")
CANCELLED_SHARE, FAILING_SHARE, FRAGILE_SHARE, LATE_SHARE, UNREAD_SHARE = 0.15, 0.2, 0.3, 0.5, 0.3
UNREAD = 3
"""How many signals that it never reads a run is sent at the same time."""
KINDS = ("journey", "fragile_journey")
DEADLINE_SHARE, DEADLINE_SECONDS_MAX = 4, 30
"""One run in so many has a deadline, of 1 to so many seconds."""
LATE_SECONDS_MAX = 30.0
"""How long after its deadline a run may succeed: a worker measures it from the reply to its claim, which may be late,
and the reply to a completion may be too."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one run does."""

    sequential: int
    parallel: int
    signals: int
    children: int
    sleep_seconds: float
    wait_seconds: float
    """How long it waits for a signal that may come in time, late, or never."""
    fails: bool


class Executed(msgspec.Struct, frozen=True):
    """An execution of a step, or of what undoes it, that has begun."""

    key: str
    attempt: int


class SimulatedWorkflows:
    """The workflow runs of one simulation."""

    def __init__(self, app: App, chance: RandomStream, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._app, self._chance, self._sleep = app, chance, sleep
        self._plans: dict[UUID, Plan] = {}
        self._executed: dict[UUID, list[Executed]] = {}
        self.seen: list[str] = []
        """What happened and is worth counting."""
        self._declare()

    # The functions.

    def _declare(self) -> None:
        sleep = self._sleep

        @self._app.job(lease_seconds=LEASE_SECONDS, backoff=BACKOFF, max_attempts=1000)
        async def leg(number: int) -> int:
            await sleep(0.3 * number)
            if number % 3 == 2:
                raise PermanentError("this leg always fails")
            return number

        options: dict[str, Any] = {"lease_seconds": LEASE_SECONDS, "backoff": BACKOFF}

        @self._app.workflow(**options, max_attempts=1000)
        async def journey(run: Run, plan: Plan) -> list[Any]:
            return await self._travel(run, plan, JobFunction(self._app, self._app.kinds["leg"]))

        @self._app.workflow(**options, max_attempts=3, on_exhausted="fail")
        async def fragile_journey(run: Run, plan: Plan) -> list[Any]:
            return await self._travel(run, plan, JobFunction(self._app, self._app.kinds["leg"]))

    async def _travel(self, run: Run, plan: Plan, leg: JobFunction[[int], int]) -> list[Any]:
        async def execute(number: int, drawn: float) -> int:
            self._note(run)
            await self._sleep(0.1 * (number % 4))
            if number % 5 == 4 and current_step().attempt == 1:
                raise TransientError("the first try of this step fails")
            # A new draw in a replay would be another argument, and the run would be parked.
            return number if 0.0 <= drawn < 1.0 else -1

        async def undo(number: int) -> None:
            self._note(run)
            await self._sleep(0.1 * (number % 3))

        steps = run.using(compensate=undo, on_error="retry", max_attempts=3, backoff=BACKOFF)
        done: list[Any] = [await steps.step(execute, number, run.random.random()) for number in range(plan.sequential)]
        drawn = [run.random.random() for _ in range(plan.parallel)]
        done += await run.gather(*(steps.step(execute, number, draw) for number, draw in enumerate(drawn)))
        await run.sleep(plan.sleep_seconds)
        children = [await run.spawn(leg, number) for number in range(plan.children)]
        done += await run.gather(*(self._result(child) for child in children))
        for _ in range(plan.signals):
            done.append(await run.wait_for("go", int))
        first = await run.first(run.step(execute, 1, 0.5), run.sleep(100_000))
        done.append(first.index)
        try:
            await run.wait_for("late", timeout_seconds=plan.wait_seconds)
        except TimeoutError:
            self.seen.append("wait timed out")
        else:
            self.seen.append("signal in time")
        if plan.fails:
            raise PermanentError("this journey is meant to fail")
        return done

    @staticmethod
    async def _result(child: Any) -> int | str:
        try:
            return await child.result()  # type: ignore[no-any-return]
        except StepFailed:
            return "failed"

    def _note(self, run: Run) -> None:
        key = current_step().key.partition("/")[2]
        self._executed.setdefault(run.id, []).append(Executed(key, run.attempt))

    # The client.

    def _plan(self) -> Plan:
        chance = self._chance
        return Plan(
            sequential=chance.whole(1, 6),
            parallel=chance.whole(1, 5),
            signals=chance.whole(0, 3),
            children=chance.whole(0, 4),
            sleep_seconds=round(chance.between(0.0, 4.0), 3),
            wait_seconds=round(chance.between(0.1, 6.0), 3),
            fails=chance.happens(FAILING_SHARE),
        )

    async def enqueue(self, store: Any) -> None:
        """Enqueue the runs, and send each the signals that it waits for."""
        for _ in range(RUNS):
            await self._sleep(self._chance.between(0.0, 8.0))
            plan, kind = self._plan(), KINDS[self._chance.happens(FRAGILE_SHARE)]
            job_id = self._chance.job_id()
            options = JobFunction(self._app, self._app.kinds[kind]).options(deadline_seconds=_deadline_seconds(job_id))
            request: EnqueueRequest = options.request(plan=plan).enqueue
            request = msgspec.structs.replace(request, origin=msgspec.structs.replace(request.origin, id=job_id))
            self._plans[job_id] = plan
            await self._until_replied(partial(store.enqueue, [request]))
            sent: list[object] = [Signal("go", str(number)) for number in range(plan.signals)]
            # The order among signals of one name is kept; the other name comes at any time, or never.
            if self._chance.happens(LATE_SHARE):
                sent.insert(self._chance.whole(0, len(sent)), Signal("late"))
            if self._chance.happens(CANCELLED_SHARE):
                sent.insert(self._chance.whole(0, len(sent)), RequestCancel("the client asked"))
            if self._chance.happens(UNREAD_SHARE):
                sending = [self._send(store, job_id, Signal("unread")) for _ in range(UNREAD)]
                for task in [self._app.seams.spawn.task(one, name="unread signal") for one in sending]:
                    await task
            for operation in sent:
                await self._sleep(self._chance.between(0.0, 4.0))
                await self._send(store, job_id, operation)

    async def _send(self, store: Any, job_id: UUID, operation: Any) -> None:
        request = Request(job=job_id, operations=(operation,), actor=CLIENT, request_id=self._chance.name())
        while True:
            [outcome] = await self._until_replied(partial(store.apply, [request]))
            # A run that has ended refuses it.
            if not isinstance(outcome, Busy):
                return
            await self._sleep(0.5)

    async def _until_replied(self, send: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await send()
            except StoreUnavailable:
                await self._sleep(0.5)

    # The end.

    async def check(self, store: Any, jobs: Collection[Job], *, removed: Collection[Job]) -> None:
        """Called once every job has ended. Retention may have removed runs and children that ended early."""
        for run in jobs:
            plan = self._plans.get(run.id)
            if plan is None:
                continue
            steps = await store.steps(run.id)
            children = [job for job in (*jobs, *removed) if job.origin.parent_id == run.id]
            self._check_executions(run, steps)
            self._check_children(run, plan, children)
            self._check_deadline(run, children)
            self._check_signals(run, steps)
            self._check_end(run, plan, steps)

    def _check_executions(self, run: Job, steps: Sequence[StepRecord]) -> None:
        recorded = {step.key: step.attempt for step in steps if step.kind in (StepKind.STEP, StepKind.UNDO)}
        for executed in self._executed.get(run.id, ()):
            attempt = recorded.get(executed.key)
            if attempt is not None and attempt < executed.attempt:
                raise InvariantViolated(
                    f"run {run.id}: attempt {executed.attempt} executed call {executed.key}, which attempt {attempt} "
                    f"has recorded"
                )
        keys = [executed.key for executed in set(self._executed.get(run.id, ()))]
        self.seen += ["step executed in two attempts"] * (len(keys) - len(set(keys)))

    def _check_children(self, run: Job, plan: Plan, children: Sequence[Job]) -> None:
        if len(children) > plan.children or (run.status is SUCCEEDED and len(children) != plan.children):
            raise InvariantViolated(f"run {run.id} has {len(children)} children, and spawns {plan.children}")

    def _check_deadline(self, run: Job, children: Sequence[Job]) -> None:
        deadline_at = deadline_of(run)
        if any(deadline_of(child) != deadline_at for child in children):
            raise InvariantViolated(f"run {run.id} has the deadline {deadline_at}, and one of its children has another")
        if deadline_at is None or run.finished_at is None:
            return
        late_seconds = (run.finished_at - deadline_at).total_seconds()
        if run.status is SUCCEEDED and late_seconds > LATE_SECONDS_MAX:
            raise InvariantViolated(f"run {run.id} succeeded {late_seconds:.1f} s after its deadline")
        if late_seconds >= 0:
            self.seen.append("run reached its deadline")

    def _check_signals(self, run: Job, steps: Sequence[StepRecord]) -> None:
        received = [step.signal_rev for step in steps if step.signal_rev is not None and step.name == "go"]
        if received != sorted(set(received)):
            raise InvariantViolated(f"run {run.id} received the signals of revisions {received}")

    def _check_end(self, run: Job, plan: Plan, steps: Sequence[StepRecord]) -> None:
        if run.status is SUCCEEDED:
            result = load(run.result or "null")
            if deadline_of(run) is not None:
                # A child may have reached the deadline just before its parent succeeded.
                result = [
                    one if found == "failed" else found for one, found in zip(_expected(plan), result, strict=True)
                ]
            if plan.fails or result != _expected(plan):
                raise InvariantViolated(f"run {run.id} returned {run.result}, and {_expected(plan)} is its result")
            self.seen.append("run succeeded")
            return
        self.seen.append(f"run {run.status}")
        undoable = [step.key for step in steps if step.kind is StepKind.STEP and step.undo is not None]
        undone = [step.key.removesuffix(".undo") for step in steps if step.kind is StepKind.UNDO]
        if undone != undoable[::-1]:
            raise InvariantViolated(f"run {run.id} is {run.status}; it has done {undoable} and undone {undone}")
        self.seen += ["step undone"] * len(undone)


def _deadline_seconds(job_id: UUID) -> float | None:
    """The deadline of some runs. It follows from the id, so that no random number is drawn for it."""
    return None if job_id.int % DEADLINE_SHARE else 1.0 + job_id.int // DEADLINE_SHARE % DEADLINE_SECONDS_MAX


def _expected(plan: Plan) -> list[Any]:
    children = ["failed" if number % 3 == 2 else number for number in range(plan.children)]
    return [*range(plan.sequential), *range(plan.parallel), *children, *range(plan.signals), 0]
