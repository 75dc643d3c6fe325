"""Artifacts of jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from tenure.errors import InvalidInput, LeaseLost
from tenure.lifecycle.records import Job
from tenure.stores.contract import Artifact, ArtifactRecord, without_secret
from tenure.stores.sqlite.apply import read_one
from tenure.stores.sqlite.rows import PolicyOf, micros, moment
from tenure.stores.sqlite.statements import sql


def attach(
    connection: sqlite3.Connection, job: Job, artifacts: Sequence[Artifact], *, now: datetime, policy_of: PolicyOf
) -> Job:
    """Keep artifacts of the attempt that this record is of, as long as its lease is the job's. The job as it stands."""
    current = read_one(connection, str(job.id), policy_of)
    if job.token is None or current.token != job.token:
        raise LeaseLost(without_secret(current), "attach")
    for artifact in artifacts:
        parameters = {
            "job_id": str(job.id),
            "name": artifact.name,
            "attempt": job.attempt,
            "media_type": artifact.media_type,
            "body": artifact.body,
            "bytes": len(artifact.body),
            "at": micros(now),
        }
        if connection.execute(sql("insert_artifact"), parameters).rowcount == 0:
            raise InvalidInput("artifact", f"job {job.id} has one named {artifact.name!r} already; take another name")
    return current


def list_artifacts(connection: sqlite3.Connection, job_id: UUID) -> list[ArtifactRecord]:
    """What a job has made, by name."""
    rows = connection.execute(sql("artifacts"), {"job_id": str(job_id)})
    return [
        ArtifactRecord(job_id=job_id, name=name, attempt=attempt, media_type=media_type, bytes=size, at=moment(at))
        for name, attempt, media_type, size, at in rows
    ]


def read_artifact(connection: sqlite3.Connection, job_id: UUID, name: str) -> Artifact | None:
    """One of them, with its body."""
    row = connection.execute(sql("artifact"), {"job_id": str(job_id), "name": name}).fetchone()
    return None if row is None else Artifact(name=row[0], media_type=row[1], body=row[2])
