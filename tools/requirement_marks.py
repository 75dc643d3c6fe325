"""The requirements that tests carry as marks, read from the source, so that nothing has to be imported.

A mark whose number is not a string literal, or not in requirements.toml, is an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tools.generated import ROOT
from tools.requirement_sentences import known_numbers

PLACES = ("tests", "src/tenure/testing")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class UnknownRequirement(Exception):
    """A mark names a number that is not in requirements.toml, is not a string literal, or is not on a test."""


@dataclass(frozen=True, slots=True, order=True)
class Proof:
    """A test that carries a number."""

    requirement: str
    path: str
    name: str

    @property
    def test(self) -> str:
        return f"{self.path}::{self.name}"


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
