"""An engine process of the tests: each job takes up to half a second, some errors are retried, some are final."""

from __future__ import annotations

import asyncio
import os
import random
import sys

import tenure
from tenure.engines.client import Engine, EngineJob


async def main(url: str) -> None:
    engine = Engine(url, token=os.environ["TENURE_TOKEN"], engine_id=os.environ["ENGINE_ID"], capacity=20)

    @engine.handles("render")
    async def render(job: EngineJob) -> str:
        await asyncio.sleep(random.random() * 0.5)
        if int(job.payload["scene"]) % 50 == 0:
            raise tenure.PermanentError("no such asset")
        if random.random() < 0.05:
            raise RuntimeError("the asset server hiccuped")
        return str(job.payload["scene"])

    await engine.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
