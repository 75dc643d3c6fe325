"""A research agent whose steps are a plan in JSON, and whose recorded run is a golden file.

    python examples/planned_research.py

The program prints the command that records the run. `examples/golden` has such a file, which a test checks: a change
of the skills or of the plan's execution that would alter the run is seen there.
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


@app.skill
async def search(topic: str, limit: int = 3) -> list[dict[str, str]]:
    """A search engine would be called here."""
    return [{"title": f"{topic}, page {number}"} for number in range(limit)]


@app.skill
async def summarise(title: str) -> str:
    """A model would be called here."""
    return f"summary of {title}"


@app.skill
def write(notes: list[str]) -> str:
    return f"a report from {len(notes)} notes"


def summary(number: int) -> dict[str, Any]:
    title = {"$ref": f"steps.found.result[{number}].title"}
    return {"id": f"note{number}", "skill": "summarise", "arguments": {"title": title}, "on_error": "retry"}


PLAN: dict[str, Any] = {
    "concurrency": 2,
    "steps": [
        {"id": "found", "skill": "search", "arguments": {"topic": "otters"}},
        *(summary(number) for number in range(3)),
        {
            "id": "report",
            "skill": "write",
            "arguments": {"notes": [{"$ref": f"steps.note{number}.result"} for number in range(3)]},
        },
    ],
    "output": {"$ref": "steps.report.result"},
}


async def main() -> None:
    async with app:
        run = await app.run_plan(goal="a report on otters", plan=PLAN)
        worker = app.worker()
        working = asyncio.create_task(worker.run())
        print(f"result: {await run.result(timeout_seconds=60)}")
        worker.stop()
        await working
    print(f"record it: tenure golden record {run.id} --database {app.database}")


if __name__ == "__main__":
    asyncio.run(main())
