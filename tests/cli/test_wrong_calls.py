"""What a wrong call prints: one message that names what to do, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import tenure
from tests.support.running_command import started

APP = """
import tenure

app = tenure.App("sqlite:///shop.db")


@app.job
def greet(name: str) -> None: ...
"""


def test_the_command_that_was_meant_is_suggested() -> None:
    wrong = tenure("job", "ls")
    assert wrong.code == 2
    assert "No such command 'job'. Did you mean 'jobs'?" in wrong.err
    assert "No such command 'xyzzy'.\n" in tenure("xyzzy").err


def test_without_a_database_the_ways_to_name_one_are_named(tmp_path: Path) -> None:
    wrong = tenure("jobs", "ls", cwd=tmp_path)
    assert wrong.code == 2
    for way in ("--app MODULE:APP", "--database URL", "TENURE_DATABASE", "tenure migrate"):
        assert way in wrong.err
    assert list(tmp_path.iterdir()) == []
    assert tenure("migrate", cwd=tmp_path).code == 0
    assert tenure("jobs", "ls", cwd=tmp_path).code == 0


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    wrong = tenure("migrate", "--database", "sqlite:///data/shop.db", cwd=tmp_path)
    assert wrong.code == 3
    assert "data/shop.db cannot be created: there is no folder data; create it" in wrong.err


def test_a_refused_enqueue_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    wrong = tenure("jobs", "enqueue", "greet", '{"nme": "Ada"}', "--app", "shop:app", cwd=tmp_path)
    assert wrong.code == 2
    assert wrong.err == "tenure: greet: has no argument `nme`; it takes name\n"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{}", "greet: the argument `name` is missing; it takes name"),
        ('{"name": 3}', "greet: Expected `str`, got `int` - at `name`"),
        ("Ada", 'write an object of arguments by name, such as {"name": …}'),
        ('"Ada"', 'greet: must be an object of arguments by name, such as {"name": …}, not str'),
    ],
)
def test_wrong_arguments_are_answered_with_the_right_ones(tmp_path: Path, given: str, says: str) -> None:
    (tmp_path / "shop.py").write_text(APP)
    wrong = tenure("jobs", "enqueue", "greet", given, "--app", "shop:app", cwd=tmp_path)
    assert wrong.code == 2
    assert says in wrong.err
    assert wrong.err.count("\n") == 1


def test_a_refused_schedule_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    wrong = tenure(
        "schedules", "put", "daily", "--cron", "@daily", "--app", "shop:app", "--kind", "greet", cwd=tmp_path
    )
    assert wrong.err == "tenure: greet: the argument `name` is missing; it takes name\n"


def test_a_file_that_is_no_database_is_answered_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "rubbish.db").write_text("no database " * 1000)
    (tmp_path / "folder.db").mkdir()
    for file, says in (
        ("rubbish.db", "file is not a database; correct the database's URL, or restore the file from a backup"),
        ("folder.db", "folder.db is a folder, and the database is a file; correct the database's URL"),
        ("mising.db", "mising.db does not exist; correct the database's URL, or run `tenure migrate --database"),
    ):
        for command in (("jobs", "ls"), ("stats",)):
            wrong = tenure(*command, "--database", f"sqlite:///{file}", cwd=tmp_path)
            assert (wrong.code, wrong.err.count("\n")) == (3, 1), wrong.err
            assert says in wrong.err
    assert not (tmp_path / "mising.db").exists()


def test_a_worker_is_given_its_app_once(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    for words in ((), ("shop:app", "--app", "shop:app")):
        wrong = tenure("worker", *words, cwd=tmp_path)
        assert wrong.code == 2
        assert "name the app once: tenure worker MODULE:APP" in wrong.err
    assert "has no 'nope'; its apps are: app" in tenure("worker", "--app", "shop:nope", cwd=tmp_path).err


def test_a_module_that_is_not_found_is_answered_with_the_ways_to_name_one(tmp_path: Path) -> None:
    wrong = tenure("worker", "nope:app", cwd=tmp_path)
    assert "module 'nope' not found" in wrong.err
    assert "name its file, such as shop/jobs.py:app" in wrong.err


def test_an_app_that_cannot_be_made_when_it_is_asked_for_is_no_bug_of_tenure(tmp_path: Path) -> None:
    (tmp_path / "lazy.py").write_text("def __getattr__(name):\n    raise ValueError('no settings')\n")
    with started("stats", "--app", "lazy:app", folder=tmp_path) as command:
        assert command.ended() == 1, command.log
        assert command.log.splitlines()[-1] == "tenure: importing lazy failed: ValueError: no settings"


def test_the_app_of_django_names_the_settings_that_it_lacks(tmp_path: Path) -> None:
    for settings in ("", "no.such.settings"):
        environment = {"DJANGO_SETTINGS_MODULE": settings}
        wrong = tenure("stats", "--app", "tenure.contrib.django:app", cwd=tmp_path, env=environment)
        assert wrong.code == 2
        assert "set DJANGO_SETTINGS_MODULE to the module of the project's settings" in wrong.err


def test_a_module_that_uses_its_app_when_it_is_imported_is_refused_and_enqueues_nothing(tmp_path: Path) -> None:
    """Each command that names the app would enqueue its jobs again."""
    for name, call in (("jobs", "greet.enqueue_sync('Ada')"), ("work", "asyncio.run(app.worker().run())")):
        (tmp_path / f"{name}.py").write_text(f"import asyncio\n{APP}\n{call}\n")
        for command in (("worker", f"{name}:app"), ("stats", "--app", f"{name}:app")):
            with started(*command, folder=tmp_path) as running:
                assert running.ended() == 1, running.log
            assert f"{name}.py" in running.log, "the traceback names the line"
            assert running.log.splitlines()[-1] == (
                f"tenure: importing {name} failed: InvalidInput: {name}: uses the database when it is imported, to "
                "enqueue jobs or to run a worker; do so under `if __name__ == '__main__':`"
            )
    assert not (tmp_path / "shop.db").exists()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "shop.db",
            "database: shop.db is neither sqlite:///… nor postgresql://…; as a URL, the file is sqlite:///shop.db",
        ),
        ("mysql://u:secret@h/x", "database: mysql://… is neither sqlite:///… nor postgresql://…"),
        ("host=h password=secret", "database: the URL is neither sqlite:///… nor postgresql://…"),
    ],
)
def test_a_url_of_no_known_database_is_answered_with_those_that_are(tmp_path: Path, url: str, says: str) -> None:
    assert tenure("stats", "--database", url, cwd=tmp_path).err == f"tenure: {says}\n"
    (tmp_path / "shop.py").write_text(APP.replace("sqlite:///shop.db", url))
    with started("worker", "shop:app", folder=tmp_path) as command:
        assert command.ended() == 1, command.log
    assert "line 4, in <module>" in command.log, "it is refused where the app is made"
    assert command.log.splitlines()[-1] == f"tenure: importing shop failed: InvalidInput: {says}"


@pytest.mark.parametrize(
    "command", [("jobs", "retry", "--all-matching"), ("jobs", "cancel", "--all-matching"), ("dlq", "redrive", "--all")]
)
def test_where_nothing_matches_nothing_is_to_be_confirmed(tmp_path: Path, command: tuple[str, ...]) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    assert tenure("migrate", "--database", url).code == 0
    answer = tenure(*command, "--database", url)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("0 "), answer.out


def test_a_database_in_memory_is_of_no_use_to_a_command(tmp_path: Path) -> None:
    wrong = tenure("jobs", "ls", "--database", "sqlite://:memory:", cwd=tmp_path)
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "is in the memory of one process; use a file such as sqlite:///jobs.db" in wrong.err
