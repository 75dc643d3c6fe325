"""The blocks of Python of some guides are executed, and every command in README, tutorial and guides exists."""

from __future__ import annotations

import json
import re
import shlex
import signal
import urllib.error
import urllib.request
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import pytest

import tenure
from tenure import errors
from tenure.cli.main import tenure as command
from tenure.client.job_function import EnqueueOptions
from tenure.client.job_options import JobOptions
from tenure.lifecycle.json_text import KEY_LENGTH_MAX, NAME_LENGTH_MAX
from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Policy
from tenure.lifecycle.size_limits import CONTENT_BYTES_MAX, STEP_BYTES_MAX, STORED_BYTES_MAX, STORED_STEP_BYTES_MAX
from tenure.seams import SYSTEM
from tenure.stores.queue_groups import GROUP_QUEUES_MAX
from tenure.stores.validation import PRIORITY_LEAST, PRIORITY_MOST
from tenure.testing.driver import Driver
from tenure.testing.golden import check_golden
from tests.contrib.django_project import DjangoProject
from tests.project.test_readme import run
from tests.support.databases import Database
from tests.support.pages import BLOCK, PAGES, blocks
from tests.support.running_command import started
from tests.support.server_process import free_port, wait_until
from tools.generated import DOCS, ROOT


def execute(code: str, **names: Any) -> dict[str, Any]:
    exec(compile(code, "the guide", "exec"), names)  # noqa: S102 - our own page
    return names


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_every_command_on_the_page_exists_with_its_options(page: Path) -> None:
    for line in commands(page.read_text(encoding="utf-8")):
        words = shlex.split(line, comments=True)[1:]
        problem = unknown_in(words)
        assert problem is None, f"{line}: {problem}"


def commands(text: str) -> Iterator[str]:
    """The lines of code blocks that call `tenure`."""
    for language, code in BLOCK.findall(text):
        if language in {"", "sh", "bash", "console"}:
            for line in code.replace("\\\n", " ").splitlines():
                if match := re.match(r"(?:\$ )?(?:\w+=\S+ )*(tenure .*)", line):
                    yield re.split(r" [|>&]", match[1])[0]


