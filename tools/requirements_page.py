"""Writes docs/internals/requirements.md from the marks on the tests: `python -m tools.requirements_page`.

Marks are read from the source, so the page does not depend on what can be imported here. A mark whose number is not a
string literal, or not in requirements.toml, is an error.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.generated import ROOT, notice, table, write

NAME = "internals/requirements.md"
LIST = Path(__file__).with_name("requirements.toml")
PLACES = ("tests", "src/tenure/testing")
OPEN = "**open**"
INTRODUCTION = (
    "A requirement is proven by the tests that carry its number. They run in `make test` or `make test-deep`, except\n"
    "those that are marked slow. A requirement without a test is **open**."
)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class UnknownRequirement(Exception):
    """A mark names a number that is not in requirements.toml, is not a string literal, or is not on a test."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """The requirements of one prefix: number → short title."""

    prefix: str
    title: str
    requirements: dict[str, str]


@dataclass(frozen=True, slots=True, order=True)
class Proof:
    """A test that carries a number."""

    requirement: str
    path: str
    name: str


def chapters() -> list[Chapter]:
    """All requirements, by chapter."""
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return [
        Chapter(prefix, chapter["title"], {f"{prefix}-{n}": title for n, title in chapter["requirements"].items()})
        for prefix, chapter in listed.items()
    ]


def known_numbers() -> frozenset[str]:
    return frozenset(number for chapter in chapters() for number in chapter.requirements)


def page() -> str:
    """The whole page."""
    proofs: dict[str, list[Proof]] = {}
    for proof in sorted(all_proofs()):
        proofs.setdefault(proof.requirement, []).append(proof)
    listed = known_numbers()
    sections = [
        notice("tools.requirements_page", "the tests' marks and tools/requirements.toml"),
        "# Requirements and what proves them",
        INTRODUCTION,
        f"{len(proofs)} of {len(listed)} have tests.",
        *(_section(chapter, proofs) for chapter in chapters()),
    ]
    return "\n\n".join(sections) + "\n"


def all_proofs() -> set[Proof]:
    """Every mark in every test, and in the kit that stores are tested with."""
    files = sorted(path for place in PLACES for path in (ROOT / place).rglob("*.py"))
    return {proof for path in files for proof in proofs_in(path.read_text("utf-8"), path.relative_to(ROOT).as_posix())}


def proofs_in(source: str, path: str) -> Iterator[Proof]:
    """The marks of one file's tests; a mark on a class or a module holds for all tests in it."""
    tree = ast.parse(source, path)
    yield from _proofs(tree.body, path, names=(), inherited=_module_marks(tree, path))


def _proofs(body: list[ast.stmt], path: str, *, names: tuple[str, ...], inherited: frozenset[str]) -> Iterator[Proof]:
    for node in body:
        if not isinstance(node, Definition):
            continue
        marks = inherited | _marks(node.decorator_list, path)
        inner = (*names, node.name)
        if isinstance(node, ast.ClassDef):
            yield from _proofs(node.body, path, names=inner, inherited=marks | _module_marks(node, path))
        elif node.name.startswith("test"):
            yield from (Proof(mark, path, "::".join(inner)) for mark in marks)
        elif marks - inherited:
            raise UnknownRequirement(f"{path}:{node.lineno}: {node.name} carries a requirement, and is not a test")


def _module_marks(scope: ast.Module | ast.ClassDef, path: str) -> frozenset[str]:
    """The marks of `pytestmark = …`, which hold for everything in the scope."""
    assigned = [
        node.value
        for node in scope.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
    ]
    return _marks(assigned, path)


def _marks(expressions: list[ast.expr], path: str) -> frozenset[str]:
    """Includes the marks of single parameters inside a `parametrize`."""
    known = known_numbers()
    found: set[str] = set()
    for expression in expressions:
        for node in ast.walk(expression):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.requirement"):
                found.update(_number(argument, known, path) for argument in node.args)
    return frozenset(found)


def _number(argument: ast.expr, known: frozenset[str], path: str) -> str:
    if not isinstance(argument, ast.Constant) or argument.value not in known:
        shown = ast.unparse(argument)
        raise UnknownRequirement(f"{path}:{argument.lineno}: {shown} is not the number of a requirement")
    return str(argument.value)


def _section(chapter: Chapter, proofs: dict[str, list[Proof]]) -> str:
    rows = [[number, title, _shown(proofs.get(number, []))] for number, title in chapter.requirements.items()]
    return f"## {chapter.prefix}: {chapter.title}\n\n" + table(["number", "requirement", "tests"], rows)


def _shown(proofs: list[Proof]) -> str:
    by_path: dict[str, list[str]] = {}
    for proof in proofs:
        by_path.setdefault(proof.path, []).append(proof.name)
    shown = (f"[{path}](../../{path}): " + ", ".join(f"`{name}`" for name in names) for path, names in by_path.items())
    return "<br>".join(shown) or OPEN


if __name__ == "__main__":
    write(NAME, page())
