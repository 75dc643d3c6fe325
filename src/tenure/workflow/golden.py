"""Replay of a golden file against today's code: no step is executed, and nothing is written.

The engine replays the run as it does after a crash. Where a call does not fit, it uses the record that fits best
instead of parking the run, so that one replay finds what was added, removed, renamed and reordered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NoReturn, cast
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput, ResultRefused, StepUnreadable
from tenure.jobs.context import Context
from tenure.jobs.definition import JobDefinition
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.lifecycle.steps import NewStep, StepKind, StepRecord
from tenure.seams import Seams
from tenure.stores.contract import Charge, SignalRecord
from tenure.workers.execution.attempt import AttemptServices, RunningAttempt
from tenure.workers.execution.outcomes import Cancelled, EndsAttempt, describe_error
from tenure.workers.leases import Lease
from tenure.workflow.branch import call_key
from tenure.workflow.children import ChildJobs
from tenure.workflow.definition import WorkflowDefinition
from tenure.workflow.engine import Mode, WorkflowEngine
from tenure.workflow.golden_differences import Difference, MadeCall, call_differences, output_difference
from tenure.workflow.golden_file import GoldenError, GoldenFile
from tenure.workflow.placed_call import PlacedCall
from tenure.workflow.waits import DurableWait

REPLAY_SECONDS = 60.0
"""How long a replay may take."""


async def replay_golden_file(
    run: GoldenFile, definitions: Mapping[str, JobDefinition[..., Any]], seams: Seams
) -> list[Difference]:
    """The differences between the recorded run and today's code; empty if there are none."""
    definition = definitions.get(run.kind)
    if not isinstance(definition, WorkflowDefinition):
        return [Difference("kind", None, f"workflow {run.kind!r} is not declared by the app")]
    try:
        arguments = definition.call_arguments(bytes(run.payload).decode(), enqueued_as=run.kind)
    except InvalidInput as refusal:
        return [Difference("payload", None, f"the recorded payload is refused: {refusal}")]
    replay = _Replay(run, definition, seams)
    ended = await replay.ended(arguments)
    if replay.engine.parked is not None:
        return [replay.engine.parked]
    engine = replay.engine
    return [*engine.unreadable, *call_differences(engine.made, engine.unmade, run), *_end_differences(run, ended)]


class _Returned(msgspec.Struct, frozen=True):
    result: str


class _Raised(msgspec.Struct, frozen=True):
    error: GoldenError


class _Refused(msgspec.Struct, frozen=True):
    problem: str


_End = _Returned | _Raised | _Refused
"""How the function ended; None: it came to a call that is not recorded."""


class _Replay:
    def __init__(self, run: GoldenFile, definition: WorkflowDefinition[..., Any], seams: Seams) -> None:
        self._definition, self._attempt = definition, _ReplayAttempt(run, definition, seams)
        self.engine = ReplayEngine(self._attempt, run.records(), ended_at=run.outcome.at)
        self._attempt.engine = self.engine

    async def ended(self, arguments: Mapping[str, Any]) -> _End | None:
        definition, attempt, engine = self._definition, self._attempt, self.engine
        children = ChildJobs(engine, definition.errors)
        function = definition.function(
            definition.run_class(engine, Context(attempt), children, definition.errors), **arguments
        )
        try:
            async with asyncio.timeout(REPLAY_SECONDS):
                result = await engine.run(function)
                return _Returned(definition.encode_result(result, job_id=attempt.job.id))
        except ResultRefused as refusal:
            return _Refused(str(refusal))
        except EndsAttempt:
            return attempt.committed
        except StepUnreadable as problem:
            if not engine.unreadable:
                engine.unreadable.append(Difference("result_type", None, str(problem)))
            return None
        except Exception as error:  # noqa: BLE001 - whatever the function raises is compared with the record
            return _Raised(msgspec.json.decode(describe_error(error), type=GoldenError))


def _end_differences(run: GoldenFile, ended: _End | None) -> Iterator[Difference]:
    outcome = run.outcome
    recorded = f"{outcome.status}" if outcome.error is None else _described(outcome.error)
    match ended:
        case _Refused(problem):
            yield Difference("output", None, f"the result is refused: {problem}")
        case _Returned(result) if outcome.status is SUCCEEDED:
            yield from output_difference(bytes(outcome.result).decode() or "null", result)
        case _Returned():
            yield Difference("outcome", None, f"the function returns now; recorded is {recorded}")
        case _Raised(error) if outcome.is_cut_off or error != outcome.error:
            yield Difference("outcome", None, f"the function raises {_described(error)} now; recorded is {recorded}")


def _described(error: GoldenError) -> str:
    return f"{error.type}: {error.message}"


class _NoStore:
    """The store of a replay: there is none to read or write."""

    where = "golden file"


class _ReplayAttempt(RunningAttempt):
    """An attempt that reports and commits nothing. The replay ends at a commit block, whose SQL is not executed."""

    def __init__(self, run: GoldenFile, definition: WorkflowDefinition[..., Any], seams: Seams) -> None:
        none = cast(Any, None)
        services = AttemptServices(
            cast(Any, _NoStore()),
            none,
            none,
            seams,
            call_in_thread=none,
            stopping=lambda: False,
            user_transactions=None,
        )
        lease = Lease(run.job(), worker="golden", token=UUID(int=0), sent_at_seconds=0.0)
        super().__init__(lease, definition, services)
        self.engine: ReplayEngine | None = None
        self.committed: _Returned | None = None

    def report(self, percent: int, message: str | None) -> None:
        pass

    def commit(self, *, result: Any, connection: Any, deadline_seconds: float | None) -> NoReturn:
        assert self.engine is not None, "it is set before the function is called"
        self.committed = _Returned(self.definition.encode_committed(result, job_id=self.job.id))
        self.engine.end_here(Cancelled())


