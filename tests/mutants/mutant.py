"""A mutant: a fault in the code, and the layer of proof that must detect it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.mutants.edits import Edits
from tests.mutants.layers import Layer


@dataclass(frozen=True, slots=True)
class Mutant:
    """`breaks` states the fault; `noticed` matches the layer's report, so that the mutant is detected for its own
    fault."""

    name: str
    breaks: str
    layer: Layer
    noticed: str
    apply: Callable[[Edits], None]
