"""docs/guides/deployment.md: each worker starts on PostgreSQL, serves its probe and stops by its signal."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import psycopg
import pytest
import yaml
from psycopg import sql

from tenure.cli.worker import worker as worker_command
from tests.support.clean_environment import build_wheel, make_environment
from tests.support.command import tenure
from tests.support.databases import Database
from tests.support.pages import PAGES, blocks, shell
from tests.support.postgres import Postgres, database_of
from tests.support.running_command import Started, started

APP = """
import tenure

app = tenure.App()


@app.job
async def note(text: str) -> str:
    return text
"""
[GRACE_SECONDS] = [option.default for option in worker_command.params if option.name == "grace_seconds"]


LISTENERS = """
select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen %'
"""


def unit() -> ConfigParser:
    parsed = ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(blocks("deployment.md", "ini")[0])
    return parsed


def dockerfile() -> dict[str, str]:
    lines = (line.partition(" ") for line in blocks("deployment.md", "dockerfile")[0].splitlines())
    return {name: rest for name, _, rest in lines}


def deployment() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(blocks("deployment.md", "yaml")[0])
    return found


def container() -> dict[str, Any]:
    [found] = deployment()["spec"]["template"]["spec"]["containers"]
    return dict(found)


def worker_of(block: str) -> list[str]:
    """The worker's command line, with a free port for its metrics."""
    match block:
        case "systemd":
            written = shlex.split(unit()["Service"]["ExecStart"])
        case "docker":
            written = json.loads(dockerfile()["CMD"])
        case _:
            written = container()["args"]
    program, *words = written
    assert Path(program).name == "tenure"
    return [word.replace("0.0.0.0:9100", "0.0.0.0:0") for word in words]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(APP)
    return tmp_path


@contextmanager
def stopped_in_order(worker: Started) -> Iterator[None]:
    worker.wait_for_log("started, pid")
    yield
    worker.signal(signal.Signals[dockerfile()["STOPSIGNAL"]])
    assert worker.ended() == 0, worker.log
    assert all(json.loads(line)["level"] == "info" for line in worker.log.splitlines()), worker.log


def probe(worker: Started) -> int:
    """The status that the livenessProbe of the page gets."""
    request = container()["livenessProbe"]["httpGet"]
    [port] = re.findall(r"metrics at http://0\.0\.0\.0:(\d+)/", worker.log)
    with urlopen(f"http://127.0.0.1:{port}{request['path']}", timeout=30) as response:
        return int(response.status)


@pytest.mark.parametrize("block", ["systemd", "docker", "kubernetes"])
def test_the_worker_of_the_page_starts_and_stops(block: str, folder: Path, postgres_dsn: str) -> None:
    assert tenure("migrate", "--database", postgres_dsn).code == 0
    with (
        started(*worker_of(block), folder=folder, env={"TENURE_DATABASE": postgres_dsn}) as worker,
        stopped_in_order(worker),
    ):
        if block != "systemd":
            assert probe(worker) == 200


def test_each_process_manager_waits_longer_than_the_worker_takes_to_stop() -> None:
    spec = deployment()["spec"]["template"]["spec"]
    waits = [int(unit()["Service"]["TimeoutStopSec"]), spec["terminationGracePeriodSeconds"]]
    assert min(waits) > float(str(GRACE_SECONDS)) + 30
    labels = deployment()["spec"]["selector"]["matchLabels"]
    assert deployment()["spec"]["template"]["metadata"]["labels"] == labels


@pytest.mark.parametrize("query", re.findall(r"`(\?pooler=\S+)`", PAGES["deployment.md"].read_text(encoding="utf-8")))
def test_a_worker_runs_jobs_behind_pgbouncer_with_the_url_of_the_page(
    query: str, folder: Path, pgbouncer_dsn: str, postgres_dsn: str
) -> None:
    assert tenure("migrate", "--database", postgres_dsn).code == 0
    place = {"TENURE_DATABASE": pgbouncer_dsn + query.replace("postgresql://…", postgres_dsn)}
    with (
        started("worker", "shop.jobs:app", "--log-format", "json", folder=folder, env=place) as worker,
        stopped_in_order(worker),
    ):
        enqueue = ("jobs", "enqueue", "note", '{"text": "a"}', "--app", "shop.jobs:app")
        assert tenure(*enqueue, cwd=folder, env=place).code == 0
        worker.wait_for_log(r"\(note\) succeeded")
        listeners = (
            "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen %'"
        )
        [(count,)] = Database(postgres_dsn).rows(listeners)
        assert (count > 0) == ("listen=" in query)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """With a program and an account that are there."""
    written = blocks("deployment.md", "ini")[0].replace("User=shop", f"User={os.geteuid()}")
    path = tmp_path / "shop.service"
    path.write_text(re.sub(r"(?<=ExecStart=)\S+", "/bin/true", written))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "shop.service" in done.stderr) == (0, False), done.stderr


@pytest.mark.deep
def test_what_the_image_installs_is_enough_for_its_worker(folder: Path, postgres_dsn: str) -> None:
    [extra] = re.findall(r'^pip install "tenure\[(.*)\]"$', dockerfile()["RUN"])
    programs = make_environment(folder / "environment", build_wheel(folder / "wheel"), extra=extra)
    assert tenure("migrate", "--database", postgres_dsn).code == 0
    command = (str(programs / "tenure"), *worker_of("docker"))
    execute = ("-c", "import os, sys; os.execv(sys.argv[1], sys.argv[1:])")
    with (
        started(*command, folder=folder, env={"TENURE_DATABASE": postgres_dsn}, program=execute) as worker,
        stopped_in_order(worker),
    ):
        assert probe(worker) == 200


def test_the_grants_of_the_page_are_accepted(postgres_server: Postgres, tmp_path: Path) -> None:
    [written] = blocks("deployment.md", "sh")
    names = {name: f"{name}_{uuid4().hex[:8]}" for name in ("shop_worker", "shop_web")}
    for name, own in names.items():
        written = written.replace(name, own)
        with psycopg.connect(postgres_server.dsn(), autocommit=True) as admin:
            admin.execute(sql.SQL("create role {} login").format(sql.Identifier(own)))
    with postgres_server.owned_database() as owner:
        assert tenure("migrate", "--database", owner).code == 0
        shell(written, folder=tmp_path, OWNER_URL=owner)
        for own in names.values():
            assert tenure("jobs", "ls", "--database", postgres_server.dsn(database_of(owner), role=own)).code == 0
    for own in names.values():
        with psycopg.connect(postgres_server.dsn(), autocommit=True) as admin:
            admin.execute(sql.SQL("drop role {}").format(sql.Identifier(own)))
