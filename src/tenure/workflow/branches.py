"""Several calls of a run at the same time: what `run.gather`, `first`, `as_completed` and `map` do.

Each call runs in a branch of its own, so that its steps have the same place whatever the timing. Which branch was first
is recorded, so that a replay takes the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

from tenure.lifecycle.budgets import sum_amounts
from tenure.lifecycle.json_text import encode, load
from tenure.lifecycle.steps import StepKind
from tenure.workflow.branch import Branch, Place, RunCall
from tenure.workflow.engine import WorkflowEngine
from tenure.workflow.placed_call import PlacedCall
from tenure.workflow.waits import Join

T = TypeVar("T")

GatherErrors = Literal["first", "all"]
"""Which errors of branches `gather` raises: that of the first branch in order, or all as an ExceptionGroup."""


class First(msgspec.Struct, Generic[T], frozen=True):
    """Which of several calls was first, from 0, and its result."""

    index: int
    value: T


class BranchResult(msgspec.Struct, frozen=True):
    """What a branch returned or raised."""

    value: Any = None
    error: Exception | None = None

    def unwrap(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class Branches:
    """The calls of one `gather`, `first` or `as_completed`, each in a task of its own."""

    def __init__(
        self,
        engine: WorkflowEngine,
        branch: Branch,
        place: Place,
        calls: Sequence[Awaitable[Any]],
        *,
        joins_all: bool = False,
    ) -> None:
        self._engine, self._branch, self._place, self._calls = engine, branch, place, calls
        self._joins_all = joins_all
        self._started: dict[int, tuple[Branch, asyncio.Task[Any]]] = {}

    async def gather(self, *, errors: GatherErrors) -> tuple[Any, ...]:
        """The results in order, once all branches have ended; or their errors."""
        await Join(self._start_all())
        return await self._results(errors)

    async def gather_fail_fast(self) -> tuple[Any, ...]:
        """The results in order, or the error of the branch that failed first, which cancels the others."""
        failed = await self._first_to_fail()
        if failed is None:
            return await self._results("first")
        await self._drop_others(failed)
        return ((await self._result(failed)).unwrap(),)

    async def first(self) -> First[Any]:
        """The first branch to end. The others are cancelled."""
        call = PlacedCall(self._place, StepKind.DECISION, "first")
        record = self._engine.recorded(call)
        if record is None:
            tasks = self._start_all()
            await Join(tasks, first=True)
            index = next(n for n, task in enumerate(tasks) if task.done())
            record = await self._engine.save(call.step(result=encode({"first": index})))
        index = load(record.result or "{}")["first"]
        self._start(index)
        await self._drop_others(index)
        value = (await self._result(index)).unwrap()
        self._join()
        return First(index, value)

    async def as_completed(self) -> AsyncIterator[First[Any]]:
        """Each result as it comes."""
        tasks = self._start_all()
        returned: set[int] = set()
        for number in range(len(self._calls)):
            place = Place(self._place.sub_key(f"order.{number}"), self._place.branch, self._place.ordinal)
            call = PlacedCall(place, StepKind.DECISION, "as_completed")
            record = self._engine.recorded(call)
            if record is None:
                left = [n for n in range(len(self._calls)) if n not in returned]
                await Join([tasks[n] for n in left], first=True)
                index = next(n for n in left if tasks[n].done())
                record = await self._engine.save(call.step(result=encode({"index": index})))
            self._engine.steps.use(place.key)
            index = load(record.result or "{}")["index"]
            returned.add(index)
            yield First(index, (await self._result(index)).unwrap())
        self._join()

    async def _first_to_fail(self) -> int | None:
        """The branch whose error was first; None if none fails."""
        call = PlacedCall(self._place, StepKind.DECISION, "gather")
        record = self._engine.recorded(call)
        if record is not None:
            index: int | None = load(record.result or "{}").get("failed")
            if index is None:
                await Join(self._start_all())
            else:
                self._start(index)
            return index
        tasks = self._start_all()
        failed = None
        while failed is None and (live := [task for task in tasks if not task.done()]):
            await Join(live, first=True)
            failed = next((n for n, task in enumerate(tasks) if task.done() and _failed(task)), None)
        await self._engine.save(call.step(result=encode({"failed": failed})))
        return failed

    async def _results(self, errors: GatherErrors) -> tuple[Any, ...]:
        results = [await self._result(index) for index in range(len(self._calls))]
        self._join()
        raised = [one.error for one in results if one.error is not None]
        if errors == "all" and raised:
            raise ExceptionGroup(f"{len(raised)} of {len(results)} branches failed", raised)
        return tuple(one.unwrap() for one in results)

    def _start_all(self) -> list[asyncio.Task[Any]]:
        return [self._start(index) for index in range(len(self._calls))]

    def _start(self, index: int) -> asyncio.Task[Any]:
        if index not in self._started:
            inner, call = self._branch.sub_branch(self._place, index), self._calls[index]
            inner.is_leaf = self._joins_all and isinstance(call, RunCall) and call.is_leaf
            self._started[index] = inner, self._engine.start_task(_awaited(call), inner)
        return self._started[index][1]

    async def _result(self, index: int) -> BranchResult:
        return await _result_of(self._start(index))

    async def _drop_others(self, index: int) -> None:
        """Cancel all branches but this one."""
        others = [n for n in range(len(self._calls)) if n != index]
        self._engine.steps.drop_branches(self._place, others)
        started = [self._started[n][1] for n in others if n in self._started]
        for task in started:
            task.cancel()
        if started:
            await Join(started)
        for n in others:
            if n not in self._started:
                _close(self._calls[n])

    def _join(self) -> None:
        """The branches are over: the time of the branch that started them is theirs."""
        for inner, _ in self._started.values():
            self._branch.completed(inner.now)
            self._branch.spend = sum_amounts(self._branch.spend, inner.spend)
            inner.spend = {}


async def results_of(
    engine: WorkflowEngine, calls: Sequence[Awaitable[Any]], *, concurrency: int
) -> list[BranchResult]:
    """The results of calls that have their places already, so many at the same time."""
    results: list[BranchResult] = [BranchResult()] * len(calls)
    upcoming = iter(range(len(calls)))

    async def work() -> None:
        for index in upcoming:
            results[index] = await _result_of(calls[index])

    await Join([engine.start_task(work(), None) for _ in range(min(concurrency, len(calls)))])
    return results


async def _result_of(call: Awaitable[Any]) -> BranchResult:
    try:
        return BranchResult(await call)
    except Exception as error:  # noqa: BLE001 - raised by `unwrap` once all have ended
        return BranchResult(error=error)


def _failed(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and isinstance(task.exception(), Exception)


def _close(call: Awaitable[Any]) -> None:
    """A coroutine that is not run would be reported as never awaited."""
    if asyncio.iscoroutine(call):
        call.close()


async def _awaited(call: Awaitable[T]) -> T:
    return await call
