"""The spine at work: jobs are added, claimed, run and finished on one SQLite file, and then proven.

Run as `make demo`. The loop below is the smallest that is honest: it claims what it can start, runs a plain function,
settles each outcome under the lease's token, and asks the log at the end. One worker is left to die on purpose.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tenure.lifecycle.content import encode, load
from tenure.lifecycle.operations import Complete, Fail, Operation, Requeue, Retry, Stall
from tenure.lifecycle.records import Actor, Job, Origin, Policy, Role
from tenure.lifecycle.verify import problems_of
from tenure.seams import SYSTEM
from tenure.stores import store_for
from tenure.stores.contract import Applied, ClaimRequest, Enqueue, JobFilter, Request, Store

JOBS = 300
CLIENT = Actor(Role.CLIENT, "demo")
POLICY = Policy(max_attempts=3, lease_seconds=0.5)


def square(number: int, *, attempt: int) -> int:
    """The work: one in seven fails at its first attempt, and one job has no answer at all."""
    if number == 13:
        raise ValueError("thirteen has no square here")
    if number % 7 == 0 and attempt == 1:
        raise ConnectionError("the squaring service is away")
    return number * number


def outcome(job: Job) -> Operation:
    """Run the function, and turn what it did into what should be recorded."""
    try:
        return Complete(encode(square(load(job.origin.payload)["number"], attempt=job.attempt)))
    except ConnectionError as problem:
        return Retry(encode({"type": "ConnectionError", "message": str(problem)}), delay_seconds=0.01)
    except ValueError as problem:
        return Fail(encode({"type": "ValueError", "message": str(problem)}))


async def claim(store: Store, worker: str) -> tuple[Actor, list[Job]]:
    token = SYSTEM.random.token()
    jobs = await store.claim(
        ClaimRequest(
            queues=("default",), kinds=("square",), limit=25, worker=worker, token=token, request_id=str(token)
        )
    )
    return Actor(Role.RUNNER, worker, token), jobs


async def work(store: Store) -> None:
    """Claim, run, settle, until every job has ended."""
    while await unfinished(store):
        actor, jobs = await claim(store, "worker-1")
        requests = [
            Request(job=job, operations=(outcome(job),), actor=actor, request_id=f"{job.attempt}:settle", fresh=True)
            for job in jobs
        ]
        for settled in await store.perform(requests):
            if not isinstance(settled, Applied):
                print(f"not settled: {settled}")
        await recover(store)
        if not jobs:
            await SYSTEM.clock.sleep(0.02)


async def recover(store: Store) -> None:
    """Take back what a dead worker held."""
    mender = Actor(Role.RECOVERY, "mender")
    lost = await store.unattended(limit=100)
    await store.perform(
        [
            Request(job=job.id, operations=(Stall(), Requeue()), actor=mender, request_id=f"{job.rev}:recover")
            for job in lost
        ]
    )
    if lost:
        print(f"{len(lost)} jobs of a worker that died were taken back")


async def unfinished(store: Store) -> bool:
    page = await store.find(JobFilter(), limit=10 * JOBS)
    return any(job.live for job in page.jobs)


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tenure-demo-") as folder:
        store = store_for(f"sqlite:///{Path(folder) / 'jobs.db'}")
        await store.migrate()
        await store.open()
        await store.add(
            [
                Enqueue(
                    Origin(id=SYSTEM.random.job_id(), kind="square", payload=encode({"number": n}), policy=POLICY),
                    CLIENT,
                )
                for n in range(JOBS)
            ]
        )
        print(f"{JOBS} jobs added to one SQLite file")
        _, abandoned = await claim(store, "worker-that-dies")
        print(f"a worker claimed {len(abandoned)} of them and died without a word")
        await work(store)
        jobs = (await store.find(JobFilter(), limit=10 * JOBS)).jobs
        histories = await store.history([job.id for job in jobs])
        await store.close()
    found = [problem for job in jobs for problem in problems_of(job, histories[job.id])]
    ended = {status: sum(job.status == status for job in jobs) for status in ("succeeded", "failed")}
    events = sum(len(history) for history in histories.values())
    print(f"{ended['succeeded']} succeeded, {ended['failed']} failed as it should; {events} events")
    print(f"replaying the log gives every row again: {'no: ' + str(found[:3]) if found else 'yes'}")
    sound = not found and len(jobs) == JOBS and ended == {"succeeded": JOBS - 1, "failed": 1}
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(asyncio.wait_for(main(), timeout=60)))
