"""Findings of `doctor` that every store reports."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from tenure.stores.contract import Finding, PinnedJobs, QueueRecord, WorkerRecord
from tenure.stores.contract.outbox import EndpointRecord, OutboxDepth

LOOKED_AT_MAX = 10_000
"""How many of the jobs that may be claimed are read."""
FINISHED_MANY = 1_000_000
"""From this many finished jobs on, a missing retention is reported."""
KINDS_MAX = 20
"""How many kinds of a queue are named."""
SEEN_SECONDS = 45
"""How long ago a worker or processor may have been seen last and still count as live: a killed one registers no stop.
Workers register every 10 s, processors every 15 s."""
FAILING_SECONDS = 3600
"""For how long an endpoint has to fail to be reported."""


class UnservedJobs(NamedTuple):
    """Due jobs of one kind in one queue that no worker serves. `more`: there may be more of them than were counted.

    `queue_served`: a worker serves the queue, but not this kind in it.
    """

    queue: str
    kind: str
    jobs: int
    more: bool
    queue_served: bool


def unserved_jobs(found: Iterable[UnservedJobs]) -> list[Finding]:
    """A finding per queue that no worker serves, and per kind that no worker runs in a queue that is served."""
    queues: dict[str, tuple[int, bool]] = {}
    kinds: list[Finding] = []
    for one in found:
        if one.queue_served:
            message = f"kind {one.kind!r} in queue {one.queue!r} has {_due_jobs(one.jobs, more=one.more)}"
            advice = "start a worker whose app declares the kind, under this name or as an alias; or cancel the jobs"
            kinds.append(Finding("warning", "workers", f"{message} and no worker that runs it", advice))
        else:
            jobs, more = queues.get(one.queue, (0, False))
            queues[one.queue] = jobs + one.jobs, more or one.more
    return [*(_unserved_queue(name, jobs, more=more) for name, (jobs, more) in queues.items()), *kinds]


def _unserved_queue(name: str, jobs: int, *, more: bool) -> Finding:
    message = f"queue {name!r} has {_due_jobs(jobs, more=more)} and no worker that serves it"
    advice = f"start a worker whose app declares the queue, or name it: `tenure worker MODULE:APP --queues '*,{name}'`"
    return Finding("warning", "workers", message, advice)


def undelivered(depth: OutboxDepth, endpoints: Iterable[EndpointRecord]) -> list[Finding]:
    """A finding for messages that no endpoint subscribes to, and per endpoint that is not served, disabled, failing for
    an hour, or has dead letters."""
    found = []
    if depth.unserved:
        advice = "declare an endpoint for their topics, then `tenure outbox replay ENDPOINT --since TIME`"
        message = f"{depth.unserved} message{'' if depth.unserved == 1 else 's'} that no endpoint subscribes to"
        found.append(Finding("warning", "outbox", message, f"{advice}; list them: `tenure outbox ls --state unserved`"))
    since = depth.at - timedelta(seconds=SEEN_SECONDS)
    by_name = {one.endpoint: one for one in depth.endpoints}
    for endpoint in endpoints:
        name, waiting = endpoint.name, by_name.get(endpoint.name)
        if waiting is not None and waiting.messages:
            messages = f"{waiting.messages} pending message{'' if waiting.messages == 1 else 's'}"
            if endpoint.disabled_at is not None:
                advice = f"`tenure outbox enable {name}` delivers them in order"
                found.append(Finding("warning", "outbox", f"endpoint {name!r} is disabled and has {messages}", advice))
            elif endpoint.seen_at is None or endpoint.seen_at < since:
                advice = "start a worker whose app declares the endpoint, or `tenure outbox run MODULE:APP`"
                problem = f"endpoint {name!r} has {messages} and no processor that serves it"
                found.append(Finding("warning", "outbox", problem, advice))
        if endpoint.disabled_at is None and (endpoint.failing_seconds or 0.0) >= FAILING_SECONDS:
            hours = f"{(endpoint.failing_seconds or 0.0) / 3600:.0f} h"
            advice = f"`tenure outbox test {name}`, and `tenure outbox show MESSAGE` shows the errors"
            found.append(Finding("warning", "outbox", f"endpoint {name!r} has failed for {hours}", advice))
        if waiting is not None and waiting.dead:
            letters = f"{waiting.dead} dead letter{'' if waiting.dead == 1 else 's'}"
            advice = f"`tenure outbox redrive {name}` or `tenure outbox discard {name}`"
            found.append(Finding("warning", "outbox", f"endpoint {name!r} has {letters}", advice))
    return found


def _due_jobs(jobs: int, *, more: bool) -> str:
    return f"{'at least ' if more else ''}{jobs} due job{'' if jobs == 1 else 's'}"


def unserved_pins(pinned: Iterable[PinnedJobs], workers: Iterable[WorkerRecord], now: datetime) -> list[Finding]:
    """A finding per version of the code that jobs are pinned to and that no worker has."""
    since = now - timedelta(seconds=SEEN_SECONDS)
    live = [worker for worker in workers if worker.stopped_at is None and worker.seen_at > since]
    missing: dict[str, int] = {}
    for one in pinned:
        if not any(serves_pin(worker, one) for worker in live):
            missing[one.version] = missing.get(one.version, 0) + one.jobs
    return [_unserved_pin(version, jobs) for version, jobs in missing.items()]


def serves_pin(worker: WorkerRecord, pinned: PinnedJobs) -> bool:
    """Whether the worker has the version of the code, the queue and the kind."""
    return worker.version == pinned.version and pinned.queue in worker.queues and pinned.kind in worker.kinds


def _unserved_pin(version: str, jobs: int) -> Finding:
    runs = f"{jobs} run{'' if jobs == 1 else 's'}"
    message = f"{runs} pinned to version {version!r} of the code, and no worker with that version serves them"
    advice = (
        "start a worker with that version; or deploy code that fits what is recorded, and run `tenure runs unpin ID`"
    )
    return Finding("warning", "workers", message, advice)


def finished_jobs(jobs: int, *, pruned: bool) -> list[Finding]:
    """Many finished jobs, and no worker that removes them."""
    if jobs < FINISHED_MANY or pruned:
        return []
    message = f"at least {FINISHED_MANY:,} finished jobs are kept, and no running worker has a retention for them"
    advice = "set App(retention=Retention(finished_days=…)), or remove them with `tenure prune`"
    return [Finding("warning", "retention", message, advice)]


def paused(queues: Iterable[QueueRecord]) -> list[Finding]:
    """Queues from which nothing is claimed."""
    return [
        Finding(
            "warning",
            "queues",
            f"queue {queue.name!r} is paused since {queue.paused_at.isoformat(timespec='seconds')}",
            f"run `tenure queues resume {queue.name}` when it may go on",
        )
        for queue in queues
        if queue.paused_at is not None
    ]
