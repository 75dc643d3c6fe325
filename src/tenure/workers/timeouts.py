"""What a timeout records: the same error, whether the owner or recovery ends the attempt."""

from __future__ import annotations

from tenure.lifecycle.deadlines import deadline_of
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import CLAIMED, RUNNING


def timeout_error(job: Job, *, at_deadline: bool = False) -> str:
    """The error of a job that stayed in its status longer than its policy allows, or that reached its deadline, as JSON
    text."""
    deadline_at = deadline_of(job)
    if deadline_at is not None and (at_deadline or (not job.leased and job.timeout_at == deadline_at)):
        message = f"it was {job.status} at its deadline, {deadline_at.isoformat()}"
        return encode({"type": "Timeout", "message": message})
    timeouts = job.policy.timeouts
    name, seconds = {
        RUNNING: ("running_seconds", timeouts.running_seconds),
        CLAIMED: ("claimed_seconds", timeouts.claimed_seconds),
    }.get(job.status, ("queued_seconds", timeouts.queued_seconds))
    message = f"attempt {job.attempt} was {job.status} for longer than timeouts.{name}, which is {seconds} s"
    if job.attempt == 0:
        message = f"it was {job.status} for longer than timeouts.{name}, which is {seconds} s"
    return encode({"type": "Timeout", "message": message})
