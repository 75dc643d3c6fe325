"""Repeats the requests of clients while another transaction has their rows locked.

Workers do not wait here: they repeat a request themselves, and write other jobs meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tenure.errors import JobLocked
from tenure.lifecycle.records import Role
from tenure.seams import Clock
from tenure.stores.contract import Busy, Failure, Outcome, Request

LOCKED_SECONDS_MAX = 30.0
"""How long a client's request waits for a row that another transaction has locked."""
LOCKED_PAUSE_SECONDS, LOCKED_PAUSE_SECONDS_MAX = 0.01, 0.25


def client_waits(request: Request, outcome: Outcome) -> bool:
    """Whether this is a client's request whose row is locked."""
    return isinstance(outcome, Busy) and request.actor.role is Role.CLIENT


async def wait_for_locked_rows(
    requests: Sequence[Request],
    outcomes: list[Outcome],
    *,
    apply: Callable[[Sequence[Request]], Awaitable[list[Outcome]]],
    clock: Clock,
) -> list[Outcome]:
    """The outcomes, after clients' requests were applied again until their rows were free; JobLocked for those whose
    rows stay locked."""
    began_at_seconds = clock.monotonic_seconds()
    pause_seconds = LOCKED_PAUSE_SECONDS
    while waiting := [n for n, request in enumerate(requests) if client_waits(request, outcomes[n])]:
        waited_seconds = clock.monotonic_seconds() - began_at_seconds
        if waited_seconds >= LOCKED_SECONDS_MAX:
            for number in waiting:
                outcomes[number] = _locked(outcomes[number], waited_seconds)
            break
        await clock.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, LOCKED_PAUSE_SECONDS_MAX)
        for number, outcome in zip(waiting, await apply([requests[n] for n in waiting]), strict=True):
            outcomes[number] = outcome
    return outcomes


def _locked(outcome: Outcome, waited_seconds: float) -> Failure:
    assert isinstance(outcome, Busy)
    return Failure(JobLocked(outcome.job, holder=outcome.holder, waited_seconds=waited_seconds))
