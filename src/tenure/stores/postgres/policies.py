"""Policies by number and numbers by policy. Rows never change, so what was read once is known for good."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import asyncpg
import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.records import Policy
from tenure.stores.postgres.connections import Fetches

log = logging.getLogger("tenure.stores.postgres")

_encoder = msgspec.json.Encoder(order="sorted")


class KnownPolicies:
    """The policies that this process has met."""

    def __init__(self, fetches: Fetches) -> None:
        self._fetches = fetches
        self._by_number: dict[int, Policy] = {}
        self._numbers: dict[Policy, int] = {}

    def within(self, fetches: Fetches) -> KnownPolicies:
        """The same for one transaction: what it writes is not known outside, as it may be rolled back."""
        known = KnownPolicies(fetches)
        known._by_number, known._numbers = dict(self._by_number), dict(self._numbers)
        return known

    def adopt(self, other: KnownPolicies) -> None:
        """What a transaction has written down is known to all, now that it is committed."""
        self._by_number.update(other._by_number)
        self._numbers.update(other._numbers)

    async def number(self, policy: Policy) -> int:
        """The number of this policy, which is written down when it is new."""
        known = self._numbers.get(policy)
        return known if known is not None else await self._register(policy)

    async def of(self, rows: Iterable[asyncpg.Record]) -> dict[int, Policy]:
        """The policies that these rows speak of, among others."""
        missing = {row["policy_id"] for row in rows} - self._by_number.keys() - {None}
        if missing:
            for row in await self._fetches.fetch("policies", {"ids": sorted(missing)}):
                self._remember(row["id"], row["body"])
        return self._by_number

    def _remember(self, number: int, body: str) -> None:
        """One that cannot be read is left out: then its jobs cannot be either, and say so one by one."""
        try:
            self._by_number[number] = msgspec.json.decode(body, type=Policy)
        except (msgspec.MsgspecError, InvalidInput) as problem:
            log.error("policy %d cannot be read: %s", number, problem)

    async def _register(self, policy: Policy) -> int:
        values = {
            "body": _encoder.encode(policy).decode(),
            "lease_ms": policy.lease_ms,
            "heartbeat_ms": policy.heartbeat_ms,
            "queued_ms": policy.queued_ms,
            "claimed_ms": policy.claimed_ms,
            "running_ms": policy.running_ms,
        }
        rows: list[asyncpg.Record] = []
        while not rows:
            rows = await self._fetches.fetch("policy", values)
        self._numbers[policy] = rows[0]["id"]
        return self._numbers[policy]
