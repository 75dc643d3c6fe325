"""Profiles: named sets of options of a job."""

from __future__ import annotations

from typing import TypedDict

from tenure.lifecycle.backoff import Backoff
from tenure.lifecycle.records import OnLost, OnTimeout
from tenure.lifecycle.timeouts import Timeouts


class Profile(TypedDict):
    """Options of a job that belong together. Each can also be used by itself: `timeouts=STRICT["timeouts"]`."""

    timeouts: Timeouts
    on_lost: OnLost
    on_timeout: OnTimeout
    backoff: Backoff


STRICT: Profile = {
    "timeouts": Timeouts(queued_seconds=30.0, claimed_seconds=10.0, running_seconds=60.0),
    "on_lost": "fail",
    "on_timeout": "fail",
    "backoff": Backoff(max_seconds=60.0),
}
"""Short timeouts in every status, and no second attempt after a timeout or a lost worker: `@app.job(**tenure.STRICT)`.

Errors that the function raises are still retried, as `max_attempts` allows."""
