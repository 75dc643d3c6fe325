"""What a wrong call prints: one message that names what to do, once."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import tenure

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
    assert wrong.err == "tenure: greet: Object contains unknown field `nme`\n"
