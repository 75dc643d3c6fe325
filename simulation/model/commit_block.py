"""A transaction of the model: it works on a copy, which replaces the model's content at the end.

If the model has changed meanwhile, all requests are applied again to the current content. The model has no SQL, so
statements are refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.errors import StoreError
from tenure.lifecycle.records import Job
from tenure.lifecycle.steps import StepRecord
from tenure.seams import SYSTEM
from tenure.stores.commit_block import BaseCommitBlock
from tenure.stores.contract import (
    Artifact,
    EnqueueRequest,
    EnqueueResult,
    OutboxMessage,
    Outcome,
    Request,
    SaveStep,
    StepOutcome,
)

if TYPE_CHECKING:
    from simulation.model.store import ModelStore

T = TypeVar("T")


class ModelCommitBlock(BaseCommitBlock):
    """Buffers its requests, and applies them on exit."""

    def __init__(self, model: ModelStore, *, deadline_seconds: float) -> None:
        # The model's clock is manual; a deadline needs a clock that runs.
        super().__init__(model, deadline_seconds=deadline_seconds, clock=SYSTEM.clock)
        self._model = model
        self._before = self._copy = model.copy()
        self._asked: list[tuple[Callable[[ModelStore], Awaitable[object]], object]] = []

    async def _begin(self) -> None:
        self._before, self._copy = self._model.copy(), self._model.copy()

    async def _commit(self) -> None:
        await self._catch_up()
        self._model.become(self._copy)

    async def _catch_up(self) -> None:
        """If the model has changed meanwhile, apply all requests again to the current content."""
        if self._model.is_like(self._before):
            return
        self._before, self._copy = self._model.copy(), self._model.copy()
        for ask, answer in self._asked:
            if type(await ask(self._copy)) is not type(answer):
                raise StoreError("another transaction changed what this one has read; try again")

    async def _release(self) -> None:
        self._asked = []

    def _abandon(self) -> None:
        self._copy = self._before

    async def _execute(self, sql: str, values: Sequence[Any]) -> int:
        raise StoreError("the model has no SQL; use a real store for statements of your own")

    async def _fetch(self, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        raise StoreError("the model has no SQL; use a real store for statements of your own")

    async def _enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        return await self._call(lambda model: model.enqueue(requests))

    async def _apply(self, request: Request) -> Outcome:
        async def apply(model: ModelStore) -> Outcome:
            [outcome] = await model.apply_only([request])
            return outcome

        return await self._call(apply)

    async def _save_step(self, request: SaveStep) -> StepOutcome:
        async def save(model: ModelStore) -> StepOutcome:
            [outcome] = await model.save_steps([request])
            return outcome

        return await self._call(save)

    async def _write_steps(self, job: Job, steps: Sequence[StepRecord]) -> int:
        return await self._call(lambda model: model.write_copies(job.id, steps))

    async def _post(self, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None:
        await self._call(lambda model: model.post(messages))

    async def _attach(self, job: Job, artifacts: Sequence[Artifact]) -> Job:
        return await self._call(lambda model: model.attach(job, artifacts))

    async def _call(self, ask: Callable[[ModelStore], Awaitable[T]]) -> T:
        """As in a database where each statement sees what others have committed."""
        await self._catch_up()
        answer = await ask(self._copy)
        self._asked.append((ask, answer))
        return answer
