"""A kept break of the code, and the layer of proof that must notice it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.mutants.editing import Edits
from tests.mutants.layers import Layer


@dataclass(frozen=True, slots=True)
class Mutant:
    """`breaks` says in words what is wrong; `noticed` matches what the layer says, so that it dies of its own break."""

    name: str
    breaks: str
    layer: Layer
    noticed: str
    apply: Callable[[Edits], None]
