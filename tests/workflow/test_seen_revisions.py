"""Up to which revision a suspended run has seen what it waits for. What came after it makes the run due at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from tenure.seams import Seams
from tenure.workflow.engine import WorkflowEngine
from tenure.workflow.run_waits import RunWaits
from tenure.workflow.waits import DurableWait

READ_SIGNALS, READ_CHILDREN, CURRENT = 5, 7, 9
CHILD = UUID(int=1)


def suspended(waits_for: tuple[dict[str, Any], ...]) -> Any:
    """How a run with these waits is suspended that has read signals and children at different revisions."""

    async def suspension() -> Any:
        job, signals = SimpleNamespace(rev=CURRENT), SimpleNamespace(seen_rev=READ_SIGNALS)
        services = SimpleNamespace(seams=Seams())
        waits = RunWaits(cast(WorkflowEngine, SimpleNamespace(job=job, signals=signals, services=services)))
        waits._seen_rev = READ_CHILDREN
        waits._waits = {DurableWait(**wait) for wait in waits_for}
        return waits._suspension()

    return asyncio.run(suspension())


@pytest.mark.requirement("WF-11", "WF-13")
@pytest.mark.parametrize(
    ("waits_for", "waiting_for", "seen_rev"),
    [
        (({"signal": "go"},), "signal", READ_SIGNALS),
        (({"child_id": CHILD},), "children", READ_CHILDREN),
        (({"child_id": CHILD}, {"signal": "go"}), "children", READ_SIGNALS),
    ],
)
def test_a_suspended_run_has_seen_what_it_waits_for_up_to_its_earlier_read(
    waits_for: tuple[dict[str, Any], ...], waiting_for: str, seen_rev: int
) -> None:
    found = suspended(waits_for)
    assert (found.waiting_for, found.seen_rev) == (waiting_for, seen_rev)
