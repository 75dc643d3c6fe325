"""What a bench has run, and how much it may run in one go."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tenure.client.handle import ended
from tenure.errors import TenureError
from tenure.lifecycle.json_text import check_integer
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, RETRY, Status

JOBS_MAX = 10_000
LAST = 100
"""How many of the last runs are looked at to say what keeps coming."""


class HarnessError(TenureError):
    """The bench was asked for something that it cannot do, or that would never end."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: the job's record as it stood afterwards, and the error that its function raised, if it did.

    `recorded` is False where the lease was lost meanwhile, so that nothing of this run was written down.
    """

    job: Job
    error: BaseException | None = None
    recorded: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """What was run, in order. A job that was tried twice is there twice."""

    ran: tuple[Ran, ...] = ()

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The records as each run left them."""
        return tuple(one.job for one in self.ran)

    @property
    def counts(self) -> Counter[Status]:
        """How many runs led to which status."""
        return Counter(one.job.status for one in self.ran)

    @property
    def errors(self) -> tuple[BaseException, ...]:
        """What the functions raised, in order."""
        return tuple(one.error for one in self.ran if one.error is not None)


@dataclass(slots=True)
class Work:
    """One call's worth of work, and its limits."""

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
            f"{self.jobs_max} jobs were run and there are still more; these keep coming: {kinds}. "
            f"If that is meant, give a higher jobs_max"
        )

    def note(self, ran: Ran) -> None:
        self.ran.append(ran)
        if not self.raise_errors:
            return
        if ran.error is not None:
            raise ran.error
        if ran.job.status in (RETRY, FAILED, DEAD_LETTERED):
            # The input or the output did not fit, so the function itself raised nothing.
            raise ended(ran.job)

    def report(self) -> Report:
        return Report(tuple(self.ran))
