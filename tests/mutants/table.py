"""The mutants and the layers that kill them, as a table for the docs: `python -m tests.mutants.table`."""

from __future__ import annotations

from tests.mutants.catalogue import MUTANTS


def markdown() -> str:
    """One line per mutant."""
    lines = ["| mutant | what it breaks | killed by |", "|---|---|---|"]
    lines += [f"| {_cell(one.name)} | {_cell(one.breaks)} | {_cell(one.layer.name)} |" for one in MUTANTS]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(markdown(), end="")
