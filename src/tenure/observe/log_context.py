"""Log records that say which job they belong to, whoever writes them and in whichever thread of the job."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tenure.jobs.context import current_context
from tenure.lifecycle.records import Job

FACTS = ("job_id", "job_kind", "job_attempt", "correlation_id", "trace_id")


def facts(job: Job) -> Mapping[str, str | int | None]:
    """What a record says of the job that it belongs to: for `extra` of a log call."""
    story = job.origin
    return {
        "job_id": str(job.id),
        "job_kind": job.kind,
        "job_attempt": job.attempt,
        "correlation_id": story.correlation_id,
        "trace_id": trace_id(story.trace),
    }


def trace_id(traceparent: str | None) -> str | None:
    """The trace of a W3C traceparent, or None for what is none.

    >>> trace_id("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    '4bf92f3577b34da6a3ce929d0e0e4736'
    """
    parts = (traceparent or "").split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else None


class JobFacts(logging.Filter):
    """Lets every record pass, and writes the job on those that are made while one runs.

    It belongs on a handler: `handler.addFilter(JobFacts())`. A filter of a logger would not see what others log.
    What whoever logged has said about the job themselves is left as it is.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        around = current_context.get()
        if around is not None and getattr(record, "job_id", str(around.id)) == str(around.id):
            for name, fact in facts(around.job).items():
                if not hasattr(record, name):
                    setattr(record, name, fact)
        return True
