"""Shrinks a failing run while it still fails."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from simulation.cluster import Result
from simulation.faults import Fault, Options
from simulation.runs import simulate_all


def shrunk(failing: Result) -> Result:
    """The smallest run found with the same seed that still violates an invariant."""
    best = failing
    progress = True
    while progress:
        progress = False
        for options in _smaller(best.options):
            [result] = simulate_all([failing.seed], options)
            if result.problem is not None:
                best, progress = result, True
                break
    return best


def _smaller(options: Options) -> Iterator[Options]:
    """Fewer kinds of faults, fewer jobs, fewer processes, less time: one change at a time, the largest first."""
    replace = msgspec.structs.replace
    for fault in Fault:
        if fault not in options.without:
            yield replace(options, without=(*options.without, fault))
    if options.jobs > 1:
        yield replace(options, jobs=options.jobs // 2)
        yield replace(options, jobs=options.jobs - 1)
    if options.nodes > 1:
        yield replace(options, nodes=options.nodes - 1)
    if options.process_faults > 0:
        yield replace(options, process_faults=options.process_faults - 1)
    if options.faulty_seconds > 2:
        yield replace(options, faulty_seconds=options.faulty_seconds / 2)


def arguments(result: Result) -> str:
    """The command line that reproduces this run."""
    options = result.options
    words = [f"--seed {result.seed}", f"--store {options.store}", f"--nodes {options.nodes}", f"--jobs {options.jobs}"]
    words += [f"--faulty-seconds {options.faulty_seconds:g}", f"--request-faults {options.request_faults:g}"]
    words += [f"--process-faults {options.process_faults}"]
    words += [f"--without {fault}" for fault in options.without]
    return "python -m simulation " + " ".join(words)
