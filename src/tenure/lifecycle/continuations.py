"""Continuations of runs: a run ends, and its successor starts with another payload. Pure.

The result of the ended run names its successor. The first record of the successor names the ended run, and has the
budget and the live children of the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import msgspec

from tenure.lifecycle.deadlines import deadline_of, with_deadline
from tenure.lifecycle.forks import digested_step
from tenure.lifecycle.json_text import encode, load
from tenure.lifecycle.records import Job, Origin
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.lifecycle.steps import STATE_NAME, StepKind, StepRecord

CONTINUE_PREFIX = "continue:"
CONTINUE_KEY = f"{CONTINUE_PREFIX}origin"
"""The key of the first record of a successor."""
STATE_KEY = f"{CONTINUE_PREFIX}state"
_REQUEST_SUFFIX = "/continue"
_RESULT_NAME = "tenure:continued_as"


class CarriedChild(msgspec.Struct, frozen=True):
    """A child that an earlier run of the chain has spawned, and its policy for the end of the last run."""

    child_id: UUID
    on_parent_end: str


class ContinuedFrom(msgspec.Struct, frozen=True):
    """The result of the first record of a successor. `budget_root_id` is the run whose budget the chain spends."""

    continued_from: UUID
    budget_root_id: UUID
    children: tuple[CarriedChild, ...] = ()


def continued_from(records: Mapping[str, StepRecord]) -> ContinuedFrom | None:
    """The first record of a successor. None: the run is the first of its chain, or its content was erased."""
    record = records.get(CONTINUE_KEY)
    return None if record is None or record.result is None else msgspec.json.decode(record.result, type=ContinuedFrom)


def spawned_children(records: Iterable[StepRecord]) -> list[CarriedChild]:
    """The children of the run with these records, and those of the runs before it."""
    by_key = {record.key: record for record in records}
    before = continued_from(by_key)
    return [
        *(() if before is None else before.children),
        *(
            CarriedChild(record.child_id, load(record.result or "{}").get("on_parent_end", "cancel"))
            for record in by_key.values()
            if record.kind is StepKind.SPAWN and record.child_id is not None
        ),
    ]


def continued_result(successor_id: UUID) -> str:
    """The result of a run that continues as its successor.

    >>> continued_result(UUID(int=7))
    '{"tenure:continued_as":"00000000-0000-0000-0000-000000000007"}'
    """
    return encode({_RESULT_NAME: str(successor_id)})


def continued_as(job: Job) -> UUID | None:
    """The id of the successor of this run; None if it has none."""
    if job.status is not SUCCEEDED or job.result is None or not job.result.startswith(f'{{"{_RESULT_NAME}":'):
        return None
    return UUID(load(job.result)[_RESULT_NAME])


def successor_origin(job: Job, new_id: UUID, payload: str) -> Origin:
    """The same work with another payload: attributes, limits, deadline, dedupe key and parent are those of the ended
    run."""
    return msgspec.structs.replace(
        with_deadline(job.origin, deadline_of(job)),
        id=new_id,
        payload=payload,
        # A repetition after a lost reply finds the same successor.
        request_id=f"{job.id}{_REQUEST_SUFFIX}",
        correlation_id=job.correlation_id,
    )


def is_successor(job: Job) -> bool:
    """Whether the run continues another one."""
    return job.origin.request_id is not None and job.origin.request_id.endswith(_REQUEST_SUFFIX)


def begins_with_steps(job: Job) -> bool:
    """Whether the current attempt may find recorded steps: of earlier attempts, of a fork, or of the run before it."""
    return job.may_have_earlier_steps or is_successor(job)


def successor_steps(job: Job, new_id: UUID, origin: ContinuedFrom, records: Sequence[StepRecord]) -> list[StepRecord]:
    """The records that a successor begins with: its origin, and the state that the ended run set with `run.state`."""
    states = [record for record in records if record.kind is StepKind.DECISION and record.name == STATE_NAME]
    last = max(states, key=lambda record: record.number, default=None)
    steps = [_step(job, new_id, CONTINUE_KEY, "continue", encode(msgspec.to_builtins(origin)))]
    if last is not None and last.result is not None:
        steps.append(_step(job, new_id, STATE_KEY, STATE_NAME, last.result))
    return steps


def _step(job: Job, new_id: UUID, key: str, name: str, result: str) -> StepRecord:
    return digested_step(
        StepRecord(
            job_id=new_id,
            key=key,
            number=1,
            kind=StepKind.DECISION,
            name=name,
            attempt=1,
            started_at=job.updated_at,
            finished_at=job.updated_at,
            content_digest="",
            digest="0",
            result=result,
        )
    )
