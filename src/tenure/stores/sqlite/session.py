"""What an operation may use: a connection inside a transaction, the time, and the policies of the file.

An operation is a function of a session and its own arguments. It neither begins nor ends the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from tenure.errors import JobNotFound
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Actor, Job, Policy
from tenure.stores.sqlite import statements
from tenure.stores.sqlite.policies import SqlitePolicies
from tenure.stores.sqlite.rows import decode_job
from tenure.stores.sqlite.values import Row, json_list, micros

_NOTHING: Mapping[str, Any] = {}


class Session:
    """The context of the operations of one transaction. `now` is the database's time."""

    __slots__ = ("connection", "now", "policies")

    def __init__(self, connection: sqlite3.Connection, now: datetime, policies: SqlitePolicies) -> None:
        self.connection, self.now, self.policies = connection, now, policies

    def execute(self, name: str, parameters: Mapping[str, Any] = _NOTHING) -> sqlite3.Cursor:
        """Run the statement of this name."""
        return self.connection.execute(statements.sql(name), parameters)

    def write_rows(self, name: str, rows: Sequence[Row], shared: Mapping[str, object] = _NOTHING) -> int:
        """Run the statement of this name for many rows. Returns how many rows of the table changed."""
        return statements.write_rows(self.connection, name, rows, shared)

    def savepoint(self, name: str) -> None:
        self.connection.execute(f"savepoint {name}")

    def release(self, name: str, *, undo: bool = False) -> None:
        """End a savepoint, and `undo` what was written since. Policies of that time may then have no row."""
        if undo:
            self.connection.execute(f"rollback to {name}")
            self.policies.forget_ids()
        self.connection.execute(f"release {name}")

    def policy(self, policy_id: int) -> Policy:
        return self.policies.read(self.connection, policy_id)

    def policy_id(self, policy: Policy) -> int:
        """The id of a policy, whose row exists once the transaction commits."""
        return self.policies.insert(self.connection, policy)

    def select_jobs(self, ids: Iterable[object]) -> sqlite3.Cursor:
        return self.execute("jobs/select", {"ids": json_list(ids)})

    def job(self, job_id: str) -> Job:
        """One job with its token, for the store's own use."""
        row = self.select_jobs([job_id]).fetchone()
        if row is None:
            raise JobNotFound(job_id)
        return decode_job(row, self.policy)

    @contextmanager
    def writing_as(self, writer: str, then: str | None = "store") -> Iterator[None]:
        """Set the writer, whose operations the guards then allow. An error rolls back the savepoint or transaction
        around it, and the writer with it."""
        set_writer(self.connection, writer)
        yield
        set_writer(self.connection, then)

    def log_operator(
        self, action: str, actor: Actor, detail: dict[str, object] | None = None, job_id: str | None = None
    ) -> None:
        """Record an operator's action."""
        parameters = {"at": micros(self.now), "actor": str(actor), "action": action, "job_id": job_id}
        self.execute("operator_log/insert", parameters | {"detail": None if detail is None else encode(detail)})


def set_writer(connection: sqlite3.Connection, writer: str | None) -> None:
    """Set the component that writes, or clear it before a commit."""
    connection.execute(statements.sql("writer/set"), {"writer": writer})
