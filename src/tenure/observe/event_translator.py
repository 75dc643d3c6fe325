"""Translates events of the log as they are read, in the words of other systems."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from uuid import UUID

from tenure.lifecycle.records import Event, Origin
from tenure.lifecycle.statuses import TERMINAL
from tenure.stores.contract import ReadStore
from tenure.vocabularies import JobHistory, TranslatedEvent, Vocabulary, translate

JOBS_CACHED_MAX = 1000


class EventTranslator:
    """Translates events of the log one by one. Translations need the job's earlier events, so it caches the logs of
    recent jobs and reads the others."""

    def __init__(self, store: ReadStore, chosen: Sequence[Vocabulary]) -> None:
        self._store, self._chosen = store, chosen
        self._cache: OrderedDict[UUID, JobHistory] = OrderedDict()

    async def translate(self, event: Event) -> list[TranslatedEvent]:
        return translate(self._chosen, await self._history(event))

    async def _history(self, event: Event) -> JobHistory:
        history = self._cache.pop(event.job_id, None)
        if history is not None and history.event.rev + 1 == event.rev:
            history = history.followed_by(event)
        else:
            history = JobHistory.of(*await self._read(event))
        if event.to_status not in TERMINAL:
            self._cache[event.job_id] = history
        if len(self._cache) > JOBS_CACHED_MAX:
            self._cache.popitem(last=False)
        return history

    async def _read(self, event: Event) -> tuple[Origin | None, list[Event]]:
        """The job's origin and its events up to this one; only this one where retention has removed the job."""
        job = (await self._store.read([event.job_id])).get(event.job_id)
        log = [] if event.rev == 1 else (await self._store.history([event.job_id]))[event.job_id]
        return None if job is None else job.origin, [*(one for one in log if one.rev < event.rev), event]
