"""When a message is attempted again. Pure."""

from __future__ import annotations

from hashlib import sha256
from uuid import UUID

import msgspec

from tenure.lifecycle.json_text import check_seconds

HOUR_SECONDS = 3600.0
DELAYS_SECONDS = (5.0, 300.0, 1800.0, *(hours * HOUR_SECONDS for hours in (2, 5, 10, 14, 20, 24)))
JITTER = 0.1


class RetrySchedule(msgspec.Struct, frozen=True, kw_only=True):
    """The delay before each further attempt. After the last one the message is a dead letter.

    Each delay is spread by up to a tenth, from the message, the endpoint and the attempt: the same on every processor.
    """

    delays_seconds: tuple[float, ...] = DELAYS_SECONDS

    def __post_init__(self) -> None:
        for seconds in self.delays_seconds:
            check_seconds(seconds, "delays_seconds")

    def delay_seconds(
        self, *, message_id: UUID, endpoint: str, attempt: int, asked: float | None = None
    ) -> float | None:
        """The delay after this attempt, at least what the receiver asked for; None after the last attempt.

        >>> RetrySchedule(delays_seconds=(1.0,)).delay_seconds(message_id=UUID(int=1), endpoint="crm", attempt=2)
        """
        if attempt > len(self.delays_seconds):
            return None
        hashed = sha256(f"{message_id} {endpoint} {attempt}".encode()).digest()
        spread = int.from_bytes(hashed[:8]) / 2**64
        delay = self.delays_seconds[attempt - 1] * (1 - JITTER + 2 * JITTER * spread)
        return delay if asked is None else max(delay, asked)
