"""Many processes that work on one database at once. They have a time limit and are ended by their ids.

They are forked from a server process that has imported what they need, so that sixty-four of them start quickly.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    [
        "pytest",
        "tenure.stores.postgres.store",
        "tenure.stores.sqlite.store",
        "tests.support.claimers",
        "tests.support.lifecycle_worker",
    ]
)
Body = Callable[..., Any]


def all_at_once(body: Body, arguments: Sequence[tuple[Any, ...]], *, seconds: float) -> list[Any]:
    """What `body(barrier, *arguments)` returns in a process for each of the arguments, within so many seconds.

    The body waits at the barrier once it is ready, so that all of them start together.
    """
    barrier = FORKSERVER.Barrier(len(arguments))
    staff = [_start(body, barrier, own) for own in arguments]
    try:
        return [_report(process, results, seconds) for process, results in staff]
    finally:
        for process, results in staff:
            if process.is_alive():
                process.kill()
            process.join(10)
            results.close()


def _start(body: Body, barrier: Barrier, own: tuple[Any, ...]) -> tuple[Any, Connection]:
    results, answer = FORKSERVER.Pipe(duplex=False)
    process = FORKSERVER.Process(target=_work, args=(body, barrier, own, answer), daemon=True)
    process.start()
    answer.close()
    return process, results


def _work(body: Body, barrier: Barrier, own: tuple[Any, ...], answer: Connection) -> None:
    try:
        answer.send((True, body(barrier, *own)))
    except BaseException as problem:
        barrier.abort()
        answer.send((False, repr(problem)))
        raise


def _report(process: Any, results: Connection, seconds: float) -> Any:
    if not results.poll(seconds):
        raise AssertionError(f"process {process.pid} did not report within {seconds} s")
    try:
        succeeded, value = results.recv()
    except EOFError:
        process.join(10)
        raise AssertionError(f"process {process.pid} ended with {process.exitcode} and no report") from None
    assert succeeded, f"process {process.pid} failed: {value}"
    return value
