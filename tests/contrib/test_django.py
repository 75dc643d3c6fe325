"""The Django app: commands, connections that survive a restart of the database, and the backend of django.tasks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.contrib.django_project import DjangoProject
from tests.support.clean_environment import build_wheel, interpreter, make_environment
from tests.support.databases import Database
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
def django_6(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with Django 6, where `django.tasks` is a part of Django."""
    python = interpreter((3, 12))
    if python is None:
        pytest.skip("no Python 3.12 or later, which Django 6 needs")
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    folder = tmp_path_factory.mktemp("django-6") / "environment"
    programs = make_environment(folder, wheel, "django>=6", "psycopg[binary]", extra="postgres", python=python)
    return str(programs / "python")


@pytest.fixture(params=["django 5.2", pytest.param("django 6", marks=pytest.mark.deep)])
def python(request: pytest.FixtureRequest) -> str:
    """The Python of an environment with Django."""
    return sys.executable if request.param == "django 5.2" else request.getfixturevalue("django_6")


@pytest.fixture
def project(database: Database, tmp_path: Path, python: str) -> DjangoProject:
    """A migrated project with a table of its own."""
    made = DjangoProject(tmp_path, database, python=python)
    migrated = made.manage("tenure_migrate")
    assert migrated.returncode == 0, migrated.stderr
    assert "applied 0001_initial" in migrated.stdout
    assert "up to date" in made.manage("tenure_migrate", "--settings", "shop.settings").stdout
    made.run('connection.cursor().execute("create table notes(name text)")')
    return made


def test_jobs_of_a_project_run_by_its_command_on_threads_and_in_processes(project: DjangoProject) -> None:
    with project.worker():
        found = project.run(
            """
        threads = [jobs.write.enqueue_sync(f"thread {n}").result_sync(30) for n in range(3)]
        pid = jobs.write_in_process.enqueue_sync("process").result_sync(30)
        import os
        found["own pid"] = pid != os.getpid() and all(threads)
        """.replace("\n        ", "\n")
        )
    assert found == {"own pid": True}
    assert sorted(project.database.rows("select name from notes")) == [
        ("process",), ("thread 0",), ("thread 1",), ("thread 2",),
    ]  # fmt: skip


@pytest.mark.deep
def test_a_worker_of_several_processes_sets_django_up_in_each(project: DjangoProject) -> None:
    with project.worker("--processes=2"):
        found = project.run(
            'found["value"] = tasks.note.enqueue("ada").id\njobs.write.enqueue_sync("b").result_sync(30)'
        )
    assert found["value"]
    assert sorted(project.database.rows("select name from notes")) == [("ada",), ("b",)]


