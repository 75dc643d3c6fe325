"""Retry backoff. Seeded: the same job and attempt give the same delay on every machine."""

from __future__ import annotations

from hashlib import sha256
from uuid import UUID

import msgspec

from tenure.lifecycle.json_text import check_seconds


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential growth with jitter: `base_seconds * factor ** (failures - 1)`, at most `max_seconds`.

    By default 20 attempts take 20.6 hours at most: 15 delays from 0.5 s to 2.3 hours, then 4 of 4 hours.

    >>> Backoff(base_seconds=0.5, factor=2, max_seconds=60)
    Backoff(base_seconds=0.5, factor=2.0, max_seconds=60.0)
    """

    base_seconds: float = 0.5
    factor: float = 2.0
    max_seconds: float = 14_400.0

    def __post_init__(self) -> None:
        base = check_seconds(self.base_seconds, "backoff.base_seconds")
        factor = check_seconds(self.factor, "backoff.factor", least=1.0, most=1000.0)
        msgspec.structs.force_setattr(self, "base_seconds", base)
        msgspec.structs.force_setattr(self, "factor", factor)
        msgspec.structs.force_setattr(self, "max_seconds", check_seconds(self.max_seconds, "backoff.max_seconds"))


def retry_delay_ms(backoff: Backoff, *, job_id: UUID, attempt: int, failures: int) -> int:
    """The delay after the given failure, between half of the exponential value and all of it.

    The jitter spreads jobs that failed together. It is a hash of job and attempt, so that a delay can be recomputed.
    """
    exponent = min(max(failures - 1, 0), 64)
    whole_ms = int(min(backoff.max_seconds, backoff.base_seconds * backoff.factor**exponent) * 1000)
    seed = int.from_bytes(sha256(job_id.bytes + attempt.to_bytes(8, "big")).digest()[:4], "big")
    half_ms = whole_ms // 2
    return half_ms + (whole_ms - half_ms) * seed // 0xFFFF_FFFF
