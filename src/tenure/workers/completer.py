"""Recording what jobs came to, in batches: whatever is ready goes in one statement.

A request is sent again under the same id until it is answered, also over an outage of the database: the log knows
whether it was applied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from tenure.errors import LeaseLost, RevisionConflict, StoreError, StoreUnavailable
from tenure.jobs.context import current_context
from tenure.lifecycle.operations import Operation
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import LEASED
from tenure.seams import Seams
from tenure.stores.contract import Applied, ApplyStore, Busy, Failure, Outcome, Repeated, Request
from tenure.workers.leases import Lease
from tenure.workers.reconnect import ReconnectBackoff

BATCH_MAX = 500
CLOSE_SECONDS_MAX = 2.0

log = logging.getLogger("tenure.workers")

Decide = Callable[[Job], Operation]
"""What to ask for, given the record as it stands: asked again after somebody else has changed it."""


class Asks(Protocol):
    """Somebody who holds a job and wants something written for it, under this request id."""

    held: Lease
    request_id: str

    def decide(self, job: Job) -> Operation:
        """What to ask for, given the record as it stands: asked again after somebody else has changed it."""
        ...

    def answered(self, answer: Applied | Repeated | BaseException) -> None:
        """Told once what was written, or what the store refused it for."""
        ...


class _Asked:
    """Somebody who waits for the answer."""

    def __init__(self, held: Lease, request_id: str, decide: Decide) -> None:
        self.held, self.request_id, self.decide = held, request_id, decide
        self.answer: asyncio.Future[Job] = asyncio.get_running_loop().create_future()

    def answered(self, answer: Applied | Repeated | BaseException) -> None:
        if self.answer.done():
            return
        if isinstance(answer, BaseException):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer.job)


def _request(asking: Asks) -> Request | None:
    """What to send; None where it cannot be decided, which whoever asks is told."""
    try:
        operation = asking.decide(asking.held.job)
    except Exception as error:  # noqa: BLE001 - one that cannot be decided must not keep the others waiting
        asking.answered(error)
        return None
    return asking.held.request(operation, asking.request_id)


class Completer:
    """Applies owners' operations, many at a time. Many callers wait; one task writes."""

    def __init__(self, store: ApplyStore, seams: Seams) -> None:
        self._store, self._seams = store, seams
        self._outage = ReconnectBackoff(seams)
        self._waiting: list[Asks] = []
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    def submit(self, asking: Asks) -> None:
        """Have the operation written with the next batch."""
        if self._closed:
            job_id = asking.held.job.id
            asking.answered(StoreError(f"the worker has stopped, so that nothing more of job {job_id} is recorded"))
            return
        self._waiting.append(asking)
        if self._writing is None or self._writing.done():
            self._writing = self._seams.spawn.task(self._write(), name="tenure-settler")

    async def settle(self, held: Lease, verb: str, decide: Decide) -> Job:
        """The record once the operation is written. Raises what the store refused it for."""
        asked = _Asked(held, held.request_id(verb), decide)
        self.submit(asked)
        return await asked.answer

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
            asked = [(waiting, request) for waiting in batch if (request := _request(waiting)) is not None]
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
                outcomes = await self._store.apply(requests)
            except StoreUnavailable as outage:
                log.warning("%d outcomes wait for the database: %s", len(requests), outage)
                await self._outage.pause()
            else:
                self._outage.over()
                return outcomes
        return []

    def _answer(self, waiting: Asks, outcome: Outcome) -> None:
        match outcome:
            case Applied() | Repeated():
                if outcome.status in LEASED:
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
