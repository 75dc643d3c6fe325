"""`tenure prune`: removes finished jobs and details that are older than the given ages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from tenure.cli.app_loader import load_app
from tenure.cli.database import common_options_but_app, database_of, in_store
from tenure.cli.filters import job_admin, time_or_age
from tenure.cli.output import Exit, ProgressDisplay, counted, print_json, print_line, progress
from tenure.client.admin import PruneReport
from tenure.lifecycle.retention import DAY_SECONDS, Retention
from tenure.lifecycle.statuses import DEAD_LETTERED, TERMINAL
from tenure.stores.contract import Store
from tenure.stores.database_url import shown_url

STATUSES = sorted(status.value for status in TERMINAL)


def _age(value: str) -> float:
    """Parse an age like 12h or 30d, as days."""
    age = time_or_age(value)
    if not isinstance(age, timedelta):
        raise click.BadParameter(f"{value!r} is not an age like 90s, 15m, 12h, 30d")
    return age.total_seconds() / DAY_SECONDS


@click.command()
@common_options_but_app
@click.option(
    "--app",
    "app_name",
    metavar="MODULE:APP",
    help="Use the database of this app, and its retention if no age is given.",
)
@click.option("--older-than", "finished", type=_age, metavar="AGE", help="Finished jobs that ended this long ago.")
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only of this status; can be repeated."
)
@click.option("--kind", "kinds", multiple=True, metavar="NAME", help="Only of this kind; can be repeated.")
@click.option("--verbose", type=_age, metavar="AGE", help="Details of progress events this old.")
@click.option("--delivered", type=_age, metavar="AGE", help="Outbox messages that were delivered this long ago.")
@click.option("--workers", type=_age, metavar="AGE", help="Rows of workers that were last seen this long ago.")
@click.option("--dry-run", is_flag=True, help="Count, and remove nothing.")
def prune(*, database: str, as_json: bool, app_name: str | None, dry_run: bool, **ages: Any) -> int:
    """Remove finished jobs and old details.

    Ages are like 12h or 30d. Live jobs are never removed. Dead letters are removed only with --status dead_lettered,
    or by the retention of an app. Workers prune by the retention of their app on their own.
    """
    if app_name is not None and not any(ages.values()):
        retention = load_app(app_name).retention
    else:
        retention = _retention(**ages)
    database = database_of(app_name, database)
    with progress(as_json=as_json) as display:
        report = in_store(
            database, lambda store: _prune(store, retention, kinds=ages["kinds"], dry_run=dry_run, display=display)
        )
    if as_json:
        print_json({"database": shown_url(database), "removed": report})
    else:
        _print(report)
    return Exit.OK


def _retention(
    *,
    finished: float | None,
    statuses: Sequence[str],
    kinds: Sequence[str],
    verbose: float | None,
    delivered: float | None,
    workers: float | None,
) -> Retention:
    """The retention that the options describe; what they do not name is kept."""
    if finished is None and (statuses or kinds):
        raise click.UsageError("--status and --kind need --older-than")
    if (finished, verbose, delivered, workers) == (None, None, None, None):
        raise click.UsageError("name what to remove, for example --older-than 30d, or --app MODULE:APP")
    wanted = statuses or [status for status in STATUSES if status != DEAD_LETTERED]
    days: dict[str, Any] = {f"{status}_days": finished for status in wanted}
    return Retention(**days, verbose_days=verbose, delivered_days=delivered, workers_days=workers)


async def _prune(
    store: Store, retention: Retention, *, kinds: Sequence[str], dry_run: bool, display: ProgressDisplay
) -> PruneReport:
    planned = await job_admin(store).prune(retention, kinds=kinds, dry_run=True)
    if dry_run:
        return planned

    async def show(report: PruneReport) -> None:
        display.show(f"{report.total:,} of about {planned.total:,}", min(report.total / max(planned.total, 1), 1.0))

    return await job_admin(store).prune(retention, kinds=kinds, after_batch=show)


def _print(report: PruneReport) -> None:
    verb = "would remove" if report.dry_run else "removed"
    for status, count in sorted(report.jobs.items()):
        print_line(f"{verb} {counted(count, f'{status} job')}")
    others = {
        "progress detail": report.details,
        "worker row": report.workers,
        "delivered message": report.messages,
        "rate usage row": report.rate_usage,
    }
    for noun, count in others.items():
        if count:
            print_line(f"{verb} {counted(count, noun)}")
    if not report.total:
        print_line("nothing to remove")
