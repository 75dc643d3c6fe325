"""The shell blocks of the guides to golden files, observability, operations and queues are executed as they are pasted.

Changed are only ports, which become free ones, and ids that a page shows as an example. Installing is left out here.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.project.test_readme import run
from tests.support.pages import all_blocks, blocks, shell, typed
from tests.support.running_command import Started, started
from tests.support.server_process import wait_until

INTERRUPTED = 128 + signal.SIGINT
SHOP = """
import logging

import tenure

app = tenure.App("sqlite:///jobs.db")


@app.job(backoff=tenure.Backoff(base_seconds=0))
async def order(ctx: tenure.Context) -> None:
    if ctx.attempt == 1:
        raise tenure.TransientError("again")
    logging.getLogger("shop").warning("no stock left")


@app.job(queue="mail")
async def note() -> None:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the app as `shop:app` and as `shop.jobs:app`, since pages use both."""
    (tmp_path / "shop").mkdir()
    for name in ("__init__.py", "jobs.py"):
        (tmp_path / "shop" / name).write_text(SHOP)
    return tmp_path


def worker_lines(page: str) -> Iterator[list[str]]:
    """The workers that the shell blocks of the page start."""
    for language, code in all_blocks(page):
        if language in {"sh", "console"}:
            for line in typed(code) or code.splitlines():
                if line.startswith("tenure worker "):
                    yield shlex.split(line.replace("9100", "0"), comments=True)[1:]


def counts(worker: Started, processes: int) -> bool:
    """Whether its metrics count so many processes."""
    [port] = re.findall(r"serving metrics at http://[\d.]+:(\d+)/metrics", worker.log)
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        return f"tenure_worker_processes {processes}.0\n" in response.read().decode()


@pytest.mark.parametrize(("page", "count"), [("observability.md", 2), ("operations.md", 2)])
def test_the_workers_of_the_page_start_serve_their_metrics_and_stop(page: str, count: int, folder: Path) -> None:
    lines = list(worker_lines(page))
    assert len(lines) == count
    for words in lines:
        processes = int(words[words.index("--processes") + 1]) if "--processes" in words else 1
        with started(*words, folder=folder) as worker:
            worker.wait_for_log("started, pid", times=processes, seconds=60)
            if "--metrics" in words:
                assert wait_until(partial(counts, worker, processes), seconds=30), worker.log
            if "--queues" in words:
                assert re.search(r"^  queues: +mail$", worker.log, re.MULTILINE), worker.log
            worker.signal(signal.SIGTERM)
            assert worker.ended(seconds=60) == 0, worker.log


def test_the_line_of_the_log_that_the_page_shows_is_written(folder: Path) -> None:
    [shown] = blocks("observability.md", "json")
    enqueue = "import shop; shop.order.options(correlation_id='order-7').enqueue_sync()"
    run(enqueue, folder=folder)
    with started("worker", "shop:app", "--log-format", "json", folder=folder) as worker:
        worker.wait_for_log("no stock left")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.log
    [written] = [json.loads(line) for line in worker.log.splitlines() if "no stock left" in line]
    expected = json.loads(shown)
    assert list(written) == list(expected)
    changing = ("at", "pid", "job_id")
    assert {**written, **dict.fromkeys(changing)} == {**expected, **dict.fromkeys(changing)}
    assert [len(str(written[name])) for name in ("at", "job_id")] == [len(expected[name]) for name in ("at", "job_id")]


def test_the_commands_that_watch_show_jobs_until_they_are_interrupted(folder: Path) -> None:
    watch, doctor, tail = blocks("operations.md", "sh")[2].splitlines()
    place = "sqlite:///jobs.db"
    enqueue = "import shop; shop.note.enqueue_sync()"
    run(enqueue, folder=folder)
    assert "\n0 errors, " in shell(doctor, folder=folder, TENURE_DATABASE=place)
    for line, shown in ((watch, "1 job\n"), (tail, "enqueued")):
        with started(*shlex.split(line, comments=True)[1:], folder=folder, env={"TENURE_DATABASE": place}) as watching:

            def shows(shown: str = shown, watching: Started = watching) -> bool:
                if shown == "enqueued":  # The tail begins with the events after its start.
                    run(enqueue, folder=folder)
                return shown in watching.log

            assert wait_until(shows, seconds=60), watching.log
            watching.signal(signal.SIGINT)
            assert watching.ended() == INTERRUPTED, watching.log


FLOWS = """
import tenure

app = tenure.App("sqlite:///jobs.db")


def {first}(topic: str) -> list[str]:
    return [topic]


def count(pages: list[str]) -> int:
    return len(pages)


def report(pages: int) -> str:
    return f"{{pages}} page"


@app.workflow
async def research(run: tenure.Run, topic: str) -> str:
    pages = await run.step({first}, topic)
    return await run.step(report, await run.step(count, pages{more}))
"""


def test_the_commands_of_the_guide_to_golden_files_print_what_it_shows(folder: Path) -> None:
    recording, checking = blocks("golden.md", "console")
    [example] = set(re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", recording + checking))
    (folder / "shop" / "jobs.py").write_text(FLOWS.format(first="search", more=""))
    with started("worker", "shop.jobs:app", folder=folder) as worker:
        enqueue = "from shop.jobs import research; h = research.enqueue_sync('cats'); h.result_sync(30); print(h.id)"
        run_id = run(enqueue, folder=folder).strip()
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.log
    (folder / "shop" / "jobs.py").write_text(FLOWS.format(first="find", more=' + ["other"]'))
    for block, code in ((recording, 0), (checking, 1)):
        [command], output = typed(block), block.partition("\n")[2]
        command = command.replace(example[:8], run_id[:8])
        printed = shell(command, folder=folder, code=code, TENURE_DATABASE="sqlite:///jobs.db")
        assert printed == output.replace(example, run_id)


def test_the_commands_of_the_guide_to_queues_work(folder: Path) -> None:
    shell("tenure migrate\n" + blocks("queues.md", "")[0], folder=folder, TENURE_DATABASE="sqlite:///jobs.db")
