"""First steps: declare a job, enqueue it, run it with a worker in the same program, and print its events.

Run it as `python examples/first_steps.py`. It needs only tenure, and leaves `first_steps.db` behind:
`tenure jobs ls --database sqlite:///first_steps.db`. In production the worker is a separate process,
`tenure worker first_steps:app`.
"""

from __future__ import annotations

import asyncio

import tenure

app = tenure.App("sqlite:///first_steps.db")


@app.job(max_attempts=3, backoff=tenure.Backoff(base_seconds=0.1))
async def greet(ctx: tenure.Context, name: str) -> str:
    if ctx.attempt == 1:
        raise tenure.TransientError("not yet")  # Retried after the backoff.
    return f"hello, {name}"


async def main() -> None:
    async with app:
        job = await greet.enqueue("Ada")

        worker = app.worker()
        working = asyncio.create_task(worker.run())
        print(await job.result(timeout_seconds=30))
        worker.stop()
        await working

        for event in await job.events():
            print(f"  {event.type} (attempt {event.attempt})")


if __name__ == "__main__":
    asyncio.run(main())
