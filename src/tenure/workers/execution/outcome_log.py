"""The log lines of ended attempts. A line per success must not dominate the cost of short jobs, so their number is
limited: decision 035.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from tenure.errors import LeaseLost, TenureError
from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import RETRY, STALLED, TERMINAL
from tenure.observe.log_context import job_fields
from tenure.observe.log_format import counted
from tenure.seams import Clock
from tenure.views.redaction import Redaction
from tenure.workers.completer import Written
from tenure.workers.execution.outcomes import (
    SNOOZE,
    Halted,
    Lost,
    Outcome,
    Raised,
    Returned,
    Snoozed,
    Suspended,
    TimedOut,
    UnknownArgument,
)

LINES_PER_SECOND = 100
"""How many successes have a line of their own. The others of the same second are counted in one line."""
KINDS_LISTED_MAX = 5

log = logging.getLogger("tenure.workers")


class OutcomeLog:
    """Logs how attempts ended. Failures always have their line, with the traceback."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock, self._loop = clock, loop
        self._second_ends_at = float("-inf")
        self._lines = 0
        self._counted: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def ended(self, job: Job, outcome: Outcome, written: Written) -> None:
        """What was written for the attempt of this record."""
        if not isinstance(outcome, Returned) or not _is_committed_as(job, outcome.result):
            _log_outcome(job, outcome, written)
        elif log.isEnabledFor(logging.INFO):
            self._log_success(job, written)

    def flush(self) -> None:
        """Log the counts of this second, if any."""
        if self._timer is not None:
            self._timer.cancel()
            self._log_counts()

    def _log_success(self, job: Job, written: Written) -> None:
        now = self._clock.monotonic_seconds()
        if now >= self._second_ends_at:
            self._second_ends_at = now + 1.0
            self._lines = 0
        if self._lines < LINES_PER_SECOND or log.isEnabledFor(logging.DEBUG):
            self._lines += 1
            _log_end(job, written)
            return
        self._counted[job.origin.kind] += 1
        if self._timer is None:
            self._timer = self._loop.call_later(self._second_ends_at - now, self._log_counts)

    def _log_counts(self) -> None:
        counts, self._counted, self._timer = self._counted, Counter(), None
        kinds = [f"{number} {kind}" for kind, number in counts.most_common(KINDS_LISTED_MAX)]
        if (left := len(counts) - len(kinds)) > 0:
            kinds.append(counted(left, "other kind"))
        number = counted(counts.total(), "more job")
        log.info("%s succeeded in the same second: %s", number, ", ".join(kinds), extra={"counts": dict(counts)})


def _is_committed_as(job: Job, result: str) -> bool:
    """Whether the job has committed nothing yet, or this result."""
    return job.committed_at is None or job.committed_result == result


def _log_outcome(job: Job, outcome: Outcome, written: Written) -> None:
    if isinstance(outcome, Raised):
        error = load(_without_secrets(job, outcome.error))
        message = f"{error.get('type')}: {error.get('message')}"
        seconds = _seconds_run(job, written.job)
        extra = {**job_fields(job), "seconds": seconds, "traceback": error.get("traceback")}
        template = "job %s (%s) attempt %s failed in %.2f s (%s), %s"
        log.warning(template, job.id, job.kind, job.attempt, seconds, message, _next_step(written), extra=extra)
    elif isinstance(outcome, UnknownArgument):
        template = "job %s (%s) attempt %s not run: its argument %r is unknown to this worker's code, %s"
        facts = (job.id, job.kind, job.attempt, outcome.argument, _next_step(written))
        log.warning(template, *facts, extra=job_fields(job))
    elif isinstance(outcome, TimedOut) and not job.committed:
        limit = "at its deadline" if outcome.at_deadline else f"after {job.policy.timeouts.running_seconds} s"
        template = "job %s (%s) attempt %s timed out %s, %s"
        log.warning(template, job.id, job.kind, job.attempt, limit, _next_step(written), extra=job_fields(job))
    elif isinstance(outcome, Snoozed) and outcome.cause != SNOOZE:
        template = "job %s (%s) attempt %s released, running again in %.1f s: %s"
        seconds = outcome.delay_seconds
        log.warning(template, job.id, job.kind, job.attempt, seconds, outcome.cause, extra=job_fields(job))
    elif isinstance(outcome, Suspended) and outcome.note is not None:
        template = "job %s (%s) attempt %s suspended (%s): %s"
        log.warning(template, job.id, job.kind, job.attempt, outcome.cause, outcome.note, extra=job_fields(job))
    elif isinstance(outcome, Halted):
        template = "job %s (%s) attempt %s halted: %s"
        log.warning(template, job.id, job.kind, job.attempt, outcome.reason, extra=job_fields(job))
    elif isinstance(outcome, Returned):
        template = "job %s (%s) returned another result than it committed; the committed result is kept"
        log.error(template, job.id, job.kind, extra=job_fields(job))
    elif written.status in TERMINAL:
        _log_end(job, written)
    else:
        template = "job %s (%s) attempt %s ended without a result; the job is %s"
        log.debug(template, job.id, job.kind, job.attempt, written.status, extra=job_fields(job))


def _without_secrets(job: Job, text: str) -> str:
    """The error without the values of the fields that the declaration of the job calls secret."""
    return text if job.policy.secret is None else Redaction.of(job).text(text)


def _log_end(job: Job, written: Written) -> None:
    seconds = _seconds_run(job, written.job)
    template = "job %s (%s) %s in %.2f s, attempt %s"
    extra = {**job_fields(job), "seconds": seconds}
    log.info(template, job.id, job.kind, written.status, seconds, job.attempt, extra=extra)


def _next_step(written: Written) -> str:
    job = written.job
    if written.status in (RETRY, STALLED) and job.due_at is not None:
        verb = "retrying" if written.status == RETRY else "released: any worker may claim it"
        return f"{verb} in {(job.due_at - job.updated_at).total_seconds():.1f} s"
    return f"not retrying: the job is {written.status}"


def _seconds_run(before: Job, after: Job) -> float:
    """From the start of the attempt to its recorded end, by the database's clock."""
    return 0.0 if before.started_at is None else (after.updated_at - before.started_at).total_seconds()


def log_unrecorded(job: Job, reason: Lost | BaseException) -> None:
    """The attempt ended, and nothing was written for it."""
    if isinstance(reason, Lost):
        template = "job %s (%s) %s; attempt %s is not recorded"
        log.warning(template, job.id, job.kind, reason.because, job.attempt, extra=job_fields(job))
    elif isinstance(reason, LeaseLost):
        template = "job %s (%s) lost its lease; the outcome of attempt %s was refused: %s"
        log.warning(template, job.id, job.kind, job.attempt, reason, extra=job_fields(job))
    elif isinstance(reason, Exception):
        template = "job %s (%s) outcome of attempt %s not recorded; recovery takes the job over: %s"
        unexpected = None if isinstance(reason, TenureError) else reason
        log.error(template, job.id, job.kind, job.attempt, reason, exc_info=unexpected, extra=job_fields(job))
