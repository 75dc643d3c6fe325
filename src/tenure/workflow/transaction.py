"""Transactional steps: the user's SQL and the record of the step in one transaction of the run's own database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from tenure.errors import LeaseLost, StoreUnavailable
from tenure.jobs.step_codec import Errors, encode_result, error_facts, recorded_error
from tenure.lifecycle.steps import StepRecord
from tenure.stores.contract import Failure, SaveStep, StepExists, StepSaved, Transaction
from tenure.workers.execution.outcomes import Lost, describe_error
from tenure.workers.reconnect import ReconnectBackoff
from tenure.workflow.branch import Branch
from tenure.workflow.budget import charge_cancelled
from tenure.workflow.engine import Compensation, PlacedCall, WorkflowEngine

R = TypeVar("R")


class StepTransaction:
    """The transaction of a transactional step. Values are `$1`, `$2`, … on every database."""

    def __init__(self, inner: Transaction) -> None:
        self._inner = inner

    async def execute(self, sql: str, *values: Any) -> int:
        """Run one statement. Returns the number of affected rows."""
        return await self._inner.execute(sql, *values)

    async def fetch(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """The rows of one query, by column name."""
        return await self._inner.fetch(sql, *values)


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
            if not self._committing:
                trying.cancel()
            raise

    async def _try(self) -> StepRecord:
        attempt = self._engine.attempt
        limit_seconds = attempt.committer.limit_seconds_for(None)
        async with attempt.services.run_store.transaction(deadline_seconds=limit_seconds) as inner:
            value = await partial(self._function, StepTransaction(inner), *self._args, **self._kwargs)()
            step = self._call.step(
                result=encode_result(value, step=self._call.name),
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
