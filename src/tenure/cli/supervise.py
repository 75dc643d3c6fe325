"""`tenure worker --processes N`: several worker processes, kept alive and shown together."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from tenure.cli.output import Exit
from tenure.cli.stopping import Stopping
from tenure.cli.summary import Summary
from tenure.cli.worker import Wishes, beside, say_stopped, shown
from tenure.seams import SYSTEM
from tenure.workers.programs import Program
from tenure.workers.supervising import ABORT_SECONDS_MOST, STOP_MARGIN_SECONDS, Ending, Outcome, Supervisor

OWN_SECONDS = 5.0
"""What the supervisor itself may take once the limits of its workers are over."""
OUTPUT_BYTES = 65_536

log = logging.getLogger("tenure.worker")


def command(wanted: Wishes, *, line: int, again: bool) -> Sequence[str]:
    """The command that runs one worker process, with its end of the line.

    One that takes the place of another rides out a database that is away, as the other would have.
    """
    options = ["--wait-for-database"] if again else []
    return [sys.executable, "-m", "tenure", "worker", f"--supervised={line}", *options, *wanted.arguments()]


async def supervise(wanted: Wishes, processes: int) -> int:
    """Run that many workers to their end; the exit code."""
    drawn = sys.stderr.isatty() and not wanted.as_json
    output = Output() if drawn else None
    summary = Summary()

    def start(_number: int, again: bool) -> Program:
        errors = None if output is None else output.descriptor
        return Program(
            lambda line: command(wanted, line=line, again=again),
            output=errors if sys.stdout.isatty() else None,
            errors=errors,
        )

    supervisor = Supervisor(start, summary.heard, processes=processes, grace_seconds=wanted.grace_seconds, seams=SYSTEM)
    stopping = Stopping(
        stop_seconds_most=wanted.grace_seconds + STOP_MARGIN_SECONDS + OWN_SECONDS,
        abort_seconds_most=ABORT_SECONDS_MOST + OWN_SECONDS,
        seams=SYSTEM,
    )
    since = SYSTEM.clock.monotonic_seconds()
    log.info("supervisor starts %d worker processes, pid %d", processes, os.getpid())
    try:
        stopping.heed(stop=lambda: _stop(supervisor), abort=lambda: _abort(supervisor))
        async with beside(shown(summary, as_json=wanted.as_json)):
            outcome = await supervisor.run()
    finally:
        if output is not None:
            output.close()
    if outcome.ending is not Ending.NEVER_UP:
        say_stopped(summary, SYSTEM.clock.monotonic_seconds() - since)
    return exit_code(outcome, stopping)


def exit_code(outcome: Outcome, stopping: Stopping) -> int:
    """The exit code of the whole for how it ended."""
    if outcome.ending is Ending.NEVER_UP and outcome.exit_code > 0:
        return outcome.exit_code
    if outcome.ending in (Ending.STOPPED, Ending.ABORTED):
        return stopping.exit_code
    return Exit.PROBLEMS


def _stop(supervisor: Supervisor) -> None:
    log.info("stopping: the workers claim no more, and finish or hand back what runs")
    supervisor.stop()


def _abort(supervisor: Supervisor) -> None:
    log.warning("aborting: the workers end now")
    supervisor.abort()


class Output:
    """What the workers write while a table is drawn. It goes through us, or it would be written across the table."""

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()
        os.set_blocking(self._read, False)
        asyncio.get_running_loop().add_reader(self._read, self._pass_on)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._read)
        self._pass_on()
        os.close(self._read)
        os.close(self.descriptor)

    def _pass_on(self) -> None:
        try:
            while written := os.read(self._read, OUTPUT_BYTES):
                sys.stderr.write(written.decode(errors="replace"))
        except BlockingIOError:
            sys.stderr.flush()
