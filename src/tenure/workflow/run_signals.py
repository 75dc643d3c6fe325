"""The signals of a run, and which of them its calls have received."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from tenure.lifecycle.steps import StepRecord
from tenure.stores.contract import SignalRecord

if TYPE_CHECKING:
    from tenure.workflow.engine import WorkflowEngine


class RunSignals:
    """Read once, and again when a call waits for one."""

    def __init__(self, engine: WorkflowEngine, records: Iterable[StepRecord]) -> None:
        self._engine = engine
        self.seen_rev = engine.job.rev
        """The revision of the run up to which its signals were read."""
        self._signals: list[SignalRecord] | None = None
        self._consumed = {record.signal_rev for record in records if record.signal_rev is not None}

    def adopt(self, signals: list[SignalRecord], *, seen_rev: int) -> None:
        """These are the signals up to this revision, or some later ones too."""
        self._signals, self.seen_rev = signals, seen_rev

    async def read(self) -> None:
        """Read the signals, unless they were read before, or none was sent before the claim."""
        if self._signals is None and self._engine.job.signal_rev:
            await self.refresh()

    async def refresh(self) -> None:
        """Read the signals again."""
        # The revision before the read: a signal that comes after it ends the suspension at once.
        seen_rev = self._engine.job.rev
        self._signals = await self._engine.read_signals()
        self.seen_rev = max(self.seen_rev, seen_rev)

    def unread(self, signals: Sequence[SignalRecord]) -> list[SignalRecord]:
        """Those of these signals that no call has received."""
        return [signal for signal in signals if signal.rev not in self._consumed]

    def has(self, name: str) -> bool:
        return self._first_unread(name, None) is not None

    def take(self, name: str, *, until: datetime | None) -> SignalRecord | None:
        """Take the first signal of this name that came in time and that no call has taken."""
        signal = self._first_unread(name, until)
        if signal is not None:
            self._consumed.add(signal.rev)
        return signal

    def _first_unread(self, name: str, until: datetime | None) -> SignalRecord | None:
        for signal in self.unread(self._signals or ()):
            if signal.name == name and (until is None or signal.at <= until):
                return signal
        return None