def unknown_in(words: list[str]) -> str | None:
    """What the command line does not know of these words."""
    found: click.Command = command
    context = click.Context(found)
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        inner = found.get_command(context, words[0])
        if inner is None:
            return f"there is no command {words[0]!r}"
        found, words = inner, words[1:]
    flags = {flag for option in found.params for flag in (*option.opts, *option.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in flags]
    return f"there is no option {unknown[0]}" if unknown else None


def test_the_check_of_commands_notices_what_does_not_exist() -> None:
    assert unknown_in(["jobs", "ls", "--oldest"]) is None
    assert unknown_in(["jobs", "lst"]) == "there is no command 'lst'"
    assert unknown_in(["jobs", "ls", "--odlest"]) == "there is no option --odlest"


async def test_the_calls_of_the_guide_to_workflows_fork_a_run() -> None:
    calls = blocks("workflows.md", "")[0].splitlines()
    app, works, cost = tenure.App("sqlite:///never.db"), False, 0

    def search() -> list[str]:
        return ["b"]

    def summarise(pages: list[str]) -> str:
        if not works:
            raise tenure.PermanentError("no summary")
        tenure.current_step().spend(cost=cost)
        return f"a summary of {pages[0]}"

    @app.workflow(budget=tenure.Budget(cost=1), on_exhausted="fail")
    async def research(run: tenure.Run) -> str:
        return await run.step(summarise, await run.step(search))

    ends = []
    async with app.testing() as harness:
        for call in calls:
            works, cost = ("budget" in call), 2 * ("budget" in call)
            handle = await research.enqueue()
            await harness.drain()
            assert (await handle.refresh()).status == ("halted" if works else "failed")
            works = True
            names: dict[str, Any] = {"app": app, "tenure": tenure, "run_id": handle.id}
            await execute_async(call, names)
            await harness.drain()
            assert (await names["fork"].refresh()).origin.redrive_of == handle.id
            ends.append(await names["fork"].result())
    assert ends == ["a summary of b", "a summary of b", "a summary of a", "a summary of b"]


def words_of(page: str) -> set[str]:
    """What the page has in backticks, word by word."""
    text = (DOCS / "guides" / page).read_text(encoding="utf-8")
    return {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", code)}


def test_the_guide_to_jobs_has_every_option_and_when_to_use_it() -> None:
    assert set(JobOptions.__annotations__) - words_of("jobs.md") == set()


def test_the_guide_to_jobs_has_every_hook_of_a_middleware() -> None:
    hooks = {name for name in vars(tenure.Middleware) if not name.startswith("_")}
    assert "run_sync" in hooks
    assert hooks - words_of("jobs.md") == set()


def test_the_guide_to_enqueuing_has_every_option() -> None:
    assert set(EnqueueOptions.__struct_fields__) - words_of("enqueuing.md") == set()


def test_the_guide_to_errors_has_every_class() -> None:
    classes = {
        name
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, errors.TenureError) and one.__module__ == errors.__name__
    }
    assert classes - words_of("errors.md") == set()


def test_the_guide_to_testing_names_what_runs_async_tests() -> None:
    assert "pip install pytest-asyncio" in (DOCS / "guides" / "testing.md").read_text(encoding="utf-8")


# Tables

CELERY = """
import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta

import tenure

tenure.App("postgresql://…")
app = tenure.App("sqlite:///shop.db")
handled = app.job(timeouts=tenure.Timeouts(running_seconds=600), isolation="process", fail_on=OSError, max_attempts=4)


@app.job
async def send(number: int) -> int:
    return number


@app.job(queue="mail")
async def once(ctx: tenure.Context) -> str:
    if ctx.attempt == 1:
        raise tenure.TransientError("…", delay_seconds=30)
    return str(ctx.id)


@handled
def ended(number: int) -> int:
    return number


@app.workflow
async def flow(run: tenure.Run) -> list[int]:
    return await run.map(ended.function, [1, 2], concurrency=2) + list(await run.gather(run.step(ended.function, 3)))


app.schedule(send.request(1), "0 9 * * *")


async def main() -> None:
    async with app.testing() as harness:
        await send.options(at=datetime.now(UTC) + timedelta(days=90)).enqueue(1)
        id = (await send.options(delay_seconds=60).enqueue(1)).id
        await app.cancel(id, hard=True)
        retried, flowing = await once.enqueue(), await flow.enqueue()
        await harness.drain()
        await harness.advance(31)
        assert await retried.result() == str(retried.id)
        assert await flowing.result() == [1, 2, 3]
        id = (await send.enqueue(1)).id
        await harness.drain()
        assert await (await app.get(id)).result(5) == 1
    async with app.testing("inline"):
        assert (await send.enqueue(1)).job.status == "succeeded"


def by_hand() -> None:
    with app.testing("inline"):
        assert send.enqueue_sync(1).result_sync(5) == 1
    app.background.run(app.migrate)
    connection = sqlite3.connect("shop.db")
    with connection:
        handle = send.within(connection).enqueue_sync(1)
    assert app.get_sync(handle.id).job.status == "queued"
"""
"""What the table for Celery has in its right column, executed."""


def test_the_right_column_of_the_table_for_celery_works(tmp_path: Path) -> None:
    text = (DOCS / "guides" / "celery.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    written = [code for _, right in rows for code in re.findall(r"`([^`]+)`", right)]
    assert len(written) >= 20
    for code in written:
        if code.startswith("tenure "):
            assert unknown_in(code.split()[1:]) is None, code
        else:
            assert code.replace("…)", "") in CELERY, f"{code} is not executed below"
    run(CELERY + "\n\nby_hand()\nasyncio.run(main())\n", folder=tmp_path)


MINUS = "\N{MINUS SIGN}"


def test_the_limits_of_the_page_are_those_of_the_code() -> None:
    text = (DOCS / "guides" / "limits.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.MULTILINE))
    for row, limits in {
        "payload, result": (f"{CONTENT_BYTES_MAX // 1024} KiB", f"{STORED_BYTES_MAX // 2**20} MiB"),
        "a step's result": (f"{STEP_BYTES_MAX // 2**20} MiB", f"{STORED_STEP_BYTES_MAX // 2**20} MiB"),
        "names of kinds and queues": (f"{NAME_LENGTH_MAX} characters",),
        "dedupe key, request id": (f"{KEY_LENGTH_MAX} characters",),
        "priority": (f"{PRIORITY_LEAST:,} to {PRIORITY_MOST:,}".replace("-", MINUS),),
        "queues of a worker": (f"more than {GROUP_QUEUES_MAX} ",),
    }.items():
        assert [limit for limit in limits if limit not in rows[row]] == [], row
    assert rows["attempts"] == "1 to 30,000"
    Policy(max_attempts=30_000)
    with pytest.raises(errors.InvalidInput):
        Policy(max_attempts=30_001)


# FastAPI


def answer(port: int, path: str, key: str | None = None) -> tuple[int, Any]:
    """The status and the JSON of a GET, or of a POST with this Idempotency-Key."""
    headers = {} if key is None else {"Idempotency-Key": key}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", headers=headers, method="GET" if key is None else "POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def is_up(port: int) -> bool:
    try:
        answer(port, "/")
    except urllib.error.URLError:
        return False
    return True


@pytest.mark.parametrize("in_process", [False, True], ids=["worker beside it", "worker in the process"])
def test_the_web_application_of_the_guide_enqueues_and_shows_jobs(tmp_path: Path, in_process: bool) -> None:
    web, worker_inside = blocks("fastapi.md")
    (tmp_path / "shop.py").write_text(web + worker_inside if in_process else web)
    serve, work = (line.split() for line in blocks("fastapi.md", "sh")[0].splitlines())
    port = free_port()
    with started(*serve, "--port", str(port), folder=tmp_path, program=("-m",)) as server:
        assert wait_until(lambda: is_up(port), seconds=30), server.log
        code, first = answer(port, "/orders/A7/charge?cents=1200", key="k1")
        assert (code, first["created"]) == (202, True)
        assert answer(port, "/orders/A7/charge?cents=1200", key="k1") == (202, {"job": first["job"], "created": False})
        assert answer(port, "/orders/A7/charge?cents=9", key="k1")[0] == 422
        assert answer(port, f"/jobs/{uuid4()}")[0] == 404

        def ended() -> bool:
            return bool(answer(port, f"/jobs/{first['job']}")[1]["result"] == "receipt for A7")

        if in_process:
            assert wait_until(ended, seconds=30), server.log
        else:
            with started(*work, folder=tmp_path, program=("-m",)) as worker:
                assert wait_until(ended, seconds=30), worker.log
                worker.signal(signal.SIGTERM)
                assert worker.ended() == 0, worker.log
        server.signal(signal.SIGTERM)
        assert server.ended() in {0, -signal.SIGTERM}, server.log  # uvicorn raises the signal again.
        assert "Traceback" not in server.log


# SQLAlchemy


def test_the_program_with_sqlalchemy_commits_jobs_with_its_rows(tmp_path: Path) -> None:
    sync, with_async, alembic = blocks("sqlalchemy.md")
    main = sync.index("if __name__")
    (tmp_path / "shop.py").write_text(sync[:main] + with_async + sync[main:])
    assert run(tmp_path / "shop.py", folder=tmp_path) == "order 1\n"
    database = Database(f"sqlite:///{tmp_path / 'shop.db'}")

    def has(state: str) -> bool:
        return database.rows("select state from orders") == [(state,)]

    with started("worker", "shop:app", folder=tmp_path) as worker:
        assert wait_until(lambda: has("confirmed"), seconds=30), worker.log
        run("import asyncio, shop; asyncio.run(shop.request_cancel(1))", folder=tmp_path)
        assert wait_until(lambda: has("cancelled"), seconds=30), worker.log
    include = execute(alembic)["include_name"]
    asked = [("orders", "table"), ("tenure_jobs", "table"), ("tenure", "schema"), (None, "schema")]
    assert [include(name, type_, {}) for name, type_ in asked] == [True, False, False, True]


# Django


def test_the_code_of_the_guide_to_django_works_in_a_project(tmp_path: Path) -> None:
    settings, jobs, tasks = blocks("django.md")
    project = DjangoProject(tmp_path, Database(f"sqlite:///{tmp_path / 'jobs.db'}"))
    shop = tmp_path / "shop"
    given = (shop / "settings.py").read_text()
    installed = settings.replace("# your apps", '"django_tasks", "shop",')
    (shop / "settings.py").write_text(given + installed + "ONCE = TASKS['once']\n" + tasks + "TASKS['once'] = ONCE\n")
    order = "\n\nclass Order:\n    objects = __import__('types').SimpleNamespace(create=lambda: Order)\n    id = 7\n"
    (shop / "jobs.py").write_text("from shop import tasks  # noqa: F401\n" + jobs + order)
    assert project.manage("tenure_migrate").returncode == 0
    project.run('jobs.place_order(None)\nresult = tasks.note.enqueue("ada")\nfound["status"] = str(result.status)')
    found = project.database.rows("select kind, queue from {jobs} order by created_at")
    assert found == [("send_receipt", "mail"), ("django.task", "default")]


# Small blocks, with what the page's reader has beside them


def test_the_endpoint_of_the_guide_to_the_outbox_receives_the_message(tmp_path: Path) -> None:
    program, settings = blocks("outbox.md")
    (tmp_path / "shop.py").write_text(program)
    assert execute(settings, tenure=tenure)["app"].outbox_options.retry.delays_seconds[-1] == 600
    with started("worker", "shop:app", folder=tmp_path) as worker:
        worker.wait_for_log("started, pid")
        run("from shop import charge; charge.enqueue_sync('ada', 7).result_sync(30)", folder=tmp_path)
        worker.wait_for_log(r'order\.charged \{"amount":7\}')


def test_the_settings_and_profiles_of_the_guide_to_operations_can_be_declared() -> None:
    retention, profiles = blocks("operations.md")
    app = execute(retention)["app"]
    assert (app.retention.finished_days, app.retention.kinds["tick"]) == (30, 1)
    names = execute(profiles, app=tenure.App("sqlite:///never.db"), tenure=tenure)
    assert names["preview"].definition.options.policy.on_timeout == "dead_letter"


def test_the_test_of_the_guide_to_golden_files_checks_one(monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = blocks("golden.md")
    monkeypatch.chdir(ROOT / "examples")
    monkeypatch.syspath_prepend(ROOT / "examples")
    from importlib import import_module

    app = import_module("planned_research").app
    names = execute(code, app=app)
    [mark] = names["test_a_recorded_run_still_fits"].pytestmark
    assert len(mark.args[1]) >= 1
    for path in mark.args[1]:
        names["test_a_recorded_run_still_fits"](path)
    assert names["check_golden"] is check_golden


APP_UNDER_TEST = """
import tenure

app = tenure.App("sqlite:///never.db")


@app.job
async def send(to: str) -> str:
    return "sent"


async def register(to):
    await send.options(delay_seconds=86_400).enqueue(to)


"""
WITH_SQL = """
import asyncio


@app.job
async def record(ctx: tenure.Context, to: str) -> None:
    async with ctx.commit() as tx:
        await tx.execute("insert into sent values ($1)", to)


async def test_the_database_of_the_harness():
    async with app.testing() as harness:
"""


def test_the_tests_of_the_guide_to_testing_pass(tmp_path: Path) -> None:
    day, fixtures, sql, _ = blocks("testing.md")
    create, dots, assertion = sql.strip().splitlines()
    assert dots == "..."
    body = [create, 'await record.enqueue("ada")', "await harness.drain(raise_errors=True)", assertion]
    program = APP_UNDER_TEST + day + "\n\n" + fixtures + WITH_SQL + "".join(f"        {line}\n" for line in body)
    (tmp_path / "test_page.py").write_text(program)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    out = run(
        "import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'test_page.py']))", folder=tmp_path
    )
    assert "4 passed" in out


async def test_the_history_of_the_guide_to_testing_is_checked(tmp_path: Path) -> None:
    *_, checked = blocks("testing.md")
    beginning, effect, end = checked.split("...\n")
    path = tmp_path / "client-1.jsonl"
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with database.opened() as store:
        with path.open("wb", buffering=0) as file:
            names: dict[str, Any] = {"file": file, "store": store, "clock": SYSTEM.clock, "paths": [path]}
            await execute_async(beginning, names)
            driver = Driver(names["store"])
            job = await driver.apply(await driver.running(), Complete("1"))
            names |= {"job_id": job.id, "attempt": job.attempt}
            await execute_async(effect, names)
        await execute_async(end, {**names, "store": store})
    assert job.id.bytes.hex() in path.read_text().replace("-", "")


async def execute_async(code: str, names: dict[str, Any]) -> None:
    """Execute code that awaits at its top level."""
    made = eval(compile(code, "the guide", "exec", flags=PyCF_ALLOW_TOP_LEVEL_AWAIT), names)  # noqa: S307 - our own page
    if made is not None:
        await made


def test_the_commands_of_the_guide_to_django_migrate_and_start_a_worker(tmp_path: Path) -> None:
    migrate, work = (line.split() for line in blocks("django.md", "")[0].splitlines())
    assert [migrate[:2], work[:3]] == [["python", "manage.py"], ["python", "manage.py", "tenure_worker"]]
    project = DjangoProject(tmp_path, Database(f"sqlite:///{tmp_path / 'jobs.db'}"))
    assert project.manage(*migrate[2:]).returncode == 0
    with project.worker(*work[3:]):
        pass
    assert "concurrency: 20" in project.text()