def test_the_backend_keeps_the_contract_of_django_tasks(project: DjangoProject, python: str) -> None:
    with project.worker():
        found = project.run("""
from datetime import timedelta
backend = library.default_task_backend
TaskResultDoesNotExist, TaskResultMismatch = exceptions.TaskResultDoesNotExist, exceptions.TaskResultMismatch
task_enqueued = signals.task_enqueued
found["library"] = LIBRARY
found["supports"] = [getattr(backend, f"supports_{n}") for n in ("defer", "async_task", "get_result", "priority")]

def refused(make, error):
    try:
        make()
    except error:
        return True

found["refused"] = [
    refused(lambda: tasks.note.using(priority=101), InvalidTask),
    refused(lambda: tasks.note.using(priority=-101), InvalidTask),
    refused(lambda: tasks.refuse.using(queue_name="other"), InvalidTask),
    refused(lambda: backend.get_result("nonsense"), TaskResultDoesNotExist),
    refused(lambda: backend.get_result("0192f3a1-0000-7000-8000-000000000000"), TaskResultDoesNotExist),
    refused(lambda: backend.get_result(str(jobs.write.enqueue_sync("plain").id)), TaskResultDoesNotExist),
]
seen = []
def enqueued(task_result, **_):
    seen.append(task_result.id)
task_enqueued.connect(enqueued)
first = tasks.note.using(priority=100, queue_name="mail").enqueue("ada", times=2)
found["ready"] = [first.status, first.args, first.kwargs, first.id in seen]
later = tasks.note.using(priority=-100, run_after=timezone.now() + timedelta(days=1)).enqueue("later")
second, third, fourth = tasks.note_async.enqueue("grace"), tasks.attempt.enqueue(), tasks.refuse.enqueue()
for one in (first, second, third, fourth):
    app.get_sync(one.id).wait_sync(30)
    one.refresh()
later.refresh()
found["values"] = [first.return_value, second.return_value, third.return_value, later.status]
found["facts"] = [first.attempts, first.started_at <= first.finished_at, first.task.priority, first.task.queue_name]
[error] = fourth.errors
found["error"] = [fourth.status, error.exception_class is tasks.Refused, "no stock" in error.traceback]
found["mismatch"] = refused(lambda: tasks.attempt.get_result(first.id), TaskResultMismatch)
""")
    assert found["library"] == ("django_tasks" if python == sys.executable else "django.tasks")
    assert found["supports"] == [True] * 4
    assert found["refused"] == [True] * 6
    assert found["ready"] == ["READY", ["ada"], {"times": 2}, True]
    assert found["values"] == [{"noted": "ada"}, "grace", 1, "READY"]
    assert found["facts"] == [1, True, 100, "mail"]
    assert found["error"] == ["FAILED", True, True]
    assert found["mismatch"] is True
    assert "path=shop.tasks.refuse" in project.text(), "task_finished is sent, and logged by django-tasks"


def test_a_task_inside_atomic_is_enqueued_with_the_transaction_or_not_at_all(project: DjangoProject) -> None:
    found = project.run("""
class Undo(Exception): ...
try:
    with transaction.atomic():
        tasks.note.enqueue("undone")
        raise Undo
except Undo:
    pass
with transaction.atomic():
    connection.cursor().execute("insert into notes(name) values ('order')")
    kept = tasks.note.enqueue("kept")
found["kept"] = kept.id
""")
    assert project.database.rows("select status from {jobs}") == [("queued",)]
    with project.worker():
        project.run(f"app.get_sync({found['kept']!r}).wait_sync(30)")
    assert sorted(project.database.rows("select name from notes")) == [("kept",), ("order",)]


def test_a_task_that_no_installed_app_defines_is_refused_and_not_imported(project: DjangoProject) -> None:
    found = project.run("""
import sys
from tenure.contrib.django.tasks import run_task
paths = ["antigravity.fly", "shop.tasks.Refused", "shop.tasks.connection", "note"]
handles = [run_task.enqueue_sync(path, [], {}) for path in paths]
found["ids"] = [str(one.id) for one in handles]
""")
    with project.worker():
        found = project.run(f"""
jobs_of = [app.get_sync(one) for one in {found["ids"]!r}]
found["statuses"] = [one.wait_sync(30).status for one in jobs_of]
found["errors"] = [one.job.error for one in jobs_of]
""")
    assert found["statuses"] == ["failed"] * 4
    assert all("define it in tasks.py or jobs.py of an installed app" in error for error in found["errors"])


def test_no_job_fails_because_the_database_was_restarted(tmp_path: Path, python: str) -> None:
    with PostgresServer(fsync=False) as server:
        project = DjangoProject(tmp_path, Database(server.create_database()), python=python)
        assert project.manage("tenure_migrate").returncode == 0
        project.run('connection.cursor().execute("create table notes(name text)")')
        enqueue = "handles = [jobs.write.enqueue_sync(str(n)) for n in range(20)]\n"
        wait = 'found["statuses"] = sorted({one.wait_sync(60).status for one in handles})'
        with project.worker("--concurrency=4"):
            assert project.run(enqueue + wait) == {"statuses": ["succeeded"]}
            server.restart()
            assert project.run(enqueue + wait) == {"statuses": ["succeeded"]}, project.text()
