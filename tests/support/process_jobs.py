"""Jobs for processes of their own: what a function may do, and what it should not do to anybody but itself."""

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
from tenure.lifecycle.records import Timeouts

SOON = Backoff(base_seconds=0.01, factor=1.0, max_seconds=0.02)
LONG_SECONDS = 60.0
MEGABYTE = 1024 * 1024


class Stamp(tenure.Middleware):
    """Says around a run which process it was in."""

    async def run(self, ctx: tenure.Context, proceed: Callable[[], Awaitable[Any]]) -> Any:
        value = await proceed()
        return [*value, os.getpid()] if isinstance(value, list) else value


class Point(msgspec.Struct):
    """An argument and a result of a type of its own."""

    x: int
    y: int


app = tenure.App("sqlite:///unused.db", name="processes", middleware=[Stamp()])


def stillborn(*_arguments: object) -> None:
    """In place of a child that works."""
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
    """Raises what it is told to."""
    raise {
        "ValueError": ValueError("no such thing"),
        "PermanentError": tenure.PermanentError("never"),
        "ValidationError": tenure.ValidationError("not an address"),
        "Snooze": tenure.Snooze(3600),
        "CancelRequested": tenure.CancelRequested("nobody asked"),
        "SystemExit": SystemExit(3),
        "StopIteration": StopIteration(),
    }[error]


@app.job(isolation="process", max_attempts=1)
async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(LONG_SECONDS)


@app.job(isolation="process", max_attempts=1)
def wrong_result() -> Any:
    return object()


@app.job(isolation="process")
def reporting(ctx: tenure.Context) -> str:
    for percent in (10, 20, 90):
        ctx.progress(percent, f"{percent} done")
    try:
        ctx.progress(200)
    except ValueError as refused:
        return str(refused)
    return "taken"


@app.job(isolation="process", lease_seconds=6, max_attempts=2, backoff=SOON)
def obedient(ctx: tenure.Context) -> None:
    """Goes on until it is asked to stop, for much longer than its lease."""
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


@app.job(isolation="process", max_attempts=3, backoff=SOON)
def stubborn(ctx: tenure.Context) -> None:
    ctx.progress(1, str(os.getpid()))
    time.sleep(LONG_SECONDS)


@app.job(isolation="process", max_attempts=2, backoff=SOON, timeouts=Timeouts(running_seconds=3.0), on_exhausted="fail")
def hanging(ctx: tenure.Context) -> None:
    """Holds the interpreter in C code, so that nothing else in its process has a turn."""
    _seize(ctx)


@app.job(isolation="process")
def seizing(ctx: tenure.Context) -> None:
    """The same, for as long as it likes."""
    _seize(ctx)


def _seize(ctx: tenure.Context) -> None:
    ctx.progress(1, str(os.getpid()))
    ctypes.PyDLL(None).sleep(int(LONG_SECONDS))


@app.job(isolation="process", max_attempts=3, backoff=SOON)
def with_a_program(ctx: tenure.Context) -> None:
    """Starts a program of its own and waits for it."""
    with subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LONG_SECONDS})"]) as program:
        ctx.progress(1, str(program.pid))
        program.wait()


@app.job(isolation="process", max_attempts=2, backoff=SOON, memory_bytes_max=400 * MEGABYTE)
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
    """Leaves its process much larger than it was."""
    HOARD.append(bytearray(os.urandom(4096)) * (200 * MEGABYTE // 4096))
    return [os.getpid()]


@app.job(isolation="process", max_attempts=2, backoff=SOON)
def segfault() -> None:
    ctypes.string_at(0)


@app.job(isolation="process", max_attempts=2, backoff=SOON)
async def exits(code: int) -> None:
    os._exit(code)


@app.job(isolation="process")
def talkative(ctx: tenure.Context) -> None:
    print("printed by the job")
    logging.getLogger("shop").warning("logged by the job")
    ctx.logger.warning("said about the job")


@app.job(isolation="process", max_attempts=3, backoff=SOON)
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


@app.job(isolation="process", max_attempts=3, backoff=SOON)
async def pays(ctx: tenure.Context, amount: int, then: str) -> str:
    """Applies its effect with the commit, and then does what it is told."""
    ctx.attach("receipt", f"paid {amount}")
    async with ctx.commit(result="paid") as tx:
        await tx.execute("insert into payments(amount) values ($1)", amount)
        tx.enqueue(echoed.options(queue="later").request(f"paid {amount}"))
    return _afterwards(then)


@app.job(isolation="process", max_attempts=3, backoff=SOON)
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


@app.job(isolation="process", max_attempts=1)
def dawdles(ctx: tenure.Context) -> None:
    """Keeps its commit block open for longer than it may be."""
    with ctx.commit(result=None, deadline_seconds=0.2) as tx:
        tx.execute("insert into payments(amount) values ($1)", 1)
        time.sleep(0.5)
        tx.execute("insert into payments(amount) values ($1)", 2)


@app.job(isolation="process", lease_seconds=2)
def outlives_its_worker(ctx: tenure.Context, path: str) -> None:
    """Tries to commit once its lease is no longer to be trusted, and makes a file when that is refused."""
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
    """Has processes of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: int = pool.apply(abs, (-7,))
        return found


@app.job(max_attempts=2, lease_seconds=2, backoff=SOON)
async def killer(sign: str) -> None:
    """Takes down the process that it runs in, once there is a file of this name."""
    while not Path(sign).exists():  # noqa: ASYNC110  somebody else makes it
        await asyncio.sleep(0.01)
    os._exit(9)


@app.job(max_attempts=3, lease_seconds=2, backoff=SOON)
async def mate(ctx: tenure.Context, seconds: float) -> int:
    """Would be done by now, had its first attempt not been interrupted."""
    ctx.progress(1, str(os.getpid()))
    await asyncio.sleep(seconds if ctx.attempt == 1 else 0)
    return ctx.attempt
