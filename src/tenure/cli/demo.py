"""`tenure demo`: a few hundred jobs on one SQLite file, a worker killed in the middle, and a look at what that did.

Nothing is set up beforehand, and nothing is left behind unless it is asked for.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from tenure.cli.database import run
from tenure.cli.output import Exit, complain, counted, progress, say, say_json
from tenure.errors import InvalidInput

if TYPE_CHECKING:
    from tenure.cli.demo_run import Findings, Play

JOBS_LEAST, JOBS_MOST = 50, 100_000
LOG_LINES = 20
TERMINATED = 128 + signal.SIGTERM


@click.command()
@click.option("--jobs", type=click.IntRange(JOBS_LEAST, JOBS_MOST), default=300, show_default=True)
@click.option(
    "--keep", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER", help="Leave the database there."
)
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document.")
def demo(*, jobs: int, keep: Path | None, as_json: bool) -> int:
    """Run some hundred jobs on one SQLite file and kill a worker in the middle of its work.

    Exit code 0 only if nothing was lost, nothing was done twice, and every record is what its log says.
    """
    from tenure.cli.demo_run import Play

    with _folder(keep) as folder:
        try:
            with progress(as_json=as_json) as shown:
                findings = run(_played(Play(folder, jobs=jobs, shown=shown, speaks=not as_json)))
        except asyncio.CancelledError:
            complain("tenure: terminated")
            return TERMINATED
        if as_json:
            kept = None if keep is None else str(folder)
            say_json({"ok": not findings.problems, "kept": kept, **msgspec.structs.asdict(findings)})
        else:
            _report(findings, folder, kept=keep is not None)
    return Exit.PROBLEMS if findings.problems else Exit.OK


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="tenure-demo-") as folder:
            yield Path(folder)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InvalidInput("keep", f"{keep} cannot be made: {problem.strerror}") from None
    if (keep / "jobs.db").exists():
        raise InvalidInput("keep", f"{keep} holds the database of an earlier run; name another folder")
    yield keep.resolve()


async def _played(play: Play) -> Findings:
    """The whole of it. Terminated or interrupted, it takes its workers with it."""
    task = asyncio.current_task()
    assert task is not None, "this is a coroutine of a running loop"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await play.run()


def _report(found: Findings, folder: Path, *, kept: bool) -> None:
    ended = ", ".join(f"{number:,} {status.replace('_', '-')}" for status, number in sorted(found.ended.items()))
    say(f"{counted(found.jobs, 'job')} in {found.seconds:.1f} s on one SQLite file, by {found.processes} processes")
    if found.killed is not None:
        killed = found.killed
        say(
            f"killed: worker {killed.pid}, with SIGKILL, while it ran {counted(killed.held, 'job')}; "
            f"these were taken back after {killed.taken_back_seconds:.1f} s and had all ended after "
            f"{killed.ended_seconds:.1f} s"
        )
    say(f"ended: {ended or 'none'}; {counted(found.retried, 'attempt')} failed and were tried again")
    say(f"effects: {found.effects:,}")
    say(f"verified: {counted(found.events, 'event')}")
    for problem in found.problems:
        say(f"problem: {problem}", level="error")
    if found.problems:
        _say_log(folder)
    else:
        say("nothing was lost, nothing was done twice, and every record is what its log says", level="ok")
    if kept:
        say(f"kept: {folder}; look around with tenure jobs ls --database sqlite:///{folder / 'jobs.db'}")


def _say_log(folder: Path) -> None:
    log = folder / "workers.log"
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
    for line in ["the workers' log ends with:", *lines]:
        click.echo(line, err=True)
