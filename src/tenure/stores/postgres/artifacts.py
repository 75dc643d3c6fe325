"""Writes the artifacts of jobs."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import InvalidInput, JobNotFound, LeaseLost
from tenure.lifecycle.records import Job
from tenure.stores.contract import Artifact, without_token
from tenure.stores.postgres.connections import Fetches
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.reads import jobs_by_id


async def insert_artifacts(
    fetches: Fetches, policies: PostgresPolicies, job: Job, artifacts: Sequence[Artifact]
) -> Job:
    """Write the artifacts under the lease of the given record, and return the job's row. A name that the job has used
    is refused."""
    current = (await jobs_by_id(fetches, policies, [job.id], with_token=True)).get(job.id)
    if current is None:
        raise JobNotFound(job.id)
    if job.token is None or current.token != job.token:
        raise LeaseLost(without_token(current), "attach")
    values = {
        "job_id": job.id,
        "attempt": job.attempt,
        "names": [artifact.name for artifact in artifacts],
        "media_types": [artifact.media_type for artifact in artifacts],
        "bodies": [artifact.body for artifact in artifacts],
    }
    written = {row["name"] for row in await fetches.fetch("artifacts/insert", values)}
    for artifact in artifacts:
        if artifact.name not in written:
            problem = f"job {job.id} has one named {artifact.name!r} already; take another name"
            raise InvalidInput("artifact", problem)
    return current
