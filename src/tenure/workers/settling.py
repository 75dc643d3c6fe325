"""Recording what jobs came to, in batches: whatever is ready goes in one statement.

A request is sent again under the same id until it is answered, also over an outage of the database: the log knows
whether it was applied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from tenure.context import current_context
from tenure.errors import LeaseLost, RevisionConflict, StoreError, StoreUnavailable
from tenure.lifecycle.operations import Operation
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import HELD
from tenure.seams import Seams
from tenure.stores.contract import Applied, Busy, Failure, Outcome, Performs, Repeated, Request
from tenure.workers.held import Held
from tenure.workers.outages import Outage

BATCH_MAX = 500
CLOSE_SECONDS_MAX = 2.0

log = logging.getLogger("tenure.workers")

Decide = Callable[[Job], Operation]
"""What to ask for, given the record as it stands: asked again after somebody else has changed it."""


Answered = Callable[[Applied | Repeated | BaseException], None]
"""Told once what was written, or what the store refused it for."""


class _Waiting:
    __slots__ = ("answered", "decide", "held", "request_id")

    def __init__(self, held: Held, decide: Decide, request_id: str, answered: Answered) -> None:
        self.held, self.decide, self.request_id, self.answered = held, decide, request_id, answered

    def request(self) -> Request | None:
        """What to send; None where it cannot be decided, which whoever waits is told."""
        try:
            operation = self.decide(self.held.job)
        except Exception as error:  # noqa: BLE001 - one that cannot be decided must not keep the others waiting
            self.answered(error)
            return None
        return self.held.request(operation, self.request_id)


class Settler:
    """Applies owners' operations, many at a time. Many callers wait; one task writes."""

    def __init__(self, store: Performs, seams: Seams) -> None:
        self._store, self._seams = store, seams
        self._outage = Outage(seams)
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    def submit(self, held: Held, verb: str, decide: Decide, answered: Answered) -> None:
        """Have the operation written with the next batch."""
        if self._closed:
            answered(StoreError(f"the worker has stopped, so that nothing more of job {held.job.id} is recorded"))
            return
        self._waiting.append(_Waiting(held, decide, held.request_id(verb), answered))
        if self._writing is None or self._writing.done():
            self._writing = self._seams.spawn.task(self._write(), name="tenure-settler")

    async def settle(self, held: Held, verb: str, decide: Decide) -> Job:
        """The record once the operation is written. Raises what the store refused it for."""
        answer: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        self.submit(held, verb, decide, partial(_pass_on, answer))
        return await answer

    async def close(self) -> None:
        """Give up on what could not be written; recovery will find it."""
        self._closed = True
        if self._writing is not None and not self._writing.done():
            self._writing.cancel()
            await asyncio.wait([self._writing], timeout=CLOSE_SECONDS_MAX)
        given_up, self._waiting = self._waiting, []
        for waiting in given_up:
            waiting.answered(asyncio.CancelledError())

    async def _write(self) -> None:
        # Some job's end has started this, and it writes for all of them.
        current_context.set(None)
        while self._waiting:
            # Whoever is ready at this moment goes along.
            await self._seams.clock.sleep(0)
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            asked = [(waiting, request) for waiting in batch if (request := waiting.request()) is not None]
            batch = [waiting for waiting, _ in asked]
            try:
                outcomes = await self._perform([request for _, request in asked])
            except BaseException as error:
                for waiting in batch:
                    waiting.answered(error if isinstance(error, Exception) else asyncio.CancelledError())
                if not isinstance(error, Exception):
                    raise
                log.exception("outcomes could not be recorded; their jobs will be found by recovery")
                continue
            for waiting, outcome in zip(batch, outcomes, strict=True):
                self._answer(waiting, outcome)

    async def _perform(self, requests: list[Request]) -> list[Outcome]:
        while requests:
            try:
                outcomes = await self._store.perform(requests)
            except StoreUnavailable as outage:
                log.warning("%d outcomes wait for the database: %s", len(requests), outage)
                await self._outage.pause()
            else:
                self._outage.over()
                return outcomes
        return []

    def _answer(self, waiting: _Waiting, outcome: Outcome) -> None:
        match outcome:
            case Applied() | Repeated():
                if outcome.status in HELD:
                    waiting.held.adopt(outcome.job)
                waiting.answered(outcome)
            case Failure(RevisionConflict(current=Job() as current)) if waiting.held.adopt(current):
                # A heartbeat or a cancel request came in between: decide anew on what stands now.
                self._waiting.append(waiting)
            case Busy():
                self._waiting.append(waiting)
            case Failure(LeaseLost() as refusal):
                waiting.held.lose()
                waiting.answered(refusal)
            case Failure(error):
                waiting.answered(error)


def _pass_on(answer: asyncio.Future[Job], told: Applied | Repeated | BaseException) -> None:
    if answer.done():
        return
    if isinstance(told, BaseException):
        answer.set_exception(told)
    else:
        answer.set_result(told.job)
