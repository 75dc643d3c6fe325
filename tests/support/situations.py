"""Jobs in every situation that decides which operations are allowed, reached by real operations on a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Cancel,
    Commit,
    Compensate,
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
    Unwind,
)
from tenure.lifecycle.records import Actor, EndsAs, Job, Role
from tenure.lifecycle.timeouts import Timeouts
from tenure.testing.contract import DatabaseClock
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, Driver
from tests.support.expected_lifecycle import Facts

PATIENT = {"lease_seconds": 60.0, "heartbeat_seconds": 50.0}
UNKNOWN_ID = UUID(int=0)
DEAD_LETTER = DeadLetter(ReasonCode.TIMEOUT, Stage.EXEC, ERROR)


@dataclass(slots=True)
class JobWithTokens:
    """A job, the token of its current or last lease, and the token of the lease before."""

    id: UUID
    owner: UUID
    former: UUID


@dataclass(slots=True)
class Setup:
    """A store, its clock, and a kind for each job, so that jobs do not get in each other's way."""

    drive: Driver
    clock: DatabaseClock
    count: int = 0
    former: UUID = UNKNOWN_ID

    async def fresh(self, **policy: Any) -> Job:
        """A job that was claimed and released once, so that it has a former owner, and is queued again."""
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

    def with_tokens(self, job: Job, token: UUID | None = None) -> JobWithTokens:
        return JobWithTokens(job.id, token or job.token or self.former, self.former)


Recipe = Callable[[Setup], Awaitable[JobWithTokens]]


@dataclass(frozen=True, slots=True)
class Situation:
    """Facts about a job, and how to reach them."""

    name: str
    facts: Facts
    recipe: Recipe


def queued(*, delay_seconds: float = 0, advance: float = 0, **policy: Any) -> Recipe:
    async def recipe(setup: Setup) -> JobWithTokens:
        if delay_seconds:
            setup.count += 1
            kind, setup.former = f"kind-{setup.count}", setup.drive.random.token()
            job = await setup.drive.add(kind, delay_ms=round(delay_seconds * 1000), policy={**PATIENT, **policy})
        else:
            job = await setup.fresh(**policy)
        setup.clock.advance(advance)
        return setup.with_tokens(job)

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
    async def recipe(setup: Setup) -> JobWithTokens:
        job = await setup.held(start=start or failures > 0, **policy)
        for _ in range(failures):
            await setup.drive.apply(job, Retry(ERROR, delay_seconds=0))
            [job] = await setup.drive.claim(kinds=(job.kind,), start=start)
        token = job.token
        if commit:
            job = await setup.drive.apply(job, Commit("1"))
        if asked:
            await setup.drive.apply(job.id, RequestCancel(), actor=CLIENT)
        setup.clock.advance(advance)
        return setup.with_tokens(job, token)

    return recipe


def left(
    *operations: Operation, commit: bool = False, asked: bool = False, advance: float = 0, **policy: Any
) -> Recipe:
    """The owner's last operation."""

    async def recipe(setup: Setup) -> JobWithTokens:
        job = await setup.held(**policy)
        owner = Actor(Role.RUNNER, "worker-1", job.token)
        if asked:
            await setup.drive.apply(job.id, RequestCancel(), actor=CLIENT)
        if commit:
            await setup.drive.apply(job.id, Commit("1"), actor=owner)
        await setup.drive.apply(job.id, *operations, actor=owner)
        setup.clock.advance(advance)
        return setup.with_tokens(job, job.token)

    return recipe


def lost(*, commit: bool = False, start: bool = True, **policy: Any) -> Recipe:
    async def recipe(setup: Setup) -> JobWithTokens:
        job = await setup.held(start=start, **policy)
        token = job.token
        if commit:
            await setup.drive.apply(job, Commit("1"))
        setup.clock.advance(60)
        await setup.drive.apply(job.id, Stall(), actor=RECOVERY)
        return setup.with_tokens(job, token)

    return recipe


def timed_out(*, start: bool = True, commit: bool = False, **policy: Any) -> Recipe:
    """Recovery stalled it because of its timeout."""

    async def recipe(setup: Setup) -> JobWithTokens:
        job = await setup.held(start=start, timeouts=Timeouts(claimed_seconds=30, running_seconds=30), **policy)
        if commit:
            await setup.drive.apply(job, Commit("1"))
        setup.clock.advance(30)
        await setup.drive.apply(job.id, Stall("timeout"), actor=RECOVERY)
        return setup.with_tokens(job, job.token)

    return recipe


UNWIND = Unwind("failed", "permanent_error", ERROR)


def unwinding(before: Recipe, *, claim: bool = False) -> Recipe:
    """Recovery lets the job undo its steps; a worker has begun with it."""

    async def recipe(setup: Setup) -> JobWithTokens:
        tokens = await before(setup)
        job = await setup.drive.apply(tokens.id, UNWIND, actor=RECOVERY)
        if not claim:
            return tokens
        [job] = await setup.drive.claim(kinds=(job.kind,))
        return setup.with_tokens(job)

    return recipe


def compensated(ends_as: EndsAs, *, lose: bool = False, **policy: Any) -> Recipe:
    """The undo steps are done; its worker may be lost then."""

    async def recipe(setup: Setup) -> JobWithTokens:
        job = await setup.held(**policy)
        if ends_as == "cancelled":
            await setup.drive.apply(job.id, RequestCancel(), actor=CLIENT)
        owner = Actor(Role.RUNNER, "worker-1", job.token)
        await setup.drive.apply(job.id, Compensate(ends_as, "permanent_error"), actor=owner)
        if lose:
            setup.clock.advance(60)
            await setup.drive.apply(job.id, Stall(), actor=RECOVERY)
        return setup.with_tokens(job, job.token)

    return recipe


