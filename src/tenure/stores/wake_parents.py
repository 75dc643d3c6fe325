"""Wakes jobs that wait for children, after the change that ended a child or suspended its parent.

It runs after the commit of that change, and never inside a transaction: a wake locks the parent's row. Of the suspend
and the ends of the children, each is followed by a read, so the last of them to commit sees the others. If the process
dies before its read, recovery finds the parent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from tenure.errors import TenureError
from tenure.lifecycle.operations import Suspend, Wake
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.statuses import TERMINAL
from tenure.lifecycle.transitions import WAKER
from tenure.stores.contract.requests import Request
from tenure.stores.contract.results import Applied, Outcome, Repeated

WAKERS = frozenset(by.role for by in WAKER)

log = logging.getLogger("tenure.stores")


async def wake_parents(
    requests: Sequence[Request],
    outcomes: Sequence[Outcome],
    *,
    wakeable: Callable[[Sequence[UUID]], Awaitable[Sequence[Job]]],
    apply: Callable[[Sequence[Request]], Awaitable[list[Outcome]]],
) -> list[Outcome]:
    """Wake the parents for which these outcomes suffice. `wakeable` reads which of them wait for no further child.

    Raises nothing of the store's: the outcomes stand, and recovery wakes a parent that was not woken here.
    """
    actors = _actors_by_parent(requests, outcomes)
    if not actors:
        return []
    try:
        wakes = [_wake(job, actors[job.id]) for job in await wakeable(list(actors))]
        return await apply(wakes) if wakes else []
    except TenureError as error:
        log.warning("jobs that wait for children were not woken, recovery wakes them: %s", error)
        return []


def _actors_by_parent(requests: Sequence[Request], outcomes: Sequence[Outcome]) -> dict[UUID, Actor]:
    """The jobs that may have to be woken after these outcomes, each with the actor of the change."""
    found: dict[UUID, Actor] = {}
    for request, outcome in zip(requests, outcomes, strict=True):
        if isinstance(outcome, Applied):
            origin, last = outcome.change.before.origin, outcome.change.operations[-1]
            ended = origin.awaited and outcome.status in TERMINAL
            suspended = isinstance(last, Suspend) and last.children_max is not None
        elif isinstance(outcome, Repeated):
            # The first reply may have been lost, and with it the read.
            origin = outcome.job.origin
            ended, suspended = origin.awaited and not outcome.job.live, outcome.job.children_max is not None
        else:
            continue
        if ended and origin.parent_id is not None:
            found[origin.parent_id] = request.actor
        if suspended:
            found[origin.id] = request.actor
    return found


def _wake(parent: Job, actor: Actor) -> Request:
    """Every change of a waiting job makes it due or ends its wait, so the wake is for this revision alone."""
    role = actor.role if actor.role in WAKERS else Role.RECOVERY
    return Request(
        job=parent,
        operations=(Wake(),),
        actor=Actor(role, actor.name),
        request_id=f"children.{parent.rev}",
        fresh=True,
    )
