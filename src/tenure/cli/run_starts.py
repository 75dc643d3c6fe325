"""`tenure runs fork` and `tenure runs start-plan`: new runs."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import click

from tenure.cli.database import common_options, in_store, run
from tenure.cli.enqueue import print_enqueued
from tenure.cli.filters import GivenId, job_id, operator, read_job
from tenure.cli.output import Exit, counted, print_json, print_line
from tenure.cli.secrets import without_secrets
from tenure.client.forks import fork_run
from tenure.errors import InvalidInput
from tenure.lifecycle.budgets import Budget, budget_of
from tenure.lifecycle.json_text import parse
from tenure.lifecycle.records import Job
from tenure.seams import SYSTEM
from tenure.stores.contract import EnqueueResult, Store
from tenure.views.jobs import job_view

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.client.handle import Handle


def replacement(value: str) -> tuple[str, Any]:
    """Parse a replaced result, STEP=JSON."""
    step, found, text = value.partition("=")
    if not found or not step:
        raise click.BadParameter(f"{value!r} is not STEP=JSON, for example 'search=[\"a\"]'")
    try:
        return step, parse(text, where="JSON")
    except InvalidInput as refusal:
        raise click.BadParameter(f"{step}: {refusal}; text needs quotes: '{step}=\"text\"'") from None


def limit(value: str) -> tuple[str, float]:
    """Parse a limit, UNIT=AMOUNT."""
    unit, _, amount = value.partition("=")
    try:
        return unit, float(amount)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not UNIT=AMOUNT, for example cost=2.5") from None


@click.command()
@common_options
@click.argument("wanted", metavar="ID", type=job_id)
@click.option("--from", "from_step", metavar="STEP", help="The key or name of the first step that is executed again.")
@click.option(
    "--replace", type=replacement, multiple=True, metavar="STEP=JSON", help="Another result for a recorded step."
)
@click.option(
    "--budget",
    type=limit,
    multiple=True,
    metavar="UNIT=AMOUNT",
    help="A limit of the new run; none of the old ones apply.",
)
@click.option("--request-id", metavar="ID", help="Repeated with the same id, the command starts one run.")
def fork(
    *,
    database: str,
    as_json: bool,
    wanted: GivenId,
    replace: tuple[tuple[str, Any], ...],
    budget: tuple[tuple[str, float], ...],
    **given: Any,
) -> int:
    """Continue an ended or parked run as a new run that reuses its recorded steps."""
    given |= {"replace": dict(replace), "budget": _budget(budget)}
    old, enqueued = in_store(database, lambda store: _fork(store, wanted, **given))
    if as_json:
        print_json({"job": job_view(without_secrets(enqueued.job)), "created": enqueued.created, "forked_from": old.id})
    else:
        print_line(f"{enqueued.job.id} forked from {old.id}")
        if old.live:
            print_line(f"{old.id} is still parked; tenure jobs cancel {old.id} ends it")
    return Exit.OK


async def _fork(store: Store, wanted: GivenId, **given: Any) -> tuple[Job, EnqueueResult]:
    job = await read_job(store, wanted)
    return job, await fork_run(store, job, actor=operator(), seams=SYSTEM, **given)


def _budget(limits: tuple[tuple[str, float], ...]) -> Budget | None:
    return budget_of(dict(limits)) if limits else None


@click.command("start-plan")
@click.argument("file", type=click.File("r"))
@click.option("--app", "target", metavar="MODULE:APP", required=True, help="The app that registers the skills.")
@click.option("--database", metavar="URL", help="Use this database instead of the app's.")
@click.option("--goal", metavar="TEXT", help="What the run is for; by default the goal in the file.")
@click.option("--budget", type=limit, multiple=True, metavar="UNIT=AMOUNT", help="A limit of what the run may spend.")
@click.option("--queue", metavar="NAME", help="Another queue than the default one.")
@click.option("--request-id", metavar="ID", help="Repeated with the same id, the command starts one run.")
@click.option("--dry-run", is_flag=True, help="Validate the plan, and start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def start_plan(
    *,
    file: IO[str],
    target: str,
    database: str | None,
    goal: str | None,
    budget: tuple[tuple[str, float], ...],
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Start a run of the plan in FILE, a JSON object of steps and, if wanted, a goal; - reads standard input.

    The plan is validated against the skills of the app. Exit code 2 if it does not fit; then nothing is stored.
    """
    from tenure.cli.app_loader import load_app

    app = load_app(target, database=database)
    app.client = operator()
    plan = parse(file.read(), where="plan")
    in_file = plan.pop("goal", None) if isinstance(plan, dict) else None
    goal = in_file if goal is None else goal
    if goal is None:
        raise click.UsageError('the plan has no goal; add "goal" to the file, or use --goal')
    if dry_run:
        return _checked(app, goal, plan, as_json=as_json)
    handle = run(_start_plan(app, goal, plan, {**given, "budget": _budget(budget)}))
    return print_enqueued(handle, as_json=as_json)


def _checked(app: App, goal: str, plan: Any, *, as_json: bool) -> int:
    steps = len(app.check_plan(goal=goal, plan=plan).steps)
    if as_json:
        print_json({"steps": steps, "valid": True})
    else:
        print_line(f"the plan is valid: {counted(steps, 'step')}; nothing was started")
    return Exit.OK


async def _start_plan(app: App, goal: str, plan: Any, options: dict[str, Any]) -> Handle[Any]:
    async with app:
        return await app.run_plan(goal=goal, plan=plan, **options)
