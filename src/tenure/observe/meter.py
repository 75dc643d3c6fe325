"""Counters and histograms of one thread. This is on the hot path: integers and lists only.

The process that makes a transition counts it, so that the sum over all processes counts each transition once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import CANCELLED, CLAIMED, DEAD_LETTERED, FAILED, RETRY, STALLED, SUCCEEDED
from tenure.observe import metrics
from tenure.observe.metrics import BUCKETS_SECONDS, KINDS_MAX, OTHER
from tenure.observe.snapshot import CounterValue, Histogram, MetricsSnapshot

LOST = "lost"
"""The outcome of an attempt that lost its lease: nothing of it was recorded."""
OUTCOMES = (SUCCEEDED, RETRY, FAILED, DEAD_LETTERED, CANCELLED, STALLED, LOST)
"""Outcomes that every kind has a series for; `halted` and `waiting` appear with their first attempt."""
RELEASED = {"stalled": "released"}
"""A released job has the status `stalled`, as a lost one has; as outcomes they differ."""


class _KindCounters:
    __slots__ = (
        *("claims", "conflicts", "dead_letters", "expiries", "failures", "outcomes", "renewals", "retries"),
        *("run_counts", "run_seconds", "wait_counts", "wait_seconds"),
    )

    def __init__(self) -> None:
        self.claims = self.renewals = self.retries = self.failures = self.dead_letters = 0
        self.conflicts: Counter[str] = Counter(taken=0, late=0)
        self.expiries: Counter[str] = Counter(lease_expired=0, heartbeats_missed=0)
        # A Counter would take three times as long.
        self.outcomes: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        self.wait_counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self.run_counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self.wait_seconds = self.run_seconds = 0.0

    def moved_to(self, status: str) -> None:
        """A job was brought to this status."""
        if status == RETRY:
            self.retries += 1
        elif status == FAILED:
            self.failures += 1
        elif status == DEAD_LETTERED:
            self.dead_letters += 1


class Meter:
    """Counters and histograms by kind. One thread writes; any thread may read.

    The kinds with their own series are fixed at construction, so that all processes of a program agree on them and
    every series exists from the start.
    """

    __slots__ = ("_kinds", "_other")

    def __init__(self, kinds: Iterable[str] = ()) -> None:
        self._other = _KindCounters()
        self._kinds = {kind: _KindCounters() for kind in labelled_kinds(kinds)} | {OTHER: self._other}

    def claimed(self, jobs: Sequence[Job]) -> None:
        """These jobs were claimed. Where the claim also started them, `started_at` is its time."""
        kinds, other = self._kinds, self._other
        for job in jobs:
            of = kinds.get(job.origin.kind, other)
            of.claims += 1
            due_at, claimed_at = job.due_at, job.updated_at if job.status is CLAIMED else job.started_at
            if due_at is not None and claimed_at is not None:
                seconds = (claimed_at - due_at).total_seconds()
                of.wait_counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
                if seconds > 0.0:
                    of.wait_seconds += seconds

    def not_started(self, job: Job, reason: str) -> None:
        """A claimed job was not started, because it was `taken` meanwhile or its lease too short (`late`)."""
        self._of(job).conflicts[reason] += 1

    def ran(self, kind: str, seconds: float) -> None:
        """A job's function ran this long."""
        of = self._kinds.get(kind, self._other)
        of.run_counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        of.run_seconds += seconds

    def ended(self, kind: str, outcome: str) -> None:
        """An attempt of this worker ended with this status of its job, or `lost`."""
        of = self._kinds.get(kind, self._other)
        of.outcomes[outcome] = of.outcomes.get(outcome, 0) + 1
        if outcome is not SUCCEEDED:
            of.moved_to(outcome)

    def renewed(self, job: Job) -> None:
        self._of(job).renewals += 1

    def expired(self, job: Job, cause: str) -> None:
        self._of(job).expiries[cause] += 1

    def moved(self, job: Job, status: str) -> None:
        """Maintenance brought this job to another status."""
        self._of(job).moved_to(status)

    def snapshot(self) -> MetricsSnapshot:
        """Everything counted so far; `other` only once it is not zero."""
        shown = [(kind, of) for kind, of in self._kinds.items() if kind != OTHER or _used(of)]
        return MetricsSnapshot(
            tuple(count for kind, of in shown for count in _counts(kind, of)),
            tuple(one for kind, of in shown for one in _histograms(kind, of)),
        )

    def _of(self, job: Job) -> _KindCounters:
        return self._kinds.get(job.origin.kind, self._other)


def labelled_kinds(kinds: Iterable[str]) -> list[str]:
    """The kinds with their own label: the first by name, so that the choice does not depend on arrival."""
    return sorted(set(kinds))[:KINDS_MAX]


def rejections(refused: Counter[str], kinds: Iterable[str]) -> MetricsSnapshot:
    """Refused enqueues. Callers can invent kind names, so an undeclared one gets no label of its own."""
    found = dict.fromkeys(labelled_kinds(kinds), 0)
    for kind, count in list(refused.items()):
        label = kind if kind in found else OTHER
        found[label] = found.get(label, 0) + count
    return MetricsSnapshot(
        tuple(CounterValue(metrics.REJECTIONS.name, (kind,), count) for kind, count in found.items())
    )


def _used(of: _KindCounters) -> bool:
    return any(count.value for count in _counts(OTHER, of)) or any(of.run_counts)


def _counts(kind: str, of: _KindCounters) -> list[CounterValue]:
    plain = (
        (metrics.CLAIMS, of.claims),
        (metrics.LEASE_RENEWALS, of.renewals),
        (metrics.RETRIES, of.retries),
        (metrics.FAILURES, of.failures),
        (metrics.DEAD_LETTERS, of.dead_letters),
    )
    by_label = (
        (metrics.CLAIM_CONFLICTS, of.conflicts),
        (metrics.LEASE_EXPIRIES, of.expiries),
        (metrics.ATTEMPTS, of.outcomes),
    )
    return [
        *(CounterValue(metric.name, (kind,), value) for metric, value in plain),
        *(
            CounterValue(metric.name, (kind, RELEASED.get(label, str(label))), value)
            for metric, labels in by_label
            for label, value in list(labels.items())
        ),
    ]


def _histograms(kind: str, of: _KindCounters) -> list[Histogram]:
    return [
        Histogram(metrics.QUEUE_WAIT.name, (kind,), tuple(of.wait_counts), of.wait_seconds),
        Histogram(metrics.RUN.name, (kind,), tuple(of.run_counts), of.run_seconds),
    ]