Fit = Literal["exact", "arguments", "renamed"]


class ReplayEngine(WorkflowEngine):
    """Compares the calls of the code with the records, and executes none. A call without a record is where its branch
    ends."""

    def __init__(self, attempt: RunningAttempt, records: Sequence[StepRecord], *, ended_at: datetime) -> None:
        super().__init__(attempt, records, Mode.REPLAY)
        self._ended_at = ended_at
        self.made: list[MadeCall] = []
        self.unreadable: list[Difference] = []
        self.parked: Difference | None = None
        self._taken: dict[str, int] = {}
        """The index in `made` of the call that has this record, by its key."""

    @property
    def now(self) -> datetime:
        return self._ended_at

    @property
    def unmade(self) -> list[StepRecord]:
        """The recorded calls that the code has not made. One that it made and did not await is not compared: another
        call was first."""
        unawaited = self.steps.used - {one.call.place.key for one in self.made}
        dropped = tuple(self.steps.dropped)
        return [
            record
            for record in self.steps.all()
            if _is_call(record)
            and record.key not in self._taken
            and record.key not in unawaited
            and not record.key.startswith(dropped)
        ]

    def recorded(self, call: PlacedCall) -> StepRecord | None:
        if call.kind is StepKind.PATCH:
            return self.steps.peek(call.place.key)
        record, fit = self._best(call)
        if record is not None:
            lent_to = self._taken.get(record.key)
            if lent_to is not None:
                self.made[lent_to] = msgspec.structs.replace(self.made[lent_to], record=None)
            self._taken[record.key] = len(self.made)
        self.made.append(MadeCall(call, record, fit))
        return record

    def park(self, call: str, problem: str) -> NoReturn:
        text = f"the run would be parked at {call}: {problem}"
        self.parked = self.parked or Difference("parked", None, text)
        self.end_here(Cancelled())

    def _best(self, call: PlacedCall) -> tuple[StepRecord | None, Fit]:
        """The record at the call's own place if it fits; else one that fits elsewhere; else one that nearly fits."""
        own = self.steps.peek(call.place.key)
        free = [record for record in self.steps.all() if self._is_free(record)]
        free.sort(key=lambda record: (record is not own, record.branch != call.place.branch, record.number))
        fits: tuple[tuple[Fit, Callable[[PlacedCall, StepRecord], bool]], ...] = (
            ("exact", _is_exact),
            ("arguments", _is_named),
        )
        for fit, test in fits:
            found = next((record for record in free if test(call, record)), None)
            if found is not None:
                return found, fit
        if own is not None and own in free and own.kind is call.kind and _same_arguments(call, own):
            return own, "renamed"
        return None, "exact"

    def _is_free(self, record: StepRecord) -> bool:
        """Not taken, or only by a call of another name."""
        index = self._taken.get(record.key)
        return index is None or self.made[index].fit == "renamed"

    def decode(self, record: StepRecord, function: Callable[..., Any]) -> Any:
        try:
            return super().decode(record, function)
        except StepUnreadable as problem:
            text = f"its recorded result does not fit today's return type: {problem.problem}"
            self.unreadable.append(Difference("result_type", record.key, text, name=record.name))
            raise

    async def save(self, step: NewStep, charge: Charge | None = None) -> StepRecord:
        """Nothing is saved: the call waits for the end of the replay. The recorded run had passed each patch that is
        new before it was made."""
        is_patch = step.kind is StepKind.PATCH
        if not is_patch and not step.key.endswith(".deadline"):
            await self.waits.wait(DurableWait())
        return StepRecord(
            job_id=self.job.id,
            key=step.key,
            number=0,
            kind=step.kind,
            name=step.name,
            attempt=self.job.attempt,
            started_at=self.now,
            finished_at=self.now,
            content_digest="",
            digest="0",
            result="false" if is_patch else step.result,
        )

    async def read_signals(self) -> list[SignalRecord]:
        return []

    async def read_children(self, child_ids: Sequence[UUID]) -> NoReturn:
        await self.waits.wait(DurableWait())
        raise AssertionError("a replay ends its waits by ending")


def _is_call(record: StepRecord) -> bool:
    """Whether the record is that of a call, and not of a retry, a deadline, a patch, an undo, spend or a policy."""
    if record.kind in (StepKind.UNDO, StepKind.PATCH) or record.key.startswith(
        ("continue:", "fork:", "spend:", "undo:")
    ):
        return False
    part = record.key.removeprefix(call_key(record.key))
    return not part or (record.kind is StepKind.DECISION and not part.startswith((".policy", ".cancelled")))


def _is_exact(call: PlacedCall, record: StepRecord) -> bool:
    return _is_named(call, record) and _same_arguments(call, record)


def _is_named(call: PlacedCall, record: StepRecord) -> bool:
    part, recorded_part = (key.removeprefix(call_key(key)) for key in (call.place.key, record.key))
    return (record.kind, record.name, recorded_part) == (call.kind, call.name, part)


def _same_arguments(call: PlacedCall, record: StepRecord) -> bool:
    digests = call.arguments_digest, record.arguments_digest
    return None in digests or digests[0] == digests[1]
