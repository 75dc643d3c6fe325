"""Jobs in every situation that decides what may be done to them, brought about by real operations on a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Cancel,
    Commit,
    Complete,
    DeadLetter,
    Fail,
    Halt,
    Operation,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    Stall,
    Suspend,
)
from tenure.lifecycle.records import Actor, Job, Role, Timeouts
from tenure.testing.contract import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver
from tests.support.expected_lifecycle import Facts

PATIENT = {"lease_seconds": 60.0, "heartbeat_seconds": 50.0}
NOBODY = UUID(int=0)
BURIAL = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR)


@dataclass(slots=True)
class Stand:
    """A job, and the tokens of the lease that it has or had last and of the one before that."""

    id: UUID
    owner: UUID
    former: UUID


@dataclass(slots=True)
class Scene:
    """Where situations are brought about: a store, its clock, and a kind for each job so that none is in the way."""

    drive: Driver
    clock: DatabaseClock
    count: int = 0
    former: UUID = NOBODY

    async def fresh(self, **policy: Any) -> Job:
        """A job that was claimed and handed back once, so that it has a former owner, and is queued again."""
        self.count += 1
        kind = f"kind-{self.count}"
        added = await self.drive.add(kind, policy={**PATIENT, **policy})
        self.former = self.drive.random.token()
        await self.drive.claim(kinds=(kind,), start=False, token=self.former)
        await self.drive.apply(added.id, Release(), actor=Actor(Role.RUNNER, "worker-1", self.former))
        return await self.drive.apply(added.id, Requeue(), actor=RECOVERY)

    async def held(self, *, start: bool = True, **policy: Any) -> Job:
        job = await self.fresh(**policy)
        [claimed] = await self.drive.claim(kinds=(job.kind,), start=start)
        return claimed

    def stand(self, job: Job, token: UUID | None = None) -> Stand:
        return Stand(job.id, token or job.token or self.former, self.former)


Recipe = Callable[[Scene], Awaitable[Stand]]


@dataclass(frozen=True, slots=True)
class Situation:
    """Facts, and how they come about."""

    name: str
    facts: Facts
    recipe: Recipe


def queued(*, delay_seconds: float = 0, advance: float = 0, **policy: Any) -> Recipe:
    async def recipe(scene: Scene) -> Stand:
        if delay_seconds:
            scene.count += 1
            kind, scene.former = f"kind-{scene.count}", scene.drive.random.token()
            job = await scene.drive.add(kind, delay_ms=round(delay_seconds * 1000), policy={**PATIENT, **policy})
        else:
            job = await scene.fresh(**policy)
        scene.clock.advance(advance)
        return scene.stand(job)

    return recipe


def held(
    *,
    start: bool = True,
    failures: int = 0,
    asked: bool = False,
    commit: bool = False,
    advance: float = 0,
    **policy: Any,
) -> Recipe:
    async def recipe(scene: Scene) -> Stand:
        job = await scene.held(start=start or failures > 0, **policy)
        for _ in range(failures):
            await scene.drive.apply(job, Retry(ERROR, delay_seconds=0))
            [job] = await scene.drive.claim(kinds=(job.kind,), start=start)
        token = job.token
        if commit:
            job = await scene.drive.apply(job, Commit("1"))
        if asked:
            await scene.drive.apply(job.id, RequestCancel(), actor=CLIENT)
        scene.clock.advance(advance)
        return scene.stand(job, token)

    return recipe


def left(*operations: Operation, commit: bool = False, asked: bool = False, **policy: Any) -> Recipe:
    """The owner did this last."""

    async def recipe(scene: Scene) -> Stand:
        job = await scene.held(**policy)
        owner = Actor(Role.RUNNER, "worker-1", job.token)
        if asked:
            await scene.drive.apply(job.id, RequestCancel(), actor=CLIENT)
        if commit:
            await scene.drive.apply(job.id, Commit("1"), actor=owner)
        await scene.drive.apply(job.id, *operations, actor=owner)
        return scene.stand(job, job.token)

    return recipe


def lost(*, commit: bool = False, start: bool = True, **policy: Any) -> Recipe:
    async def recipe(scene: Scene) -> Stand:
        job = await scene.held(start=start, **policy)
        token = job.token
        if commit:
            await scene.drive.apply(job, Commit("1"))
        scene.clock.advance(60)
        await scene.drive.apply(job.id, Stall(), actor=RECOVERY)
        return scene.stand(job, token)

    return recipe


def cancelled() -> Recipe:
    async def recipe(scene: Scene) -> Stand:
        job = await scene.held()
        await scene.drive.apply(job.id, Cancel(), actor=CLIENT)
        return scene.stand(job, job.token)

    return recipe


def _situations() -> list[Situation]:
    found = [
        Situation("queued", Facts("queued"), queued()),
        Situation("queued, not due", Facts("queued", due=False), queued(delay_seconds=100)),
        Situation("queued, in time", Facts("queued"), queued(advance=9.999, timeouts=Timeouts(queued_seconds=10))),
        Situation(
            "queued, overdue", Facts("queued", overdue=True), queued(advance=10, timeouts=Timeouts(queued_seconds=10))
        ),
        Situation(
            "queued, not due, its timeout not begun",
            Facts("queued", due=False),
            queued(delay_seconds=100, advance=99, timeouts=Timeouts(queued_seconds=10)),
        ),
        Situation("waiting, due", Facts("waiting"), left(Suspend(delay_seconds=0))),
        Situation("waiting, not due", Facts("waiting", due=False), left(Suspend(delay_seconds=100))),
        Situation("waiting for a signal", Facts("waiting", due=False), left(Suspend())),
        Situation(
            "waiting, though asked to cancel",
            Facts("waiting", cancel_asked=True),
            left(Suspend(delay_seconds=100), asked=True),
        ),
        Situation("retry, due", Facts("retry"), left(Retry(ERROR, delay_seconds=0))),
        Situation("retry, not due", Facts("retry", due=False), left(Retry(ERROR, delay_seconds=100))),
        Situation("stalled, released", Facts("stalled"), left(Release())),
        Situation("stalled, snoozed", Facts("stalled", due=False), left(Release(delay_seconds=100))),
        Situation("stalled, lost", Facts("stalled"), lost()),
        Situation("stalled, lost while claimed", Facts("stalled"), lost(start=False, max_attempts=1)),
        Situation("stalled, exhausted", Facts("stalled", due=False, fate="fail"), lost(max_attempts=1)),
        Situation(
            "stalled, exhausted, to be buried",
            Facts("stalled", due=False, fate="dead_letter"),
            lost(max_attempts=1, on_exhausted="dead_letter"),
        ),
        Situation("stalled, on_lost fail", Facts("stalled", due=False, fate="fail"), lost(on_lost="fail")),
        Situation(
            "stalled, on_lost dead_letter", Facts("stalled", due=False, fate="dead_letter"), lost(on_lost="dead_letter")
        ),
        Situation("stalled, committed", Facts("stalled", committed=True, due=False), lost(commit=True)),
        Situation("succeeded", Facts("succeeded", committed=True), left(Complete("1"))),
        Situation("succeeded after its commit", Facts("succeeded", committed=True), left(Complete("1"), commit=True)),
        Situation("failed", Facts("failed"), left(Fail(ERROR))),
        Situation("halted", Facts("halted"), left(Halt("limit", "1"))),
        Situation("cancelled", Facts("cancelled"), cancelled()),
        Situation("cancelled by its owner", Facts("cancelled", cancel_asked=True), left(Cancel(), asked=True)),
        Situation("dead_lettered", Facts("dead_lettered"), left(BURIAL)),
    ]
    for status, start in (("claimed", False), ("running", True)):
        found += _held_situations(status, start=start)
    return found


def _held_situations(status: str, *, start: bool) -> list[Situation]:
    timeouts = Timeouts(claimed_seconds=30, running_seconds=30)
    found: list[Situation] = []
    for commit in (False, True) if start else (False,):
        name = f"{status}, committed" if commit else status
        for lease, heartbeat, seconds in (("live", 50.0, 1.0), ("silent", 10.0, 20.0), ("expired", 50.0, 60.0)):
            for asked in (False, True) if not commit else (False,):
                facts = Facts(status, committed=commit, lease=lease, cancel_asked=asked)
                recipe = held(start=start, asked=asked, commit=commit, advance=seconds, heartbeat_seconds=heartbeat)
                found.append(Situation(f"{name}, {lease}{', asked to cancel' * asked}", facts, recipe))
        late = held(start=start, commit=commit, advance=30, timeouts=timeouts)
        found.append(Situation(f"{name}, overdue", Facts(status, committed=commit, lease="live", overdue=True), late))
        early = held(start=start, commit=commit, advance=29.999, timeouts=timeouts)
        found.append(Situation(f"{name}, in time", Facts(status, committed=commit, lease="live"), early))
    for end in ("fail", "dead_letter"):
        facts = Facts(status, lease="live", failures_left=False, on_exhausted=end)
        recipe = held(start=start, failures=1, max_attempts=2, on_exhausted=end)
        found.append(Situation(f"{status}, last attempt, {end}", facts, recipe))
    return found


SITUATIONS = _situations()
