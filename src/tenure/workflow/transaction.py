"""Transactional steps: the user's SQL and the record of the step in one transaction of the run's own database."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from uuid import UUID

from tenure.errors import LeaseLost, StoreUnavailable
from tenure.jobs.message import new_message
from tenure.jobs.middleware import StepAttempt, around_step
from tenure.jobs.step_codec import Errors, error_facts, recorded_error
from tenure.lifecycle.content import step_message_id
from tenure.lifecycle.records import Job
from tenure.lifecycle.steps import StepRecord
from tenure.stores.contract import (
    EnqueueRequest,
    Failure,
    OutboxMessage,
    SaveStep,
    StepExists,
    StepSaved,
    StoreTransaction,
)
from tenure.workers.commit.commit import PreparedEnqueue
from tenure.workers.execution.outcomes import Lost, describe_error
from tenure.workers.reconnect import ReconnectBackoff
from tenure.workflow.branch import Branch
from tenure.workflow.budget import charge_cancelled
from tenure.workflow.engine import WorkflowEngine
from tenure.workflow.placed_call import Compensation, PlacedCall

R = TypeVar("R")


class StepTransaction:
    """The transaction of a transactional step. Values are `$1`, `$2`, … on every database.

    async def book(tx: tenure.StepTransaction, order: str) -> None:
        await tx.execute("insert into bookings (order_name) values ($1)", order)
        tx.outbox("booked", {"order": order}, aggregate=order)
        tx.enqueue(notify.request(order))
    """

    def __init__(self, inner: StoreTransaction, job: Job, key: str) -> None:
        self._inner, self._job, self._key = inner, job, key
        self._messages: list[OutboxMessage] = []
        self._enqueues: list[EnqueueRequest] = []

    def outbox(
        self, topic: str, body: Any, *, aggregate: str | None = None, headers: Mapping[str, str] | None = None
    ) -> UUID:
        """Send a message with the step. Its id is derived from the run and the step, so that it stays the same if the
        function is called again. Messages of one aggregate are delivered in the order of their commits."""
        id_ = step_message_id(self._job.id, self._key, len(self._messages))
        self._messages.append(new_message(topic, body, aggregate=aggregate, headers=headers, id=id_))
        return id_

    def enqueue(self, prepared: PreparedEnqueue) -> UUID:
        """Enqueue a call with the step: `tx.enqueue(send.request("ada"))`. Returns the id of the job, which is no child
        of the run."""
        self._enqueues.append(prepared.enqueue)
        return prepared.enqueue.origin.id

    async def write(self) -> None:
        """Write the jobs and messages, before the record of the step."""
        if self._enqueues:
            await self._inner.enqueue(self._enqueues)
        if self._messages:
            await self._inner.post_with_step(self._job, self._messages)

    async def execute(self, sql: str, *values: Any) -> int:
        """Run one statement. Returns the number of affected rows."""
        return await self._inner.execute(sql, *values)

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of one query, by column name."""
        return await self._inner.fetch(sql, *values)


async def post_message(
    transaction: StepTransaction, topic: str, body: Any, aggregate: str | None, headers: Mapping[str, str] | None
) -> UUID:
    """The transaction of `run.outbox`."""
    return transaction.outbox(topic, body, aggregate=aggregate, headers=headers)


class _Recorded(Exception):
    """Rolls the transaction back: this step was recorded before, when the reply to its COMMIT was lost."""

    def __init__(self, record: StepRecord) -> None:
        super().__init__()
        self.record = record


