"""Makes runs, one after the other, and lets go of what they leave behind."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from simulation.faults import Options
from simulation.invariants import Broken
from simulation.world import Result, World
from tenure.errors import TenureError

COLLECT_EVERY = 20


def simulate(seed: int, options: Options) -> Result:
    """One run."""
    quiet = logging.getLogger("tenure")
    usual = quiet.level
    quiet.setLevel(logging.CRITICAL)
    world = World(seed, options)
    try:
        world.loop.run_until_complete(world.run())
    except (Broken, AssertionError, TenureError) as problem:
        world.broken = world.broken or problem
    finally:
        quiet.setLevel(usual)
    result = world.result()
    world.close()
    return result


def simulate_all(seeds: Iterable[int], options: Options) -> Iterator[Result]:
    """Many runs, one after the other."""
    with _silence():
        for number, seed in enumerate(seeds):
            yield simulate(seed, options)
            if number % COLLECT_EVERY == 0:
                gc.collect()
        gc.collect()


def simulate_span(first: int, last: int, options: Options) -> list[Result]:
    """The runs from one seed up to another, for whoever shares them out over processes."""
    return list(simulate_all(range(first, last), options))


@contextmanager
def _silence() -> Iterator[None]:
    """Processes that were killed leave tasks that never end. What these say when they are thrown away is of no use."""
    usual = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        sys.unraisablehook = usual
