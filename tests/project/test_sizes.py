"""The sizes of files and functions of the library."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "tenure"
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}


def lines_of(folder: str) -> int:
    return sum(len(text.splitlines()) for name, text in SOURCES.items() if name.startswith(folder))


def test_no_file_has_more_than_450_lines() -> None:
    assert len(SOURCES) > 200
    assert {name: len(text.splitlines()) for name, text in SOURCES.items() if len(text.splitlines()) > 450} == {}


def test_no_function_has_more_than_60_lines() -> None:
    sizes = {
        f"{name}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for name, text in SOURCES.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {function: size for function, size in sizes.items() if size > 60} == {}


def test_each_store_is_put_together_in_150_lines() -> None:
    assert max(lines_of("stores/sqlite/store.py"), lines_of("stores/postgres/store.py")) <= 150


def test_user_connections_fit_into_900_lines() -> None:
    assert 0 < lines_of("stores/user_connections/") <= 900
