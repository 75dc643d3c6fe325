"""Where generated pages are, and how they are written and read back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def notice(module: str, source: str) -> str:
    """The first line of a generated page."""
    return f"<!-- Generated from {source} by `python -m {module}`. Do not edit by hand: a test compares. -->"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = [headings, *rows]
    shown = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([shown[0], "|" + "---|" * len(headings), *shown[1:]])


def write(name: str, page: str) -> None:
    """Write the page; `name` is its path within docs/."""
    (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
    (DOCS / name).write_text(page, encoding="utf-8")


def committed(name: str) -> str:
    """The page in the repository; empty if it does not exist."""
    path = DOCS / name
    return path.read_text(encoding="utf-8") if path.exists() else ""
