"""The jobs that these tests run. What a job applies is a row in a table that would take the same row twice."""

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
from tests.chaos.program import Notes

EFFECT = "insert into effects (job_id, attempt) values ($1, $2)"
ANSWER_SECONDS = 30.0


def declare(app: App, notes: Notes) -> None:
    """Give the app its jobs. Their policies do not matter: each is enqueued with that of its test."""

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
        """Long at its first attempt, at once at any other."""
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
        """Keep the event loop to itself."""
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
        """Wait for the test in the middle of the work. The first attempt also tries what it has no lease for."""
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
    """Ask the store itself, past all that the worker knows by now, in the worker's own name and with its own token."""
    run: Any = ctx._attempt

    def ask() -> None:
        asked: Future[Job] = asyncio.run_coroutine_threadsafe(
            run._services.completer.write(run.lease, operation.type, lambda _job: operation), run._services.loop
        )
        asked.result(ANSWER_SECONDS)

    return ask


def _answer(ask: Callable[[], Any]) -> str:
    try:
        ask()
    except Exception as refusal:  # noqa: BLE001 - whatever it is, the test should be told
        return type(refusal).__name__
    return "accepted"
