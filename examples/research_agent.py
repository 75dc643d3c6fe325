"""A research agent with fake tools, killed in the middle: what was paid for is not paid again.

    python examples/research_agent.py

The program starts a worker as a process of its own, kills it with SIGKILL while it works, starts another one, and
counts the calls of the expensive tools.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import tenure

# The worker's process gets the folder of the program that starts it.
FOLDER = Path(os.environ.get("RESEARCH_FOLDER") or tempfile.mkdtemp(prefix="research-"))
CALLS = FOLDER / "calls.txt"
PAGES = 8

app = tenure.App(f"sqlite:///{FOLDER / 'research.db'}")


def pay_for(call: str) -> None:
    """Each line is a call of a model or a search engine that would have cost money."""
    with CALLS.open("a", encoding="utf-8") as file:
        file.write(f"{call}\n")


async def search(topic: str) -> list[str]:
    pay_for(f"search {topic}")
    return [f"{topic}, page {number}" for number in range(PAGES)]


async def summarise(page: str) -> str:
    pay_for(f"summarise {page}")
    await asyncio.sleep(0.2)
    return f"summary of {page}"


async def write(notes: list[str]) -> str:
    pay_for("write")
    return f"a report from {len(notes)} notes"


@app.workflow(lease_seconds=2)
async def research(run: tenure.Run, topic: str) -> str:
    pages = await run.step(search, topic)
    notes = [await run.step(summarise, page) for page in pages]
    return await run.step(write, notes)


def start_worker() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "RESEARCH_FOLDER": str(FOLDER)}
    return subprocess.Popen([sys.executable, __file__, "worker"], env=environment)


def paid() -> list[str]:
    return CALLS.read_text(encoding="utf-8").splitlines() if CALLS.exists() else []


async def main() -> None:
    async with app:
        run = await research.enqueue("otters")
        worker = start_worker()
        async with asyncio.timeout(60):
            while len(paid()) < PAGES // 2:  # noqa: ASYNC110 - another process writes the file
                await asyncio.sleep(0.01)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        print(f"the worker was killed after {len(paid())} paid calls")
        worker = start_worker()
        try:
            print(f"result: {await run.result(timeout_seconds=60)}")
        finally:
            worker.terminate()
            worker.wait()
        job = await run.refresh()
        calls = paid()
        print(f"{job.attempt} attempts, {len(calls)} paid calls for {PAGES + 2} steps")
        repeated = sorted({call for call in calls if calls.count(call) > 1})
        print(f"paid twice: {', '.join(repeated) or 'nothing'} (at most the step that was killed)")
        assert len(calls) <= PAGES + 3, calls


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        asyncio.run(app.worker(poll_seconds=0.1, scan_seconds=0.5).run())
    else:
        try:
            asyncio.run(main())
        finally:
            shutil.rmtree(FOLDER)
