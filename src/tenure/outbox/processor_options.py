"""The settings of an outbox processor."""

from __future__ import annotations

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import check_integer, check_seconds
from tenure.outbox.retry import RetrySchedule

LEASE_SHARE = 0.5
"""The share of a lease after which the processor begins no further delivery under it."""


class ProcessorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a processor. `concurrency`: how many streams are delivered to one endpoint at a time."""

    concurrency: int = 20
    lease_seconds: float = 120.0
    delivery_seconds_max: float = 45.0
    messages_max: int = 100
    poll_seconds: float = 1.0
    block_seconds: float = 7 * 86_400.0
    """How long a failing message may block its aggregate, unless the subscription sets another time."""
    disable_after_seconds: float = 5 * 86_400.0
    """An endpoint that has failed for this long is disabled. The operator log has a warning after each fifth of it."""
    retry: RetrySchedule = RetrySchedule()

    def __post_init__(self) -> None:
        check_integer(self.concurrency, "concurrency", least=1, most=10_000)
        check_integer(self.messages_max, "messages_max", least=1, most=10_000)
        check_seconds(self.lease_seconds, "lease_seconds", least=0.001)
        check_seconds(self.poll_seconds, "poll_seconds", least=0.001)
        check_seconds(self.delivery_seconds_max, "delivery_seconds_max", least=0.001)
        if self.delivery_seconds_max > (1 - LEASE_SHARE) * self.lease_seconds:
            least = self.delivery_seconds_max / (1 - LEASE_SHARE)
            takes = f"a delivery that takes {self.delivery_seconds_max:g} s (delivery_seconds_max)"
            raise InvalidInput("lease_seconds", f"must be at least {least:g}, so that {takes} ends within the lease")
        check_seconds(self.block_seconds, "block_seconds")
        check_seconds(self.disable_after_seconds, "disable_after_seconds")
