"""A transaction of the caller's own, as far as it is the same on every store: when it may be used, when its time is up,
and what becomes of it when it is left. How statements reach the database is each store's own.

Whatever fails inside spoils the whole: nothing more is taken, and nothing of it is kept, however it is left. An error
in the caller's own statement reaches the caller as the driver raised it (`sqlite3.IntegrityError`,
`asyncpg.UniqueViolationError`, …); what is wrong with the database itself is one of our own errors.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence, Set
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol, TypeVar
from uuid import UUID

from tenure.errors import DeadlinePassed, InvalidInput, StoreError
from tenure.lifecycle.json_text import check_seconds
from tenure.lifecycle.records import Job
from tenure.seams import Clock
from tenure.stores.contract import (
    Applied,
    Artifact,
    EnqueueRequest,
    EnqueueResult,
    Failure,
    OutboxMessage,
    Outcome,
    Request,
    wakeups_of,
)
from tenure.stores.validation import (
    validate_artifacts,
    validate_enqueue,
    validate_message,
    validate_request,
    validate_sql,
)

T = TypeVar("T")

_open_here: ContextVar[tuple[BaseCommitBlock, ...]] = ContextVar("tenure_open_blocks", default=())


def require_outside(store: object) -> None:
    """Refuse a call that would wait for a transaction of its own caller."""
    if any(block.store is store and block.is_open for block in _open_here.get()):
        raise StoreError(
            "a transaction of this store is open here, and calling the store itself would wait for it; use tx instead"
        )


class BlockedStore(Protocol):
    """The store whose commit block is open."""

    def wake(self, names: Set[str]) -> None: ...


class BaseCommitBlock(ABC):
    """The context of one transaction, and the transaction itself. One task after the other may use it."""

    def __init__(self, store: BlockedStore, *, deadline_seconds: float, clock: Clock) -> None:
        self.store = store
        self.deadline_seconds = check_seconds(deadline_seconds, "deadline_seconds", least=0.001)
        self.is_open = False
        self._clock = clock
        self._ends_at_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._one_at_a_time = asyncio.Lock()
        self._late = False
        self._spoilt_by: BaseException | None = None
        self._messages: list[tuple[OutboxMessage, Job | None]] = []
        self._to_be_committed: set[UUID] = set()
        self._queues: set[str] = set()
        self._outcomes: list[Outcome] = []

    # What each store does in its own way. None of these is called by two at once, but `_abandon` at any time.

    @abstractmethod
    async def _begin(self) -> None: ...

    @abstractmethod
    async def _commit(self) -> None: ...

    @abstractmethod
    async def _let_go(self) -> None:
        """Undo whatever is not committed, and give the connection back. Raises nothing."""
        ...

    @abstractmethod
    def _abandon(self) -> None:
        """Begin to undo everything now, whatever runs. `_let_go` follows when the block is left."""
        ...

    @abstractmethod
    async def _execute(self, sql: str, values: Sequence[Any]) -> int: ...

    @abstractmethod
    async def _fetch(self, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]: ...

    @abstractmethod
    async def _add(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]: ...

    @abstractmethod
    async def _post(self, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None: ...

    @abstractmethod
    async def _attach(self, job: Job, artifacts: Sequence[Artifact]) -> Job:
        """The job as it stands, whose lease the given record must have."""
        ...

    @abstractmethod
    async def _perform(self, request: Request) -> Outcome: ...

    # The transaction.

    async def execute(self, sql: str, *values: Any) -> int:
        """Run one statement of the caller's. How many rows it touched."""
        return await self._step(lambda: self._execute(validate_sql(sql), values))

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of one query of the caller's, by column name."""
        return await self._step(lambda: self._fetch(validate_sql(sql), values))

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        """The jobs that these requests led to, as the store's own `add` would answer."""

        async def add() -> list[EnqueueResult]:
            for request in requests:
                validate_enqueue(request)
            added = await self._add(requests) if requests else []
            self._queues.update(one.job.queue for one in added if one.created)
            return added

        return await self._step(add)

    async def post(self, messages: Sequence[OutboxMessage], *, job: Job | None = None) -> None:
        """Put messages into the outbox. They are written right before the commit, all at once and by aggregate, so
        that blocks neither hold each other up for long nor wait for each other in a circle."""

        async def keep() -> None:
            for message in messages:
                validate_message(message)
            self._messages += [(message, job) for message in messages]

        await self._step(keep)

    async def attach(self, job: Job, artifacts: Sequence[Artifact]) -> None:
        """Keep artifacts of this attempt. A name that the job has used before is InvalidInput.

        They are kept with the job's commit: a transaction that ends without it keeps nothing. So no job that is
        cancelled, or tried again, has any.
        """

        async def attach() -> None:
            validate_artifacts(artifacts)
            if artifacts and not (await self._attach(job, artifacts)).committed:
                self._to_be_committed.add(job.id)

        await self._step(attach)

    async def apply(self, request: Request) -> Outcome:
        """Change one job, under the same guards and with the same answers as the store's own `apply`."""

        async def apply() -> Outcome:
            validate_request(request)
            outcome = await self._perform(request)
            self._outcomes.append(outcome)
            if isinstance(outcome, Applied) and any(step.commits for step in outcome.change.planned):
                self._to_be_committed.discard(request.job_id)
            if isinstance(outcome, Failure) and isinstance(outcome.error, StoreError):
                # A row that cannot be written: on PostgreSQL that has spoilt the transaction, so it does everywhere.
                self._spoilt_by = outcome.error
            return outcome

        return await self._step(apply)

    async def _step(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do one thing after the other; the first error spoils the rest."""
        async with self._one_at_a_time:
            self._require_usable()
            try:
                return await work()
            except BaseException as error:
                if self._late:
                    raise self._too_late() from error
                self._spoilt_by = error
                raise

    def _require_usable(self) -> None:
        self._look_at_the_clock()
        if self._late:
            raise self._too_late()
        if not self.is_open:
            raise StoreError("this transaction has ended; open another one")
        if self._spoilt_by is not None:
            raise self._spoilt()

    # The context.

    async def __aenter__(self) -> BaseCommitBlock:
        require_outside(self.store)
        await self._begin()
        self.is_open = True
        self._ends_at_seconds = self._clock.monotonic_seconds() + self.deadline_seconds
        self._timer = asyncio.get_running_loop().call_later(self.deadline_seconds, self.expire)
        _open_here.set((*_open_here.get(), self))
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        _open_here.set(tuple(block for block in _open_here.get() if block is not self))
        try:
            if error is None:
                async with self._one_at_a_time:
                    await self._leave()
        finally:
            self.is_open = False
            if self._timer is not None:
                self._timer.cancel()
            if self._one_at_a_time.locked():
                # Another task is in the middle of something that nobody will keep.
                self._abandon()
            await self._let_go()
        if error is None and (names := self._queues | wakeups_of(self._outcomes)):
            self.store.wake(names)

    async def _leave(self) -> None:
        """Commit, or say why nothing was kept."""
        try:
            self._require_usable()
            if self._to_be_committed:
                which = min(self._to_be_committed, key=str)
                raise InvalidInput(
                    "artifact", f"job {which} was given artifacts and no commit; commit it in the same transaction"
                )
            if self._messages:
                await self._post(sorted(self._messages, key=lambda posted: posted[0].aggregate))
            self._require_usable()
            if self._timer is not None:
                # From here on the database decides: an interruption would leave the outcome unknown.
                self._timer.cancel()
            await self._commit()
        except BaseException as problem:
            if self._late and not isinstance(problem, DeadlinePassed):
                raise self._too_late() from problem
            raise

    # Its time.

    @property
    def seconds_left(self) -> float:
        return self._ends_at_seconds - self._clock.monotonic_seconds()

    def expire(self) -> None:
        """The time is up: undo everything at once, whoever waits for whatever."""
        if self.is_open and not self._late:
            self._late = True
            self._abandon()

    def _look_at_the_clock(self) -> None:
        if self.is_open and self.seconds_left <= 0:
            self.expire()

    def _too_late(self) -> DeadlinePassed:
        return DeadlinePassed(
            f"the transaction was open for more than its {self.deadline_seconds:.3g} s: the deadline passed, and "
            f"everything in it was rolled back; do slow work before it, not inside"
        )

    def _spoilt(self) -> StoreError:
        error = StoreError(
            f"nothing of this transaction is kept, because something in it failed before: {self._spoilt_by!r}; "
            f"let that error end the block, and try again in a new one"
        )
        error.__cause__ = self._spoilt_by
        return error
