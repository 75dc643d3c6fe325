"""Recording what jobs came to, in batches: whatever is ready goes in one statement.

A request is sent again under the same id until it is answered, also over an outage of the database: the log knows
whether it was applied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tenure.errors import LeaseLost, RevisionConflict, StoreError, StoreUnavailable
from tenure.lifecycle.operations import Operation
from tenure.lifecycle.records import Job
from tenure.seams import Seams
from tenure.stores.contract import Applied, Busy, Failure, Outcome, Performs, Repeated, Request
from tenure.workers.held import Held
from tenure.workers.outages import Outage

BATCH_MAX = 500
CLOSE_SECONDS_MAX = 2.0

log = logging.getLogger("tenure.workers")

Decide = Callable[[Job], Operation]
"""What to ask for, given the record as it stands: asked again after somebody else has changed it."""


class _Waiting:
    def __init__(self, held: Held, decide: Decide, request_id: str) -> None:
        self.held, self.decide, self.request_id = held, decide, request_id
        self.answer: asyncio.Future[Job] = asyncio.get_running_loop().create_future()

    def request(self) -> Request | None:
        """What to send; None where it cannot be decided, which whoever waits is told."""
        try:
            operation = self.decide(self.held.job)
        except Exception as error:  # noqa: BLE001 - one that cannot be decided must not keep the others waiting
            self.fail(error)
            return None
        return self.held.request(operation, self.request_id)

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def succeed(self, job: Job) -> None:
        if not self.answer.done():
            self.answer.set_result(job)


class Settler:
    """Applies owners' operations, many at a time. Many callers wait; one task writes."""

    def __init__(self, store: Performs, seams: Seams) -> None:
        self._store, self._seams = store, seams
        self._outage = Outage(seams)
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    async def settle(self, held: Held, verb: str, decide: Decide) -> Job:
        """The record once the operation is written. Raises what the store refused it for."""
        if self._closed:
            raise StoreError(f"the worker has stopped, so that nothing more of job {held.job.id} is recorded")
        waiting = _Waiting(held, decide, held.request_id(verb))
        self._waiting.append(waiting)
        if self._writing is None or self._writing.done():
            self._writing = self._seams.spawn.task(self._write(), name="tenure-settler")
        return await waiting.answer

    async def close(self) -> None:
        """Give up on what could not be written; recovery will find it."""
        self._closed = True
        if self._writing is not None and not self._writing.done():
            self._writing.cancel()
            await asyncio.wait([self._writing], timeout=CLOSE_SECONDS_MAX)
        for waiting in self._waiting:
            waiting.fail(asyncio.CancelledError())
        self._waiting = []

    async def _write(self) -> None:
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
                    waiting.fail(error if isinstance(error, Exception) else asyncio.CancelledError())
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
                if outcome.job.held:
                    waiting.held.adopt(outcome.job)
                waiting.succeed(outcome.job)
            case Failure(RevisionConflict(current=Job() as current)) if waiting.held.adopt(current):
                # A heartbeat or a cancel request came in between: decide anew on what stands now.
                self._waiting.append(waiting)
            case Busy():
                self._waiting.append(waiting)
            case Failure(LeaseLost() as refusal):
                waiting.held.lose()
                waiting.fail(refusal)
            case Failure(error):
                waiting.fail(error)
