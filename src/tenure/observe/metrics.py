"""Every metric by name: what it counts, how it is labelled, which buckets it has. There are no others.

The exporter is driven by this table, and the page in docs/ and the dashboards in deploy/ are tested against it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

PREFIX = "tenure_"
OTHER = "other"
"""The label of whatever has no label of its own."""
KINDS_MAX = 100
"""So many kinds have series of their own: the first in the order of their names. The rest are counted as `other`."""
QUEUES_MAX = 100
"""The same for queues; of those that the database has, the ones with most jobs come first."""

BUCKETS_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
)  # fmt: skip


class Shape(StrEnum):
    """What kind of metric it is, in the words of Prometheus."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


class Metric(msgspec.Struct, frozen=True):
    """One metric. Its name is the one that is scraped, without the suffixes of a histogram."""

    name: str
    shape: Shape
    labels: tuple[str, ...]
    says: str


def _counter(name: str, says: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}_total", Shape.COUNTER, labels, says)


def _histogram(name: str, says: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}_seconds", Shape.HISTOGRAM, labels, says)


def _gauge(name: str, says: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}", Shape.GAUGE, labels, says)


CLAIMS = _counter("claims", "Jobs won by claims.", "kind")
CLAIM_CONFLICTS = _counter(
    "claim_conflicts",
    "Jobs that a claim was answered with and that were not started: somebody else has them by now (taken), or too "
    "little of the lease was left (late).",
    "kind",
    "reason",
)
LEASE_RENEWALS = _counter("lease_renewals", "Heartbeats that moved the end of a lease.", "kind")
LEASE_EXPIRIES = _counter(
    "lease_expiries",
    "Leases that recovery ended because they ran out (lease_expired) or because nobody beat (heartbeats_missed).",
    "kind",
    "cause",
)
RETRIES = _counter("retries", "Attempts that failed and are to be followed by another.", "kind")
FAILURES = _counter("failures", "Jobs that ended as failed.", "kind")
DEAD_LETTERS = _counter("dead_letters", "Jobs that ended as dead letters.", "kind")
REJECTIONS = _counter("rejections", "Enqueues that were refused before anything was queued.", "kind")
ATTEMPTS = _counter("attempts", "Attempts that came to an end here, by what they came to.", "kind", "outcome")
RESTARTS = _counter("worker_restarts", "Worker processes that ended and were replaced by the supervisor.")

QUEUE_WAIT = _histogram("queue_wait", "From when a job was due until it was claimed, by the database's clock.", "kind")
RUN = _histogram("run", "How long a job's function ran, by the worker's clock.", "kind")

PROCESSES = _gauge("worker_processes", "Worker processes that are up here.")
RUNNING = _gauge("running_jobs", "Jobs that are under way here.")
DATABASE_UP = _gauge("database_up", "Whether the database could be read for the metrics below: 1 or 0.")
JOBS = _gauge("jobs", "Jobs in the database.", "queue", "status")
DUE = _gauge("jobs_due", "Jobs that could be claimed now.", "queue")
OLDEST_DUE = _gauge("oldest_due_seconds", "For how long the longest-waiting of them could have been claimed.", "queue")
OPEN_DEAD_LETTERS = _gauge("open_dead_letters", "Dead letters that nobody has dealt with.")
WORKERS = _gauge("workers", "Workers of all machines that were seen within the last minute.")
UNSERVED = _gauge("jobs_unserved", "Live jobs that no living worker takes.")

METRICS = (
    *(CLAIMS, CLAIM_CONFLICTS, LEASE_RENEWALS, LEASE_EXPIRIES, RETRIES, FAILURES, DEAD_LETTERS, REJECTIONS, ATTEMPTS),
    *(QUEUE_WAIT, RUN),
    *(PROCESSES, RUNNING, RESTARTS),
    *(DATABASE_UP, JOBS, DUE, OLDEST_DUE, OPEN_DEAD_LETTERS, WORKERS, UNSERVED),
)
BY_NAME = {metric.name: metric for metric in METRICS}
