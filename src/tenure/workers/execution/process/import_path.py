"""The module and name by which a child process imports a function."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tenure.errors import InvalidInput
from tenure.jobs.definition import JobDefinition
from tenure.seams import refuse_use_at_import
from tenure.workers.execution.process import child
from tenure.workers.execution.process.started_child import can_measure_memory


def check_definitions(definitions: Mapping[str, JobDefinition[..., Any]], load_job: child.LoadJob) -> None:
    """Refuse definitions whose jobs no child process could run."""
    refuse_use_at_import()
    for definition in definitions.values():
        if definition.isolation == "process":
            _check_definition(definition, load_job)
            if definition.options.memory_bytes_max is not None and not can_measure_memory():
                raise InvalidInput(
                    f"{definition.name}: memory_bytes_max",
                    "cannot be enforced here: this system has no /proc to measure memory with",
                )


def _check_definition(definition: JobDefinition[..., Any], load_job: child.LoadJob) -> None:
    function = f"{definition.function.__module__}.{definition.function.__qualname__}"
    if definition.import_path is None:
        raise InvalidInput(
            definition.name,
            f"isolation='process' starts the function in a fresh process, which cannot find {function}; "
            f"move the function to a module, at its top level and under its own name",
        )
    if ":memory:" in load_job(*definition.import_path).app.database:
        raise InvalidInput(
            definition.name,
            "isolation='process' needs a database that other processes see; use a file, sqlite:///jobs.db, in place "
            "of one in memory",
        )


def import_path_of(definition: JobDefinition[..., Any]) -> tuple[str, str]:
    assert definition.import_path is not None, "a definition without an import path is not sent to a process"
    return definition.import_path


def child_import_path(definition: JobDefinition[..., Any]) -> tuple[str, str]:
    """The module and name that a child imports: a package that runs with `python -m`, under its full name."""
    module, name = import_path_of(definition)
    return child_module_name(module), name


def child_module_name(module: str) -> str:
    """The name under which a child imports the module."""
    spec = getattr(sys.modules[module], "__spec__", None)
    is_package = module == "__main__" and spec is not None and spec.name.endswith(".__main__")
    return spec.name if is_package and spec is not None else module
