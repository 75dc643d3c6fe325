"""Policy hooks: a function that sees each call of a run before it is executed, and decides whether it is."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import check_text, encode, load
from tenure.lifecycle.steps import StepKind
from tenure.workflow.branch import Place
from tenure.workflow.placed_call import PlacedCall
from tenure.workflow.waits import DurableWait

if TYPE_CHECKING:
    from tenure.workflow.engine import WorkflowEngine


class PolicyCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is about to be executed: a step, a transaction, or the spawn of a child (`kind` is then `spawn`)."""

    run_id: UUID
    workflow: str
    kind: str
    name: str
    key: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


class PolicyDecision(msgspec.Struct, frozen=True):
    """What a policy decides on a call: `allow()`, `halt("reason")`, or `require_signal("approved")`."""

    action: Literal["allow", "halt", "require_signal"]
    detail: str = ""

    @classmethod
    def allow(cls) -> PolicyDecision:
        """The call is executed."""
        return cls("allow")

    @classmethod
    def halt(cls, reason: str) -> PolicyDecision:
        """The run is halted for this reason; the call is not executed."""
        return cls("halt", check_text(reason, "reason", length_max=1900))

    @classmethod
    def require_signal(cls, name: str) -> PolicyDecision:
        """The call is executed once the run has received a signal of this name."""
        return cls("require_signal", check_text(name, "signal", length_max=200))


RunPolicy = Callable[[PolicyCall], PolicyDecision | Awaitable[PolicyDecision]]


async def check_policy(
    engine: WorkflowEngine, policy: RunPolicy, call: PlacedCall, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """Ask the policy about a call that is not recorded. Returns the reason to halt the run.

    A required signal is recorded before the run waits for it, so that the policy is not asked again.
    """
    place = call.place
    decided = _part(call, "policy")
    record = engine.steps.peek(decided.key)
    if record is None:
        seen = PolicyCall(
            run_id=engine.job.id,
            workflow=engine.job.kind,
            kind=call.kind.value,
            name=call.name,
            key=place.key,
            args=args,
            kwargs=kwargs,
        )
        answer = policy(seen)
        decision = await answer if inspect.isawaitable(answer) else answer
        if not isinstance(decision, PolicyDecision):
            raise InvalidInput("policy", f"returned {decision!r} for {call.name}; return a tenure.PolicyDecision")
        if decision.action == "allow":
            return None
        if decision.action == "halt":
            return f"halted by policy before {call.name}: {decision.detail}"
        decision_call = PlacedCall(decided, StepKind.DECISION, "policy")
        record = await engine.save(decision_call.step(result=encode({"require_signal": decision.detail})))
    engine.steps.use(decided.key)
    await _receive(engine, _part(call, "approval"), load(record.result or "{}").get("require_signal", ""))
    return None


async def _receive(engine: WorkflowEngine, place: Place, name: str) -> None:
    """Wait for the signal that the policy requires, unless it was received before."""
    engine.steps.use(place.key)
    if engine.steps.peek(place.key) is not None:
        return
    await engine.signals.read()
    while (signal := engine.signals.take(name, until=None)) is None:
        await engine.waits.wait(DurableWait(signal=name))
    call = PlacedCall(place, StepKind.WAIT, name)
    await engine.save(call.step(result=signal.payload, signal_rev=signal.rev))


def _part(call: PlacedCall, name: str) -> Place:
    return Place(call.place.sub_key(name), call.place.branch, call.place.ordinal)
