"""A research agent with fake tools and a budget: its plan is JSON, and its run is halted, forked, and kept as a test.

    python examples/planned_research.py

The first run may spend 0.5, is halted at that limit, and keeps its notes. Its fork may spend 2, reuses what is
recorded, and pays for none of it again. The program prints the command that records the fork as a golden file.
`examples/golden` has such a file, and tests/project/test_readme.py checks it in CI: a change of the skills or of the
execution of plans that would alter the run fails there.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import tenure

FOLDER = Path(os.environ.get("RESEARCH_FOLDER") or tempfile.mkdtemp(prefix="research-"))

app = tenure.App(f"sqlite:///{FOLDER / 'research.db'}", version="1")
paid: list[str] = []
"""The calls of this process that would have cost money."""


def pay_for(call: str, dollars: float) -> None:
    paid.append(call)
    tenure.current_step().spend(cost=dollars)


@app.skill
async def search(topic: str, limit: int = 3) -> list[dict[str, str]]:
    """A search engine would be called here."""
    pay_for(f"search {topic}", 0.05)
    return [{"title": f"{topic}, page {number}"} for number in range(limit)]


@app.skill
async def summarise(title: str) -> str:
    """A model would be called here."""
    pay_for(f"summarise {title}", 0.18)
    return f"summary of {title}"


@app.skill
def write(notes: list[str]) -> str:
    pay_for("write", 0.2)
    return f"a report from {len(notes)} notes"


def summary(number: int) -> dict[str, Any]:
    title = {"$ref": f"steps.found.result[{number}].title"}
    return {
        "id": f"note{number}",
        "skill": "summarise",
        "arguments": {"title": title},
        "on_error": "retry",
        "spend_max": {"cost": 0.2},
    }


PLAN: dict[str, Any] = {
    "concurrency": 2,
    "steps": [
        {"id": "found", "skill": "search", "arguments": {"topic": "otters"}},
        *(summary(number) for number in range(3)),
        {
            "id": "report",
            "skill": "write",
            "arguments": {"notes": [{"$ref": f"steps.note{number}.result"} for number in range(3)]},
            "spend_max": {"cost": 0.2},
        },
    ],
    "output": {"$ref": "steps.report.result"},
}


async def main() -> None:
    async with app:
        worker = app.worker()
        working = asyncio.create_task(worker.run())
        run = await app.run_plan(goal="a report on otters", plan=PLAN, budget=tenure.Budget(cost=0.5))
        job = await run.wait(60)
        print(f"{job.status}: {job.reason}")
        print(f"kept: {job.partial_result}")
        fork = await app.fork(run.id, budget=tenure.Budget(cost=2.0))
        print(f"forked: {await fork.result(timeout_seconds=60)}")
        print(f"paid twice: {sorted(call for call in set(paid) if paid.count(call) > 1) or 'nothing'}")
        worker.stop()
        await working
    print(f"show it: tenure runs show {fork.id} --database {app.database}")
    print(f"record it: tenure golden record {fork.id} --database {app.database}")


if __name__ == "__main__":
    asyncio.run(main())
