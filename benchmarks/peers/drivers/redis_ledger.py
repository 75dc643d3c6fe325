# mypy: disable-error-code="import-not-found"
"""The records of a peer that stores its jobs in Redis: the queued and the unacknowledged ones. It does not record
ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis


class RedisLedger:
    """Answers the questions of `protocol.Ledger`. Where nothing is left and all bodies ran, the work is done."""

    def __init__(self, client: redis.Redis, left: Callable[[redis.Redis], int]) -> None:
        self._client, self._left = client, left

    def left(self) -> int:
        return self._left(self._client)

    def done(self) -> None:
        return None

    def first_claim_ns(self) -> None:
        return None

    def wal_bytes(self) -> None:
        return None

    def settle(self) -> None:
        return


@contextmanager
def ledger(url: str, left: Callable[[redis.Redis], int]) -> Iterator[RedisLedger]:
    with redis.Redis.from_url(url) as client:
        yield RedisLedger(client, left)
