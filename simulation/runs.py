"""Runs simulations one after the other, and frees what each leaves behind."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from simulation.cluster import Result, SimulatedCluster
from simulation.faults import Options
from simulation.invariants import InvariantViolated
from tenure.errors import TenureError

COLLECT_EVERY = 20


def simulate(seed: int, options: Options) -> Result:
    """One run."""
    quiet = logging.getLogger("tenure")
    usual = quiet.level
    quiet.setLevel(logging.CRITICAL)
    cluster = SimulatedCluster(seed, options)
    try:
        try:
            cluster.loop.run_until_complete(cluster.run())
        except (InvariantViolated, AssertionError, TenureError) as problem:
            cluster.broken = cluster.broken or problem
        result = cluster.result()
        cluster.close()
    finally:
        quiet.setLevel(usual)
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
    """The runs of a range of seeds, for a pool of processes."""
    return list(simulate_all(range(first, last), options))


@contextmanager
def _silence() -> Iterator[None]:
    """Killed processes leave tasks that never end; their warnings when they are destroyed are dropped."""
    usual = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        sys.unraisablehook = usual
