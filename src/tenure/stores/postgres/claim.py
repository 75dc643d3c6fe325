"""Claiming: one statement where queues have no rules; where they have, a choice by them first, in one transaction.

A row that makes a claim fail is passed over for a while, so that it wedges nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any
from uuid import UUID

import asyncpg

from tenure.lifecycle.records import CONTRACT_VERSION
from tenure.seams import Clock
from tenure.stores.contract import ClaimRequest, Finding, Outcome, released
from tenure.stores.postgres.apply_batch import POISON, said
from tenure.stores.postgres.connections import Connections
from tenure.stores.postgres.limited_claim import claim_by_rules
from tenure.stores.postgres.many_lanes import Ask, ManyLanes
from tenure.stores.postgres.watermarks import Claimer, Watermarks

ASIDE_SECONDS = 60.0
NO_LANES: dict[str, list[Any]] = {
    name: []
    for name in ("gap_queues", "gap_lows", "gap_highs", "lane_queues", "lane_priorities", "lane_dues", "lane_ids")
}

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

ComeAgain = Callable[[Iterable[str], float], None]
"""Told of queues that are worth another look after so many seconds."""

log = logging.getLogger("tenure.stores.postgres")


class Claiming:
    """Claims for one process, which remembers what it has learnt of its lanes and of rows that cannot be taken."""

    def __init__(self, connections: Connections, clock: Clock, *, come_again: ComeAgain) -> None:
        self._connections, self._clock, self._come_again = connections, clock, come_again
        self._set_aside: dict[UUID, tuple[float, str]] = {}
        self._floors = Watermarks()

    async def claim(self, request: ClaimRequest) -> list[asyncpg.Record]:
        """The rows won, or the row that says what this request won before. Poisoned rows are passed over."""
        claimer = self._floors.of(request)
        while True:
            try:
                answers = None if claimer.ruled else await self._by_lanes(request, claimer)
                if answers is None:
                    answers = await self._by_rules(request, claimer)
            except POISON as problem:
                self._pass_over(problem)
                continue
            if answers is not None:
                return answers

    async def _by_lanes(self, request: ClaimRequest, claimer: Claimer) -> list[asyncpg.Record] | None:
        """What is due, in order; None when one of the queues has rules."""
        if claimer.many is not None:
            return await self._from_many(request, claimer.many)
        began = self._clock.monotonic_seconds()
        if (lane := claimer.lane(began)) is not None:
            answers = await self._connections.fetch(
                "claim_lane", {**self._parameters(request), "by_rules": False, **lane}
            )
            if not answers[0]["intricate"]:
                return self._learnt(answers, claimer, began)
            claimer.was_intricate(began)
        values = {**self._parameters(request), **claimer.parameters(began), "by_rules": False, "chosen": []}
        answers = await self._connections.fetch("claim", values)
        return None if answers[0]["ruled"] else self._learnt(answers, claimer, began)

    def _learnt(self, answers: list[asyncpg.Record], claimer: Claimer, began: float) -> list[asyncpg.Record]:
        """The rows that were won, and what the claim has shown of the lanes."""
        if answers[0]["won"] is not None:
            return answers
        claimer.learn(answers, began_seconds=began, now_seconds=self._clock.monotonic_seconds())
        return taken(answers)

    async def _from_many(self, request: ClaimRequest, many: ManyLanes) -> list[asyncpg.Record] | None:
        """The same for many queues: a few lanes are asked, and more as long as nothing is got."""
        everything, reach = False, many.reach(request.limit)
        while True:
            began = self._clock.monotonic_seconds()
            ask = many.ask(reach, everything=everything, now_seconds=began)
            answers = await self._answered(request, many, ask, began)
            if answers[0]["ruled"]:
                return None
            if answers[0]["won"] is not None:
                return answers
            if (rows := taken(answers)) or ask.suffices:
                return rows
            everything, reach = not ask.leaves_some_out, 2 * reach

    async def _answered(self, request: ClaimRequest, many: ManyLanes, ask: Ask, began: float) -> list[asyncpg.Record]:
        """The answer to what is asked, from which it is learnt if it speaks of lanes."""
        learnt = False
        try:
            values = {**self._parameters(request), **ask.parameters(began), "queue_lines": many.queue_lines}
            answers = await self._connections.fetch("claim_of_many", {**values, "by_rules": False})
            if answers[0]["at"] is not None:
                now = self._clock.monotonic_seconds()
                many.learn(ask, answers, limit=request.limit, began_seconds=began, now_seconds=now)
                learnt = True
        finally:
            if not learnt:
                many.take_back(ask)
        return answers

    async def _by_rules(self, request: ClaimRequest, claimer: Claimer) -> list[asyncpg.Record] | None:
        """What the rules of the queues let through; None when none of them has any."""
        values = {**self._parameters(request), **NO_LANES, "by_rules": True}
        found = await claim_by_rules(self._connections, request, values)
        claimer.ruled = found.ruled
        if not found.ruled:
            return None
        if found.again_seconds is not None:
            self._come_again(found.ruled, found.again_seconds)
        return found.answers

    def hear(self, queues: Iterable[str] | None) -> None:
        """These queues got work; None says that any of them may have."""
        self._floors.hear(queues)

    def freed(self, outcomes: Sequence[Outcome]) -> set[str]:
        """The queues with rules in which these changes let go of a permit that somebody may wait for."""
        ruled = self._floors.ruled()
        return released(outcomes) & ruled if ruled else set()

    def _parameters(self, request: ClaimRequest) -> dict[str, Any]:
        return {
            "request_id": request.request_id,
            "body": request.body(),
            "queues": list(request.queues),
            "kinds": list(request.kinds),
            "worker": request.worker,
            "token": request.token,
            "actor": str(request.actor),
            "chain": 2 if request.start else 1,
            "version": CONTRACT_VERSION,
            "limit": request.limit,
            "excluded": self._still_set_aside(),
        }

    def _pass_over(self, problem: Exception) -> None:
        """Remember the row that made a claim fail, so that the next one leaves it out."""
        cause = problem.__cause__ or problem
        named = _ID.search(f"{getattr(cause, 'detail', None) or ''} {cause}")
        if named is None or UUID(named[0]) in self._set_aside:
            raise problem
        until = self._clock.monotonic_seconds() + ASIDE_SECONDS
        self._set_aside[UUID(named[0])] = (until, said(problem))
        log.error("job %s cannot be claimed and is passed over for a while: %s", named[0], said(problem))

    def _still_set_aside(self) -> list[UUID]:
        now = self._clock.monotonic_seconds()
        self._set_aside = {job_id: aside for job_id, aside in self._set_aside.items() if aside[0] > now}
        return list(self._set_aside)

    def findings(self) -> list[Finding]:
        """What `doctor` should know of rows that this process passes over."""
        return [
            Finding("error", "poisoned row", f"job {job_id}: {says}", "run `tenure verify` to see what is wrong")
            for job_id, (_, says) in self._set_aside.items()
        ]


def taken(answers: Sequence[asyncpg.Record]) -> list[asyncpg.Record]:
    """The rows that were won, in the order in which they were to be claimed."""
    rows = [row for row in answers if row["id"] is not None]
    # The second one keeps the order of the first among equals.
    rows.sort(key=itemgetter("due_at", "id"))
    rows.sort(key=itemgetter("priority"), reverse=True)
    return rows
