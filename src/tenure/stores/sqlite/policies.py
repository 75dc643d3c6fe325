"""The policies that jobs name: each is kept once, under an id that is made of its body."""

from __future__ import annotations

import sqlite3
from hashlib import sha256

import msgspec

from tenure.errors import StoreError
from tenure.lifecycle.records import Policy
from tenure.stores.sqlite.statements import sql

_encoder = msgspec.json.Encoder(order="sorted")
_decode = msgspec.json.Decoder(Policy).decode


class Policies:
    """Knows the policies of one file. An id always means the same policy, so nothing here can become wrong."""

    def __init__(self) -> None:
        self._ids: dict[Policy, int] = {}
        self._policies: dict[int, Policy] = {}
        self._kept: set[int] = set()

    def keep(self, connection: sqlite3.Connection, policy: Policy) -> int:
        """The id of a policy, which is in the file once the transaction commits."""
        id_ = self._ids.get(policy)
        if id_ is None:
            body = _encoder.encode(policy)
            id_ = int.from_bytes(sha256(body).digest()[:6], "big")
            self._ids[policy] = id_
        if id_ not in self._kept:
            connection.execute(sql("insert_policy"), {"id": id_, "body": _encoder.encode(policy).decode()})
            self._kept.add(id_)
        return id_

    def doubt(self) -> None:
        """A transaction was rolled back: what it kept may not be in the file."""
        self._kept.clear()

    def of(self, connection: sqlite3.Connection, id_: int) -> Policy:
        """The policy of an id."""
        if (known := self._policies.get(id_)) is not None:
            return known
        row = connection.execute(sql("policy"), {"id": id_}).fetchone()
        if row is None:
            raise StoreError(f"policy {id_} is not in the file, though jobs name it; restore it from a backup")
        return self._policies.setdefault(id_, _decode(row[0]))