def cancelled() -> Recipe:
    async def recipe(setup: Setup) -> JobWithTokens:
        job = await setup.held()
        await setup.drive.apply(job.id, Cancel(), actor=CLIENT)
        return setup.with_tokens(job, job.token)

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
        Situation(
            "stalled, lost while claimed", Facts("stalled"), lost(start=False, max_attempts=1, on_exhausted="fail")
        ),
        Situation(
            "stalled, exhausted", Facts("stalled", due=False, fate="fail"), lost(max_attempts=1, on_exhausted="fail")
        ),
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
        Situation("stalled, timed out", Facts("stalled"), timed_out(on_lost="fail")),
        Situation(
            "stalled, timed out while claimed",
            Facts("stalled"),
            timed_out(start=False, max_attempts=1, on_exhausted="fail"),
        ),
        Situation(
            "stalled, exhausted by timeouts",
            Facts("stalled", due=False, fate="fail"),
            timed_out(max_attempts=1, on_exhausted="fail", on_lost="dead_letter"),
        ),
        Situation(
            "stalled, exhausted by timeouts, to be buried",
            Facts("stalled", due=False, fate="dead_letter"),
            timed_out(max_attempts=1, on_lost="fail", on_exhausted="dead_letter"),
        ),
        Situation(
            "stalled, timed out, on_timeout fail",
            Facts("stalled", due=False, fate="fail", on_timeout="fail"),
            timed_out(on_timeout="fail", on_exhausted="dead_letter"),
        ),
        Situation(
            "stalled, timed out, on_timeout dead_letter",
            Facts("stalled", due=False, fate="dead_letter", on_timeout="dead_letter"),
            timed_out(on_timeout="dead_letter", max_attempts=1, on_exhausted="fail"),
        ),
        Situation("stalled, timed out, committed", Facts("stalled", committed=True, due=False), timed_out(commit=True)),
        Situation("succeeded", Facts("succeeded", committed=True), left(Complete("1"))),
        Situation("succeeded after its commit", Facts("succeeded", committed=True), left(Complete("1"), commit=True)),
        Situation("failed", Facts("failed"), left(Fail(ERROR))),
        Situation("halted", Facts("halted"), left(Halt("limit", "1"))),
        Situation("cancelled", Facts("cancelled"), cancelled()),
        Situation("cancelled by its owner", Facts("cancelled", cancel_asked=True), left(Cancel(), asked=True)),
        Situation("dead_lettered", Facts("dead_lettered"), left(DEAD_LETTER)),
        *_undo_situations(),
    ]
    for operation, status in (
        (Suspend(delay_seconds=5), "waiting"),
        (Retry(ERROR, 5), "retry"),
        (Release("x", 5), "stalled"),
    ):
        for seconds, overdue in ((14.999, False), (15.0, True)):
            recipe = left(operation, advance=seconds, timeouts=Timeouts(queued_seconds=10))
            found.append(Situation(f"{status}, due for {seconds - 5} s", Facts(status, overdue=overdue), recipe))
    for status, start in (("claimed", False), ("running", True)):
        found += _held_situations(status, start=start)
    return found


def _undo_situations() -> list[Situation]:
    ways = {
        "queued": queued(delay_seconds=100),
        "retry": left(Retry(ERROR, delay_seconds=100)),
        "waiting": left(Suspend()),
        "stalled": lost(max_attempts=1, on_exhausted="fail"),
    }
    found = [
        Situation(f"{status}, unwinding", Facts(status, undo="unwinding", ends_as="failed"), unwinding(way))
        for status, way in ways.items()
    ]
    patient = lost(max_attempts=1, on_lost="fail")
    facts = Facts("running", lease="live", undo="unwinding", ends_as="failed", failures_left=False)
    found.append(Situation("running, unwinding", facts, unwinding(patient, claim=True)))
    ends: tuple[tuple[EndsAs, str], ...] = (
        ("failed", "fail"),
        ("cancelled", "cancel"),
        ("dead_lettered", "dead_letter"),
    )
    for ends_as, fate in ends:
        asked = ends_as == "cancelled"
        facts = Facts("running", lease="live", cancel_asked=asked, undo="compensated", ends_as=ends_as, fate=fate)
        found.append(Situation(f"running, compensated, to be {ends_as}", facts, compensated(ends_as)))
        facts = Facts("stalled", due=False, cancel_asked=asked, undo="compensated", ends_as=ends_as, fate=fate)
        found.append(Situation(f"stalled, compensated, to be {ends_as}", facts, compensated(ends_as, lose=True)))
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
        for then in ("retry", "fail", "dead_letter"):
            late = held(start=start, commit=commit, advance=30, timeouts=timeouts, on_timeout=then)
            facts = Facts(status, committed=commit, lease="live", overdue=True, on_timeout=then)
            found.append(Situation(f"{name}, overdue, on_timeout {then}", facts, late))
        early = held(start=start, commit=commit, advance=29.999, timeouts=timeouts)
        found.append(Situation(f"{name}, in time", Facts(status, committed=commit, lease="live"), early))
    for end in ("fail", "dead_letter"):
        facts = Facts(status, lease="live", failures_left=False, on_exhausted=end)
        recipe = held(start=start, failures=1, max_attempts=2, on_exhausted=end)
        found.append(Situation(f"{status}, last attempt, {end}", facts, recipe))
    return found


SITUATIONS = _situations()
