"""The job's fields on log records, also on those of the user's code and in every thread of the job."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tenure.jobs.context import current_context
from tenure.lifecycle.records import Job


def job_fields(job: Job) -> Mapping[str, str | int | None]:
    """The fields of a record about this job, for `extra` of a log call."""
    return {
        "job_id": str(job.id),
        "job_kind": job.kind,
        "job_attempt": job.attempt,
        "correlation_id": job.correlation_id,
        "trace_id": trace_id(job.origin.trace),
    }


def trace_id(traceparent: str | None) -> str | None:
    """The trace id of a W3C traceparent; None for any other text.

    >>> trace_id("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    '4bf92f3577b34da6a3ce929d0e0e4736'
    """
    parts = (traceparent or "").split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else None


class JobLogFilter(logging.Filter):
    """Adds the running job's fields to every record, and drops none.

    Add it to a handler: `handler.addFilter(JobLogFilter())`. On a logger it would miss the records of other loggers.
    Fields that a record already has stay as they are.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        context = current_context.get()
        if context is not None and getattr(record, "job_id", str(context.id)) == str(context.id):
            for name, value in job_fields(context.job).items():
                if not hasattr(record, name):
                    setattr(record, name, value)
        return True
