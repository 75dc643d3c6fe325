"""Cancels the children of a run that its own worker does not end: recovery ends it, or a hard cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from tenure.lifecycle.continuations import continued_as, is_successor, spawned_children
from tenure.lifecycle.operations import RequestCancel
from tenure.lifecycle.records import Actor, Job, Role
from tenure.stores.contract import JobPage, Outcome, Request
from tenure.stores.contract.steps import StepReads, all_steps

PAGE = 500


class ChildrenStore(StepReads, Protocol):
    """The part of a store that finds the children of a run and requests their cancel."""

    async def children(
        self, parent_id: UUID, *, live_only: bool = False, after: UUID | None = None, limit: int = 100
    ) -> JobPage: ...

    async def read(self, job_ids: Sequence[UUID]) -> dict[UUID, Job]: ...

    async def apply(self, requests: Sequence[Request]) -> list[Outcome]: ...


async def cancel_children(store: ChildrenStore, parent: Job, *, reason: str) -> None:
    """Request a cancel of the live children that end with this run.

    It is called before the run is ended: if this process dies in between, the next attempt to end the run repeats it.
    """
    live = await _live_children(store, parent.id)
    if parent.attempt == 0 or not (live or is_successor(parent)):
        return
    policies = await _policies(store, parent)
    known = {job.id for job in live}
    others = await store.read([child_id for child_id in policies if child_id not in known])
    live += [job for job in others.values() if job.live]
    cancelled = [job.id for job in live if job.origin.awaited and policies.get(job.id, "cancel") == "cancel"]
    if cancelled:
        await store.apply([_cancel(parent.id, child_id, reason) for child_id in cancelled])


async def _live_children(store: ChildrenStore, parent_id: UUID) -> list[Job]:
    page = await store.children(parent_id, live_only=True, limit=PAGE)
    live = list(page.jobs)
    while page.after is not None:
        page = await store.children(parent_id, live_only=True, after=page.after, limit=PAGE)
        live += page.jobs
    return live


async def _policies(store: ChildrenStore, parent: Job) -> dict[UUID, str]:
    """The `on_parent_end` policy of each child. The successor of a child has the policy of that child."""
    children = spawned_children(await all_steps(store, parent.id))
    policies = {child.child_id: child.on_parent_end for child in children}
    unresolved = list(policies)
    while unresolved:
        jobs = await store.read(unresolved)
        successors = {job.id: next_id for job in jobs.values() if (next_id := continued_as(job)) is not None}
        policies |= {next_id: policies[child_id] for child_id, next_id in successors.items()}
        unresolved = list(successors.values())
    return policies


def _cancel(parent_id: UUID, child_id: UUID, reason: str) -> Request:
    return Request(
        job=child_id,
        operations=(RequestCancel(reason),),
        actor=Actor(Role.CLIENT, f"run {parent_id}"),
        request_id=f"{parent_id}/cancel/{child_id}",
    )
