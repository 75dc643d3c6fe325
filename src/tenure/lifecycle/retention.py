"""How long finished jobs and their details are kept. Pure: the settings, and which of them applies to a job."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import check_name
from tenure.lifecycle.statuses import DEAD_LETTERED, Status

INF = float("inf")
DAY_SECONDS = 86_400.0
DAYS_MAX = 36_500.0
_DAYS = (
    "finished_days", "succeeded_days", "failed_days", "cancelled_days", "halted_days", "dead_lettered_days",
    "verbose_days", "delivered_days", "workers_days",
)  # fmt: skip


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How many days things are kept. None and `math.inf` keep them for good.

    A finished job is kept for the days of its kind (`kinds`), else of its status, else `finished_days`. Only
    `dead_lettered_days` applies to dead letters, since they wait for a decision.

    >>> Retention(finished_days=30, kinds={"audit": INF}).job_seconds(Status.SUCCEEDED, "mail")
    2592000.0
    """

    finished_days: float | None = None
    succeeded_days: float | None = None
    failed_days: float | None = None
    cancelled_days: float | None = None
    halted_days: float | None = None
    dead_lettered_days: float | None = None
    kinds: Mapping[str, float] = {}
    verbose_days: float | None = 7.0
    """The details of progress events that a later event replaces."""
    delivered_days: float | None = 7.0
    """Outbox messages that were delivered."""
    workers_days: float | None = 7.0
    """The rows of workers that stopped or vanished. They stay while a job that they may have run is kept."""

    def __post_init__(self) -> None:
        for name in _DAYS:
            if (days := getattr(self, name)) is not None:
                _check_days(days, name)
        for kind, days in self.kinds.items():
            _check_days(days, f"kinds[{check_name(kind, 'kinds')!r}]")

    @property
    def prunes_jobs(self) -> bool:
        """Whether finished jobs of any status or kind are ever removed."""
        days = [getattr(self, name) for name in _DAYS[:6]]
        return any(_seconds(one) is not None for one in (*days, *self.kinds.values()))

    def job_seconds(self, status: Status, kind: str) -> float | None:
        """How long a finished job is kept; None for good."""
        if status is DEAD_LETTERED:
            return _seconds(self.dead_lettered_days)
        by_status: float | None = getattr(self, f"{status.value}_days")
        default = self.finished_days if by_status is None else by_status
        return _seconds(self.kinds.get(kind, default))

    @property
    def verbose_seconds(self) -> float | None:
        return _seconds(self.verbose_days)

    @property
    def delivered_seconds(self) -> float | None:
        return _seconds(self.delivered_days)

    @property
    def workers_seconds(self) -> float | None:
        return _seconds(self.workers_days)


def _check_days(days: float, name: str) -> None:
    if isinstance(days, bool) or not isinstance(days, int | float) or not (0 <= days <= DAYS_MAX or days == INF):
        raise InvalidInput(name, f"{days!r} is not a number of days from 0 to {DAYS_MAX:,.0f}, or math.inf")


def _seconds(days: float | None) -> float | None:
    return None if days is None or days == INF else days * DAY_SECONDS
