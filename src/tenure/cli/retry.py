"""`tenure jobs retry`: run failed, dead-lettered and halted jobs again, as new jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from tenure.cli.bulk import change_each, change_matching, confirm_jobs, print_each, print_report, require_choice
from tenure.cli.database import common_options
from tenure.cli.filters import GivenId, job_filter, job_filters, job_id, many_options
from tenure.client.redrive import REDRIVABLE

if TYPE_CHECKING:
    from tenure.stores.contract import EnqueueResult


@click.command()
@common_options
@click.argument("ids", metavar="[ID]...", nargs=-1, type=job_id)
@job_filters
@click.option("--all-matching", "every", is_flag=True, help="Retry all ended jobs without a result that match.")
@many_options
def retry(
    *, database: str, as_json: bool, ids: tuple[GivenId, ...], every: bool, limit: int, yes: bool, **filters: Any
) -> int:
    """Run failed, dead-lettered and halted jobs again.

    Each becomes a new job that is linked to the old one, which stays as it is. Repeating a retry enqueues no second
    job. --all-matching leaves out dead letters that were discarded. Exit code 1 if any retry was refused.
    """
    require_choice(ids, filters, every=every, flag="--all-matching")
    if ids:
        results = change_each(database, ids, lambda acting, one: acting.redrive(one))
        return print_each(results, retried_line("retried"), retried_fields, as_json=as_json)
    if not yes:
        confirm_jobs("retry", database, REDRIVABLE, filters)
    report = change_matching(
        database, job_filter, filters, lambda acting, wanted: acting.retry_many(wanted, limit=limit)
    )
    changed = f"{report.redriven:,} retried, {report.already_redriven:,} retried before"
    return print_report(report, changed, as_json=as_json)


def retried_line(verb: str) -> Callable[[UUID, EnqueueResult], str]:
    """Prints a job that was retried or redriven."""

    def line(job_id: UUID, result: EnqueueResult) -> str:
        if result.created:
            return f"{job_id} {verb} as {result.job.id}"
        return f"{job_id} was {verb} before as {result.job.id}, which is {result.job.status}"

    return line


def retried_fields(result: EnqueueResult) -> dict[str, Any]:
    """The new job of a retry or redrive."""
    return {"redriven_as": result.job.id, "created": result.created, "status": result.job.status}
