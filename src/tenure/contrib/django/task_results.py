"""The result of a Django task, made from its job and the events of the job."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from typing import Any

from tenure.errors import PermanentError
from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import Status

_FAILURES = (EventType.RETRY_SCHEDULED, EventType.FAILED, EventType.DEAD_LETTERED)
_UNKNOWN_ERROR = "builtins.Exception"


def task_of(path: str) -> Any:
    """The task with this module path, of a module that is loaded. No path from the database is ever imported."""
    module, _, name = path.rpartition(".")
    task = getattr(sys.modules.get(module), name, None)
    if getattr(task, "module_path", None) != path:
        problem = f"there is no task {path} in a loaded module"
        raise PermanentError(f"{problem}; define it in tasks.py or jobs.py of an installed app, or import it there")
    return task


class TaskRecord:
    """What is known of a task: as its job and events have it, or an attempt in progress."""

    def __init__(self, job: Job, events: Sequence[Event] = (), *, library: str, task: Any = None) -> None:
        self._job, self._events = job, events
        self._base = import_module(f"{library}.base")
        self._task = task
        self._payload = load(job.origin.payload)
        self._ended: tuple[str, datetime | None] | None = None
        self._value: Any = None if job.result is None else load(job.result)
        self._errors = [self._error(event) for event in events if event.type in _FAILURES and event.detail]

    @property
    def backend(self) -> str:
        return (self._job.origin.tags or {}).get("backend", "default")

    def succeeded(self, value: Any) -> None:
        """The attempt in progress returned this."""
        self._ended, self._value = ("SUCCESSFUL", None), value

    def failed(self, error: Exception, at: datetime) -> bool:
        """The attempt in progress raised this. False: the task will be tried again."""
        if self._job.counted_failures + 1 < self._job.policy.max_attempts:
            return False
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        text = "".join(traceback.format_exception(error))
        self._errors.append(self._base.TaskError(exception_class_path=path, traceback=text))
        self._ended = ("FAILED", at)
        return True

    def result(self) -> Any:
        """The library's TaskResult."""
        job, origin = self._job, self._job.origin
        claims = [event for event in self._events if event.type is EventType.CLAIMED]
        starts = [event.at for event in self._events if event.type is EventType.STARTED]
        first = starts[0] if starts else job.started_at
        task = (self._task or task_of(self._payload["task"])).using(
            priority=origin.priority, queue_name=origin.queue, backend=self.backend
        )
        result = self._base.TaskResult(
            task=task,
            id=str(job.id),
            status=self._base.TaskResultStatus(self._status()),
            enqueued_at=job.created_at,
            started_at=first,
            finished_at=self._ended[1] if self._ended else job.finished_at,
            last_attempted_at=starts[-1] if starts else job.started_at,
            args=self._payload["args"],
            kwargs=self._payload["kwargs"],
            backend=self.backend,
            errors=list(self._errors),
            worker_ids=[claim.owner for claim in claims] or ([job.owner] if job.owner else []),
        )
        object.__setattr__(result, "_return_value", self._value)
        return result

    def _status(self) -> str:
        if self._ended:
            return self._ended[0]
        if self._job.live:
            return "RUNNING" if self._job.status is Status.RUNNING else "READY"
        return "SUCCESSFUL" if self._job.status is Status.SUCCEEDED else "FAILED"

    def _error(self, event: Event) -> Any:
        facts = load(event.detail or "{}")
        error = facts.get("error", facts)
        error = load(error) if isinstance(error, str) else error
        text = str(error.get("traceback", ""))
        return self._base.TaskError(exception_class_path=class_path(str(error.get("type", "")), text), traceback=text)


def class_path(name: str, text: str) -> str:
    """The import path of an error's class, of which the last line of its traceback has the module.

    >>> class_path("Refused", "Traceback …\\nshop.errors.Refused: no stock\\n")
    'shop.errors.Refused'
    >>> class_path("ValueError", "Traceback …\\nValueError\\n")
    'builtins.ValueError'
    """
    found = re.findall(rf"^((?:\w+\.)*{re.escape(name)})(?::|$)", text, re.MULTILINE) if name else []
    path: str = found[-1] if found else _UNKNOWN_ERROR
    return path if "." in path else f"builtins.{path}"
