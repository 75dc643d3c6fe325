"""Jobs with process isolation: what a function may do, and faults that must not affect other jobs."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

import tenure
from tenure.errors import LeaseLost
from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.timeouts import Timeouts

SOON = Backoff(base_seconds=0.01, factor=1.0, max_seconds=0.02)
LONG_SECONDS = 60.0
MEGABYTE = 1024 * 1024


class Stamp(tenure.Middleware):
    """Writes the process id of a run around it."""

    async def run(self, ctx: tenure.Context, proceed: Callable[[], Awaitable[Any]]) -> Any:
        value = await proceed()
        return [*value, os.getpid()] if isinstance(value, list) else value


class Point(msgspec.Struct):
    """An argument and a result of its own type."""

    x: int
    y: int


app = tenure.App("sqlite:///unused.db", name="processes", middleware=[Stamp()])


def exits_at_start(*_arguments: object) -> None:
    """Runs instead of a child."""
    os._exit(3)


@app.job(isolation="process")
def flipped(point: Point) -> Point:
    return Point(point.y, point.x)


@app.job(isolation="process")
async def length(text: str) -> int:
    await asyncio.sleep(0)
    return len(text)


@app.job(isolation="process")
def echoed(text: str) -> str:
    return text


@app.job(isolation="process")
def stamped() -> list[int]:
    return [os.getpid()]


@app.job(isolation="process", max_attempts=2, backoff=SOON, on_exhausted="dead_letter", retry_on=[EOFError])
def raising(error: str) -> None:
    """Raises the given error."""
    raise {
        "ValueError": ValueError("no such thing"),
        "PermanentError": tenure.PermanentError("never"),
        "ValidationError": tenure.ValidationError("not an address"),
        "Snooze": tenure.Snooze(3600),
        "CancelRequested": tenure.CancelRequested("nobody asked"),
        "SystemExit": SystemExit(3),
        "StopIteration": StopIteration(),
    }[error]


@app.job(isolation="process", max_attempts=1, on_exhausted="fail")
async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(LONG_SECONDS)


@app.job(isolation="process", max_attempts=1, on_exhausted="fail")
def wrong_result() -> Any:
    return object()


@app.job(isolation="process")
def reporting(ctx: tenure.Context) -> str:
    for percent in (10, 20, 90):
        ctx.progress(percent, f"{percent} done")
    ctx.progress(99.4, "nearly" * 1000)
    return "done"


@app.job(isolation="process", lease_seconds=6, max_attempts=2, on_exhausted="fail", backoff=SOON)
def obedient(ctx: tenure.Context) -> None:
    """Runs until it is asked to stop, for much longer than its lease."""
    ctx.progress(1, str(os.getpid()))
    while True:
        ctx.check()
        time.sleep(0.01)


@app.job(isolation="process", lease_seconds=30)
async def until_the_worker_stops(ctx: tenure.Context) -> str:
    ctx.progress(1, str(os.getpid()))
    while True:
        if ctx.stopping:
            return "stopped in time"
        await asyncio.sleep(0.01)


@app.job(isolation="process", max_attempts=3, on_exhausted="fail", backoff=SOON)
def stubborn(ctx: tenure.Context) -> None:
    ctx.progress(1, str(os.getpid()))
    time.sleep(LONG_SECONDS)


@app.job(
    isolation="process",
    max_attempts=2,
    on_exhausted="fail",
    backoff=SOON,
    timeouts=Timeouts(running_seconds=3.0),
    on_timeout="fail",
)
def hanging(ctx: tenure.Context) -> None:
    """Holds the interpreter in C code, so that no other thread of its process can run."""
    _seize(ctx)


@app.job(isolation="process")
def seizing(ctx: tenure.Context) -> None:
    """The same without a limit."""
    _seize(ctx)


def _seize(ctx: tenure.Context) -> None:
    ctx.progress(1, str(os.getpid()))
    ctypes.PyDLL(None).sleep(int(LONG_SECONDS))


@app.job(isolation="process", max_attempts=3, on_exhausted="fail", backoff=SOON)
def with_a_program(ctx: tenure.Context) -> None:
    """Starts another process and waits for it."""
    with subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LONG_SECONDS})"]) as program:
        ctx.progress(1, str(program.pid))
        program.wait()


@app.job(isolation="process", max_attempts=3, on_exhausted="fail", backoff=SOON)
def stubborn_with_programs(ctx: tenure.Context) -> None:
    _wait_for_programs(ctx)


@app.job(isolation="process", max_attempts=1, timeouts=Timeouts(running_seconds=10.0), on_exhausted="fail")
def hanging_with_programs(ctx: tenure.Context) -> None:
    _wait_for_programs(ctx)


PROGRAMS = f"""
import subprocess, sys, time
nested = subprocess.Popen([sys.executable, "-c", "import time; time.sleep({10 * LONG_SECONDS})"])
print(nested.pid, flush=True)
nested.wait()
"""


def _wait_for_programs(ctx: tenure.Context) -> None:
    """Starts a process that starts another one, writes all three process ids, and waits."""
    with subprocess.Popen([sys.executable, "-c", PROGRAMS], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        nested = program.stdout.readline().strip()
        ctx.progress(1, f"{os.getpid()} {program.pid} {nested}")
        program.wait()


@app.job(isolation="process", max_attempts=2, on_exhausted="fail", backoff=SOON, memory_bytes_max=400 * MEGABYTE)
def greedy(ctx: tenure.Context) -> None:
    ctx.progress(1, str(os.getpid()))
    kept = []
    while True:
        kept.append(bytearray(os.urandom(4096)) * (8 * MEGABYTE // 4096))
        time.sleep(0.005)


@app.job(isolation="process", memory_bytes_max=200 * MEGABYTE)
def modest() -> list[int]:
    return [os.getpid()]


HOARD: list[bytearray] = []


@app.job(isolation="process")
def hoarding() -> list[int]:
    """Leaves its process much larger than before."""
    HOARD.append(bytearray(os.urandom(4096)) * (200 * MEGABYTE // 4096))
    return [os.getpid()]


@app.job(isolation="process", max_attempts=2, on_exhausted="fail", backoff=SOON)
def segfault() -> None:
    ctypes.string_at(0)


@app.job(isolation="process", max_attempts=2, on_exhausted="fail", backoff=SOON)
async def exits(code: int) -> None:
    os._exit(code)


@app.job(isolation="process")
def talkative(ctx: tenure.Context) -> None:
    print("printed by the job")
    logging.getLogger("shop").warning("logged by the job")
    ctx.logger.warning("said about the job")


@app.job(isolation="process", max_attempts=3, on_exhausted="fail", backoff=SOON)
def attaching(ctx: tenure.Context) -> str:
    """Its first attempt fails: what it attached is dropped."""
    ctx.attach("picture", bytes(range(256)) * 4096, media_type="image/x")
    if ctx.attempt == 1:
        raise ValueError("not yet")
    ctx.attach("note", "grüße")
    try:
        ctx.attach("note", "again")
    except ValueError as refused:
        return str(refused)
    return "taken"


@app.job(isolation="process", max_attempts=3, on_exhausted="fail", backoff=SOON)
async def pays(ctx: tenure.Context, amount: int, then: str) -> str:
    """Applies its effect with the commit, then does as given."""
    ctx.attach("receipt", f"paid {amount}")
    async with ctx.commit(result="paid") as tx:
        await tx.execute("insert into payments(amount) values ($1)", amount)
        tx.enqueue(echoed.options(queue="later").request(f"paid {amount}"))
    return _afterwards(then)


@app.job(isolation="process", max_attempts=3, on_exhausted="fail", backoff=SOON)
def pays_plainly(ctx: tenure.Context, amount: int, then: str) -> str:
    """The same without an event loop."""
    with ctx.commit(result="paid") as tx:
        tx.execute("insert into payments(amount) values ($1)", amount)
        [row] = tx.fetch("select count(*) as found from payments")
        tx.outbox("paid", {"amount": amount, "found": row["found"]})
    return _afterwards(then)


def _afterwards(then: str) -> str:
    if then == "exit":
        os._exit(9)
    if then == "raise":
        raise ValueError("after the commit")
    return "paid" if then == "return" else "something else"


@app.job(isolation="process", max_attempts=1, on_exhausted="fail")
def dawdles(ctx: tenure.Context) -> None:
    """Keeps its commit block open beyond the deadline."""
    with ctx.commit(result=None, deadline_seconds=0.2) as tx:
        tx.execute("insert into payments(amount) values ($1)", 1)
        time.sleep(0.5)
        tx.execute("insert into payments(amount) values ($1)", 2)


@app.job(isolation="process", lease_seconds=2)
def outlives_its_worker(ctx: tenure.Context, path: str) -> None:
    """Tries to commit after its lease has expired, and creates a file when that is refused."""
    ctx.progress(1, str(os.getpid()))
    while not ctx.lease_lost:
        time.sleep(0.01)
    try:
        with ctx.commit(result=None) as tx:
            tx.execute("insert into payments(amount) values ($1)", 1)
    except LeaseLost:
        Path(path).touch()


@app.job(isolation="process")
def enqueues_more() -> str:
    return str(echoed.options(queue="later").enqueue_sync("more").id)


@app.job(isolation="process")
def spawning() -> int:
    """Starts processes."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: int = pool.apply(abs, (-7,))
        return found


@app.job(max_attempts=2, on_exhausted="fail", lease_seconds=2, backoff=SOON)
async def killer(sign: str) -> None:
    """Kills the process that it runs in, once a file of this name exists."""
    while not Path(sign).exists():  # noqa: ASYNC110  the test creates it
        await asyncio.sleep(0.01)
    os._exit(9)


@app.job(max_attempts=3, on_exhausted="fail", lease_seconds=2, backoff=SOON)
async def mate(ctx: tenure.Context, seconds: float) -> int:
    """Would have ended if its first attempt had not been interrupted."""
    ctx.progress(1, str(os.getpid()))
    await asyncio.sleep(seconds if ctx.attempt == 1 else 0)
    return ctx.attempt
