"""The jobs of these tests. A job's effect is a row in a table without a unique key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tenure.app import App
from tenure.jobs.context import Context
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.operations import Commit, Complete, Heartbeat, Operation, Progress
from tenure.lifecycle.records import Job
from tests.chaos.process_options import Notes

EFFECT = "insert into effects (job_id, attempt) values ($1, $2)"
ANSWER_SECONDS = 30.0


def declare(app: App, notes: Notes) -> None:
    """Declare the jobs in the app. Each test enqueues them with its own policy."""

    @app.job()
    async def pay(ctx: Context, seconds: float = 0.0) -> str:
        """Prepare for a while, then apply the effect."""
        await asyncio.sleep(seconds)
        async with ctx.commit(result="paid") as tx:
            await tx.execute(EFFECT, str(ctx.id), ctx.attempt)
        return "paid"

    @app.job()
    async def nap(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "rested"

    @app.job()
    async def nap_at_first(ctx: Context, seconds: float) -> str:
        """Long at the first attempt, immediate at any other."""
        notes.leave(f"begun-{ctx.id}-{ctx.attempt}")
        try:
            await asyncio.sleep(seconds if ctx.attempt == 1 else 0)
        except asyncio.CancelledError:
            notes.leave(f"cancelled-{ctx.id}-{ctx.attempt}")
            raise
        async with ctx.commit(result="rested") as tx:
            await tx.execute(EFFECT, str(ctx.id), ctx.attempt)
        return "rested"

    @app.job()
    async def spin(seconds: float) -> str:
        """Block the event loop."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
        return "dizzy"

    @app.job()
    async def hang() -> None:
        await asyncio.Event().wait()

    @app.job()
    def hang_in_a_thread() -> None:
        while True:
            time.sleep(0.1)

    @app.job()
    def duplicate(ctx: Context, ending: str) -> int:
        """Wait for the test in the middle of the job. The first attempt also tries operations without a lease."""
        notes.leave(f"begun-{ctx.attempt}")
        notes.wait_for(f"go-{ctx.attempt}")
        if ctx.attempt == 1:
            try:
                return _as_if_nothing_had_happened(ctx, ending, notes)
            finally:
                notes.leave("first-is-over")
        _apply(ctx)
        return ctx.attempt


def _as_if_nothing_had_happened(ctx: Context, ending: str, notes: Notes) -> int:
    if ending == "error":
        raise ValueError("the first attempt ends in an error")
    answers = {"commit block": _answer(lambda: _apply(ctx))}
    for operation in (Heartbeat(), Progress(50), Commit("1"), Complete("1")):
        answers[str(operation.type)] = _answer(_asked_of_the_store(ctx, operation))
    notes.leave("answers", encode(answers))
    return ctx.attempt


def _apply(ctx: Context) -> None:
    with ctx.commit(result=ctx.attempt) as tx:
        tx.execute(EFFECT, str(ctx.id), ctx.attempt)


def _asked_of_the_store(ctx: Context, operation: Operation) -> Callable[[], Any]:
    """Call the store directly, with the worker's name and token, whatever the worker knows of its lease."""
    run: Any = ctx._attempt

    def ask() -> None:
        asked: Future[Job] = asyncio.run_coroutine_threadsafe(
            run.services.completer.write(run.lease, operation.type, lambda _job: operation), run.services.loop
        )
        asked.result(ANSWER_SECONDS)

    return ask


def _answer(ask: Callable[[], Any]) -> str:
    try:
        ask()
    except Exception as refusal:  # noqa: BLE001 - the test reports it, whatever it is
        return type(refusal).__name__
    return "accepted"
