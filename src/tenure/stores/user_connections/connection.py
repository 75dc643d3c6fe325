"""One borrowed connection in use: what is asked of it goes to the part that speaks its database's language."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import InvalidInput
from tenure.lifecycle.operations import OperationType
from tenure.seams import Clock
from tenure.stores.contract import Artifact, EnqueueRequest, EnqueueResult, OutboxMessage, Outcome, Request
from tenure.stores.user_connections import sqlite_dialect
from tenure.stores.user_connections.protocol import Driver
from tenure.stores.user_connections.sync import run_synchronously
from tenure.stores.validation import check_artifacts, check_enqueue, check_message, check_request

_SCHEMES = {"sqlite": "sqlite", "postgresql": "postgresql", "postgres": "postgresql"}


class BorrowedCaller:
    """Keeps the promises of `Caller`."""

    def __init__(self, borrowed: Driver, database_url: str, *, clock: Clock) -> None:
        self._borrowed, self._url, self._clock = borrowed, database_url, clock

    @property
    def is_async(self) -> bool:
        return self._borrowed.is_async

    @property
    def deadline_seconds_max(self) -> float:
        return sqlite_dialect.DEADLINE_SECONDS_MAX if self._url.startswith("sqlite") else float("inf")

    async def enqueue(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        for request in requests:
            check_enqueue(request)
        if await self._is_sqlite():
            return await sqlite_dialect.enqueue(self._borrowed, requests, url=self._url, clock=self._clock)
        # What speaks to PostgreSQL needs its driver, which is there only where PostgreSQL is used.
        from tenure.stores.user_connections import postgres_dialect

        return await postgres_dialect.enqueue(self._borrowed, requests)

    async def apply(
        self, request: Request, *, messages: Sequence[OutboxMessage] = (), artifacts: Sequence[Artifact] = ()
    ) -> Outcome:
        check_request(request)
        _check_belongings(messages, artifacts)
        if [operation.type for operation in request.operations] != [OperationType.COMMIT]:
            asked = "+".join(operation.type for operation in request.operations)
            raise InvalidInput("operations", f"are {asked}; in a caller's own transaction there is only one commit")
        is_sqlite = await self._is_sqlite()
        await self._borrowed.flush()
        if is_sqlite:
            return await sqlite_dialect.apply(
                self._borrowed, request, messages=messages, artifacts=artifacts, url=self._url, clock=self._clock
            )
        from tenure.stores.user_connections import postgres_dialect

        return await postgres_dialect.apply(self._borrowed, request, messages=messages, artifacts=artifacts)

    async def begin(self) -> None:
        if await self._is_sqlite():
            await sqlite_dialect.require_same_file(self._borrowed, url=self._url)
        await self._borrowed.begin()

    async def commit(self) -> None:
        await self._borrowed.commit()

    async def rollback(self) -> None:
        await self._borrowed.rollback()

    def enqueue_sync(self, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
        self._require_plain("enqueue_sync", instead="enqueue")
        return run_synchronously(self.enqueue(requests))

    def apply_sync(
        self, request: Request, *, messages: Sequence[OutboxMessage] = (), artifacts: Sequence[Artifact] = ()
    ) -> Outcome:
        self._require_plain("apply_sync", instead="apply")
        return run_synchronously(self.apply(request, messages=messages, artifacts=artifacts))

    def begin_sync(self) -> None:
        self._require_plain("begin_sync", instead="begin")
        run_synchronously(self.begin())

    def commit_sync(self) -> None:
        self._require_plain("commit_sync", instead="commit")
        run_synchronously(self.commit())

    def rollback_sync(self) -> None:
        self._require_plain("rollback_sync", instead="rollback")
        run_synchronously(self.rollback())

    def _require_plain(self, called: str, *, instead: str) -> None:
        if self.is_async:
            problem = (
                f"{self._borrowed.name} is asynchronous, and {called} cannot wait for it; use `await ….{instead}(…)`"
            )
            raise InvalidInput("connection", problem)

    async def _is_sqlite(self) -> bool:
        """Which of the two it is, once it is sure that the connection and the app speak of one kind of database."""
        scheme = self._url.partition("://")[0]
        dialect = await self._borrowed.dialect()
        if _SCHEMES.get(scheme) != dialect:
            problem = f"{self._borrowed.name} leads to {dialect}, and the app's jobs are in {scheme}://…"
            raise InvalidInput("connection", f"{problem}; pass a connection to the app's own database")
        return dialect == "sqlite"


def _check_belongings(messages: Sequence[OutboxMessage], artifacts: Sequence[Artifact]) -> None:
    for message in messages:
        check_message(message)
    if len({message.id for message in messages}) < len(messages):
        raise InvalidInput("id", "two messages have the same id; make a new id for each message")
    check_artifacts(artifacts)
