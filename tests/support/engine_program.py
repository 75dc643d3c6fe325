"""An engine process of the tests: it starts as many jobs as it has capacity, and ends none."""

from __future__ import annotations

import asyncio
import sys

from tenure.engines.client import Engine, EngineJob


async def main(url: str, token: str, capacity: int) -> None:
    engine = Engine(url, token=token, engine_id="e1", capacity=capacity)

    @engine.handles("render")
    async def render(job: EngineJob) -> str:
        await asyncio.Event().wait()
        return "never"

    await engine.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
