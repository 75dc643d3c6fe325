"""The wheel holds what users need: the library, the test harness, the pytest plugin, the kit, the history checker."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tenure"
DEVELOPMENT_ONLY = {"benchmarks", "simulation", "tests", "tools"}
SHIPPED = {
    *(
        "archive",
        "cli",
        "client",
        "contrib",
        "inbox",
        "jobs",
        "lifecycle",
        "observe",
        "outbox",
        "stores",
        "testing",
        "views",
        "vocabularies",
    ),
    "workers",
    "engines",
    "workflow",
}
SHIPPED_FOR_TESTS = {"contract", "harness", "history"}
FORBIDDEN_WORDS = ("simulat", "measur", "benchmark", "peers")


def shipped_files() -> list[Path]:
    """What hatchling puts into the wheel: all of src/tenure that is not ignored."""
    return [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def folders_of(package: Path) -> set[str]:
    return {
        path.relative_to(package).parts[0]
        for path in shipped_files()
        if path.is_relative_to(package) and path.parent != package
    }


def imported_by(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_the_wheel_is_the_package_and_nothing_else() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    assert built["targets"]["wheel"] == {"packages": ["src/tenure"]}


def test_every_folder_of_the_package_is_one_that_users_need() -> None:
    assert folders_of(PACKAGE) == SHIPPED
    assert folders_of(PACKAGE / "testing") == SHIPPED_FOR_TESTS


def test_no_simulator_and_no_benchmark_internals_are_shipped() -> None:
    names = [path.relative_to(PACKAGE).as_posix() for path in shipped_files()]
    assert len(names) > 100
    assert [name for name in names if any(word in name for word in FORBIDDEN_WORDS)] == []
    assert sorted(name for name in names if "bench" in name) == ["cli/bench.py", "cli/bench_workloads.py"]


def test_nothing_that_is_shipped_imports_what_is_not() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in shipped_files()
        if path.suffix == ".py"
        for module in imported_by(path)
        if module.partition(".")[0] in DEVELOPMENT_ONLY
    ]
    assert wrong == []
