"""`tenure demo`: a few hundred jobs on one SQLite file, with a worker killed while it runs some.

It needs no setup, and removes its files unless --keep is given.
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
from tenure.cli.output import Exit, counted, print_error, print_json, print_line, print_text, progress
from tenure.errors import InvalidInput

if TYPE_CHECKING:
    from tenure.cli.demo_run import Demo, DemoResult

JOBS_LEAST, JOBS_MOST = 50, 100_000
LOG_LINES = 20
TERMINATED = 128 + signal.SIGTERM


@click.command()
@click.option(
    "--jobs", type=click.IntRange(JOBS_LEAST, JOBS_MOST), default=300, show_default=True, help="Number of jobs."
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep the database in this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def demo(*, jobs: int, keep: Path | None, as_json: bool) -> int:
    """Run a few hundred jobs on SQLite, and kill a worker meanwhile.

    Exit code 0 if no job was lost, no effect was applied twice, and every record matches its events.
    """
    from tenure.cli.demo_run import Demo

    with _folder(keep) as folder:
        try:
            with progress(as_json=as_json) as display:
                result = run(_run_demo(Demo(folder, jobs=jobs, display=display, verbose=not as_json)))
        except asyncio.CancelledError:
            print_error("terminated")
            return TERMINATED
        if as_json:
            kept = None if keep is None else str(folder)
            print_json({"ok": not result.problems, "kept": kept, **msgspec.structs.asdict(result)})
        else:
            _print(result, folder, kept=keep is not None)
    return Exit.PROBLEMS if result.problems else Exit.OK


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="tenure-demo-") as folder:
            yield Path(folder)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InvalidInput("keep", f"{keep} cannot be created: {problem.strerror}") from None
    if (keep / "jobs.db").exists():
        raise InvalidInput("keep", f"{keep} has the database of an earlier run; give another folder")
    yield keep.resolve()


async def _run_demo(demo: Demo) -> DemoResult:
    """Run the demo. SIGTERM and interrupts end its workers, too."""
    task = asyncio.current_task()
    assert task is not None, "this is a coroutine of a running loop"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await demo.run()


def _print(result: DemoResult, folder: Path, *, kept: bool) -> None:
    ended = ", ".join(f"{number:,} {status.replace('_', '-')}" for status, number in sorted(result.ended.items()))
    print_line(
        f"{counted(result.jobs, 'job')} in {result.seconds:.1f} s on SQLite, {result.processes} worker processes"
    )
    if (killed := result.killed) is not None:
        print_text(
            f"killed: worker {killed.pid}, with SIGKILL, while it ran {counted(killed.running, 'job')}; "
            f"recovered after {killed.recovered_seconds:.1f} s, ended after {killed.ended_seconds:.1f} s",
            indent=8,
        )
    print_line(f"ended: {ended or 'none'}; {counted(result.retried, 'attempt')} failed and were retried")
    print_line(f"effects: {result.effects:,}")
    print_line(f"verified: {counted(result.events, 'event')}")
    for problem in result.problems:
        print_line(f"problem: {problem}", level="error")
    if result.problems:
        _print_log(folder)
    else:
        print_line("no job was lost, no effect was applied twice, every record matches its events", level="ok")
    if kept:
        print_line(f"kept: {folder}; list its jobs with: tenure jobs ls --database sqlite:///{folder / 'jobs.db'}")


def _print_log(folder: Path) -> None:
    log = folder / "workers.log"
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
    for line in ["the workers' log ends with:", *lines]:
        click.echo(line, err=True)
