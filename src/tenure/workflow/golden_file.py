"""Golden files: a recorded run as readable JSON, to be replayed against later code."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Job, Origin, Policy
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, RUNNING, SUCCEEDED, Status
from tenure.lifecycle.steps import StepKind, StepRecord, StepStatus

_ABSENT = msgspec.Raw()


class GoldenStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A recorded step. `result` and `error` are JSON; the arguments are compared by their digest."""

    key: str
    kind: StepKind
    name: str
    branch: str = ""
    ordinal: int = 0
    status: StepStatus = "succeeded"
    arguments_digest: str | None = None
    result: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT
    undo: msgspec.Raw = _ABSENT
    child_id: UUID | None = None
    finished_at: datetime


class GoldenError(msgspec.Struct, frozen=True):
    """The class and message of an error."""

    type: str
    message: str


class GoldenOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the run ended. `is_cut_off`: not by its function, so that calls after the last recorded one are expected."""

    status: Status
    at: datetime
    is_cut_off: bool = False
    result: msgspec.Raw = _ABSENT
    error: GoldenError | None = None


class GoldenFile(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded run: its payload, its steps in the order of their completion, and its outcome."""

    format: Literal[1] = 1
    kind: str
    id: UUID
    enqueued_at: datetime
    attempt: int
    payload: msgspec.Raw
    outcome: GoldenOutcome
    steps: list[GoldenStep]

    @property
    def file_name(self) -> str:
        return f"{self.kind}-{self.id}.json"

    def text(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"

    def job(self) -> Job:
        """The run as its last attempt had it."""
        origin = Origin(id=self.id, kind=self.kind, payload=bytes(self.payload).decode(), policy=Policy())
        return Job(
            origin=origin,
            status=RUNNING,
            rev=1,
            created_at=self.enqueued_at,
            updated_at=self.outcome.at,
            started_at=self.outcome.at,
            attempt=self.attempt,
        )

    def records(self) -> list[StepRecord]:
        return [_record(self, step, number) for number, step in enumerate(self.steps, 1)]


def golden_file(job: Job, steps: Sequence[StepRecord]) -> GoldenFile:
    """The golden file of a run that has ended. InvalidInput: it is live, has no attempt, or was erased."""
    if job.live:
        raise InvalidInput("run", f"{job.id} is {job.status}; record it when it has ended")
    if job.erased_at is not None:
        raise InvalidInput("run", f"{job.id} was erased, so that its payload and results are gone; record another run")
    if job.attempt == 0:
        raise InvalidInput("run", f"{job.id} ended before its first attempt; record a run that was executed")
    return GoldenFile(
        kind=job.kind,
        id=job.id,
        enqueued_at=job.created_at,
        attempt=job.attempt,
        payload=msgspec.Raw(job.origin.payload.encode()),
        outcome=_outcome(job),
        steps=[_step(step) for step in steps],
    )


def read_golden_file(path: Path) -> GoldenFile:
    """InvalidInput: the file cannot be read, or is not a golden file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=GoldenFile)
    except OSError as problem:
        raise InvalidInput(str(path), f"cannot be read: {problem.strerror}") from None
    except msgspec.MsgspecError as problem:
        raise InvalidInput(str(path), f"is not a golden file: {problem}; write it with tenure golden record") from None


def golden_paths(place: Path) -> list[Path]:
    """The golden files in a folder, or the one file. InvalidInput: there is none."""
    paths = sorted(place.glob("*.json")) if place.is_dir() else [place]
    if not paths or not paths[0].is_file():
        raise InvalidInput(str(place), "has no golden files; write one with tenure golden record ID")
    return paths


def _outcome(job: Job) -> GoldenOutcome:
    facts = load(job.error or job.last_error or "{}")
    error = GoldenError(str(facts.get("type")), str(facts.get("message"))) if facts else None
    by_function = job.status is SUCCEEDED or (
        job.status in (FAILED, DEAD_LETTERED) and error is not None and error.type != "Timeout" and not job.lost
    )
    result = job.result if job.result is not None else job.committed_result
    return GoldenOutcome(
        status=job.status,
        at=job.finished_at or job.updated_at,
        is_cut_off=not by_function,
        result=_raw(result) if job.status is SUCCEEDED else _ABSENT,
        error=None if job.status is SUCCEEDED else error,
    )


def _step(step: StepRecord) -> GoldenStep:
    return GoldenStep(
        key=step.key,
        kind=step.kind,
        name=step.name,
        branch=step.branch,
        ordinal=step.ordinal,
        status=step.status,
        arguments_digest=step.arguments_digest,
        result=_raw(step.result),
        error=_raw(step.error),
        undo=_raw(step.undo),
        child_id=step.child_id,
        finished_at=step.finished_at,
    )


def _record(run: GoldenFile, step: GoldenStep, number: int) -> StepRecord:
    return StepRecord(
        job_id=run.id,
        key=step.key,
        number=number,
        kind=step.kind,
        name=step.name,
        branch=step.branch,
        ordinal=step.ordinal,
        attempt=run.attempt,
        arguments_digest=step.arguments_digest,
        status=step.status,
        started_at=step.finished_at,
        finished_at=step.finished_at,
        child_id=step.child_id,
        content_digest="",
        digest="0",
        undo=_text(step.undo),
        result=_text(step.result),
        error=_text(step.error),
    )


def _raw(text: str | None) -> msgspec.Raw:
    return _ABSENT if text is None else msgspec.Raw(text.encode())


def _text(raw: msgspec.Raw) -> str | None:
    return bytes(raw).decode() or None
