"""The rows of policies in a SQLite file. A policy's id is derived from its body."""

from __future__ import annotations

import sqlite3
from hashlib import sha256

from tenure.errors import StoreError
from tenure.lifecycle.records import Policy
from tenure.stores.policy_cache import PolicyCache, decode_policy, encode_policy
from tenure.stores.sqlite.statements import sql


class SqlitePolicies(PolicyCache):
    """The policies of one file."""

    def insert(self, connection: sqlite3.Connection, policy: Policy) -> int:
        """The id of a policy, whose row exists once the transaction commits."""
        id_ = self._ids.get(policy)
        if id_ is None:
            body = encode_policy(policy)
            id_ = int.from_bytes(sha256(body).digest()[:6], "big")
            connection.execute(sql("policies/insert"), {"id": id_, "body": body.decode()})
            self._ids[policy] = id_
        return id_

    def read(self, connection: sqlite3.Connection, id_: int) -> Policy:
        if (known := self._policies.get(id_)) is not None:
            return known
        row = connection.execute(sql("policies/select"), {"id": id_}).fetchone()
        if row is None:
            raise StoreError(f"policy {id_} is not in the file, though jobs name it; restore it from a backup")
        return self._policies.setdefault(id_, decode_policy(row[0]))
