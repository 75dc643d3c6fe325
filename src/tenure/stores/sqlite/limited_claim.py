"""Claims from queues with limits: what the choice of jobs reads, and the usage that it records, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tenure.errors import RowPoisoned
from tenure.lifecycle.queue_limits import Candidate
from tenure.stores.contract import ClaimRequest
from tenure.stores.limited_claim import (
    PINNED_MAX,
    Choice,
    DueJobs,
    DueJobsOfKeys,
    KeyUsage,
    LeasedCounts,
    LimitedQueue,
    LimitRead,
    PartitionKeys,
    QueueUsage,
    choose,
    decode_limits,
    decode_usage,
    encode_usage,
    run_choice,
    with_pinned,
)
from tenure.stores.quarantine import UNREADABLE, Quarantine
from tenure.stores.sqlite.lanes import lanes
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import id_of, json_list, micros, timestamp


def limited_queues(session: Session, queues: Sequence[str]) -> dict[str, LimitedQueue]:
    """Those of the queues that have limits or are paused."""
    return {
        name: LimitedQueue(
            name=name,
            limits=decode_limits(limits),
            paused=paused_at is not None,
            last_key=last_key,
            usage=decode_usage(usage, of=f"queue {name!r}"),
        )
        for name, paused_at, *limits, last_key, usage in session.execute(
            "queues/select_limited", {"queues": json_list(queues)}
        )
    }


def choose_within_limits(
    session: Session, request: ClaimRequest, limit: int, limited: dict[str, LimitedQueue], quarantine: Quarantine
) -> Choice:
    """The jobs that the limits allow now."""
    reads = choose(request.queues, limit, limited=limited, now=session.now)
    return run_choice(reads, _LimitReads(session, request, quarantine).execute)


class _LimitReads:
    """What a choice within limits reads."""

    def __init__(self, session: Session, request: ClaimRequest, quarantine: Quarantine) -> None:
        self._session, self._code_version, self._quarantine = session, request.code_version, quarantine
        now, quarantined = micros(session.now), json_list(quarantine.ids())
        self._due = {"kinds": json_list(request.kinds), "now": now, "quarantined": quarantined}

    def execute(self, read: LimitRead) -> Any:
        result = self._unpinned(read)
        if self._code_version is None or isinstance(read, LeasedCounts | KeyUsage):
            return result
        wanted = {"queues": json_list([read.queue]), "code_version": self._code_version, "limit": PINNED_MAX}
        rows = self._rows("jobs/select_due_pinned", {**self._due, **wanted})
        return with_pinned(read, result, [one for row in rows for one in self._candidate(*row)])

    def _unpinned(self, read: LimitRead) -> Any:
        match read:
            case DueJobs(queue, limit):
                return self._in_order(queue, limit)
            case PartitionKeys():
                return [key for (key,) in self._rows("jobs/select_partitions", msgspec.structs.asdict(read))]
            case DueJobsOfKeys(queue, keys, each):
                return [candidate for key in keys for candidate in self._of_partition(queue, key, each)]
            case LeasedCounts(queue):
                return dict(self._rows("jobs/count_leased_by_partition", {"queue": queue}))
            case KeyUsage(queue, keys):
                rows = self._rows("rate_usage/select", {"queue": queue, "keys": json_list(keys)})
                return {key: decode_usage(usage, of=f"partition {key!r}") for key, usage in rows}

    def _in_order(self, queue: str, limit: int) -> list[Candidate]:
        found: list[Candidate] = []
        for priority, _ in lanes(self._session, [queue]):
            parameters = {**self._due, "queue": queue, "priority": priority, "limit": limit - len(found)}
            for id_, key, due_at, losses in self._rows("jobs/select_due_candidates", parameters):
                found += self._candidate(id_, queue, key, priority, due_at, losses)
            if len(found) >= limit:
                break
        return found

    def _of_partition(self, queue: str, key: str, each: int) -> list[Candidate]:
        parameters = {**self._due, "queue": queue, "key": key, "each": each}
        return [
            candidate
            for id_, priority, due_at, losses in self._rows("jobs/select_due_of_partition", parameters)
            for candidate in self._candidate(id_, queue, key, priority, due_at, losses)
        ]

    def _candidate(
        self, id_: str, queue: str, key: str | None, priority: int, due_at: int, losses: int
    ) -> list[Candidate]:
        """The candidate of a row; none if the row cannot be decoded, and is quarantined."""
        try:
            return [Candidate(id_of(id_), queue, key, priority, timestamp(due_at), losses)]
        except UNREADABLE as problem:
            self._quarantine.put(RowPoisoned(id_, f"its row cannot be read ({problem})"))
            return []

    def _rows(self, name: str, parameters: dict[str, Any]) -> Iterable[Any]:
        return self._session.execute(name, parameters).fetchall()


def record_usage(session: Session, queues: Iterable[QueueUsage]) -> None:
    """Record the rate usage, and the partition that was served last."""
    for queue in queues:
        usage = None if queue.usage is None else encode_usage(queue.usage)
        session.execute("queues/update_usage", {"queue": queue.queue, "last_key": queue.last_key, "usage": usage})
        for key, key_usage in queue.usage_by_key.items():
            until_at = micros(queue.until[key])
            parameters = {"queue": queue.queue, "key": key, "usage": encode_usage(key_usage), "until_at": until_at}
            session.execute("rate_usage/upsert", parameters)
        if queue.usage_by_key:
            session.execute("rate_usage/delete_expired", {"queue": queue.queue, "now": micros(session.now)})
