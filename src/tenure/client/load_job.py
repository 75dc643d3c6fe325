"""Loads a job from its module, in a child process that runs jobs and in the worker that checks whether it can."""

from __future__ import annotations

import importlib

from tenure.client.job_function import JobFunction
from tenure.errors import InvalidInput
from tenure.workers.execution.process.child import LoadedJob


def load_job(module: str, name: str) -> LoadedJob:
    """The job that a module declares under this name. The name comes from the program, never from the database."""
    found = getattr(importlib.import_module(module), name, None)
    if not isinstance(found, JobFunction):
        raise InvalidInput(
            f"{module}.{name}",
            "is not a job in a process that has just imported its module; declare it at module level, whatever "
            "__name__ is",
        )
    return LoadedJob(found.definition, found.app)
