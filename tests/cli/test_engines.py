"""`tenure engines`."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path

import tenure
from tenure.engines.client import Engine, EngineJob
from tests.support.command import tenure as command
from tests.support.running_command import started, until

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "engines.md"


async def test_the_gateway_of_the_guide_serves_an_engine_and_stops_by_a_signal(tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "jobs.py").write_text(program)
    made = json.loads(command("engines", "token", "render-1", "--json").out)
    (tmp_path / "engines.tokens").write_text(f"# engines\n{made['line']}\n")
    assert made["token"] not in made["line"]
    with started(
        "engines", "serve", "jobs:app", "--tokens", "engines.tokens", "--port", "0", folder=tmp_path
    ) as serving:

        async def address() -> re.Match[str] | None:
            return re.search(r"at http(://127\.0\.0\.1:\d+/engine)", serving.log)

        url = f"ws{(await until(address))[1]}"  # type: ignore[index]
        engine = Engine(url, token=made["token"], engine_id="e1")

        @engine.handles("render")
        async def render(job: EngineJob) -> str:
            return f"{job.payload['scene']}.png"

        running = asyncio.create_task(engine.run())
        enqueue = command("jobs", "enqueue", "render", '{"scene":"intro"}', "--app", "jobs:app", "--json", cwd=tmp_path)
        assert enqueue.code == 0, enqueue.err
        async with tenure.App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
            job = await app.get(json.loads(enqueue.out)["job"]["id"])
            assert await job.result(timeout_seconds=30) == "intro.png"
        engine.stop()
        await asyncio.wait_for(running, 30)
        serving.signal(signal.SIGTERM)
        assert serving.ended() == 0, serving.log
    # The lines of the HTTP server are not among them.
    assert "uvicorn" not in serving.log


def test_a_gateway_without_tokens_or_remote_jobs_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("import tenure\napp = tenure.App('sqlite:///jobs.db')\n")
    refused = command("engines", "serve", "jobs:app", cwd=tmp_path)
    assert (refused.code, "`tenure engines token NAME`" in refused.err) == (2, True)
    line = json.loads(command("engines", "token", "a", "--json").out)["line"]
    (tmp_path / "tokens").write_text(line)
    refused = command("engines", "serve", "jobs:app", "--tokens", "tokens", "--port", "0", cwd=tmp_path)
    assert (refused.code, "app.remote_job" in refused.err) == (2, True)
    (tmp_path / "tokens").write_text("no digest\n")
    refused = command("engines", "serve", "jobs:app", "--tokens", "tokens", cwd=tmp_path)
    assert (refused.code, "line 1 is not" in refused.err) == (2, True)


def test_a_token_with_an_invalid_name_is_refused() -> None:
    refused = command("engines", "token", "two words")
    assert (refused.code, refused.err) == (
        2,
        "tenure: name: 'two words' must be up to 100 letters, digits, dots, hyphens and underscores\n",
    )
