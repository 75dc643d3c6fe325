"""The types of the decorators that declare jobs: what each returns for a function."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from tenure.client.job_function import AsyncJobFunction, JobFunction, SyncJobFunction
from tenure.jobs.context import Context

if TYPE_CHECKING:
    from tenure.workflow.run import Run

P = ParamSpec("P")
R = TypeVar("R")

AsyncFunction = Callable[P, Coroutine[Any, Any, R]]
AsyncContextFunction = Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]
ContextFunction = Callable[Concatenate[Context, P], R]


class JobDecorator(Protocol):
    """Declares a function as a job: async or sync, with or without a Context as first parameter."""

    # Overlaps are resolved by the order: an async function is also a function that returns a coroutine.
    @overload
    def __call__(self, function: AsyncContextFunction[P, R]) -> AsyncJobFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: AsyncFunction[P, R]) -> AsyncJobFunction[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: ContextFunction[P, R]) -> SyncJobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> SyncJobFunction[P, R]: ...


class RemoteJobDecorator(Protocol):
    """Declares a function as the signature of a job that a remote engine runs."""

    def __call__(self, function: Callable[P, R]) -> JobFunction[P, R]: ...


class WorkflowDecorator(Protocol):
    """Declares an async function with a Run as first parameter as a workflow."""

    def __call__(self, function: Callable[Concatenate[Run, P], Coroutine[Any, Any, R]]) -> JobFunction[P, R]: ...
