"""A remote engine in Python, as examples/engine-js/render.mjs is one in JavaScript. It needs tenure[server].

TENURE_TOKEN=tnr_... python examples/engine.py ws://127.0.0.1:8080/engine
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import tenure
from tenure.engines.client import Engine, EngineJob

URL = sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8080/engine"
engine = Engine(URL, token=os.environ["TENURE_TOKEN"], engine_id=os.environ.get("ENGINE_ID", "engine-py"))


@engine.handles("render")
async def render(job: EngineJob) -> str:
    await job.progress(50, "half")
    if not job.payload["scene"]:
        raise tenure.PermanentError("the scene has no name")  # Not retried.
    return f"{job.payload['scene']}.png"


async def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, engine.stop)
    await engine.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(main())
