"""Claims from queues with limits: what the choice of jobs reads, and the usage that it records, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tenure.lifecycle.limits import Candidate, RateUsage
from tenure.stores.contract import ClaimRequest
from tenure.stores.limits import (
    Choice,
    InOrder,
    Keys,
    LeasedByKey,
    LimitedQueue,
    Note,
    OfKeys,
    Question,
    UsageByKey,
    answered,
    choose,
    decode_limits,
    decode_usage,
    encode_usage,
)
from tenure.stores.quarantine import Quarantine
from tenure.stores.sqlite.lanes import lanes
from tenure.stores.sqlite.rows import id_of, json_list, micros, timestamp
from tenure.stores.sqlite.session import Session


def limited_queues(session: Session, queues: Sequence[str]) -> dict[str, LimitedQueue]:
    """Those of the queues that have limits or are paused."""
    return {
        name: LimitedQueue(
            name=name,
            limits=decode_limits(limits),
            paused=paused_at is not None,
            turn=turn,
            spent=RateUsage() if spent is None else decode_usage(spent),
        )
        for name, paused_at, *limits, turn, spent in session.execute(
            "queues/select_limited", {"queues": json_list(queues)}
        )
    }


def choose_within_limits(
    session: Session, request: ClaimRequest, limit: int, limited: dict[str, LimitedQueue], quarantine: Quarantine
) -> Choice:
    """The jobs that the limits allow now."""
    choosing = choose(request.queues, limit, limited=limited, now=session.now)
    return answered(choosing, _LimitReads(session, request.kinds, quarantine).answer)


class _LimitReads:
    """What a choice within limits reads."""

    def __init__(self, session: Session, kinds: Sequence[str], quarantine: Quarantine) -> None:
        self._session = session
        now, quarantined = micros(session.now), json_list(quarantine.ids())
        self._due = {"kinds": json_list(kinds), "now": now, "quarantined": quarantined}

    def answer(self, question: Question) -> Any:
        match question:
            case InOrder(queue, limit):
                return self._in_order(queue, limit)
            case Keys():
                return [key for (key,) in self._rows("jobs/select_partitions", msgspec.structs.asdict(question))]
            case OfKeys(queue, keys, each):
                return [candidate for key in keys for candidate in self._of_partition(queue, key, each)]
            case LeasedByKey(queue):
                return dict(self._rows("jobs/count_leased_by_partition", {"queue": queue}))
            case UsageByKey(queue, keys):
                rows = self._rows("rate_usage/select", {"queue": queue, "keys": json_list(keys)})
                return {key: decode_usage(spent) for key, spent in rows}

    def _in_order(self, queue: str, limit: int) -> list[Candidate]:
        found: list[Candidate] = []
        for priority, _ in lanes(self._session, [queue]):
            parameters = {**self._due, "queue": queue, "priority": priority, "limit": limit - len(found)}
            found += [
                Candidate(id_of(id_), queue, key, priority, timestamp(due_at), losses)
                for id_, key, due_at, losses in self._rows("jobs/select_due_candidates", parameters)
            ]
            if len(found) >= limit:
                break
        return found

    def _of_partition(self, queue: str, key: str, each: int) -> list[Candidate]:
        parameters = {**self._due, "queue": queue, "key": key, "each": each}
        return [
            Candidate(id_of(id_), queue, key, priority, timestamp(due_at), losses)
            for id_, priority, due_at, losses in self._rows("jobs/select_due_of_partition", parameters)
        ]

    def _rows(self, name: str, parameters: dict[str, Any]) -> Iterable[Any]:
        return self._session.execute(name, parameters).fetchall()


def record_usage(session: Session, notes: Iterable[Note]) -> None:
    """Record the rate usage, and the partition that was served last."""
    for note in notes:
        spent = None if note.spent is None else encode_usage(note.spent)
        session.execute("queues/update_usage", {"queue": note.queue, "turn": note.turn, "spent": spent})
        for key, usage in note.spent_by_key.items():
            until_at = micros(note.until[key])
            parameters = {"queue": note.queue, "key": key, "spent": encode_usage(usage), "until_at": until_at}
            session.execute("rate_usage/upsert", parameters)
        if note.spent_by_key:
            session.execute("rate_usage/delete_expired", {"queue": note.queue, "now": micros(session.now)})
