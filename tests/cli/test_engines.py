"""`tenure engines`."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path

from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.pages import blocks, shell
from tests.support.running_command import started
from tests.support.server_process import free_port, wait_until
from tools.generated import ROOT


def test_the_commands_of_the_guide_serve_an_engine_that_runs_a_job(tmp_path: Path) -> None:
    """On a free port instead of 8080, and with the token that was made in place of the one that the guide shows."""
    (tmp_path / "jobs.py").write_text(blocks("engines.md")[0])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    gateway, others = (block.splitlines() for block in blocks("engines.md", ""))
    install, make_token, append, serve = gateway
    run_engine, enqueue = others
    assert install == "pip install 'tenure[server]'"
    token, line = (one.split(": ")[1].strip() for one in shell(make_token, folder=tmp_path).splitlines())
    assert token not in line
    shell(append.replace("render-1 7960c436…", line), folder=tmp_path)
    port = str(free_port())
    environment, python, *engine = shlex.split(run_engine.replace("8080", port))
    assert (environment, python) == ("TENURE_TOKEN=tnr_…", "python")
    with (
        started(*shlex.split(serve)[1:], "--port", port, folder=tmp_path) as serving,
        started(*engine, folder=tmp_path, env={"TENURE_TOKEN": token}, program=()) as running,
    ):
        shell(enqueue, folder=tmp_path)
        database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
        ended = [("succeeded", '"intro.png"')]
        assert wait_until(lambda: database.rows("select status, result from {jobs}") == ended, seconds=30), serving.log
        for program in (running, serving):
            program.signal(signal.SIGTERM)
            assert program.ended() == 0, program.log
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
