"""The timeouts of a job's policy. Pure."""

from __future__ import annotations

import msgspec

from tenure.lifecycle.json_text import check_seconds


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long a job may stay in a status; None for no limit.

    `queued_seconds` limits how long a due job is without a lease: queued, retry, waiting or stalled. `claimed_seconds`
    starts at the claim, and again when a remote engine acknowledges it. `running_seconds` is the stale threshold: a
    hung job may still heartbeat.
    """

    queued_seconds: float | None = None
    claimed_seconds: float | None = None
    running_seconds: float | None = 86_400.0

    def __post_init__(self) -> None:
        for name in ("queued_seconds", "claimed_seconds", "running_seconds"):
            if (seconds := getattr(self, name)) is not None:
                msgspec.structs.force_setattr(self, name, check_seconds(seconds, f"timeouts.{name}", least=0.001))