class TransactionStep(Generic[R]):
    """One call of a transactional step."""

    def __init__(
        self,
        engine: WorkflowEngine,
        branch: Branch,
        call: PlacedCall,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        errors: Errors,
        compensation: Compensation | None = None,
        spend_max: Mapping[str, int] | None = None,
    ) -> None:
        self._engine, self._branch, self._call, self._function = engine, branch, call, function
        self._args, self._kwargs, self._errors = args, kwargs, errors
        self._compensation, self._spend_max = compensation, spend_max
        self._committing = False

    async def result(self) -> R:
        """The result, or the error that the step ended with."""
        self._engine.require_open()
        record = self._engine.recorded(self._call)
        if record is None:
            record = await self._execute()
        self._branch.completed(record.finished_at)
        step = f"{record.name} ({record.key})"
        if record.status == "succeeded" and record.result is not None:
            result: R = self._engine.decode(record, self._function)
            self._engine.register(record, self._compensation, result)
            return result
        raise recorded_error(record.error or "{}", self._errors, step=step)

    async def _execute(self) -> StepRecord:
        engine = self._engine
        await engine.require_allowed(self._call, self._args, self._kwargs)
        await engine.begin_execution(self._call, self._spend_max)
        try:
            return await self._commit()
        except (LeaseLost, StoreUnavailable):
            engine.end_here(Lost())
        except asyncio.CancelledError:
            if not self._committing:
                await charge_cancelled(engine, self._call, {})
            raise
        except Exception as error:  # noqa: BLE001 - whatever the function raises is the step's outcome
            described = error_facts(error, describe_error(error), self._errors)
            return await engine.save_spend(self._call.step(status="failed", error=described), self._call, {})
        finally:
            engine.end_execution()

    async def _commit(self) -> StepRecord:
        """Run the function and commit. If the reply to a COMMIT is lost, the next try finds the record."""
        engine = self._engine
        backoff = ReconnectBackoff(engine.services.seams)
        while True:
            try:
                return await self._try_uninterrupted()
            except _Recorded as before:
                self._count(before.record)
                return engine.adopt(before.record)
            except StoreUnavailable as error:
                if error.where != engine.attempt.database or engine.attempt.lease.lost:
                    raise
                await backoff.wait()

    async def _try_uninterrupted(self) -> StepRecord:
        """A cancellation rolls the transaction back, but does not interrupt its COMMIT, whose outcome would be unknown.
        The outcome of the attempt is recorded after it."""
        self._committing = False
        attempt = self._engine.attempt
        trying = attempt.services.seams.spawn.task(self._try(), name="tenure-step-transaction")
        attempt.unfinished_writes.add(trying)
        trying.add_done_callback(attempt.unfinished_writes.discard)
        try:
            return await asyncio.shield(trying)
        except asyncio.CancelledError:
            if self._committing:
                self._engine.save_cut_off = True
            else:
                trying.cancel()
            raise

    async def _try(self) -> StepRecord:
        attempt = self._engine.attempt
        limit_seconds = attempt.committer.limit_seconds_for(None)
        async with attempt.services.run_store.transaction(deadline_seconds=limit_seconds) as inner:
            transaction = StepTransaction(inner, attempt.job, self._call.place.key)
            with around_step(attempt.services.middleware, StepAttempt(key=self._call.place.key, name=self._call.name)):
                function = attempt.services.stub_of(self._function) or self._function
                value = function(transaction, *self._args, **self._kwargs)
                value = await value if inspect.isawaitable(value) else value
            await transaction.write()
            step = self._call.step(
                result=self._engine.encode(value, self._call.name),
                code_version=attempt.services.code_version,
                undo=None if self._compensation is None else self._compensation.recorded,
            )
            step, charge = self._engine.meter.charged(step, self._call.place.key, self._call.spend)
            outcome = await inner.save_step(SaveStep(attempt.job, step, attempt.lease.actor, charge))
            match outcome:
                case StepSaved(saved):
                    record = saved
                case StepExists(existing):
                    raise _Recorded(existing)
                case Failure(error):
                    raise error
                case _:
                    raise StoreUnavailable("the job's row is locked", where=attempt.database)
            self._committing = True
        self._count(record)
        return self._engine.adopt(record)

    def _count(self, record: StepRecord) -> None:
        lease = self._engine.attempt.lease
        if lease.steps is not None:
            lease.steps = lease.steps.plus(record.digest)
