"""Jobs in every status, with every kind of content, for tests that read a whole database."""

from __future__ import annotations

from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.operations import (
    Cancel,
    Commit,
    Complete,
    DeadLetter,
    Fail,
    Halt,
    Heartbeat,
    Progress,
    Release,
    RequestCancel,
    Retry,
    Signal,
    Suspend,
)
from tenure.lifecycle.records import Job
from tenure.testing.driver import CLIENT, ERROR, Driver

DEAD_LETTER = DeadLetter(ReasonCode.VALIDATION_FAILED, Stage.INPUT, ERROR)


async def one_of_each(driver: Driver) -> list[Job]:
    """At least one job in each status, over paths that write every kind of content."""
    queued, cancelled = await driver.add("queued"), await driver.add("cancelled")
    signalled, released = await driver.add("signalled"), await driver.running(kind="released")
    return [
        queued,
        await driver.claimed(),
        await driver.running(),
        await driver.apply(await driver.apply(await driver.running(), Progress(40, "almost")), Heartbeat()),
        await driver.apply(await driver.running(), Suspend()),
        await driver.apply(await driver.running(), Retry(ERROR, delay_seconds=3600)),
        await driver.apply(released, Release()),
        await driver.apply(await driver.running(), Complete('"done"')),
        await driver.apply(await driver.running(), Commit('"kept"')),
        await driver.apply(await driver.running(), Commit("1"), Complete("1")),
        await driver.apply(await driver.running(), Fail(ERROR)),
        await driver.apply(await driver.running(), Halt("too dear", "[1]")),
        await driver.apply(cancelled, Cancel(), actor=CLIENT),
        await driver.apply(await driver.running(), DEAD_LETTER),
        await driver.apply(signalled, Signal("go", "7"), RequestCancel(), actor=CLIENT),
    ]
