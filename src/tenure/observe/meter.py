"""Counts what one thread sees happen to jobs. This is on the hot path: integers and lists, nothing else.

Each transition is counted by whoever made it, so that the sum over all processes counts each of them once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import CANCELLED, DEAD_LETTERED, FAILED, RETRY, STALLED, SUCCEEDED
from tenure.observe import metrics
from tenure.observe.metrics import BUCKETS_SECONDS, KINDS_MAX, OTHER
from tenure.observe.snapshot import Count, Distribution, Snapshot

LOST = "lost"
"""What an attempt came to whose lease was gone, so that nothing of it was recorded."""
OUTCOMES = (SUCCEEDED, RETRY, FAILED, DEAD_LETTERED, CANCELLED, STALLED, LOST)
"""Those that every kind has; `halted` and `waiting` are shown once there is one."""
RELEASED = {"stalled": "released"}
"""A job that is handed back has the status of one that was lost; as an outcome the two are not the same."""


class _OfKind:
    """What is known of the jobs of one kind."""

    __slots__ = (
        *("claims", "conflicts", "dead_letters", "expiries", "failures", "outcomes", "renewals", "retries"),
        *("run_counts", "run_seconds", "wait_counts", "wait_seconds"),
    )

    def __init__(self) -> None:
        self.claims = self.renewals = self.retries = self.failures = self.dead_letters = 0
        self.conflicts: Counter[str] = Counter(taken=0, late=0)
        self.expiries: Counter[str] = Counter(lease_expired=0, heartbeats_missed=0)
        # Not a Counter, which takes three times as long.
        self.outcomes: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        self.wait_counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self.run_counts = [0] * (len(BUCKETS_SECONDS) + 1)
        self.wait_seconds = self.run_seconds = 0.0

    def moved_to(self, status: str) -> None:
        """A job has come to this status, whoever brought it there."""
        if status == RETRY:
            self.retries += 1
        elif status == FAILED:
            self.failures += 1
        elif status == DEAD_LETTERED:
            self.dead_letters += 1


class Meter:
    """Counters and histograms by kind. One thread writes; any may read.

    The kinds that have counters of their own are known from the start, so that all processes of a program agree on
    them and all series are there before anything is counted.
    """

    __slots__ = ("_kinds", "_other")

    def __init__(self, kinds: Iterable[str] = ()) -> None:
        self._other = _OfKind()
        self._kinds = {kind: _OfKind() for kind in named(kinds)} | {OTHER: self._other}

    def claimed(self, jobs: Sequence[Job]) -> None:
        """These were won, each at the moment at which it was started."""
        kinds, other = self._kinds, self._other
        for job in jobs:
            of = kinds.get(job.origin.kind, other)
            of.claims += 1
            due_at, started_at = job.due_at, job.started_at
            if due_at is not None and started_at is not None:
                seconds = (started_at - due_at).total_seconds()
                of.wait_counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
                if seconds > 0.0:
                    of.wait_seconds += seconds

    def not_started(self, job: Job, reason: str) -> None:
        """A claim was answered with this job, and it is not ours to start: `taken` or `late`."""
        self._of(job).conflicts[reason] += 1

    def ran(self, kind: str, seconds: float) -> None:
        """A function has run for so long."""
        of = self._kinds.get(kind, self._other)
        of.run_counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        of.run_seconds += seconds

    def ended(self, kind: str, outcome: str) -> None:
        """An attempt of ours is over: the status that it left its job in, or `lost`."""
        of = self._kinds.get(kind, self._other)
        of.outcomes[outcome] = of.outcomes.get(outcome, 0) + 1
        if outcome is not SUCCEEDED:
            of.moved_to(outcome)

    def renewed(self, job: Job) -> None:
        self._of(job).renewals += 1

    def expired(self, job: Job, cause: str) -> None:
        self._of(job).expiries[cause] += 1

    def moved(self, job: Job, status: str) -> None:
        """Somebody who runs no jobs has brought this one to another status."""
        self._of(job).moved_to(status)

    def snapshot(self) -> Snapshot:
        """Everything counted so far. What is under `other` is shown once there is something to show."""
        shown = [(kind, of) for kind, of in self._kinds.items() if kind != OTHER or _used(of)]
        return Snapshot(
            tuple(count for kind, of in shown for count in _counts(kind, of)),
            tuple(one for kind, of in shown for one in _distributions(kind, of)),
        )

    def _of(self, job: Job) -> _OfKind:
        return self._kinds.get(job.origin.kind, self._other)


def named(kinds: Iterable[str]) -> list[str]:
    """The kinds that have labels of their own: a bound that does not depend on what comes first."""
    return sorted(set(kinds))[:KINDS_MAX]


def rejections(refused: Counter[str], kinds: Iterable[str]) -> Snapshot:
    """Enqueues that were refused. A name that the program does not have is anybody's, and gets no label of its own."""
    found = dict.fromkeys(named(kinds), 0)
    for kind, count in list(refused.items()):
        label = kind if kind in found else OTHER
        found[label] = found.get(label, 0) + count
    return Snapshot(tuple(Count(metrics.REJECTIONS.name, (kind,), count) for kind, count in found.items()))


def _used(of: _OfKind) -> bool:
    return any(count.value for count in _counts(OTHER, of)) or any(of.run_counts)


def _counts(kind: str, of: _OfKind) -> list[Count]:
    plain = (
        (metrics.CLAIMS, of.claims),
        (metrics.LEASE_RENEWALS, of.renewals),
        (metrics.RETRIES, of.retries),
        (metrics.FAILURES, of.failures),
        (metrics.DEAD_LETTERS, of.dead_letters),
    )
    by_word = (
        (metrics.CLAIM_CONFLICTS, of.conflicts),
        (metrics.LEASE_EXPIRIES, of.expiries),
        (metrics.ATTEMPTS, of.outcomes),
    )
    return [
        *(Count(metric.name, (kind,), value) for metric, value in plain),
        *(
            Count(metric.name, (kind, RELEASED.get(word, str(word))), value)
            for metric, words in by_word
            for word, value in list(words.items())
        ),
    ]


def _distributions(kind: str, of: _OfKind) -> list[Distribution]:
    return [
        Distribution(metrics.QUEUE_WAIT.name, (kind,), tuple(of.wait_counts), of.wait_seconds),
        Distribution(metrics.RUN.name, (kind,), tuple(of.run_counts), of.run_seconds),
    ]
