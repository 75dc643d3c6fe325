"""The code in README.md, the tutorial and the programs in examples/ work as described."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tenure.cli.main import COMMANDS
from tenure.cli.worker import worker as worker_command
from tests.support.command import tenure
from tests.support.databases import Database
from tests.support.pages import blocks, shell
from tests.support.running_command import started
from tests.support.server_process import wait_until
from tools.generated import ROOT

BLOCKS = blocks("README.md")


def run(script: str | Path, *, folder: Path, **env: str) -> str:
    """What a program prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    command = [sys.executable, str(script)] if isinstance(script, Path) else [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=folder, env={**clean, **env}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_quickstart_works_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(BLOCKS[0])
    (tmp_path / "program.py").write_text(BLOCKS[1])
    command = blocks("README.md", "")[1]
    with started(*command.split()[1:], folder=tmp_path) as worker:
        assert run(tmp_path / "program.py", folder=tmp_path) == "hello, Ada\n"
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.log


def test_the_workflow_of_the_readme_works_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(BLOCKS[3])
    program = (
        "from flows import research\n"
        "run = research.enqueue_sync('cats')\n"
        "run.signal_sync('approved')\n"
        "print(len(run.result_sync(timeout_seconds=30)))\n"
    )
    with started("worker", "flows:app", folder=tmp_path) as worker:
        assert run(program, folder=tmp_path) == "3\n", worker.log
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.log


def bookings(database: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        return connection.execute("select order_name, cents from bookings").fetchall()


def test_the_payment_of_the_readme_is_booked_once(tmp_path: Path) -> None:
    """The program runs as it is pasted, and creates the table that it writes to."""
    (tmp_path / "payments.py").write_text(BLOCKS[2])
    assert run(tmp_path / "payments.py", folder=tmp_path) == "receipt for order-7\n"
    assert bookings(tmp_path / "payments.db") == [("order-7", 1200)]


def test_the_figures_of_the_readme_are_those_of_the_page_on_performance() -> None:
    page = (ROOT / "docs" / "explanation" / "performance.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    names = {"enqueued one by one": "enqueue one by one /s", "enqueued in batches": "enqueue many /s"}
    for shown, measured in {**names, "run by one process": "drain, 1 process /s"}.items():
        [figures] = re.findall(rf"^\| {shown} \| (.*?) \|$", readme, re.MULTILINE)
        assert f"| {measured} | {figures} |" in page, shown


def test_the_first_steps_can_be_taken(tmp_path: Path) -> None:
    greeting, *events = run(ROOT / "examples" / "first_steps.py", folder=tmp_path).splitlines()
    assert greeting == "hello, Ada"
    assert events[-1] == "  succeeded (attempt 2)"
    assert tenure("verify", "--database", "sqlite:///first_steps.db", cwd=tmp_path).code == 0


def test_the_example_of_a_payment_books_it_once_on_every_database(database: Database, tmp_path: Path) -> None:
    assert tenure("migrate", "--database", database.url).code == 0
    printed = run(ROOT / "examples" / "pay_once.py", folder=tmp_path, TENURE_DATABASE=database.url)
    assert printed.splitlines() == [
        "one job: True",
        "receipt for order-7",
        "booked: [{'order_name': 'order-7', 'cents': 1200}]",
    ]


@pytest.mark.requirement("WC-08")
def test_the_example_of_an_agent_pays_at_most_one_step_twice(tmp_path: Path) -> None:
    printed = run(ROOT / "examples" / "research_agent.py", folder=tmp_path)
    assert "result: a report from 8 notes" in printed
    assert "2 attempts" in printed


def test_the_guide_to_workflows_works_as_it_is_written(tmp_path: Path) -> None:
    research, *others = blocks("workflows.md")
    printed = run(research, folder=tmp_path)
    assert re.fullmatch(r"published under [0-9a-f-]{36}/4\n", printed), printed
    for program in others:
        run(program, folder=tmp_path)


@pytest.mark.requirement("WC-04", "WC-08", "WF-19")
def test_the_example_of_a_plan_is_halted_at_its_budget_and_forked(tmp_path: Path) -> None:
    printed = run(ROOT / "examples" / "planned_research.py", folder=tmp_path, RESEARCH_FOLDER=str(tmp_path))
    assert "halted: budget exceeded: 0.41 of 0.5 cost spent; the next call may need 0.2\n" in printed
    assert '"note1":"summary of otters, page 1"}\n' in printed
    assert "forked: a report from 3 notes\npaid twice: nothing\n" in printed
    [record] = re.findall(r"^record it: tenure (.*)$", printed, re.MULTILINE)
    folder = tmp_path / "golden"
    assert tenure(*record.split(), "--dir", str(folder)).code == 0
    checked = tenure("golden", "check", str(folder), "--app", f"{ROOT / 'examples' / 'planned_research.py'}:app")
    assert checked.code == 0, checked.out


@pytest.mark.requirement("WC-09")
def test_the_golden_file_of_the_example_fits_its_code(tmp_path: Path) -> None:
    program = ROOT / "examples" / "planned_research.py"
    checked = ("golden", "check", str(ROOT / "examples" / "golden"), "--app")
    same = tenure(*checked, f"{program}:app")
    assert same.code == 0, same.out
    for old, new, found in (
        ("def summarise(title", "def sum_up(title", "the run would be parked at note0: skill 'summarise' is not reg"),
        ("def summarise(title: str) -> str", "def summarise(title: str) -> int", "does not fit today's return type"),
    ):
        changed = tmp_path / "changed_research.py"
        assert old in program.read_text(encoding="utf-8")
        changed.write_text(program.read_text(encoding="utf-8").replace(old, new))
        other = tenure(*checked, f"{changed}:app")
        assert (other.code, found in other.out) == (1, True), other.out


def test_the_guide_to_plans_works_as_it_is_written(tmp_path: Path) -> None:
    program, policy = blocks("plans.md")
    assert run(program, folder=tmp_path).splitlines() == [
        "the text of otters 0",
        "plan step 'up': skill 'fly' is not registered; use one of: read, search",
    ]
    pays = """
import asyncio

async def main():
    async with app.testing() as harness:
        for cents in (50, 20_000):
            step = {"id": "it", "skill": "pay", "arguments": {"cents": cents}}
            run = await app.run_plan(goal="pay", plan={"steps": [step]})
            await harness.drain()
            job = await run.refresh()
            print(job.status, job.waiting_for)

asyncio.run(main())
"""
    assert run(policy + pays, folder=tmp_path).splitlines() == ["succeeded None", "waiting signal"]


def test_every_example_is_run_by_a_test() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {
        "engine.py",
        "first_steps.py",
        "pay_once.py",
        "receive_webhooks.py",
        "planned_research.py",
        "research_agent.py",
    }


def test_the_commands_for_developers_are_there(tmp_path: Path) -> None:
    for line in (blocks("README.md", "")[0] + blocks("README.md", "")[2]).splitlines():
        shell(f"make --directory {ROOT} --dry-run {line.split()[1]}", folder=tmp_path)


@pytest.mark.deep
def test_make_demo_runs_the_demo(tmp_path: Path) -> None:
    """In the environment of the tests, which make takes for one that it has installed."""
    demo = blocks("README.md", "")[0].splitlines()[0].partition("#")[0]
    stamp = f"{sys.prefix}/.installed"
    shell(f"{demo} --directory {ROOT} VENV={sys.prefix} --old-file={stamp}", folder=tmp_path)


def test_the_examples_of_the_page_on_queues_work(tmp_path: Path) -> None:
    [program] = blocks("queues.md")
    assert run(program, folder=tmp_path) == "mail 20 paused 0\n"


def test_the_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    shop, enqueue = blocks("tutorial.md")
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "enqueue.py").write_text(enqueue)
    assert run(tmp_path / "enqueue.py", folder=tmp_path) == "queued queued\n"
    assert run(tmp_path / "enqueue.py", folder=tmp_path) == "queued queued\n"
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    [create] = re.findall(r'^python -c "(.*)"$', text, re.MULTILINE)
    run(create, folder=tmp_path)
    with started("worker", "shop:app", folder=tmp_path) as worker:
        assert wait_until(lambda: bookings(tmp_path / "shop.db") != [], seconds=30), worker.log
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.log
    assert bookings(tmp_path / "shop.db") == [("order-7", 1200)]
    assert tenure("verify", "--database", "sqlite:///shop.db", cwd=tmp_path).code == 0


def test_the_job_of_the_tutorial_survives_a_killed_worker(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(blocks("tutorial.md")[0])
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    [(kind, payload)] = re.findall(r"^tenure jobs enqueue (\w+) '(.*)' --app shop:app$", text, re.MULTILINE)
    with started("worker", "shop:app", folder=tmp_path) as worker:
        assert tenure("jobs", "enqueue", kind, payload, "--app", "shop:app", cwd=tmp_path).code == 0
        jobs = Database(f"sqlite:///{tmp_path / 'shop.db'}")
        running = [("running",)]
        assert wait_until(lambda: jobs.rows("select status from {jobs}") == running, seconds=30), worker.log
        worker.signal(signal.SIGKILL)
        worker.ended()
    with started("worker", "shop:app", folder=tmp_path) as worker:
        ended = [("succeeded", '"written by attempt 2"')]
        assert wait_until(lambda: jobs.rows("select status, result from {jobs}") == ended, seconds=60), worker.log
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.log


GUIDES = {
    "jobs": ["3 pieces in EUR", "PayloadRefused"],
    "enqueuing": ["queued True", "2500", "True False", "cancelled"],
    "errors": ["failed 1", "retry 1", "TimeoutError the bank does not answer"],
}


@pytest.mark.parametrize("guide", GUIDES)
def test_the_program_of_a_guide_prints_what_its_text_says(guide: str, tmp_path: Path) -> None:
    [program] = blocks(f"{guide}.md")
    assert run(program, folder=tmp_path).splitlines() == GUIDES[guide]


def test_the_page_on_the_command_has_every_command_and_the_options_of_a_worker() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    headings = "\n".join(line for line in page.splitlines() if line.startswith("## "))
    assert [name for name in COMMANDS if f"`tenure {name}`" not in headings] == []
    options = [option for option in worker_command.params if not getattr(option, "hidden", False)]
    flags = [flag for option in options for flag in option.opts if flag.startswith("--")]
    assert [flag for flag in flags if f"`{flag}" not in page] == []


def test_the_map_in_the_readme_has_every_folder() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "tenure"
    packages = [path.parent.relative_to(ROOT).as_posix() + "/" for path in source.glob("*/__init__.py")]
    folders = [f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and path.name not in {"build", "dist"}]
    named = [folder for folder in [*packages, *folders] if not folder.startswith((".", "__"))]
    assert len(named) > 10
    assert [folder for folder in named if f"`{folder}" not in readme] == []
