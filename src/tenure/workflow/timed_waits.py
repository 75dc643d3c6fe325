"""The waits of a run that its record times: a sleep, the pause before a retry, and a signal until a deadline.

Each begins when it is recorded, whatever happens to the worker meanwhile.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tenure.jobs.step_codec import decode
from tenure.lifecycle.durations import milliseconds
from tenure.lifecycle.json_text import encode, load
from tenure.lifecycle.steps import StepKind, StepRecord
from tenure.workflow.branch import Branch, Place
from tenure.workflow.engine import WorkflowEngine
from tenure.workflow.placed_call import PlacedCall
from tenure.workflow.waits import DurableWait


async def sleep(engine: WorkflowEngine, branch: Branch, call: PlacedCall, seconds: float) -> None:
    """Sleep for this time, which begins with the first call."""
    record = engine.recorded(call)
    if record is None:
        record = await engine.save(call.step(result=encode({"milliseconds": milliseconds(seconds)})))
    await sleep_until_recorded(engine, record)
    branch.completed(_deadline_of(record))


async def sleep_until_recorded(engine: WorkflowEngine, record: StepRecord) -> None:
    """Sleep for the recorded time, which began when it was recorded."""
    deadline = _deadline_of(record)
    if deadline > engine.now:
        await engine.waits.wait(DurableWait(deadline=deadline))


async def wait_for_signal(
    engine: WorkflowEngine, branch: Branch, call: PlacedCall, type_: Any, timeout_seconds: float | None
) -> Any:
    """The value of the first signal that was sent in time and not received. TimeoutError: there is none."""
    deadline = await _signal_deadline(engine, call, timeout_seconds)
    record = engine.recorded(call)
    if record is None:
        record = await _receive(engine, call, deadline)
    branch.completed(record.finished_at)
    if record.status == "failed":
        raise TimeoutError(f"no signal {call.name!r} came in time")
    return decode(record.result or "null", type_, step=f"{call.name} ({record.key})")


async def _signal_deadline(engine: WorkflowEngine, call: PlacedCall, timeout_seconds: float | None) -> datetime | None:
    """When the wait ends without a signal. It is recorded at the first call."""
    place = call.place
    sub_place = Place(place.sub_key("deadline"), place.branch, place.ordinal)
    record = engine.steps.peek(sub_place.key)
    engine.steps.use(sub_place.key)
    if record is None:
        if timeout_seconds is None or engine.steps.peek(place.key) is not None:
            return None
        result = encode({"milliseconds": milliseconds(timeout_seconds)})
        record = await engine.save(PlacedCall(sub_place, StepKind.SLEEP, call.name).step(result=result))
    return _deadline_of(record)


async def _receive(engine: WorkflowEngine, call: PlacedCall, deadline: datetime | None) -> StepRecord:
    """Record the signal, or that none came in time."""
    await engine.signals.read()
    while (signal := engine.signals.take(call.name, until=deadline)) is None:
        if deadline is not None and deadline <= engine.now:
            # A signal that came before the deadline may have been written after the last read.
            await engine.signals.refresh()
            signal = engine.signals.take(call.name, until=deadline)
            if signal is None:
                error = encode({"type": "TimeoutError", "message": f"no signal {call.name!r} came in time"})
                return await engine.save(call.step(status="failed", error=error))
            break
        await engine.waits.wait(DurableWait(deadline=deadline, signal=call.name))
    return await engine.save(call.step(result=signal.payload, signal_rev=signal.rev))


def _deadline_of(record: StepRecord) -> datetime:
    return record.finished_at + timedelta(milliseconds=load(record.result or "{}").get("milliseconds", 0))
