"""The commit block, as far as it is the same on every store: when it can be used, its deadline, and whether it commits
or rolls back at its end. Each store sends the statements.

After an error inside, the block accepts nothing more and is rolled back, however it is left. An error in a statement of
the user is raised as the driver raised it (`sqlite3.IntegrityError`, `asyncpg.UniqueViolationError`, …); an error of
the database itself is a `TenureError`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence, Set
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol, TypeVar
from uuid import UUID

from tenure.errors import AlreadyCommitted, DeadlinePassed, InvalidInput, StoreError
from tenure.lifecycle.content import ContentDigests, is_of_step
from tenure.lifecycle.json_text import check_seconds
from tenure.lifecycle.records import Job
from tenure.lifecycle.steps import StepRecord
from tenure.lifecycle.transitions import allowed_from
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
    SaveStep,
    StepOutcome,
    StepSaved,
    digest_artifacts,
    digest_messages,
    wakeups_of,
    with_digests,
    without_token,
)
from tenure.stores.contract.outbox import OUTBOX_WAKEUP
from tenure.stores.validation import (
    validate_artifacts,
    validate_enqueue,
    validate_message,
    validate_request,
    validate_sql,
    validate_step,
)

T = TypeVar("T")

_open_blocks: ContextVar[tuple[BaseCommitBlock, ...]] = ContextVar("tenure_open_blocks", default=())


def require_no_open_block(store: object) -> None:
    """Refuse a call of the store that would wait for a commit block of its own caller."""
    if any(block.store is store and block.is_open for block in _open_blocks.get()):
        raise StoreError(
            "a transaction of this store is open here, and calling the store itself would wait for it; use tx instead"
        )


class WakingStore(Protocol):
    """The store of a commit block, which sends wake-ups and wakes parents after the commit."""

    def wake(self, names: Set[str]) -> None: ...

    async def wake_parents(self, requests: Sequence[Request], outcomes: Sequence[Outcome]) -> None: ...


class BaseCommitBlock(ABC):
    """One transaction and its context. Several tasks may use it, one statement at a time."""

    def __init__(self, store: WakingStore, *, deadline_seconds: float, clock: Clock) -> None:
        self.store = store
        self.deadline_seconds = check_seconds(deadline_seconds, "deadline_seconds", least=0.001)
        self.is_open = False
        self._clock = clock
        self._ends_at_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._statement_lock = asyncio.Lock()
        self._expired = False
        self._failure: BaseException | None = None
        self._messages: list[tuple[OutboxMessage, Job | None]] = []
        self._uncommitted: dict[UUID, ContentDigests] = {}
        self._committed: set[UUID] = set()
        self._queues: set[str] = set()
        self._requests: list[Request] = []
        self._outcomes: list[Outcome] = []

    # Implemented by each store. They are called one at a time; only `_abandon` may be called at any time.

    @abstractmethod
    async def _begin(self) -> None: ...

    @abstractmethod
    async def _commit(self) -> None: ...

    @abstractmethod
    async def _release(self) -> None:
        """Roll back what is not committed, and return the connection. Raises nothing."""
        ...

    @abstractmethod
    def _abandon(self) -> None:
        """Begin the rollback now, whatever runs. `_release` follows when the block is left."""
        ...

    @abstractmethod
    async def _execute(self, sql: str, values: Sequence[Any]) -> int: ...

    @abstractmethod
    async def _fetch(self, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]: ...

    @abstractmethod
    async def _enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]: ...

    @abstractmethod
    async def _post(self, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None: ...

    @abstractmethod
    async def _attach(self, job: Job, artifacts: Sequence[Artifact]) -> Job:
        """Returns the current record. The given record must have its lease."""
        ...

    @abstractmethod
    async def _apply(self, request: Request) -> Outcome: ...

    @abstractmethod
    async def _save_step(self, request: SaveStep) -> StepOutcome: ...

    @abstractmethod
    async def _write_steps(self, job: Job, steps: Sequence[StepRecord]) -> int:
        """Returns how many were written: all, or none if the job is not at its first revision."""
        ...

    # The transaction.

    async def execute(self, sql: str, *values: Any) -> int:
        """Run one statement of the user. Returns the number of affected rows."""
        return await self._run(lambda: self._execute(validate_sql(sql), values))

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of one query of the user, by column name."""
        return await self._run(lambda: self._fetch(validate_sql(sql), values))

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        """The results of these requests, as the store's own `enqueue` returns them."""

        async def add() -> list[EnqueueResult]:
            for request in requests:
                validate_enqueue(request)
            added = await self._enqueue(requests) if requests else []
            self._queues.update(one.job.queue for one in added if one.created)
            return added

        return await self._run(add)

    async def post(self, messages: Sequence[OutboxMessage], *, job: Job | None = None) -> None:
        """Add messages to the outbox. They are written right before the commit, and numbered with it.

        Those of a job are written with its commit, which must follow in this transaction.
        """

        async def keep() -> None:
            for message in messages:
                validate_message(message)
            if job is not None and messages:
                self._digests_of(job, "post").messages += digest_messages(messages)
            self._messages += [(message, job) for message in messages]

        await self._run(keep)

    async def attach(self, job: Job, artifacts: Sequence[Artifact]) -> None:
        """Store artifacts of this attempt. InvalidInput: the job has an artifact of this name.

        The job's commit must follow in this transaction. So no job that is cancelled or retried has any.
        """

        async def attach() -> None:
            validate_artifacts(artifacts)
            if artifacts:
                digests = self._digests_of(await self._attach(job, artifacts), "attach")
                digests.artifacts += digest_artifacts(artifacts, attempt=job.attempt)

        await self._run(attach)

    async def apply(self, request: Request) -> Outcome:
        """Change one job, under the same guards and with the same results as the store's own `apply`. A commit carries
        the digests of the artifacts and messages that this transaction writes with it."""

        async def apply() -> Outcome:
            validate_request(request)
            outcome = await self._apply(with_digests(request, self._uncommitted.get(request.job_id)))
            self._requests.append(request)
            self._outcomes.append(outcome)
            if isinstance(outcome, Applied) and any(step.commits for step in outcome.change.planned):
                self._uncommitted.pop(request.job_id, None)
                self._committed.add(request.job_id)
            if isinstance(outcome, Failure) and isinstance(outcome.error, StoreError):
                # A row that cannot be written: PostgreSQL has aborted the transaction, so every store does.
                self._failure = outcome.error
            return outcome

        return await self._run(apply)

    async def save_step(self, request: SaveStep) -> StepOutcome:
        """Save one step, as the last statement of this transaction. If it was not saved, for example because the job
        has recorded this key before, the transaction can only be rolled back."""

        async def save() -> StepOutcome:
            validate_step(request)
            outcome = await self._save_step(request)
            if not isinstance(outcome, StepSaved):
                self._failure = StoreError(f"step {request.step.key!r} of job {request.job.id} was not saved")
            return outcome

        return await self._run(save)

    async def post_with_step(self, job: Job, messages: Sequence[OutboxMessage]) -> None:
        """Add messages of a job that are written with the step that this transaction saves. Their ids are those of
        `step_message_id`, so that they are not counted among the messages of its commit."""

        async def keep() -> None:
            for message in messages:
                validate_message(message)
                if not is_of_step(message.id):
                    raise InvalidInput("id", f"{message.id} is not the id of a step's message; use `step_message_id`")
            self._messages += [(message, job) for message in messages]

        await self._run(keep)

    async def write_steps(self, job: Job, steps: Sequence[StepRecord]) -> None:
        """Write copies of steps for a job that this transaction has enqueued. InvalidInput: it is not new."""

        async def write() -> None:
            if any(step.job_id != job.id for step in steps):
                raise InvalidInput("steps", f"are not all of job {job.id}")
            if steps and await self._write_steps(job, steps) != len(steps):
                raise InvalidInput("job", f"{job.id} was not enqueued by this transaction")

        await self._run(write)

    def _digests_of(self, job: Job, asked: str) -> ContentDigests:
        """The digests that the job's commit will carry; AlreadyCommitted if its event is written."""
        if job.committed or job.id in self._committed:
            allowed = allowed_from(job.status, committed=True)
            why = "artifacts and messages are written with the commit, whose event has their digests"
            raise AlreadyCommitted(without_token(job), asked, allowed=allowed, why=why)
        return self._uncommitted.setdefault(job.id, ContentDigests())

    async def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run one statement after the other. After the first error, the block accepts no more."""
        async with self._statement_lock:
            self._require_usable()
            try:
                return await work()
            except BaseException as error:
                if self._expired:
                    raise self._deadline_passed() from error
                self._failure = error
                raise

    def _require_usable(self) -> None:
        self._check_deadline()
        if self._expired:
            raise self._deadline_passed()
        if not self.is_open:
            raise StoreError("this transaction has ended; open another one")
        if self._failure is not None:
            raise self._failed_before()

    # The context.

    async def __aenter__(self) -> BaseCommitBlock:
        require_no_open_block(self.store)
        await self._begin()
        self.is_open = True
        self._ends_at_seconds = self._clock.monotonic_seconds() + self.deadline_seconds
        self._timer = asyncio.get_running_loop().call_later(self.deadline_seconds, self.expire)
        _open_blocks.set((*_open_blocks.get(), self))
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        _open_blocks.set(tuple(block for block in _open_blocks.get() if block is not self))
        try:
            if error is None:
                async with self._statement_lock:
                    await self._commit_or_raise()
        finally:
            self.is_open = False
            if self._timer is not None:
                self._timer.cancel()
            if self._statement_lock.locked():
                # Another task is in the middle of a statement, which is rolled back.
                self._abandon()
            await self._release()
        if error is None:
            names = self._queues | wakeups_of(self._outcomes)
            if self._messages:
                names.add(OUTBOX_WAKEUP)
            if names:
                self.store.wake(names)
            await self.store.wake_parents(self._requests, self._outcomes)

    async def _commit_or_raise(self) -> None:
        """Commit, or raise why nothing was committed."""
        try:
            self._require_usable()
            if self._uncommitted:
                which = min(self._uncommitted, key=str)
                what = "artifact" if self._uncommitted[which].artifacts else "message"
                raise InvalidInput(
                    what, f"job {which} was given {what}s and no commit; commit it in the same transaction"
                )
            if self._messages:
                await self._post(self._messages)
            self._require_usable()
            if self._timer is not None:
                # From here on the database decides: an interruption would leave the outcome unknown.
                self._timer.cancel()
            await self._commit()
        except BaseException as problem:
            if self._expired and not isinstance(problem, DeadlinePassed):
                raise self._deadline_passed() from problem
            raise

    # The deadline.

    @property
    def seconds_left(self) -> float:
        return self._ends_at_seconds - self._clock.monotonic_seconds()

    def expire(self) -> None:
        """The deadline has passed: roll back at once, whatever runs."""
        if self.is_open and not self._expired:
            self._expired = True
            self._abandon()

    def _check_deadline(self) -> None:
        if self.is_open and self.seconds_left <= 0:
            self.expire()

    def _deadline_passed(self) -> DeadlinePassed:
        return DeadlinePassed(
            f"the transaction was open for more than its {self.deadline_seconds:.3g} s: the deadline passed, and "
            f"everything in it was rolled back; do slow work before it, not inside"
        )

    def _failed_before(self) -> StoreError:
        error = StoreError(
            f"nothing of this transaction is kept, because something in it failed before: {self._failure!r}; "
            f"let that error end the block, and try again in a new one"
        )
        error.__cause__ = self._failure
        return error
