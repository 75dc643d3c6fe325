"""The policies of one database, by id. A policy's row never changes, so that a cached policy stays valid."""

from __future__ import annotations

import msgspec

from tenure.lifecycle.records import Policy

encode_policy = msgspec.json.Encoder(order="sorted").encode
decode_policy = msgspec.json.Decoder(Policy).decode


class PolicyCache:
    """Policies that were read, and the ids of those whose rows are committed."""

    def __init__(self) -> None:
        self._policies: dict[int, Policy] = {}
        self._ids: dict[Policy, int] = {}

    def forget_ids(self) -> None:
        """After a rollback: policies that were inserted in that transaction have no row."""
        self._ids.clear()

    def adopt(self, other: PolicyCache) -> None:
        """Cache what another transaction cached."""
        self._policies.update(other._policies)
        self._ids.update(other._ids)
