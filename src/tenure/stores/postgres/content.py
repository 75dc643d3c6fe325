"""Reads the rows beside jobs, as `verify` compares them with the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from tenure.lifecycle.content import StoredContent, artifact_digest, is_of_step, message_digest
from tenure.lifecycle.steps import StoredStep
from tenure.stores.postgres.connections import Fetches
from tenure.stores.postgres.rows import signal_from, stored_step_from


async def read_content(fetches: Fetches, job_ids: Sequence[UUID]) -> dict[UUID, StoredContent]:
    """Artifacts, messages, signals and steps of these jobs. Bodies of artifacts and results of steps stay in the
    database, which hashes them."""
    ids = {"ids": list(job_ids)}
    artifacts: defaultdict[UUID, list[bytes]] = defaultdict(list)
    for row in await fetches.fetch("artifacts/select_digests", ids):
        facts = dict(row)
        job_id, facts["bytes_"] = facts.pop("job_id"), facts.pop("bytes")
        artifacts[job_id].append(artifact_digest(**facts))
    messages: defaultdict[UUID, list[bytes]] = defaultdict(list)
    for row in await fetches.fetch("outbox/select_of_jobs", ids):
        if not is_of_step(row["id"]):
            facts = dict(row)
            messages[facts.pop("job_id")].append(message_digest(**facts))
    signals: defaultdict[UUID, dict[int, tuple[str, str]]] = defaultdict(dict)
    for row in await fetches.fetch("signals/select", ids):
        signal = signal_from(row)
        signals[signal.job_id][signal.rev] = (signal.name, signal.payload)
    steps: defaultdict[UUID, list[StoredStep]] = defaultdict(list)
    for row in await fetches.fetch("steps/select_of_jobs", ids):
        steps[row["job_id"]].append(stored_step_from(row))
    return {
        job_id: StoredContent(
            artifacts=tuple(artifacts[job_id]),
            messages=tuple(messages[job_id]),
            signals=signals[job_id],
            steps=tuple(steps[job_id]),
        )
        for job_id in job_ids
    }
