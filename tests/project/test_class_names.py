"""A public class name stands for one class: a search for it finds one definition."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "tenure"


def public_classes() -> dict[str, list[str]]:
    """Where each public class of a module is defined, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(ROOT).as_posix())
    return found


def test_public_class_names_are_unique() -> None:
    classes = public_classes()
    assert len(classes) > 200
    assert {name: places for name, places in classes.items() if len(places) > 1} == {}
