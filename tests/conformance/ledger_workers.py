"""Two worker processes for the duplicate retry: one loses its lease and tries to continue, the other reclaims the
job."""

from __future__ import annotations

import asyncio
import time
from multiprocessing.synchronize import Barrier
from typing import Any
from uuid import UUID

from tenure.lifecycle.operations import Commit, Complete, Requeue, Stall
from tenure.lifecycle.records import Actor, Job, Role
from tenure.stores import Store, store_for
from tenure.stores.contract import Applied, Failure
from tenure.testing.driver import RECOVERY, Driver

INSERT = "insert into effects (job, worker) values ($1, $2)"
LOOK_SECONDS = 0.02


def duplicate(barrier: Barrier, url: str, worker: str, job_id: str, seconds: float) -> str:
    """What happened to this worker's commit: `committed`, or the name of the refusal."""
    return asyncio.run(_duplicate(barrier, url, worker, UUID(job_id), time.monotonic() + seconds))


async def _duplicate(barrier: Barrier, url: str, worker: str, job_id: UUID, deadline: float) -> str:
    store = store_for(url)
    await store.open()
    try:
        drive = Driver(store)
        if worker == "first":
            [job] = await drive.claim(worker=worker)
            barrier.wait(60)
            await _until_ended(store, job_id, deadline)
        else:
            barrier.wait(60)
            job = await _taken_over(drive, job_id, deadline)
        return await _commit(drive, job, worker)
    finally:
        await store.close()


async def _until_ended(store: Store, job_id: UUID, deadline: float) -> None:
    while (await store.read([job_id]))[job_id].live:
        await _pause(deadline)


async def _taken_over(drive: Driver, job_id: UUID, deadline: float) -> Job:
    while not (jobs := await drive.claim(worker="second")):
        await drive.try_apply(drive.request(job_id, Stall(), Requeue(), actor=RECOVERY))
        await _pause(deadline)
    return jobs[0]


async def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError("the other worker did not get there in time")
    await asyncio.sleep(LOOK_SECONDS)


async def _commit(drive: Driver, job: Job, worker: str) -> str:
    """The effect and its mark in one transaction, as a job's commit block writes them; then the completion."""
    owner = Actor(Role.RUNNER, worker, job.token)
    try:
        async with drive.store.transaction(deadline_seconds=10) as tx:
            await tx.execute(INSERT, str(job.id), worker)
            _accepted(await tx.apply(drive.request(job.id, Commit('"once"'), actor=owner)))
    except _Refused as refusal:
        return str(refusal)
    _accepted(await drive.try_apply(drive.request(job.id, Complete('"once"'), actor=owner)))
    return "committed"


class _Refused(Exception):
    """Makes the transaction roll back."""


def _accepted(outcome: Any) -> None:
    if isinstance(outcome, Failure):
        raise _Refused(type(outcome.error).__name__)
    assert isinstance(outcome, Applied), outcome
