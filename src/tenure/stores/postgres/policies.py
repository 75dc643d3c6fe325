"""The rows of policies in a PostgreSQL database."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import asyncpg
import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.records import Policy
from tenure.stores.policy_cache import PolicyCache, decode_policy, encode_policy
from tenure.stores.postgres.connections import Fetches

log = logging.getLogger("tenure.stores.postgres")


class PostgresPolicies(PolicyCache):
    """The policies of one database."""

    def __init__(self, fetches: Fetches) -> None:
        super().__init__()
        self._fetches = fetches

    def within(self, fetches: Fetches) -> PostgresPolicies:
        """A cache for one open transaction. `adopt` it after the commit: a policy that the transaction inserted has no
        row if it is rolled back."""
        cache = PostgresPolicies(fetches)
        cache.adopt(self)
        return cache

    async def number(self, policy: Policy) -> int:
        """The number of this policy, which is inserted if it is new."""
        known = self._ids.get(policy)
        return known if known is not None else await self._register(policy)

    async def of(self, rows: Iterable[asyncpg.Record]) -> dict[int, Policy]:
        """A mapping with the policies of these rows."""
        missing = {row["policy_id"] for row in rows} - self._policies.keys() - {None}
        if missing:
            for row in await self._fetches.fetch("policies/select", {"ids": sorted(missing)}):
                self._remember(row["id"], row["body"])
        return self._policies

    def _remember(self, number: int, body: str) -> None:
        """A policy that cannot be decoded is left out: its jobs are poisoned rows."""
        try:
            self._policies[number] = decode_policy(body)
        except (msgspec.MsgspecError, InvalidInput) as problem:
            log.error("policy %d cannot be read: %s", number, problem)

    async def _register(self, policy: Policy) -> int:
        values = {
            "body": encode_policy(policy).decode(),
            "lease_ms": policy.lease_ms,
            "heartbeat_ms": policy.heartbeat_ms,
            "queued_ms": policy.queued_ms,
            "claimed_ms": policy.claimed_ms,
            "running_ms": policy.running_ms,
            "deadline_ms": policy.deadline_ms,
        }
        rows: list[asyncpg.Record] = []
        while not rows:
            rows = await self._fetches.fetch("policies/insert", values)
        self._ids[policy] = rows[0]["id"]
        return self._ids[policy]
