"""Artifacts of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tenure.errors import InvalidInput, LeaseLost
from tenure.lifecycle.records import Job
from tenure.stores.contract import Artifact, ArtifactRecord, without_token
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import decode_records, micros


def attach(session: Session, job: Job, artifacts: Sequence[Artifact]) -> Job:
    """Insert artifacts of an attempt whose lease is still the job's. Returns the current job."""
    current = session.job(str(job.id))
    if job.token is None or current.token != job.token:
        raise LeaseLost(without_token(current), "attach")
    names = {record.name for record in list_artifacts(session, job.id)}
    for artifact in artifacts:
        if artifact.name in names:
            raise InvalidInput("artifact", f"job {job.id} has one named {artifact.name!r} already; take another name")
        names.add(artifact.name)
        parameters = {
            "job_id": str(job.id),
            "name": artifact.name,
            "attempt": job.attempt,
            "media_type": artifact.media_type,
            "body": artifact.body,
            "bytes": len(artifact.body),
            "at": micros(session.now),
        }
        session.execute("artifacts/insert", parameters)
    return current


def list_artifacts(session: Session, job_id: UUID) -> list[ArtifactRecord]:
    """A job's artifacts by name, without the bodies."""
    return decode_records(ArtifactRecord, session.execute("artifacts/select_of_job", {"job_id": str(job_id)}))


def read_artifact(session: Session, job_id: UUID, name: str) -> Artifact | None:
    """One artifact with its body."""
    row = session.execute("artifacts/select", {"job_id": str(job_id), "name": name}).fetchone()
    return None if row is None else Artifact(name=row[0], media_type=row[1], body=row[2])
