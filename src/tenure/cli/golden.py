"""`tenure golden`: record runs as golden files, and replay them against today's code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tenure.cli.app_loader import load_app
from tenure.cli.database import common_options, in_store, run
from tenure.cli.filters import GivenId, job_id, read_job
from tenure.cli.groups import CommandGroup
from tenure.cli.output import Exit, counted, print_error, print_json, print_line
from tenure.stores.contract.steps import all_steps

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.stores.contract import Store
    from tenure.workflow.golden_differences import Difference
    from tenure.workflow.golden_file import GoldenFile


@click.group(cls=CommandGroup)
def golden() -> None:
    """Record runs as golden files, and check today's code against them."""


@golden.command()
@common_options
@click.argument("wanted", metavar="ID", type=job_id)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("golden"),
    show_default=True,
    help="The folder to write to.",
)
def record(*, database: str, as_json: bool, wanted: GivenId, folder: Path) -> int:
    """Write a run that has ended as a golden file: its payload, its steps with their results, and its outcome.

    The file is named after the workflow and the run. It contains what the run contains: review it before you publish
    it.
    """
    recorded = in_store(database, lambda store: _recorded(store, wanted))
    path = folder / recorded.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(recorded.text())
    except OSError as problem:
        print_error(f"{path} cannot be written: {problem.strerror}")
        return Exit.PROBLEMS
    if as_json:
        print_json({"file": str(path), "kind": recorded.kind, "id": recorded.id, "steps": len(recorded.steps)})
    else:
        print_line(f"{path}: {counted(len(recorded.steps), 'step')}, {recorded.outcome.status}")
    return Exit.OK


async def _recorded(store: Store, wanted: GivenId) -> GoldenFile:
    from tenure.workflow.golden_file import golden_file

    job = await read_job(store, wanted)
    return golden_file(job, await all_steps(store, job.id))


@golden.command()
@click.argument("place", metavar="DIR|FILE", type=click.Path(path_type=Path))
@click.option("--app", "target", metavar="MODULE:APP", required=True, help="The app that declares the workflows.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(*, place: Path, target: str, as_json: bool) -> int:
    """Replay golden files against today's code, and print what differs. Exit code 1 if something does.

    No step is executed, no database is opened, and nothing is written.
    """
    from tenure.workflow.golden_file import golden_paths

    paths = golden_paths(place)
    differences = run(_differences(load_app(target), paths))
    found = any(differences.values())
    if as_json:
        print_json({"files": {str(path): of_file for path, of_file in differences.items()}, "same": not found})
        return Exit.PROBLEMS if found else Exit.OK
    for path, of_file in differences.items():
        print_line(f"{path}: {counted(len(of_file), 'difference') if of_file else 'the same'}")
        for difference in of_file:
            print_line("  " + str(difference).replace("\n", "\n    "), level="error")
    return Exit.PROBLEMS if found else Exit.OK


async def _differences(app: App, paths: list[Path]) -> dict[Path, list[Difference]]:
    from tenure.workflow.golden import replay_golden_file
    from tenure.workflow.golden_file import read_golden_file

    return {path: await replay_golden_file(read_golden_file(path), app.kinds, app.seams) for path in paths}
