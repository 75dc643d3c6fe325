"""A claim by the rules of its queues: they are locked, a choice is made, its jobs are taken, what they spent is noted.

All in one transaction. Whoever comes next waits for the lock, and reads what this one has left.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from tenure.lifecycle.limits import Candidate, QueueLimits, RateUsage
from tenure.stores.contract import ClaimRequest
from tenure.stores.limits import (
    RULE_COLUMNS,
    Asking,
    Choice,
    HeldOf,
    InOrder,
    Keys,
    Note,
    OfKeys,
    Question,
    RuledQueue,
    SpentOf,
    choose,
    rules_of,
    spent_of,
    spent_text,
)
from tenure.stores.postgres.connections import Connections, Session, fetch

ROUNDS_MAX = 5
"""How often a claim chooses anew when others had all of the chosen jobs locked."""


class ByRules(msgspec.Struct, frozen=True):
    """What came of a claim by rules."""

    answers: list[asyncpg.Record]
    """The rows that were won, in the order of the choice; or the one that says what this request won before."""
    ruled: frozenset[str] = frozenset()
    """The queues that have rules: where there are none, nothing was asked for."""
    again_seconds: float | None = None
    """How long a rate will keep the next job back, where one did."""


def rules_from(row: asyncpg.Record) -> QueueLimits:
    """The rules of a row of `queues`."""
    return rules_of([row[name] for name in RULE_COLUMNS])


async def claim_by_rules(connections: Connections, request: ClaimRequest, values: dict[str, Any]) -> ByRules:
    """Claim, and again where it collided with others: then nothing of it was kept."""
    return await connections.write("store", lambda session: _claim(session, request, values))


async def _claim(session: Session, request: ClaimRequest, values: dict[str, Any]) -> ByRules:
    ruled, now = await _locked(session, request.queues)
    if not ruled:
        return ByRules([])
    excluded = list(values["excluded"])
    for rounds_left in reversed(range(ROUNDS_MAX)):
        known = {**values, "excluded": excluded}
        choice = await _answered(session, choose(request.queues, request.limit, ruled=ruled, now=now), known)
        answers = await fetch(session, "claim", {**known, "chosen": [one.id for one in choice.chosen]})
        by_id = {answer["id"]: answer for answer in answers if answer["id"] is not None}
        rows = [by_id[one.id] for one in choice.chosen if one.id in by_id]
        before = answers[0]["won"] is not None
        if rows or before or not choice.chosen or not rounds_left:
            at = max((row["updated_at"] for row in rows), default=now)
            for note in choice.notes(list(by_id), at):
                await fetch(session, "note_claim", _noted(note))
            again = None if choice.again_at is None else (choice.again_at - now).total_seconds()
            return ByRules(answers if before else rows, frozenset(ruled), again)
        excluded += [one.id for one in choice.chosen]
    raise AssertionError("the last round returns")


async def _locked(session: Session, queues: tuple[str, ...]) -> tuple[dict[str, RuledQueue], datetime]:
    rows = await fetch(session, "ruled_queues", {"queues": list(queues)})
    ruled = {
        row["name"]: RuledQueue(
            name=row["name"],
            rules=rules_from(row),
            paused=row["paused_at"] is not None,
            turn=row["turn"],
            spent=RateUsage() if row["spent"] is None else spent_of(row["spent"]),
        )
        for row in rows
        if row["name"] is not None
    }
    return ruled, rows[0]["now"]


async def _answered(session: Session, asking: Asking, values: dict[str, Any]) -> Choice:
    """The choice, once every question of it is answered."""
    try:
        question = next(asking)
        while True:
            question = asking.send(await _answer(session, question, values))
    except StopIteration as end:
        choice: Choice = end.value
        return choice


async def _answer(session: Session, question: Question, values: dict[str, Any]) -> Any:
    asked = {**values, **msgspec.structs.asdict(question)}
    match question:
        case InOrder():
            return [Candidate(*row) for row in await fetch(session, "due_in_order", asked)]
        case Keys():
            return [row["key"] for row in await fetch(session, "due_keys", asked)]
        case OfKeys():
            return [Candidate(*row) for row in await fetch(session, "due_of_keys", asked)]
        case HeldOf():
            return {row["key"]: row["held"] for row in await fetch(session, "held_by_key", asked)}
        case SpentOf():
            return {row["key"]: spent_of(row["spent"]) for row in await fetch(session, "spent_by_key", asked)}


def _noted(note: Note) -> dict[str, Any]:
    keys = list(note.spent_by_key)
    return {
        "queue": note.queue,
        "turn": note.turn,
        "spent": None if note.spent is None else spent_text(note.spent),
        "keys": keys,
        "spents": [spent_text(note.spent_by_key[key]) for key in keys],
        "untils": [note.until[key] for key in keys],
    }
