"""The totals of many runs, and which faults had no effect in any of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from simulation.cluster import Result
from simulation.faults import Fault

SOMETIMES = (
    "crashed while holding jobs",
    "crashed inside a commit",
    "commit refused",
    "paused past a lease",
    "enqueue repeated",
    "enqueues written together",
    "signals written together",
    "reconciled",
    "request answered from the log",
    "lease lost",
    "conflict decided anew",
    "stalled",
    "released",
    "cancelled",
    "dead_lettered",
    "schedule fired",
    "fired by another scheduler",
    "missed times made up for",
    "limit reached",
    "queue paused",
    "row locked",
    "claim waited too long",
    "job pruned",
    "detail blanked",
    "suspended",
    "wake-up met a running job",
    "parent woken",
    "lost wake recovered",
    "run forked",
    "run succeeded",
    "run failed",
    "run cancelled",
    "step executed in two attempts",
    "step undone",
    "signal in time",
    "wait timed out",
    "crashed while delivering",
    "lease of a stream lost",
    "reply of a receiver lost",
    "message delivered again",
    "transaction with messages lost",
    "job of an engine succeeded",
    "socket of an engine was cut",
    "socket of an engine fell silent",
    "run parked",
    "run unpinned",
    "pinned run continued",
    "run of several versions",
    "gateway crashed",
    "engine crashed",
)
"""What must have happened in at least one run; otherwise the runs prove nothing about that fault."""


class Tally:
    """The totals of many results."""

    def __init__(self) -> None:
        self.runs = 0
        self.operations = 0
        self.faults: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.failed: list[Result] = []
        self.least: dict[str, int] = {}
        """The fewest jobs, requests and faults that any one run had."""
        self._without: set[Fault] = set()

    def add(self, result: Result) -> None:
        self.runs += 1
        self.operations += result.operations
        self.faults.update(result.faults)
        self.seen.update(result.seen)
        sizes = {"jobs": result.jobs, "operations": result.operations, "faults": sum(result.faults.values())}
        self.least = {what: min(many, self.least.get(what, many)) for what, many in sizes.items()}
        self._without.update(result.options.without)
        if result.problem is not None:
            self.failed.append(result)

    def missing(self) -> list[str]:
        """Faults that never happened, and effects that none of them ever had."""
        faults = [fault.value for fault in Fault if fault not in self._without and not self.faults[fault]]
        return faults + [what for what in SOMETIMES if not self.seen[what]]

    def facts(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "operations": self.operations,
            "least": self.least,
            "faults": dict(self.faults),
            "seen": dict(self.seen),
            "missing": self.missing(),
            "failed": [{"seed": result.seed, "problem": result.problem} for result in self.failed],
        }
