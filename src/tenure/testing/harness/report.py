"""What a test harness has run, and how much one call may run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tenure.client.handle import end_error
from tenure.errors import TenureError
from tenure.lifecycle.json_text import check_integer
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, RETRY, Status

JOBS_MAX = 10_000
LAST = 100
"""How many of the last attempts the error about endless work counts."""


class HarnessError(TenureError):
    """A call of the test harness is not possible, or would never end."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt: the job's record after it, and the error that its function raised, if any.

    `recorded` is False if the lease was lost during the attempt, so that its outcome was not written.
    """

    job: Job
    error: BaseException | None = None
    recorded: bool = True


@dataclass(frozen=True, slots=True)
class HarnessReport:
    """The attempts of one call, in order. A job with two attempts appears twice."""

    ran: tuple[Ran, ...] = ()

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The job's record after each attempt."""
        return tuple(one.job for one in self.ran)

    @property
    def counts(self) -> Counter[Status]:
        """How many attempts ended in which status."""
        return Counter(one.job.status for one in self.ran)

    @property
    def errors(self) -> tuple[BaseException, ...]:
        """What the functions raised, in order."""
        return tuple(one.error for one in self.ran if one.error is not None)


@dataclass(slots=True)
class Work:
    """The attempts of one call, and its limits."""

    jobs_max: int = JOBS_MAX
    raise_errors: bool = False
    ran: list[Ran] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_integer(self.jobs_max, "jobs_max", least=1, most=10**9)

    @property
    def full(self) -> bool:
        return len(self.ran) >= self.jobs_max

    def too_much(self) -> HarnessError:
        last = self.ran[-LAST:]
        coming = Counter(one.job.kind for one in last).most_common(5)
        kinds = ", ".join(f"{kind} ({times} of the last {len(last)})" for kind, times in coming)
        return HarnessError(
            f"{self.jobs_max} jobs were run and more are due; most frequent: {kinds}. "
            f"Pass a higher jobs_max if that is intended"
        )

    def note(self, ran: Ran) -> None:
        self.ran.append(ran)
        if not self.raise_errors:
            return
        if ran.error is not None:
            raise ran.error
        if ran.job.status in (RETRY, FAILED, DEAD_LETTERED):
            # The input or the output did not fit, so the function itself raised nothing.
            raise end_error(ran.job)

    def report(self) -> HarnessReport:
        return HarnessReport(tuple(self.ran))
