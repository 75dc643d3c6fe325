"""A store that records requests and results in a history. It changes neither."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, cast

from tenure.errors import StoreUnavailable, TenureError
from tenure.lifecycle.records import Job
from tenure.stores.contract import (
    Applied,
    Busy,
    ClaimRequest,
    EnqueueRequest,
    EnqueueResult,
    Failure,
    Outcome,
    Request,
    Store,
    StoreTransaction,
)
from tenure.testing.history.records import Call, History

Now = Callable[[], datetime]
Settle = Callable[[], None]


def recorded(store: Store, history: History, *, now: Now) -> Store:
    """The same store, with its enqueues, claims and changes recorded in the history, dated by `now`."""
    # Everything else is delegated by name, which a type checker cannot see.
    return cast("Store", _Recorded(store, history, now))


class _Recorded:
    def __init__(self, store: Store, history: History, now: Now) -> None:
        self._store, self._history, self._now = store, history, now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, after: Awaitable[object] | None = None
    ) -> Sequence[EnqueueResult]:
        if after is not None:
            await after
        calls = self.invoke_adds(requests)
        with _answering(calls):
            added = await self._store.enqueue(requests)
        for call, one in zip(calls, added, strict=True):
            call.ok(one.job.id, created=one.created)
        return added

    async def claim(self, request: ClaimRequest) -> list[Job]:
        op = "claim+start" if request.start else "claim"
        call = self._history.invoke(op, request.request_id, None, self._now())
        with _answering([call]):
            jobs = await self._store.claim(request)
        call.ok(*(job.id for job in jobs))
        return jobs

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]:
        calls = [self.invoke(request) for request in requests]
        with _answering(calls):
            outcomes = await self._store.apply(requests)
        for call, outcome in zip(calls, outcomes, strict=True):
            _settle(call, outcome)
        return outcomes

    @asynccontextmanager
    async def transaction(self, *, deadline_seconds: float) -> AsyncIterator[StoreTransaction]:
        """Requests inside get their result at the end of the transaction."""
        block = _RecordedBlock(self)
        try:
            async with self._store.transaction(deadline_seconds=deadline_seconds) as tx:
                try:
                    yield cast("StoreTransaction", block.around(tx))
                except BaseException:
                    block.refuse("rolled back")
                    raise
        except BaseException as error:
            _answer(block.calls(), error)
            raise
        block.settle()

    def invoke(self, request: Request) -> Call:
        op = "+".join(operation.type for operation in request.operations)
        return self._history.invoke(op, request.request_id, request.job_id, self._now())

    def invoke_adds(self, requests: Iterable[EnqueueRequest]) -> list[Call]:
        at = self._now()
        return [self._history.invoke("enqueue", one.request_id, one.origin.id, at) for one in requests]


class _RecordedBlock:
    """One transaction. Its results are final only at its end."""

    def __init__(self, outer: _Recorded) -> None:
        self._outer = outer
        self._tx: StoreTransaction | None = None
        self._promised: list[tuple[Call, Settle]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def around(self, tx: StoreTransaction) -> _RecordedBlock:
        self._tx = tx
        return self

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        calls = self._outer.invoke_adds(requests)
        added: list[EnqueueResult] = await self._recorded_call(calls, lambda tx: tx.enqueue(requests))
        for call, one in zip(calls, added, strict=True):
            self._promised.append((call, _ok(call, one)))
        return added

    async def apply(self, request: Request) -> Outcome:
        call = self._outer.invoke(request)
        outcome: Outcome = await self._recorded_call([call], lambda tx: tx.apply(request))
        self._promised.append((call, lambda: _settle(call, outcome)))
        return outcome

    async def _recorded_call(self, calls: list[Call], ask: Callable[[StoreTransaction], Awaitable[Any]]) -> Any:
        assert self._tx is not None, "a block is used only inside its transaction"
        with _answering(calls):
            return await ask(self._tx)

    def calls(self) -> list[Call]:
        calls = [call for call, _ in self._promised]
        self._promised = []
        return calls

    def refuse(self, why: str) -> None:
        for call in self.calls():
            call.failed(why)

    def settle(self) -> None:
        for _, settle in self._promised:
            settle()


def _ok(call: Call, added: EnqueueResult) -> Settle:
    return lambda: call.ok(added.job.id, created=added.created)


def _settle(call: Call, outcome: Outcome) -> None:
    if isinstance(outcome, Failure):
        _answer([call], outcome.error)
    elif isinstance(outcome, Applied):
        job = outcome.job
        call.ok(job.id, rev=job.rev, status=job.status)
    elif isinstance(outcome, Busy):
        call.failed("Busy")
    else:
        call.ok(outcome.job.id)


@contextmanager
def _answering(calls: Sequence[Call]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        _answer(calls, error)
        raise


def _answer(calls: Iterable[Call], error: BaseException) -> None:
    """What an error means for the requests: errors of tenure mean that nothing was written, all others leave it
    unknown."""
    for call in calls:
        if isinstance(error, TenureError) and not isinstance(error, StoreUnavailable):
            call.failed(type(error).__name__)
        else:
            call.unknown()
