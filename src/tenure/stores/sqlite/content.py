"""Reads the rows beside jobs, as `verify` compares them with the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from hashlib import sha256
from uuid import UUID

from tenure.lifecycle.content import StoredContent, artifact_digest, is_of_step, message_digest
from tenure.lifecycle.steps import StepsDigest, StoredStep, stored_step
from tenure.stores.sqlite.rows import decode_step
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import json_list, text


def read_content(session: Session, job_ids: Sequence[UUID]) -> dict[UUID, StoredContent]:
    """Artifacts, messages, signals and steps of these jobs. One body or result is in memory at a time."""
    ids = {"ids": json_list(map(str, job_ids))}
    artifacts: defaultdict[str, list[bytes]] = defaultdict(list)
    for job_id, name, media_type, attempt, size, body in session.execute("artifacts/select_of_jobs", ids):
        body_sha256 = sha256(body).digest()
        artifacts[job_id].append(
            artifact_digest(name=name, media_type=media_type, attempt=attempt, bytes_=size, body_sha256=body_sha256)
        )
    messages: defaultdict[str, list[bytes]] = defaultdict(list)
    for job_id, id_, aggregate, topic, body, headers in session.execute("outbox/select_of_jobs", ids):
        if not is_of_step(id_):
            digest = message_digest(id=id_, aggregate=aggregate, topic=topic, body=body, headers=headers)
            messages[job_id].append(digest)
    signals: defaultdict[str, dict[int, tuple[str, str]]] = defaultdict(dict)
    for job_id, rev, name, payload in session.execute("signals/select_of_jobs", ids):
        signals[job_id][rev] = (name, payload)
    steps: defaultdict[UUID, list[StoredStep]] = defaultdict(list)
    for step in map(decode_step, session.execute("steps/select_of_jobs", ids)):
        steps[step.job_id].append(stored_step(step))
    return {
        job_id: StoredContent(
            artifacts=tuple(artifacts[key]),
            messages=tuple(messages[key]),
            signals=signals[key],
            steps=tuple(steps[job_id]),
        )
        for job_id, key in ((job_id, str(job_id)) for job_id in job_ids)
    }


def steps_digest(session: Session, job_id: UUID) -> str | None:
    """What the end of an attempt records of the job's steps; None for a job without steps."""
    rows = session.execute("steps/select_digests", {"job_id": text(job_id)})
    return StepsDigest.of(row[0] for row in rows).recorded
