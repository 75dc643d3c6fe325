"""Forks: the steps of an ended or parked run that a new run begins with. Pure.

The new run has copies of the recorded steps, so that it executes and pays for none of them again. Its first record
names the forked run, and has the seed and the start time of that run: `run.random` and `run.now()` return what they
returned there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import digest, encode
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import WAITING, Status
from tenure.lifecycle.steps import StepKind, StepRecord, step_content, step_digest

FORK_KEY = "fork:origin"
"""The key of the first record of a fork."""
_UNDO_SUFFIX, _RETRY = ".undo", ".retry."


class ForkOrigin(msgspec.Struct, frozen=True):
    """The result of the first record of a fork. `seed_id` and `began_at` are those of the first run of several
    forks."""

    forked_from: UUID
    from_step: str | None
    seed_id: UUID
    began_at: datetime


def fork_origin(records: Mapping[str, StepRecord]) -> ForkOrigin | None:
    """The first record of a fork. None: the run was not forked, or its content was erased."""
    record = records.get(FORK_KEY)
    return None if record is None or record.result is None else msgspec.json.decode(record.result, type=ForkOrigin)


def fork_refusal(job: Job, *, is_changed: bool) -> str | None:
    """Why the run cannot be forked; None if it can."""
    if job.erased_at is not None:
        return "its content was erased"
    if job.live and not (job.status is WAITING and job.waiting_for == "code"):
        return "it is live and goes on by itself; only ended and parked runs can be forked"
    if job.status is Status.SUCCEEDED and not is_changed:
        return "it has succeeded, so that a fork would execute nothing; name the step to fork from, or a replacement"
    return None


def forked_steps(
    job: Job,
    steps: Sequence[StepRecord],
    new_id: UUID,
    *,
    from_step: str | None,
    replace: Mapping[str, str],
    succeeded_children: Collection[UUID],
) -> list[StepRecord]:
    """The steps of the new run: all that were recorded before `from_step`, and those in `replace` with their new
    results, which are JSON text. InvalidInput: there is no such step, or one before it was undone.

    Without `from_step`, the new run executes the steps from the first replaced one on; without replaced ones, from the
    last failed step of a failed run on; in both cases from the first undone step on, if that is earlier. A step that is
    executed again gets all of its attempts. A child that has not succeeded is spawned again, unless its result was
    received.
    """
    replaced = {_find(steps, wanted, "replace").key: result for wanted, result in replace.items()}
    cut = _first_executed(job, steps, from_step, replaced)
    again = {step.key for step in steps if step.number >= cut}
    kept = [step for step in steps if step.number < cut or step.key in replaced]
    received = {step.child_id for step in kept if step.kind is StepKind.WAIT}
    reusable = {*received, *succeeded_children}
    kept = [
        step
        for step in kept
        if not (step.kind is StepKind.SPAWN and step.child_id not in reusable)
        and not _belongs_to_no_call(step)
        and not (_RETRY in step.key and step.key.rpartition(_RETRY)[0] in again)
    ]
    first = next((step.key for step in steps if step.number >= cut and step.key not in replaced), None)
    before = fork_origin({step.key: step for step in steps})
    origin = ForkOrigin(
        forked_from=job.id,
        from_step=first,
        seed_id=job.id if before is None else before.seed_id,
        began_at=job.created_at if before is None else before.began_at,
    )
    return [_origin_step(job, origin, new_id), *(_copy(step, new_id, replaced.get(step.key)) for step in kept)]


def _find(steps: Sequence[StepRecord], wanted: str, where: str) -> StepRecord:
    """The step of this key, or the only one of this name."""
    by_key = [step for step in steps if step.key == wanted]
    by_name = [step for step in steps if step.name == wanted and step.kind is not StepKind.UNDO]
    # Retries of a step have its name.
    found = by_key or [step for step in by_name if step.kind is StepKind.STEP] or by_name
    if not found:
        raise InvalidInput(where, f"the run has recorded no step {wanted!r}; tenure runs show lists its steps")
    if len(found) > 1:
        keys = ", ".join(step.key for step in found[:10])
        raise InvalidInput(where, f"several steps are named {wanted!r}; use one of their keys: {keys}")
    if where == "replace" and found[0].kind not in (StepKind.STEP, StepKind.WAIT):
        raise InvalidInput(
            where, f"{wanted!r} is a {found[0].kind.value}; only steps and waits have results to replace"
        )
    return found[0]


def _first_executed(job: Job, steps: Sequence[StepRecord], from_step: str | None, replaced: Collection[str]) -> int:
    """The number of the first step that is not reused."""
    end = 1 + max((step.number for step in steps), default=0)
    undone_keys = {step.key.removesuffix(_UNDO_SUFFIX) for step in steps if step.kind is StepKind.UNDO}
    undone = min((step.number for step in steps if step.key in undone_keys), default=end)
    if from_step is not None:
        number = _find(steps, from_step, "from_step").number
        if number > undone:
            first = next(step for step in steps if step.number == undone)
            problem = f"step {first.name!r} ({first.key}) was undone when the run ended"
            raise InvalidInput("from_step", f"{problem}; fork from it or from an earlier one")
        return number
    if replaced:
        return min(undone, *(step.number for step in steps if step.key in replaced))
    if job.status not in (Status.FAILED, Status.DEAD_LETTERED):
        return undone
    failed = max((step.number for step in steps if step.status == "failed" and step.kind is StepKind.STEP), default=end)
    return min(undone, failed)


def _belongs_to_no_call(step: StepRecord) -> bool:
    """Whether the record belongs to the start or the end of the run, and to none of its calls."""
    return step.kind is StepKind.UNDO or step.key.startswith(("continue:", "fork:", "undo:", "spend:"))


def _origin_step(job: Job, origin: ForkOrigin, new_id: UUID) -> StepRecord:
    step = StepRecord(
        job_id=new_id,
        key=FORK_KEY,
        number=1,
        kind=StepKind.DECISION,
        name="fork",
        attempt=1,
        started_at=job.created_at,
        finished_at=job.created_at,
        content_digest="",
        digest="0",
        result=encode(msgspec.to_builtins(origin)),
    )
    return digested_step(step)


def _copy(step: StepRecord, new_id: UUID, result: str | None) -> StepRecord:
    """A copy for the new run, without the spend and the signal of the original."""
    copy = msgspec.structs.replace(step, job_id=new_id, attempt=1, spend=None, signal_rev=None)
    if result is not None:
        # The arguments are not compared: the steps before it may have other results now.
        copy = msgspec.structs.replace(copy, result=result, error=None, status="succeeded", arguments_digest=None)
    return digested_step(copy)


def digested_step(step: StepRecord) -> StepRecord:
    """The step with the digests of its facts."""
    content = digest(step_content(step))
    total = step_digest(step, job_id=step.job_id, attempt=step.attempt, content_digest=content)
    return msgspec.structs.replace(step, content_digest=content, digest=str(total))
