"""A workflow with every kind of call, and one whose steps are undone, for workers that are killed. A step notes that it
is executed, and in a worker whose environment names it, it then hangs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import tenure

HANGS_IN = "HANGS_IN"
"""The environment variable that names the step in which a worker hangs."""
STEPS = ("reserve", "price", "pack a", "pack b", "pack c", "book", "ship")
RESULT = ["reserve", "price", "pack a", "pack b", "pack c", "ada", "book", "ship"]


async def execute(folder: str, step: str) -> str:
    with Path(folder, "executed").open("a") as executed:
        executed.write(f"{step}\n")
    if os.environ.get(HANGS_IN) == step:
        await asyncio.Event().wait()
    return step


async def book(tx: tenure.StepTransaction, folder: str) -> str:
    await tx.execute("insert into bookings values ($1)", "book")
    return await execute(folder, "book")


async def order(run: tenure.Run, folder: str, sleep_seconds: float) -> list[str]:
    async def pack(part: str) -> str:
        return await execute(folder, f"pack {part}")

    done = [await run.step(execute, folder, "reserve"), await run.step(execute, folder, "price")]
    done += await run.map(pack, ["a", "b", "c"])
    await run.sleep(sleep_seconds)
    done.append(await run.wait_for("approved", str))
    done.append(await run.transaction(book, folder))
    return [*done, await run.step(execute, folder, "ship")]


def declare(app: tenure.App) -> tenure.JobFunction[[str, float], list[str]]:
    backoff = tenure.Backoff(base_seconds=0.05, max_seconds=0.05)
    return app.workflow(lease_seconds=3, max_attempts=10, backoff=backoff)(order)


BOOKED = ("hotel", "flight")
UNDONE = ("undo flight", "undo hotel")


async def trip(run: tenure.Run, folder: str) -> None:
    async def undo(booked: str) -> None:
        await execute(folder, f"undo {booked}")

    for place in BOOKED:
        await run.using(compensate=undo).step(execute, folder, place)
    await run.step(execute, folder, "board")
    raise tenure.PermanentError("the trip is off")


def declare_trip(app: tenure.App) -> tenure.JobFunction[[str], None]:
    backoff = tenure.Backoff(base_seconds=0.05, max_seconds=0.05)
    return app.workflow(lease_seconds=3, max_attempts=3, backoff=backoff, on_lost="fail")(trip)


app = tenure.App()
declare(app)
declare_trip(app)
