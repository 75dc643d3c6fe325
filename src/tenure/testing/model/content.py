"""What the model keeps beside its jobs: artifacts, messages for the outside, and workers."""

from __future__ import annotations

from collections.abc import Sequence, Set
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, JobNotFound, LeaseLost
from tenure.lifecycle.records import Job
from tenure.stores.commit_block import require_outside
from tenure.stores.contract import Artifact, ArtifactRecord, OutboxMessage, WorkerRecord, without_token
from tenure.stores.validation import validate_worker
from tenure.testing.clock import ManualClock


class Belongings:
    """The half of the model that `decide` knows nothing of."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._rows: dict[UUID, Job] = {}
        self._artifacts: dict[tuple[UUID, str], tuple[ArtifactRecord, Artifact]] = {}
        self._outbox: dict[UUID, tuple[int, OutboxMessage]] = {}
        self._workers: dict[str, WorkerRecord] = {}

    async def post(self, messages: Sequence[tuple[OutboxMessage, Job | None]]) -> None:
        """What a transaction has posted, each under the next number of its aggregate."""
        for message, _ in messages:
            if message.id in self._outbox:
                raise InvalidInput("id", f"there is a message {message.id} already; make a new id for a new message")
            earlier = sum(there.aggregate == message.aggregate for _, there in self._outbox.values())
            self._outbox[message.id] = (earlier + 1, message)

    async def attach(self, job: Job, artifacts: Sequence[Artifact]) -> Job:
        """What a transaction has attached. The job as it stands."""
        current = self._rows.get(job.id)
        if current is None:
            raise JobNotFound(job.id)
        if job.token is None or current.token != job.token:
            raise LeaseLost(without_token(current), "attach")
        for artifact in artifacts:
            if (job.id, artifact.name) in self._artifacts:
                problem = f"job {job.id} has one named {artifact.name!r} already; take another name"
                raise InvalidInput("artifact", problem)
            record = ArtifactRecord(
                job_id=job.id,
                name=artifact.name,
                attempt=job.attempt,
                media_type=artifact.media_type,
                bytes=len(artifact.body),
                at=self._clock.now(),
            )
            self._artifacts[job.id, artifact.name] = (record, artifact)
        return current

    async def artifacts(self, job_id: UUID) -> list[ArtifactRecord]:
        return [self._artifacts[key][0] for key in sorted(self._artifacts, key=str) if key[0] == job_id]

    async def artifact(self, job_id: UUID, name: str) -> Artifact | None:
        kept = self._artifacts.get((job_id, name))
        return None if kept is None else kept[1]

    def _drop_artifacts(self, job_ids: Set[UUID]) -> None:
        self._artifacts = {key: kept for key, kept in self._artifacts.items() if key[0] not in job_ids}

    async def register(self, worker: WorkerRecord) -> None:
        validate_worker(worker)
        require_outside(self)
        now = self._clock.now()
        before = self._workers.get(worker.id)
        first = now if before is None else before.started_at
        self._workers[worker.id] = msgspec.structs.replace(worker, started_at=first, seen_at=now, stopped_at=None)

    async def unregister(self, worker_id: str) -> None:
        require_outside(self)
        worker = self._workers.get(worker_id)
        if worker is not None and worker.stopped_at is None:
            self._workers[worker_id] = msgspec.structs.replace(worker, stopped_at=self._clock.now())

    async def workers(self, ids: Sequence[str] | None = None) -> list[WorkerRecord]:
        ordered = [self._workers[id_] for id_ in sorted(self._workers)]
        return [worker for worker in ordered if (worker.stopped_at is None if ids is None else worker.id in ids)]
