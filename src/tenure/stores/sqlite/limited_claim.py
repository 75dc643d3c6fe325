"""What a choice by the rules of queues asks of SQLite, inside the write transaction that also takes the jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from tenure.lifecycle.limits import Candidate, RateUsage
from tenure.stores.contract import ClaimRequest
from tenure.stores.limits import (
    Choice,
    HeldOf,
    InOrder,
    Keys,
    Note,
    OfKeys,
    Question,
    RuledQueue,
    SpentOf,
    answered,
    choose,
    rules_of,
    spent_of,
    spent_text,
)
from tenure.stores.quarantine import Quarantine
from tenure.stores.sqlite.priorities import levels
from tenure.stores.sqlite.rows import id_of, json_list, micros, moment
from tenure.stores.sqlite.statements import sql


def ruled_queues(connection: sqlite3.Connection, queues: Sequence[str]) -> dict[str, RuledQueue]:
    """Those of the queues that have rules or are paused."""
    return {
        name: RuledQueue(
            name=name,
            rules=rules_of(rules),
            paused=paused_at is not None,
            turn=turn,
            spent=RateUsage() if spent is None else spent_of(spent),
        )
        for name, paused_at, *rules, turn, spent in connection.execute(
            sql("ruled_queues"), {"queues": json_list(queues)}
        )
    }


def choice_by_rules(
    connection: sqlite3.Connection,
    request: ClaimRequest,
    *,
    limit: int,
    ruled: dict[str, RuledQueue],
    now: datetime,
    quarantine: Quarantine,
) -> Choice:
    """The jobs that the rules let through."""
    asking = choose(request.queues, limit, ruled=ruled, now=now)
    return answered(asking, Answers(connection, request.kinds, now=now, quarantine=quarantine).answer)


class Answers:
    """Answers the questions of a choice."""

    def __init__(
        self, connection: sqlite3.Connection, kinds: Sequence[str], *, now: datetime, quarantine: Quarantine
    ) -> None:
        self._connection = connection
        self._due = {"kinds": json_list(kinds), "now": micros(now), "set_aside": json_list(quarantine.ids())}

    def answer(self, question: Question) -> Any:
        match question:
            case InOrder(queue, limit):
                return self._in_order(queue, limit)
            case Keys():
                return [key for (key,) in self._rows("due_keys", msgspec.structs.asdict(question))]
            case OfKeys(queue, keys, each):
                return [one for key in keys for one in self._of_key(queue, key, each)]
            case HeldOf(queue):
                return dict(self._rows("held_by_key", {"queue": queue}))
            case SpentOf(queue, keys):
                rows = self._rows("spent_by_key", {"queue": queue, "keys": json_list(keys)})
                return {key: spent_of(spent) for key, spent in rows}

    def _in_order(self, queue: str, limit: int) -> list[Candidate]:
        found: list[Candidate] = []
        for priority, _ in levels(self._connection, [queue]):
            asked = {**self._due, "queue": queue, "priority": priority, "limit": limit - len(found)}
            found += [
                Candidate(id_of(id_), queue, key, priority, moment(due_at), losses)
                for id_, key, due_at, losses in self._rows("due_candidates", asked)
            ]
            if len(found) >= limit:
                break
        return found

    def _of_key(self, queue: str, key: str, each: int) -> list[Candidate]:
        asked = {**self._due, "queue": queue, "key": key, "each": each}
        return [
            Candidate(id_of(id_), queue, key, priority, moment(due_at), losses)
            for id_, priority, due_at, losses in self._rows("due_of_key", asked)
        ]

    def _rows(self, name: str, values: dict[str, Any]) -> Iterable[Any]:
        return self._connection.execute(sql(name), values).fetchall()


def note(connection: sqlite3.Connection, notes: Iterable[Note], now: datetime) -> None:
    """Write down what was spent, and whose turn was last."""
    for one in notes:
        spent = None if one.spent is None else spent_text(one.spent)
        connection.execute(sql("note_turn"), {"queue": one.queue, "turn": one.turn, "spent": spent})
        for key, spent_of_key in one.spent_by_key.items():
            values = {
                "queue": one.queue,
                "key": key,
                "spent": spent_text(spent_of_key),
                "until_at": micros(one.until[key]),
            }
            connection.execute(sql("keep_spent"), values)
        if one.spent_by_key:
            connection.execute(sql("forget_spent"), {"queue": one.queue, "now": micros(now)})
