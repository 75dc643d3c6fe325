"""A backend for Django's tasks: `django.tasks` of Django 6, or the package django-tasks.

    TASKS = {"default": {"BACKEND": "tenure.contrib.django.TenureBackend"}}

A task is enqueued on Django's own connection: inside `atomic`, with the transaction or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils import timezone

from tenure.client.handle import Handle
from tenure.client.job_function import JobFunction
from tenure.contrib.django.project import app, project_settings
from tenure.contrib.django.task_results import TaskRecord, task_of
from tenure.errors import InvalidInput, JobNotFound
from tenure.jobs.context import Context
from tenure.lifecycle.records import Job

LIBRARY = "django.tasks" if find_spec("django.tasks") else "django_tasks"
"""The library whose tasks the backend takes."""
OPTIONS = frozenset({"max_attempts"})
KIND, ASYNC_KIND = "django.task", "django.async_task"

library = import_module(LIBRARY)
exceptions = import_module(f"{LIBRARY}.exceptions")
BaseTaskBackend: Any = import_module(f"{LIBRARY}.backends.base").BaseTaskBackend


@app.job(kind=KIND)
def run_task(ctx: Context, task: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a sync task."""
    attempt = TaskAttempt(ctx, task)
    with attempt:
        return attempt.returned(attempt.task.func(*attempt.leading(ctx.id), *args, **kwargs))


@app.job(kind=ASYNC_KIND)
async def run_async_task(ctx: Context, task: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call an async task."""
    attempt = TaskAttempt(ctx, task)
    leading = await sync_to_async(attempt.leading)(ctx.id)
    with attempt:
        return attempt.returned(await attempt.task.func(*leading, *args, **kwargs))


class TaskAttempt:
    """One attempt of a task: it sends the signals `task_started` and `task_finished`.

    `task_finished` is sent before the end is recorded. A failure that will be retried finishes no task.
    """

    def __init__(self, ctx: Context, path: str) -> None:
        self.task = task_of(path)
        self._record = TaskRecord(ctx.job, library=LIBRARY)
        self._backend = type(library.task_backends[self._record.backend])
        self._signals = import_module(f"{LIBRARY}.signals")

    def leading(self, job_id: UUID) -> tuple[Any, ...]:
        """The task's context, if it takes one. It is read from the log, which has the earlier attempts."""
        if not self.task.takes_context:
            return ()
        return (library.TaskContext(task_result=result_of(app.get_sync(job_id))),)

    def returned(self, value: Any) -> Any:
        self._record.succeeded(value)
        return value

    def __enter__(self) -> None:
        self._signals.task_started.send(self._backend, task_result=self._record.result())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _traceback: object) -> None:
        if error is None or (isinstance(error, Exception) and self._record.failed(error, timezone.now())):
            self._signals.task_finished.send(self._backend, task_result=self._record.result())


def result_of(handle: Handle[Any]) -> Any:
    """The result of a task, by its job and the job's events."""
    events = app.background.run(handle.events)
    return TaskRecord(handle.job, events, library=LIBRARY).result()


class TenureBackend(BaseTaskBackend):  # type: ignore[misc]
    """Tasks as jobs. `OPTIONS`: `max_attempts`, by default that of every job."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        if unknown := sorted(set(self.options) - OPTIONS):
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: unknown OPTIONS {', '.join(unknown)}; known: max_attempts")

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue the task on Django's connection. An error leaves nothing enqueued."""
        self.validate_task(task)
        function: JobFunction[..., Any] = run_async_task if iscoroutinefunction(task.func) else run_task
        enqueuer = function.options(
            queue=task.queue_name,
            priority=task.priority,
            at=None if task.run_after is None else _aware(task.run_after),
            max_attempts=self.options.get("max_attempts"),
            tags={"task": task.module_path, "backend": self.alias},
        )
        connection = connections[project_settings()["ALIAS"]]
        handle = enqueuer.within(connection).enqueue_sync(task.module_path, list(args), dict(kwargs))
        result = TaskRecord(handle.job, library=LIBRARY, task=task).result()
        import_module(f"{LIBRARY}.signals").task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Read a result. A task of a transaction that is not committed does not exist yet."""
        try:
            handle = app.get_sync(result_id)
        except (JobNotFound, InvalidInput) as missing:
            raise exceptions.TaskResultDoesNotExist(result_id) from missing
        if not is_task(handle.job):
            raise exceptions.TaskResultDoesNotExist(result_id)
        return result_of(handle)

    def check(self, **_options: Any) -> list[Any]:
        """Warn of a database that Django's connection does not lead to, where tasks could not be enqueued."""
        if project_settings()["DATABASE"] is None:
            return []
        problem = (
            "TENURE['DATABASE'] must be the database that Django's connection leads to, for tasks are enqueued on it"
        )
        return [checks.Info(problem, id="tenure.I001")]


def is_task(job: Job) -> bool:
    return job.kind in (KIND, ASYNC_KIND)


def _aware(at: Any) -> Any:
    """Without USE_TZ, Django's times are in its own time zone."""
    return at if timezone.is_aware(at) else timezone.make_aware(at)
