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
    cluster = SimulatedCluster(seed, options)
    collects = gc.isenabled()
    # What an earlier run has left behind would otherwise be closed within this one, and schedule callbacks in it.
    gc.disable()
    try:
        try:
            cluster.loop.run_until_complete(cluster.run())
        except (InvariantViolated, AssertionError, TenureError) as problem:
            cluster.broken = cluster.broken or problem
        result = cluster.result()
        cluster.close()
    finally:
        if collects:
            gc.enable()
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
    """Killed processes leave tasks that never end. Their warnings when they are destroyed, and the log, are dropped."""
    usual, log = sys.unraisablehook, logging.getLogger("tenure")
    sys.unraisablehook, level = lambda _: None, log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        sys.unraisablehook = usual
        log.setLevel(level)
