"""`tenure golden` on real databases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tenure as library
from tests.support.command import tenure
from tests.support.databases import Database
from tests.support.in_process_worker import working

APP = """
import tenure

app = tenure.App("sqlite:///absent/folder/never.db")

def search(topic: str) -> str:
    raise AssertionError("no step is executed")

@app.workflow
async def research(run: tenure.Run, topic: str) -> str:
    {before}
    return await run.step(search, topic)
"""


def search(topic: str) -> str:
    return f"pages about {topic}"


@pytest.mark.requirement("WC-09")
async def test_a_recorded_run_is_checked_without_a_database(database: Database, tmp_path: Path) -> None:
    async with database.opened():
        pass
    app = library.App(database.url)

    @app.workflow
    async def research(run: library.Run, topic: str) -> str:
        return await run.step(search, topic)

    async with app, working(app):
        handle = await research.enqueue("cats")
        await handle.result(timeout_seconds=60)
    folder = tmp_path / "golden"
    answer = tenure("golden", "record", str(handle.id), "--dir", str(folder), "--database", database.url)
    [path] = folder.iterdir()
    assert (answer.code, answer.out) == (0, f"{path}: 1 step, succeeded\n")
    recorded = json.loads(path.read_text())
    assert recorded["payload"] == {"topic": "cats"}
    assert recorded["steps"][0]["result"] == recorded["outcome"]["result"] == "pages about cats"

    same, other = tmp_path / "same_app.py", tmp_path / "other_app.py"
    same.write_text(APP.format(before="pass"))
    other.write_text(APP.format(before="await run.step(print, 'hello')"))
    answer = tenure("golden", "check", str(folder), "--app", f"{same}:app")
    assert (answer.code, answer.out) == (0, f"{path}: the same\n")
    answer = tenure("golden", "check", str(folder), "--app", f"{other}:app")
    assert answer.code == 1
    assert answer.out == (f"{path}: 1 difference\n  'print' (0): added; the recorded run does not make this call\n")
    answer = tenure("golden", "check", str(path), "--app", f"{other}:app", "--json")
    assert answer.code == 1
    assert answer.json["same"] is False
    assert answer.json["files"][str(path)][0]["kind"] == "added"


def test_a_folder_without_golden_files_is_wrong_usage(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(APP.format(before="pass"))
    answer = tenure("golden", "check", str(tmp_path), "--app", f"{path}:app")
    assert answer.code == 2
    assert "has no golden files" in answer.err
