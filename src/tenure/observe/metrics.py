"""The table of all metrics: name, type, labels, help and buckets.

The Prometheus collector is driven by it; the page in docs/ and the dashboards in deploy/ are tested against it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

PREFIX = "tenure_"
OTHER = "other"
"""The label shared by all kinds or queues beyond the limit."""
KINDS_MAX = 100
"""The number of kinds with their own series: the first by name."""
QUEUES_MAX = 100
"""The number of queues with their own series: those with the most jobs."""
ENDPOINTS_MAX = 100
"""The number of endpoints with their own series: those with the most pending messages."""

BUCKETS_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
)  # fmt: skip


class MetricType(StrEnum):
    """The types of Prometheus."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


class Metric(msgspec.Struct, frozen=True):
    """One metric. Its name is the scraped one, without the suffixes of a histogram."""

    name: str
    type: MetricType
    labels: tuple[str, ...]
    help: str


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}_total", MetricType.COUNTER, labels, text)


def _histogram(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}_seconds", MetricType.HISTOGRAM, labels, text)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}", MetricType.GAUGE, labels, text)


CLAIMS = _counter("claims", "Jobs claimed.", "kind")
CLAIM_CONFLICTS = _counter(
    "claim_conflicts",
    "Claimed jobs that were not started: another worker holds them (taken), or too little of the lease was left "
    "(late).",
    "kind",
    "reason",
)
LEASE_RENEWALS = _counter("lease_renewals", "Heartbeats that extended a lease.", "kind")
LEASE_EXPIRIES = _counter(
    "lease_expiries",
    "Leases ended by recovery because they expired (lease_expired) or heartbeats were missed (heartbeats_missed).",
    "kind",
    "cause",
)
RETRIES = _counter("retries", "Attempts that failed and will be retried.", "kind")
FAILURES = _counter("failures", "Jobs that ended as failed.", "kind")
DEAD_LETTERS = _counter("dead_letters", "Jobs that ended as dead letters.", "kind")
REJECTIONS = _counter("rejections", "Enqueues that were refused; nothing was stored.", "kind")
ATTEMPTS = _counter("attempts", "Attempts that ended in this process, by outcome.", "kind", "outcome")
RESTARTS = _counter("worker_restarts", "Worker processes that ended and were replaced by the supervisor.")

QUEUE_WAIT = _histogram("queue_wait", "Time from a job's due time to its claim, by the database's clock.", "kind")
RUN = _histogram(
    "run",
    "Run time of a job's function, by the worker's clock; of a remote job from start to end, by the database's clock.",
    "kind",
)

PROCESSES = _gauge("worker_processes", "Worker processes that are up.")
RUNNING = _gauge("running_jobs", "Jobs running in this process or its worker processes.")
DATABASE_UP = _gauge("database_up", "Whether the database could be read for the metrics below: 1 or 0.")
JOBS = _gauge("jobs", "Jobs in the database.", "queue", "status")
DUE = _gauge("jobs_due", "Due jobs.", "queue")
OLDEST_DUE = _gauge("oldest_due_seconds", "How long the oldest due job has been due.", "queue")
OPEN_DEAD_LETTERS = _gauge("open_dead_letters", "Dead letters that are neither redriven nor discarded.")
WORKERS = _gauge("workers", "Workers that registered within the last 45 seconds, on all machines.")
UNSERVED = _gauge("jobs_unserved", "Live jobs that no live worker serves.")
PINNED_UNSERVED = _gauge("runs_pinned_unserved", "Runs pinned to a version of the code that no live worker has.")
OUTBOX_PENDING = _gauge("outbox_pending", "Messages that an endpoint has yet to receive.", "outbox_endpoint")
OUTBOX_LAG = _gauge(
    "outbox_lag_seconds",
    "How long ago the oldest message that an endpoint has yet to receive was written.",
    "outbox_endpoint",
)
OUTBOX_DEAD_LETTERS = _gauge(
    "outbox_dead_letters", "Dead letters of an endpoint that are neither redriven nor discarded.", "outbox_endpoint"
)
OUTBOX_UNSERVED = _gauge("outbox_unserved", "Messages that no endpoint subscribed to.")

METRICS = (
    *(CLAIMS, CLAIM_CONFLICTS, LEASE_RENEWALS, LEASE_EXPIRIES, RETRIES, FAILURES, DEAD_LETTERS, REJECTIONS, ATTEMPTS),
    *(QUEUE_WAIT, RUN),
    *(PROCESSES, RUNNING, RESTARTS),
    *(DATABASE_UP, JOBS, DUE, OLDEST_DUE, OPEN_DEAD_LETTERS, WORKERS, UNSERVED, PINNED_UNSERVED),
    *(OUTBOX_PENDING, OUTBOX_LAG, OUTBOX_DEAD_LETTERS, OUTBOX_UNSERVED),
)
