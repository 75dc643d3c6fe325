"""`Run`: what the function of a workflow may do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    NoReturn,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    overload,
)
from uuid import UUID

from tenure.errors import InvalidInput
from tenure.jobs.context import Context
from tenure.jobs.step_codec import Errors, arguments_digest, encode_result
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.budgets import Amount, amounts_of, sum_amounts
from tenure.lifecycle.json_text import check_integer, check_seconds, check_text, encode, load
from tenure.lifecycle.size_limits import CONTENT_BYTES_MAX
from tenure.lifecycle.steps import STATE_NAME, StepKind
from tenure.seams import SeededRandom
from tenure.stores.outbox_validation import check_topic
from tenure.workflow.branch import Branch, Place, RunCall, current_branch
from tenure.workflow.branches import Branches, First, GatherErrors, results_of
from tenure.workflow.children import Child, ChildJobs, OnParentEnd, Spawnable
from tenure.workflow.continuation import continue_run
from tenure.workflow.current_step import report_spend
from tenure.workflow.engine import WorkflowEngine
from tenure.workflow.placed_call import Compensation, PlacedCall, name_of
from tenure.workflow.step_call import OnError, StepExecution, StepIsolation, StepOptions
from tenure.workflow.timed_waits import sleep, wait_for_signal
from tenure.workflow.transaction import StepTransaction, TransactionStep, post_message

if TYPE_CHECKING:
    from tenure.workers.commit.commit import CommitBlock

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")

CONCURRENCY = 10
STATE_BYTES_MAX = 16 * 1024
"""The largest document of `run.state`."""


class Run:
    """One run of a workflow. Its first parameter, annotated with this class, receives it.

    @app.workflow()
    async def research(run: tenure.Run, topic: str) -> str:
        pages = await run.step(search, topic)
        notes = await run.map(summarise, pages)
        return await run.step(write, notes)

    A step that has ended is recorded, and is not executed again: after a crash the function runs from its beginning,
    and recorded calls return what was recorded. Everything between the steps must therefore give the same each time:
    use `run.now()`, `run.random` and `run.uuid()`.
    """

    def __init__(self, engine: WorkflowEngine, context: Context, children: ChildJobs, errors: Errors) -> None:
        self._engine, self._context, self._children, self._errors = engine, context, children, errors
        self._options = StepOptions()
        self._on_parent_end: OnParentEnd = "cancel"

    @property
    def id(self) -> UUID:
        return self._context.id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._context.attempt

    @property
    def logger(self) -> Any:
        """A logger whose records have the run's id, kind and attempt as fields. It logs again in a replay."""
        return self._context.logger

    def progress(self, percent: int, message: str | None = None) -> None:
        """Report progress from 0 to 100 percent."""
        self._context.progress(percent, message)

    def commit(self, *, result: Any = None, conn: Any = None, deadline_seconds: float | None = None) -> CommitBlock:
        """Open the commit block of this run, as its last operation: after the commit no further step is recorded."""
        return self._context.commit(result=result, conn=conn, deadline_seconds=deadline_seconds)

    def using(
        self,
        *,
        key: str | None = None,
        on_error: OnError = "abort",
        max_attempts: int = 20,
        backoff: Backoff | None = None,
        timeout_seconds: float | None = None,
        isolation: StepIsolation | None = None,
        compensate: Callable[[Any], Any] | None = None,
        spend_max: Mapping[str, Amount] | None = None,
        on_parent_end: OnParentEnd = "cancel",
    ) -> Run:
        """The run with other options for its steps: `run.using(on_error="retry", max_attempts=5).step(search, topic)`.

        `on_error`: `abort` raises the error in the workflow, `continue` returns None instead, `retry` executes the step
        again up to `max_attempts` times with `backoff` in between, then raises. `timeout_seconds` limits each attempt
        of the step. `isolation="process"` calls it in a process of its own, which is killed when the step is cancelled
        or its time is over; the function must be importable, and its arguments pass through JSON. `key` is the identity
        of the one step that is called with it, instead of its place in the function. `compensate` undoes the step if
        the run fails, becomes a dead letter or is cancelled by request. It is called with the step's result, after what
        undoes later steps, and retried by the run's policy. `on_parent_end` is for children: whether a live one is
        cancelled when this run ends, continues, or is waited for. `spend_max` is what an attempt of the step may spend
        at most, such as `{"cost": 0.5}`: it is reserved from the budget before the attempt begins, so that parallel
        steps do not pass a limit together. Options can be changed while runs are live, except for the key.
        """
        other = Run(self._engine, self._context, self._children, self._errors)
        other._options = StepOptions(
            key=key,
            on_error=on_error,
            max_attempts=max_attempts,
            backoff=backoff or Backoff(),
            timeout_seconds=timeout_seconds,
            isolation=isolation,
            compensation=None if compensate is None else Compensation(compensate, timeout_seconds),
            spend_max=amounts_of(spend_max or {}),
        )
        other._on_parent_end = on_parent_end
        return other

    @overload
    def step(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> RunCall[R]: ...
    @overload
    def step(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> RunCall[R]: ...
    def step(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> RunCall[Any]:
        """Call a function, async or plain, as a step. Its result, or its error, is recorded; it is executed at least
        once, and once if its attempt is not cut off.

        Await the call, at once or later: `await run.gather(run.step(a), run.step(b))` executes both at the same time.
        The result passes through JSON, into the function's return type.
        """
        name = name_of(function)
        branch, place = self._engine.place(f"run.step({name})", self._options.key)
        return self._step_call(branch, place, name, function, args, kwargs, self._engine.take_spend(branch))

    def _step_call(
        self,
        branch: Branch,
        place: Place,
        name: str,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        spend: Mapping[str, int],
    ) -> RunCall[Any]:
        call = PlacedCall(place, StepKind.STEP, name, arguments_digest(args, kwargs), spend)
        options, errors = self._options, self._errors
        step: StepExecution[Any] = StepExecution(
            self._engine, branch, call, function, args, kwargs, options=options, errors=errors
        )
        return RunCall(f"step {name}", step.result)

    def transaction(
        self,
        function: Callable[Concatenate[StepTransaction, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> RunCall[R]:
        """Call an async function as a step whose SQL, on tenure's own database, is committed together with the record.

        async def book(tx: tenure.StepTransaction, order: str) -> None:
            await tx.execute("insert into bookings (order_name) values ($1)", order)

        await run.transaction(book, "order 7")

        Its effect is applied once, also if the worker is killed at any point. It has no retries of its own: if it
        raises, its SQL is rolled back and the error is recorded.
        """
        return self._transaction(f"run.transaction({name_of(function)})", name_of(function), function, args, kwargs)

    def outbox(
        self, topic: str, body: Any, *, aggregate: str | None = None, headers: Mapping[str, str] | None = None
    ) -> RunCall[UUID]:
        """Send an outbox message as a step, committed once with its record. Returns the id of the message.

        await run.outbox("order.shipped", {"order": order}, aggregate=order)

        Messages of one aggregate are delivered in the order of their commits.
        """
        check_topic(topic)
        return self._transaction("run.outbox", f"outbox {topic}", post_message, (topic, body, aggregate, headers), {})

    def _transaction(
        self,
        what: str,
        name: str,
        function: Callable[..., Coroutine[Any, Any, R]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> RunCall[R]:
        if self._options.isolation is not None:
            raise InvalidInput("isolation", "is for steps; a transaction is one of this process")
        branch, place = self._engine.place(what, self._options.key)
        spend = self._engine.take_spend(branch)
        call = PlacedCall(place, StepKind.STEP, name, arguments_digest(args, kwargs), spend)
        step: TransactionStep[R] = TransactionStep(
            self._engine,
            branch,
            call,
            function,
            args,
            kwargs,
            errors=self._errors,
            compensation=self._options.compensation,
            spend_max=self._options.spend_max,
        )
        return RunCall(f"transaction {name}", step.result)

    @overload
    def map(
        self, function: Callable[[T], Coroutine[Any, Any, R]], items: Iterable[T], *, concurrency: int = CONCURRENCY
    ) -> RunCall[list[R]]: ...
    @overload
    def map(
        self, function: Callable[[T], R], items: Iterable[T], *, concurrency: int = CONCURRENCY
    ) -> RunCall[list[R]]: ...
    def map(
        self, function: Callable[[Any], Any], items: Iterable[Any], *, concurrency: int = CONCURRENCY
    ) -> RunCall[list[Any]]:
        """Call the function with each item as a step of its own, some at the same time. Results are in order.

        All steps end and are recorded; then the error of the first that failed, in order, is raised.
        """
        check_integer(concurrency, "concurrency", least=1, most=10_000)
        name = name_of(function)
        branch, place = self._engine.place(f"run.map({name})", self._options.key)
        inner = branch.sub_branch(place)
        calls = [self._step_call(inner, self._engine.take(inner), name, function, (item,), {}, {}) for item in items]

        async def map_all() -> list[Any]:
            results = await results_of(self._engine, calls, concurrency=concurrency)
            branch.completed(inner.now)
            return [one.unwrap() for one in results]

        return RunCall(f"map {name}", map_all)

    def state(self, document: Any) -> RunCall[None]:
        """Set a small document, at most 16 KiB of JSON, that `handle.state()` and `tenure runs show` read.

        await run.state({"phase": "searching", "pages": 3})

        It is recorded like a step, so a replay sets nothing.
        """
        result = encode_result(document, step="run.state", bytes_max=STATE_BYTES_MAX)
        branch, place = self._engine.place("run.state()", self._options.key)
        call = PlacedCall(place, StepKind.DECISION, STATE_NAME)

        async def set_state() -> None:
            record = self._engine.recorded(call) or await self._engine.save(call.step(result=result))
            branch.completed(record.finished_at)

        return RunCall("state", set_state)

    def spend(self, **amounts: Amount) -> None:
        """Report what the run spends: `run.spend(cost=0.12, tokens=830)`, with any names of units.

        Within a step it is part of the step's record, and attempts of the step that fail pay, too. Between steps it is
        recorded with the next step of this branch, or with the end of the run. A replay does not pay again. Beyond a
        limit of the budget the run is halted at its next step, or at its end.
        """
        spent = amounts_of(amounts)
        if not report_spend(spent):
            branch = current_branch.get() or self._engine.main
            branch.spend = sum_amounts(branch.spend, spent)

    def budget(self) -> RunCall[dict[str, float]]:
        """What is left of each limited unit: `left = await run.budget()`. It is recorded, so that a replay sees the
        same. Empty without a budget."""
        branch, place = self._engine.place("run.budget()", self._options.key)
        call = PlacedCall(place, StepKind.DECISION, "budget")

        async def left() -> dict[str, float]:
            engine = self._engine
            record = engine.recorded(call) or await engine.save(call.step(result=encode(await engine.meter.left())))
            branch.completed(record.finished_at)
            return cast(dict[str, float], load(record.result or "{}"))

        return RunCall("budget", left)

    def partial_result(self, value: Any) -> None:
        """Set the `partial_result` with which the run ends if it is halted: at most 256 KiB, as a job's result."""
        text = encode_result(value, step="partial_result", bytes_max=CONTENT_BYTES_MAX)
        self._engine.partial_result = lambda: text

    def spawn(self, job: Spawnable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> RunCall[Child[R]]:
        """Enqueue a job or workflow as a child of this run, once.

        child = await run.spawn(summarise, page)
        other = await run.spawn(summarise.options(queue="slow"), page)
        texts = await run.gather(child.result(), other.result())

        A child that is live when this run ends is cancelled, unless `run.using(on_parent_end="leave")` or `"wait"`.
        """
        if self._options.compensation is not None:
            raise InvalidInput("compensate", "is for steps; a child undoes its own steps when it is cancelled")
        prepared = job.request(*args, **kwargs)
        return self._children.spawn(prepared, key=self._options.key, on_parent_end=self._on_parent_end)

    async def continue_as(self, workflow: Spawnable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """End this run, and continue as a new run of the same workflow, with other arguments and no recorded steps.

        @app.workflow
        async def watch(run: tenure.Run, cursor: int) -> None:
            for _ in range(1000):
                cursor = await run.step(read_events, cursor)
            await run.continue_as(watch, cursor)

        Both happen in one transaction. The new run takes over queue, priority, tags, correlation id, trace, dedupe key,
        live children, the state, the budget, and signals that no call has received. `handle.result()`, and a parent
        that awaits the result, wait for the last run. Steps of this run are not undone by later ones.
        """
        await continue_run(self._engine, self._children, workflow.request(*args, **kwargs))

    @overload
    def gather(
        self, a: Awaitable[T1], b: Awaitable[T2], /, *, fail_fast: bool = False, errors: GatherErrors = "first"
    ) -> RunCall[tuple[T1, T2]]: ...
    @overload
    def gather(
        self, a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], /, *, fail_fast: bool = False
    ) -> RunCall[tuple[T1, T2, T3]]: ...
    @overload
    def gather(
        self, a: Awaitable[T1], b: Awaitable[T2], c: Awaitable[T3], d: Awaitable[T4], /, *, fail_fast: bool = False
    ) -> RunCall[tuple[T1, T2, T3, T4]]: ...
    @overload
    def gather(
        self, *calls: Awaitable[T], fail_fast: bool = False, errors: GatherErrors = "first"
    ) -> RunCall[tuple[T, ...]]: ...
    def gather(
        self, *calls: Awaitable[Any], fail_fast: bool = False, errors: GatherErrors = "first"
    ) -> RunCall[tuple[Any, ...]]:
        """Run calls and coroutines at the same time: `await run.gather(run.step(a), other(run))`.

        Each coroutine is a branch of its own, whose steps do not depend on the timing of the others. All branches end;
        then the error of the first that failed, in order, is raised. With `fail_fast` the first error in time cancels
        the others; which one it was is recorded. With `errors="all"` the errors of all branches are raised, in order,
        as an ExceptionGroup.
        """
        if errors not in get_args(GatherErrors) or (fail_fast and errors == "all"):
            raise InvalidInput("errors", "is 'first' or 'all', and with fail_fast there is only one")
        branches = self._branches("run.gather", calls, joins_all=not fail_fast)
        return RunCall("gather", lambda: branches.gather_fail_fast() if fail_fast else branches.gather(errors=errors))

    def first(self, *calls: Awaitable[T]) -> RunCall[First[T]]:
        """Run calls and coroutines at the same time until the first has ended; the others are cancelled.

        Which one was first is recorded. If it failed, its error is raised.
        """
        if not calls:
            raise InvalidInput("first", "needs at least one call")
        return RunCall("first", self._branches("run.first", calls).first)

    def as_completed(self, *calls: Awaitable[T]) -> AsyncIterator[First[T]]:
        """Run calls and coroutines at the same time, and return each result as it comes. The order is recorded.

        async for done in run.as_completed(run.step(a), run.step(b)):
            print(done.index, done.value)
        """
        return self._branches("run.as_completed", calls).as_completed()

    def _branches(self, what: str, calls: Sequence[Awaitable[Any]], *, joins_all: bool = False) -> Branches:
        branch, place = self._engine.place(what, None)
        return Branches(self._engine, branch, place, calls, joins_all=joins_all)

    def sleep(
        self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0
    ) -> RunCall[None]:
        """Wait, without holding a worker. The time begins with the first call, whatever happens to the worker."""
        duration = timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days).total_seconds()
        check_seconds(duration, "sleep")
        branch, place = self._engine.place("run.sleep", self._options.key)
        call = PlacedCall(place, StepKind.SLEEP, "sleep")
        return RunCall("sleep", lambda: sleep(self._engine, branch, call, duration))

    def now(self) -> datetime:
        """When the last call of this branch was recorded; before the first call, when the run was enqueued.

        The same in every attempt. Use it instead of the machine's clock.
        """
        return self._engine.branch("run.now").now

    @property
    def random(self) -> SeededRandom:
        """Random numbers that are the same in every attempt. Not for secrets."""
        return self._engine.branch("run.random").random

    def uuid(self) -> UUID:
        """A UUID that is the same in every attempt."""
        return UUID(int=self.random.getrandbits(128), version=4)

    @overload
    def wait_for(self, name: str, type: type[T], /) -> RunCall[T]: ...
    @overload
    def wait_for(self, name: str, type: type[T], /, *, timeout_seconds: float) -> RunCall[T]: ...
    @overload
    def wait_for(self, name: str, /, *, timeout_seconds: float | None = None) -> RunCall[Any]: ...
    def wait_for(self, name: str, type: Any = Any, /, *, timeout_seconds: float | None = None) -> RunCall[Any]:
        """Wait for a signal of this name, without holding a worker, and return its value in this type.

        It may have come before. Signals of one name are received in the order in which they were sent, each once. With
        a timeout TimeoutError is raised if none was sent in time, which begins with the first call; the database
        decides which came first, and that is recorded.
        """
        check_text(name, "signal", length_max=200)
        if timeout_seconds is not None:
            check_seconds(timeout_seconds, "timeout_seconds")
        branch, place = self._engine.place(f"run.wait_for({name!r})", self._options.key)
        call = PlacedCall(place, StepKind.WAIT, name)
        return RunCall(f"wait for {name}", lambda: wait_for_signal(self._engine, branch, call, type, timeout_seconds))

    async def patched(self, name: str) -> bool:
        """Whether this run executes the new code at a change: `if await run.patched("fees"): …`.

        Runs that had passed this place before the change execute the old code, all others the new code. The first value
        is recorded, and stays the same for the run.
        """
        check_text(name, "patch", length_max=150)
        engine = self._engine
        branch = engine.branch("run.patched")
        call = PlacedCall(Place(f"patch:{name}", branch.path, 0), StepKind.PATCH, name)
        record = engine.recorded(call)
        if record is None:
            is_new = engine.steps.peek(branch.upcoming_key) is None
            record = await engine.save(call.step(result=encode(is_new)))
        engine.steps.use(call.place.key)
        return cast(bool, load(record.result or "false"))
