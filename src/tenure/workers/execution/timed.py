"""Measures how long functions run, for a worker whose metrics are wanted; one whose are not does not come here."""

from __future__ import annotations

from tenure.observe.meter import Meter
from tenure.seams import Clock
from tenure.workers.execution.attempt import AttemptRun
from tenure.workers.execution.executors import Executor
from tenure.workers.execution.outcomes import Outcome


class Timed:
    """The same isolation, with a look at the clock before and after. An attempt that is interrupted counts too."""

    def __init__(self, inner: Executor, meter: Meter, clock: Clock) -> None:
        self._inner, self._meter, self._monotonic_seconds = inner, meter, clock.monotonic_seconds

    async def outcome(self, run: AttemptRun) -> Outcome:
        began_at_seconds = self._monotonic_seconds()
        try:
            return await self._inner.outcome(run)
        finally:
            self._meter.ran(run.held.job.origin.kind, self._monotonic_seconds() - began_at_seconds)

    async def close(self) -> None:
        await self._inner.close()
