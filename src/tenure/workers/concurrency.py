"""How many jobs a worker runs at a time, unless it is given a number. This is the only place that defines it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenure.jobs.definition import JobDefinition

TASKS = 100
"""The default of a worker whose jobs are all tasks of its event loop, which mostly wait."""
BLOCKING = 10
"""The default of a worker that has jobs in threads or processes: each job needs one, and usually a connection of the
user's database too."""


def default_concurrency(definitions: Iterable[JobDefinition[..., Any]]) -> int:
    """How many of these jobs may run at a time: as many as may run of each kind.

    A claim may return jobs of only one of its kinds, and a worker starts all that it has claimed.
    """
    return TASKS if all(one.isolation == "task" for one in definitions) else BLOCKING
